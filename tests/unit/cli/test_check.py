"""`hothead check --engine`: the report, its JSON, the story of a check, the ranks of the head, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hothead.cli.main import run
from hothead.preflight.finding import Finding
from hothead.preflight.foreign import FOREIGN_CHECKS
from hothead.preflight.report import SCHEMA_VERSION, as_text, verdict
from hothead.vocab.token_map import TokenMap

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
LAUNCH = "python -m sglang.launch_server --model-path target --speculative-algorithm EAGLE --speculative-draft-model-path draft"
CHAIN = "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, architecture in (("target", "LlamaForCausalLM"), ("draft", "LlamaForCausalLMEagle")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({**CONFIG, "architectures": [architecture]}))
    TokenMap(np.array([*range(0, 128256, 4), 128255])).save(tmp_path / "map.pt")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(*arguments: str) -> int:
    return run(["check", *arguments])


def test_a_launch_that_would_fail_is_a_no(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"{LAUNCH} {CHAIN} --tp 4 --speculative-token-map {models / 'map.pt'}".split()
    assert check("--engine", "sglang", "--layout", "--", *command) == 1
    out = capsys.readouterr().out
    assert "NO  sglang-map-past-shard" in out
    assert "rows_per_rank 32064" in out
    assert "--attn-dp-size 4 --enable-dp-lm-head" in out  # the way out is a command
    assert "The answer is no (1 no)." in out
    assert "4 of 4 ranks share the head (tensor parallel; 1 group)" in out
    rows = [line.split() for line in out.splitlines()[-4:]]
    assert [row[3:5] for row in rows] == [["32,064", "0"]] * 4
    assert [row[5] for row in rows] == ["8,017", "8,016", "8,016", "8,016"]  # balanced


def test_the_same_as_json_and_as_one_pasted_text(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"{LAUNCH} \\\n {CHAIN} --tp 4 --speculative-token-map {models / 'map.pt'}"
    assert check("--engine", "sglang", "--json", "--layout", command) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == SCHEMA_VERSION
    assert found["verdict"] == "no"
    assert found["launch"]["engine"] == "sglang"
    assert found["findings"][0].keys() == {"check_id", "severity", "what", "numbers", "advice"}
    assert found["findings"][0]["numbers"]["rows_per_rank"] == 32064
    assert [row["rows"] for row in found["layout"]] == [32064] * 4


def test_a_launch_that_works_is_fine(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"{LAUNCH} {CHAIN} --speculative-token-map {models / 'map.pt'}".split()
    assert check("--engine", "sglang", "--", *command) == 0
    assert "The answer is fine" in capsys.readouterr().out


def test_strict_makes_a_warning_a_no() -> None:
    warned = [Finding("a", "warning", "Something."), Finding("b", "ok", "Fine.")]
    assert (verdict(warned), verdict(warned, is_strict=True)) == ("warning", "no")
    assert (verdict(warned[1:]), verdict([], is_strict=True)) == ("fine", "fine")
    text = as_text([warned[1], warned[0]], {"engine": "vllm", "version": "1", "model": "m"}, is_strict=True)
    assert text.index("WARNING  a") < text.index("OK  b")
    assert "The answer is no (1 warning, 1 ok)" in text


def test_every_check_has_a_story(capsys: pytest.CaptureFixture[str]) -> None:
    assert check("--list") == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == [one.check_id for one in FOREIGN_CHECKS]
    assert check("--explain", "sglang-map-past-shard") == 0
    assert "Source: https://github.com/sgl-project/sglang/issues/4328" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "It was not said whose launch this is"),
        (["--engine", "sglang"], "There is no launch to judge"),
        (["--engine", "sgl", "--", "x"], "the engine 'sgl' is not known"),
        (["--explain", "sglang-map-past-shart"], "There is no check 'sglang-map-past-shart'.\n  Did you mean sglang-map-past-shard"),
    ],
)
def test_bad_usage_is_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(*arguments) == 2
    assert said in capsys.readouterr().err


def test_a_layout_that_is_not_known_is_said(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check("--engine", "vllm", "--layout", "--", "vllm", "serve", "target") == 2
    assert "The head's layout is not known for this launch" in capsys.readouterr().err
