from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hothead.errors import DraftError

if TYPE_CHECKING:
    from tests.unit.cli.conftest import CommandLine

JSON_KEYS = [
    "text",
    "token_ids",
    "finish_reason",
    "num_prompt_tokens",
    "num_emitted",
    "num_steps",
    "num_drafted",
    "num_accepted",
    "tokens_per_step",
    "step_sizes",
    "hot_hit_rate",
    "ttft_s",
    "decode_tokens_per_s",
    "num_collectives_per_step",
    "num_rank_bytes_per_step",
    "stage_s",
]


def test_one_prompt_is_streamed_and_followed_by_one_line_of_figures(hothead: CommandLine) -> None:
    done = hothead("generate", "abcd")
    assert done.code == 0
    assert done.out == "<user>abcd\n"
    assert done.err == (
        "10 tokens | 10.0 tokens/s | first after 0.25 s | 2.00 tokens per step | accepted by depth 0.75 0.50 | hot hit rate 0.900 | "
        "draft 0.10 s, draft head 0.20 s, verify 0.30 s, other 0.40 s\n"
    )
    assert done.engine is not None
    assert done.engine.is_closed


def test_several_prompts_are_printed_in_order_under_headings(hothead: CommandLine) -> None:
    done = hothead("generate", "ab", "cd\nef", "--raw")
    assert done.out == "### 1. ab\nab\n\n### 2. cd ef\ncd\nef\n\n"
    assert done.err.startswith("2 prompts, 7 tokens | ")


def test_json_has_the_documented_keys_and_nothing_else_is_on_stdout(hothead: CommandLine) -> None:
    done = hothead("generate", "abcd", "ef", "--json", "--raw")
    records = [json.loads(line) for line in done.out.splitlines()]
    assert [list(record) for record in records] == [JSON_KEYS] * 2
    assert records[0]["text"] == "abcd"
    assert records[0]["token_ids"] == [0, 1, 2, 3]
    assert records[0]["stage_s"] == {"draft": 0.1, "draft_head": 0.2, "verify": 0.3, "other": 0.4}
    assert records[0]["hot_hit_rate"] == 0.75


def test_options_reach_the_engine(hothead: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("tp_size: 2\nmax_tokens: 9\nstop: [x]\n", encoding="utf-8")
    flags = ["--max-tokens", "5", "--temperature", "0.5", "--seed", "3", "--stop-token-ids", "1", "--stop-token-ids", "2", "--map", "m.pt"]
    done = hothead("generate", "ab", "--config", str(tmp_path / "run.yaml"), *flags)
    assert done.code == 0
    assert done.engine is not None
    assert (done.engine.config.tp_size, done.engine.config.speculative_token_map) == (2, "m.pt")
    sampling = done.engine.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.seed, sampling.stop, sampling.stop_token_ids) == (5, 0.5, 3, ("x",), (1, 2))


def test_chat_raw_and_system(hothead: CommandLine) -> None:
    assert hothead("generate", "ab", "--system", "s").out == "<system>s<user>ab\n"
    assert hothead("generate", "ab", "--raw").out == "ab\n"
    refused = hothead("generate", "ab", "--raw", "--system", "s")
    assert (refused.code, refused.engine) == (2, None)
    assert refused.err == "OptionError: --system s has no effect with --raw: raw prompts have no roles.\n  Drop one of the two.\n"


