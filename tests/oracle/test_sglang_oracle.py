"""SGLang's own argument resolution against ours, over the table of launch lines.

The answers of SGLang 0.5.23 are kept in sglang-0.5.23.json, so that every run compares with them. With
HOTHEAD_SGLANG_PYTHON=INTERPRETER the package is asked again; HOTHEAD_SGLANG_REWRITE=1 then keeps the new answers.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.importing import load_module
from tests.support.launches import make_launch_files

from hothead.preflight.foreign import judge
from hothead.preflight.foreign.options import load_table
from hothead.preflight.foreign.pasted import read_pasted

HERE = Path(__file__).parent
LINES = [line for line in load_module(HERE.parent / "unit" / "preflight" / "foreign" / "launches.py").SGLANG if line.has_oracle]
KEPT = HERE / "sglang-0.5.23.json"
INTERPRETER = os.environ.get("HOTHEAD_SGLANG_PYTHON")

OURS = {
    "speculative_algorithm": "algorithm",
    "speculative_num_steps": "num_steps",
    "speculative_eagle_topk": "eagle_topk",
    "speculative_num_draft_tokens": "num_draft_tokens",
    "speculative_token_map": "map",
    "speculative_draft_model_path": "draft",
    "speculative_use_rejection_sampling": "rejection",
    "enable_multi_layer_eagle": "multi_layer",
    "tp_size": "tp_size",
    "dp_size": "dp_size",
    "attn_dp_size": "attn_dp_size",
    "enable_dp_lm_head": "enable_dp_lm_head",
}
AT_RESOLUTION = {
    "sglang-incomplete-draft-options",
    "sglang-rejection-options",
    "sglang-parallel-sizes",
    "sglang-dp-lm-head",
    "sglang-attention-dp-draft",
    "sglang-refused",
    "sglang-algorithm-unknown",
}
"""Checks that say what SGLang's resolution would raise."""


def arguments(line: Any) -> list[str]:
    """What follows the program, on a machine without accelerator."""
    pasted = read_pasted([line.command])
    words = list(pasted.argv)
    if pasted.program == "serve" and not words[0].startswith("-"):
        words = ["--model-path", *words]
    return [*words, "--device", "cpu"]


def ask(folder: Path) -> Any:
    assert INTERPRETER is not None
    environment = {
        **os.environ,
        "PYTHONPATH": str(HERE / "stubs"),
        "SGLANG_USE_CPU_ENGINE": "1",
        "HF_HUB_OFFLINE": "1",
        "TORCHDYNAMO_DISABLE": "1",
    }
    asked = json.dumps({"folder": str(folder), "lines": [arguments(line) for line in LINES]})
    result = subprocess.run(
        [INTERPRETER, str(HERE / "sglang_oracle.py")], input=asked, env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_launch_files(tmp_path_factory.mktemp("oracle") / "files")


def compare(line: Any, answer: Any) -> None:
    """Refused by the parser, refused by the resolution, or resolved to the same values."""
    report = judge("sglang", [line.command])
    errors = {finding.check_id for finding in report.findings if finding.severity == "error"}
    assert answer["parsed"] == (not errors & {"sglang-arguments", "sglang-option-unknown"}), (line.name, answer["error"])
    if not answer["parsed"]:
        return
    assert (answer["resolved"] is None) == bool(errors & AT_RESOLUTION), (line.name, answer["error"], errors)
    if answer["resolved"] is not None:
        theirs = {ours: answer["resolved"][name] for name, ours in OURS.items()}
        ours = {name: report.launch.get(name) for name in theirs}
        assert ours == theirs, line.name


@pytest.fixture
def _in_files(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)


@pytest.mark.usefixtures("_in_files")
@pytest.mark.parametrize("line", LINES, ids=lambda line: line.name)
def test_we_resolve_what_sglang_resolved(line: Any) -> None:
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    assert line.name in kept["answers"], "ask SGLang again: see the top of this file"
    answer = kept["answers"][line.name]
    assert answer["arguments"] == arguments(line), "the line has changed: ask SGLang again"
    compare(line, answer)


def test_the_option_table_is_sglang_s() -> None:
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    table = load_table("sglang")
    assert kept["version"] == table.version
    assert sorted(table.known(table.version)) == kept["names"]


@pytest.mark.usefixtures("_in_files")
@pytest.mark.skipif(INTERPRETER is None, reason="HOTHEAD_SGLANG_PYTHON names no interpreter that has SGLang 0.5.23")
def test_sglang_itself_says_the_same(files: Path) -> None:
    answers = ask(files)
    kept = {
        "version": answers["version"],
        "names": answers["names"],
        "answers": {line.name: {"arguments": arguments(line), **answer} for line, answer in zip(LINES, answers["answers"], strict=True)},
    }
    if os.environ.get("HOTHEAD_SGLANG_REWRITE"):
        KEPT.write_text(json.dumps(kept, indent=1).replace(str(files), "FILES") + "\n", encoding="utf-8")
    for line, answer in zip(LINES, answers["answers"], strict=True):
        compare(line, answer)
    assert answers["names"] == sorted(load_table("sglang").known(answers["version"]))
