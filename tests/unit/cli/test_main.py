from __future__ import annotations

import subprocess
import sys
import warnings
from typing import TYPE_CHECKING

from hothead import __version__
from hothead.cli import notes

if TYPE_CHECKING:
    import pytest
    from tests.unit.cli.conftest import CommandLine


def test_version_and_help(hothead: CommandLine) -> None:
    assert hothead("--version").out == f"hothead {__version__}\n"
    done = hothead("--help")
    assert done.code == 0
    assert "generate" in done.out
    assert "models" in done.out


def test_help_groups_options_under_headings(hothead: CommandLine) -> None:
    out = hothead("generate", "--help").out
    assert [line for line in out.splitlines() if line.endswith(":") and not line.startswith(" ")] == [
        "Input and output:",
        "Sampling:",
        "Engine:",
        "Options:",
    ]


def test_an_unknown_command_names_the_nearest(hothead: CommandLine) -> None:
    done = hothead("generat")
    assert done.code == 2
    assert "No such command 'generat'. Did you mean generate?" in done.err


def test_a_closed_pipe_is_no_error(source_path: dict[str, str]) -> None:
    command = f'"{sys.executable}" -m hothead generate --help | true; echo "${{PIPESTATUS[0]}}"'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, env=source_path)
    assert done.stderr == ""
    assert done.stdout.strip() in ("0", "141")


def test_warnings_become_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with notes.warnings_as_notes():
        warnings.warn("the map has 3 fillers", UserWarning, stacklevel=1)
        warnings.warn("for programmers", DeprecationWarning, stacklevel=1)
    assert capsys.readouterr().err == "Warning: the map has 3 fillers\n"


def test_progress_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with notes.progress("work", 2) as advance:
        advance()
    assert capsys.readouterr().err == ""
