"""Help answers at once: nothing heavy is imported before a command runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "pydantic", "tokenizers", "gguf", "safetensors", "huggingface_hub", "numpy", "rich.console")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["generate", "--help"],
        ["models", "--help"],
        ["map", "inspect", "--help"],
        ["train", "eagle", "--help"],
        ["train", "eagle"],
        ["generate", "x", "--tp", "0"],
        ["generat"],
    ],
)
def test_nothing_heavy_is_imported_for_help_and_refusals(arguments: list[str], source_path: dict[str, str]) -> None:
    found = f"[name for name in {HEAVY!r} if name in sys.modules]"
    code = f"import sys; from hothead.cli.main import run; run({arguments!r}); print('HEAVY', {found})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=source_path)
    assert done.stdout.splitlines()[-1] == "HEAVY []", done.stderr
