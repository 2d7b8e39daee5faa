"""The README's marked blocks run and say what they say. The install and test lines are run by .ci/run, in a new environment."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from scripts.readme_commands import GUIDES, README, Block, blocks

LEFT_TO_CI = {"install", "test"}
MAX_LINES = 200


def _cases(*, is_real: bool) -> list[ParameterSet]:
    chosen = [block for block in blocks() if not block.marks & LEFT_TO_CI and ("real_model" in block.marks) == is_real]
    return [pytest.param(block, id=" ".join(sorted(block.marks)) + f"-{number}") for number, block in enumerate(chosen, start=1)]


def _run(block: Block, folder: Path, environment: dict[str, str]) -> None:
    if "python" in block.marks:
        commands = [[sys.executable, "-c", block.body]]
    else:
        # The command is taken from this checkout, whether or not an installed one is on the path.
        commands = [
            ["bash", "-euo", "pipefail", "-c", f'hothead() {{ "{sys.executable}" -m hothead "$@"; }}; {line}'] for line in block.commands
        ]
    assert commands, block
    expected = 2 if "refused" in block.marks else 0
    for command in commands:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == expected, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
        if expected:
            shown = [line for line in block.body.splitlines() if line and not line.startswith("$ ")]
            assert done.stderr.splitlines() == shown


@pytest.mark.parametrize("block", _cases(is_real=False))
def test_commands_run(block: Block, tmp_path: Path, source_path: dict[str, str]) -> None:
    _run(block, tmp_path, source_path)


@pytest.mark.real_model
@pytest.mark.slow
@pytest.mark.parametrize("block", _cases(is_real=True))
def test_commands_with_the_default_model_run(block: Block, tmp_path: Path, source_path: dict[str, str]) -> None:
    _run(block, tmp_path, source_path)


@pytest.mark.real_model
@pytest.mark.slow
@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_a_guide_runs_from_top_to_bottom(guide: Path, tmp_path: Path, source_path: dict[str, str]) -> None:
    """All its blocks, in order, in one folder with the files that it takes for granted."""
    for name, answer in (("chats", "The tide follows the moon."), ("other-chats", "The moon pulls the sea.")):
        rows = [
            {"source": "ab"[number % 2], "messages": [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": answer * 3}]}
            for number in range(60)
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Name three rivers."}\n{"prompt": "What is a tide?"}\n')
    for block in blocks(guide.read_text(encoding="utf-8")):
        _run(block, tmp_path, source_path)


def test_set_up_lines_are_there() -> None:
    for mark in LEFT_TO_CI:
        assert sum(mark in block.marks for block in blocks()) == 1, mark


def test_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def test_blocks_are_read_as_they_stand() -> None:
    text = "x\n<!-- run: a b -->\n```console\n$ echo 1 \\\n    2\n1 2\n$ echo 3\n```\ny\n```bash\nrm -r unmarked\n```\n"
    text += "<!-- run: c -->\n```bash\n# why\necho 4\n```\n"
    first, second = blocks(text)
    assert (first.marks, first.commands) == ({"a", "b"}, ["echo 1      2", "echo 3"])
    assert (second.marks, second.commands) == ({"c"}, ["echo 4"])
