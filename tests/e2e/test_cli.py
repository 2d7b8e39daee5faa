"""The command line on a real (small) model: what comes out, and every kind of bad input with its exit code."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.e2e.test_ranks import rank_pids, wait_until_gone
from tests.support.tiny import make_eagle, make_model

from hothead.cli.main import run
from hothead.vocab.token_map import TokenMap

PROMPT = "the quick brown fox"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def eagle(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_eagle(tmp_path_factory.mktemp("eagle"), model)
    TokenMap(np.arange(3, 203)[::-1].astype(np.int64), np.arange(200, 0, -1).astype(np.int64)).save(folder / "token_map.safetensors")
    return folder


@pytest.fixture
def generate(model: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str, prompt: str = PROMPT) -> tuple[int, str, str]:
        own_model = [] if "--model" in arguments else ["--model", str(model)]
        code = run(["generate", prompt, *own_model, *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_json_says_what_happened(generate: Run, eagle: Path) -> None:
    code, out, err = generate("--draft", str(eagle), "--max-tokens", "20", "--ignore-eos", "--json")
    assert code == 0, err
    (line,) = out.splitlines()
    answer = json.loads(line)
    assert answer["num_emitted"] == len(answer["token_ids"]) == 20
    assert answer["num_emitted"] == answer["num_steps"] + answer["num_accepted"]
    assert answer["finish_reason"] == "length"
    is_hot = [3 <= token_id < 203 for token_id in answer["token_ids"]]
    assert answer["hot_hit_rate"] == pytest.approx(sum(is_hot) / 20)
    assert answer["stage_s"].keys() == {"draft", "draft_head", "verify", "other"}


def test_a_small_model_drafts(generate: Run, model: Path, tmp_path: Path) -> None:
    plain = generate("--draft", "none", "--max-tokens", "16", "--ignore-eos", "--json")[1]
    common = ["--algorithm", "STANDALONE", "--max-tokens", "16", "--ignore-eos", "--json"]
    hot = tmp_path / "map.safetensors"
    TokenMap(np.arange(300)).save(hot)
    for own in ([], ["--map", str(hot)], ["--map", str(hot), "--tp-size", "2"]):
        code, out, err = generate(*common, "--draft", str(model), *own)
        assert code == 0, err
        answer = json.loads(out)
        assert answer["token_ids"] == json.loads(plain)["token_ids"]
        assert answer["num_accepted"] > 0
    assert answer["hot_hit_rate"] is not None
    code, _, err = generate(*common)
    assert (code, "STANDALONE needs a draft model." in err) == (2, True)
    other = make_model(tmp_path / "other", num_hidden_layers=1)
    text = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(text.replace("<|im_start|>", "<|begin|>"))
    code, _, err = generate(*common, "--draft", str(other))
    assert code == 2
    assert "token id 1 is '<|begin|>' in the draft model and '<|im_start|>' in the target" in err
    small = make_model(tmp_path / "small", num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, max_position_embeddings=12)
    code, out, err = generate(*common, "--draft", str(small), "--tp-size", "2")  # fewer heads than ranks, and a window that is soon full
    assert code == 0, err
    assert json.loads(out)["token_ids"] == json.loads(plain)["token_ids"]


def test_collectives_are_counted_and_replicated_rows_save_them(generate: Run, eagle: Path) -> None:
    found = {}
    for placement in ("balanced", "replicated"):
        options = ["--draft", str(eagle), "--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--hot-placement", placement]
        code, out, err = generate(*options, "--tp-size", "2", "--max-tokens", "12", "--ignore-eos", "--json")
        assert code == 0, err
        answer = json.loads(out)
        found[placement] = answer["num_collectives_per_step"] * answer["num_steps"]
        assert 1000 < answer["num_rank_bytes_per_step"] < 10**6
        assert sum(answer["step_sizes"]) == 12
    num_drafted = answer["num_drafted"]
    assert found["balanced"] - found["replicated"] == pytest.approx(num_drafted, abs=0.5), "one merge for each level of a chain"
    _, out, _ = generate("--draft", str(eagle), "--max-tokens", "4", "--json")
    assert json.loads(out)["num_collectives_per_step"] == json.loads(out)["num_rank_bytes_per_step"] == 0


def test_the_text_does_not_depend_on_how_it_was_drafted(generate: Run, eagle: Path) -> None:
    common = ["--max-tokens", "16", "--temperature", "0.8", "--seed", "3", "--ignore-eos"]
    texts = {
        generate(*common, *own)[1]
        for own in (
            ["--draft", "none"],
            ["--algorithm", "NGRAM"],
            ["--draft", str(eagle)],
            ["--draft", str(eagle), "--map", "none"],
            ["--draft", str(eagle), "--hot-size", "9", "--speculative-eagle-topk", "1"],
            ["--draft", str(eagle), "--hot-coverage", "0.5"],
        )
    }
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--tp", "0"], "tp"),
        (["--tp", "7"], "6 query heads"),
        (["--context-length", "999999"], "256 tokens"),
        (["--draft", "/nowhere/at/all"], "No draft head"),
        (["--algorithm", "EAGLE"], "needs a draft head"),
        (["--hot-size", "5"], "no head to cut"),
        (["--device", "cuda"], "CUDA"),
        (["--max-tokens", "0"], "max-tokens"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused(generate: Run, arguments: list[str], expected: str) -> None:
    code, out, err = generate(*arguments)
    assert (code, out) == (2, "")
    assert expected in err
    assert "Traceback" not in err


def test_a_prompt_past_the_context_window_is_refused_with_the_numbers(generate: Run) -> None:
    code, out, err = generate("--raw", prompt="fox " * 300)
    assert (code, out) == (2, "")
    assert "context window has room for 256" in err


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        (np.asarray([5, 6, 100000], np.int64), "100000"),
        (np.asarray([5, 6, 5], np.int64), "token id 5 occurs twice"),
        (np.asarray([5, -1], np.int64), "-1"),
        (np.asarray([5.0, 6.0], np.float32), "float"),
        (np.asarray([[5, 6]], np.int64), "shape [1, 2]"),
    ],
    ids=["out of range", "duplicated", "negative", "float", "2-D"],
)
def test_bad_maps_are_refused(generate: Run, eagle: Path, tmp_path: Path, token_ids: np.ndarray, expected: str) -> None:
    torch.save(torch.from_numpy(token_ids), tmp_path / "map.pt")
    code, out, err = generate("--draft", str(eagle), "--map", str(tmp_path / "map.pt"))
    assert (code, out) == (2, "")
    assert err.startswith("HotMapError")
    assert expected in err


def test_a_map_for_another_tokenizer_is_refused(generate: Run, eagle: Path, tmp_path: Path) -> None:
    TokenMap(np.arange(50, dtype=np.int64), tokenizer_fingerprint="0123456789abcdef" * 4).save(tmp_path / "map.safetensors")
    code, _, err = generate("--draft", str(eagle), "--map", str(tmp_path / "map.safetensors"))
    assert code == 2
    assert "another tokenizer" in err
    assert "0123456789ab" in err


def test_half_a_checkpoint_is_refused_with_what_is_missing(generate: Run, tmp_path: Path) -> None:
    model = make_model(tmp_path)
    weights = load_file(model / "model.safetensors")
    dropped = [name for name in weights if "layers.1.mlp" in name]
    save_file({name: weight for name, weight in weights.items() if name not in dropped}, str(model / "model.safetensors"))
    code, _, err = generate("--model", str(model))
    assert code == 2
    assert "layers.1.mlp.down_proj" in err
    assert "(3 of" in err


def test_a_truncated_checkpoint_is_refused(generate: Run, tmp_path: Path) -> None:
    model = make_model(tmp_path)
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    code, _, err = generate("--model", str(model))
    assert code == 2
    assert "CheckpointError" in err


def test_a_head_of_another_width_is_refused(generate: Run, model: Path, tmp_path: Path) -> None:
    code, _, err = generate("--draft", str(make_eagle(tmp_path, model, hidden_size=64)))
    assert code == 2
    assert "hidden size is 64, the target's 48" in err


def test_a_mistyped_path_is_not_a_download(generate: Run, model: Path) -> None:
    code, _, err = generate("--model", str(model) + "x")
    assert code == 2
    assert model.name in err  # the nearest name in that folder


@pytest.mark.parametrize("tp_size", [1, 2])
def test_ctrl_c_ends_everything_at_once(tp_size: int, model: Path, source_path: dict[str, str]) -> None:
    command = [sys.executable, "-m", "hothead", "generate", PROMPT, "--model", str(model), "--algorithm", "NONE", "--raw"]
    command += ["--max-tokens", "250", "--temperature", "1.0", "--ignore-eos", "--tp", str(tp_size)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=source_path)
    assert process.stdout is not None
    process.stdout.read(1)  # it is generating
    ranks = rank_pids(process.pid)
    assert len(ranks) == tp_size - 1
    process.send_signal(signal.SIGINT)
    start = time.monotonic()
    _, err = process.communicate(timeout=30)
    assert time.monotonic() - start < 10
    assert process.returncode == 130
    assert b"Traceback" not in err
    wait_until_gone(ranks)