def test_prompts_from_a_file_and_from_standard_input(hothead: CommandLine, tmp_path: Path) -> None:
    lines = b'\xef\xbb\xbf{"prompt": "ab", "source": "x"}\n\n'
    lines += b'{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "cd"}]}\r\n'
    (tmp_path / "prompts.jsonl").write_bytes(lines)
    from_file = hothead("generate", "--prompts-file", str(tmp_path / "prompts.jsonl"), "--system", "t")
    assert from_file.code == 0
    assert from_file.engine is not None
    assert from_file.engine.prompts == ["<system>t<user>ab", "<system>s<user>cd"]
    assert "Note: 1 of 2 prompts keep their own system message; --system t is for the others." in from_file.err
    from_stdin = hothead("generate", "first", "--prompts-file", "-", stdin=lines)
    assert from_stdin.engine is not None
    assert from_stdin.engine.prompts == ["<user>first", "<user>ab", "<system>s<user>cd"]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (b"", "standard input holds no prompt."),
        (b'{"prompt": "a"}\n{"prompt": "b"\n', "standard input line 2 is not JSON"),
        (b'{"prompt": "a"}\n\n[1]\n', "standard input line 3 holds a list, not an object"),
        (b'{"text": "a", "id": 1}\n', "line 1 has neither 'prompt' nor 'messages' (keys: id, text)."),
        (b'{"prompt": "a", "messages": []}\n', "line 1 has both 'prompt' and 'messages'."),
        (b'{"prompt": " "}\n', "line 1: 'prompt' must be text that is not empty"),
        (b'{"prompt": 3}\n', "line 1: 'prompt' must be text that is not empty, not 3."),
        (b'{"messages": []}\n', "line 1: 'messages' must be a list that is not empty"),
        (b'{"messages": [{"role": "user", "content": "a"}, {"role": "bot", "content": "b"}]}\n', "line 1: message 2 of 2 is"),
        (b'{"messages": [{"role": "user"}]}\n', "line 1: message 1 of 1 is"),
        (b'{"prompt": "\xff"}\n', "line 1 is not UTF-8 text (byte 12 of the line)."),
        (b'{"prompt": ' + b"[" * 200_000 + b"\n", "line 1 is not"),
    ],
)
def test_a_bad_line_is_named(hothead: CommandLine, lines: bytes, expected: str) -> None:
    done = hothead("generate", "--prompts-file", "-", stdin=lines)
    assert (done.code, done.engine, done.out) == (2, None, "")
    assert done.err.startswith("DataError: standard input")
    assert expected in done.err


def test_messages_need_a_chat_template(hothead: CommandLine) -> None:
    done = hothead("generate", "--raw", "--prompts-file", "-", stdin=b'{"messages": [{"role": "user", "content": "a"}]}')
    assert done.code == 2
    assert done.err.startswith("PromptError: standard input line 1 has messages, and --raw was given.")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "OptionError: There is no prompt."),
        ([""], "PromptError: Prompt 1 is empty."),
        (["a", "--tp-size", "0"], "OptionError: --tp-size 0 is out of range."),
        (["a", "--tp", "two"], "Invalid value for '--tp-size'"),
        (["a", "--hot-size", "5", "--hot-coverage", "0.5"], "OptionError: --hot-size 5 and --hot-coverage 0.5 both set"),
        (["a", "--map", "m", "--draft", "none"], "OptionError: --speculative-token-map m has no head to cut"),
        (["a", "--algorithm", "EAGEL"], "Did you mean EAGLE, EAGLE3?"),
        (["a", "--temprature", "1"], "--temperature"),
        (["--prompts-file", "missing.jsonl"], "DataError: Cannot read the prompts file missing.jsonl: No such file or directory."),
        (["a", "--config", "missing.yaml"], "OptionError: Cannot read the configuration file missing.yaml"),
    ],
)
def test_bad_usage_is_refused_before_anything_is_loaded(hothead: CommandLine, arguments: list[str], expected: str) -> None:
    done = hothead("generate", *arguments)
    assert (done.code, done.engine, done.out) == (2, None, "")
    assert expected in done.err
    assert "Traceback" not in done.err


def test_an_option_without_effect_is_noted(hothead: CommandLine) -> None:
    done = hothead("generate", "a", "--top-k", "5")
    assert done.code == 0
    assert "Note: --top-k 5 has no effect at temperature 0; add --temperature." in done.err
    done = hothead("generate", "a", "--verification", "rejection")
    assert "Note: --verification rejection has no effect at temperature 0" in done.err
    assert "Note" not in hothead("generate", "a", "--verification", "rejection", "--temperature", "0.7").err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (DraftError("No.", "1 of 2.", advice="Do it."), 2, "DraftError: No.\n  1 of 2.\n  Do it.\n"),
        (KeyboardInterrupt(), 130, "Interrupted.\n"),
        (OSError(28, "No space left on device"), 2, "OSError: [Errno 28] No space left on device\n"),
        (ValueError("x"), 2, "Internal error: ValueError: x\n  Run it again with --debug to see where, and please report it.\n"),
    ],
)
def test_what_becomes_of_an_error(
    hothead: CommandLine, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    from tests.unit.cli.conftest import FakeEngine

    monkeypatch.setattr(FakeEngine, "fail_with", error)
    done = hothead("generate", "abcd")
    assert (done.code, done.err.lstrip("\n")) == (code, message)
    assert done.engine is not None
    assert done.engine.is_closed


@pytest.mark.parametrize("arguments", [["--debug", "generate", "a"], ["generate", "a", "--debug"]])
def test_debug_shows_the_traceback(hothead: CommandLine, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    from tests.unit.cli.conftest import FakeEngine

    monkeypatch.setattr(FakeEngine, "fail_with", DraftError("No."))
    done = hothead(*arguments)
    assert done.code == 2
    assert "Traceback" in done.err
