"""The public names of the package, pinned: adding one is a decision, removing one is a deprecation."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hothead

PUBLIC_NAMES = [
    "Completion",
    "Engine",
    "EngineConfig",
    "HotMapError",
    "HotheadError",
    "OptionError",
    "Request",
    "RequestStats",
    "SamplingParams",
    "StepOutput",
    "TokenMap",
    "__version__",
    "load_tokenizer",
]


def test_public_names_are_pinned() -> None:
    assert hothead.__all__ == PUBLIC_NAMES


@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_every_name_can_be_imported(name: str) -> None:
    assert getattr(hothead, name) is not None
    assert name in dir(hothead)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Engin'"):
        _ = hothead.Engin


def test_type_checkers_and_the_interpreter_see_the_same_names() -> None:
    tree = ast.parse(Path(hothead.__file__).read_text(encoding="utf-8"))
    guarded = next(node for node in tree.body if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING")
    imports = {alias.name: node.module for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imports == hothead._MODULES


def test_importing_the_package_imports_nothing_else(source_path: dict[str, str]) -> None:
    code = (
        "import sys, hothead; print([name for name in sys.modules if name.startswith('hothead.') or name in ('torch', 'numpy', 'click')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=source_path)
    assert done.stdout.strip() == "[]"
