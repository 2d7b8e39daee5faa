from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.unit.cli.conftest import CommandLine


def test_list_says_what_is_there(hothead: CommandLine, tmp_path: Path) -> None:
    done = hothead("models", "list", "--cache-dir", str(tmp_path))
    assert done.code == 0, done.err
    assert done.out.startswith("smollm2-135m-instruct:\n  title:      SmolLM2 135M Instruct")
    assert "  fetched:    no\n" in done.out


@pytest.mark.parametrize("command", ["pull", "show"])
@pytest.mark.parametrize(
    ("name", "expected"), [("smollm2-135m-instrct", "Did you mean smollm2-135m-instruct?"), ("./nothing.gguf", "no file or folder")]
)
def test_an_unknown_model_is_refused(hothead: CommandLine, command: str, name: str, expected: str) -> None:
    done = hothead("models", command, name)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("ModelNotFoundError: ")
    assert expected in done.err


@pytest.mark.real_model
def test_show_describes_the_default_model(hothead: CommandLine) -> None:
    done = hothead("models", "show", "smollm2-135m-instruct")
    assert done.code == 0, done.err
    assert "  head_rows:             49,152\n" in done.out
    assert "  tp_size 2, rows_per_rank 24576, padded_rows 0 0\n" in done.out
