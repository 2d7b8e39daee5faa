"""Help answers at once: nothing heavy is imported before a command runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hothead.vocab.formats.registry import FORMATS
from hothead.vocab.token_map import TokenMap

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


@pytest.mark.parametrize("arguments", [["inspect", "MAP"], *(["convert", "MAP", "--to", name, "-o", "OUT"] for name in FORMATS)])
def test_a_map_of_a_large_vocabulary_is_inspected_and_converted_without_torch(
    arguments: list[str], tmp_path: Path, source_path: dict[str, str]
) -> None:
    token_ids = np.arange(1, 131073, 2)[::-1]
    TokenMap(token_ids, np.arange(len(token_ids))[::-1].copy(), 248077).save(tmp_path / "MAP")
    places = {"MAP": str(tmp_path / "MAP"), "OUT": str(tmp_path / "OUT")}
    command = ["map", *(places.get(one, one) for one in arguments)]
    found = "[name for name in ('torch', 'transformers', 'matplotlib') if name in sys.modules]"
    code = f"import sys; from hothead.cli.main import run; print(run({command!r}), {found})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=source_path)
    assert done.stdout.splitlines()[-1] == "0 []", done.stderr
