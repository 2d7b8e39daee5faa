"""Every `file.py:function` that the documentation names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "hothead"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_STOP = re.compile(r"`([\w/]+\.py):([\w.]+)`")


def names_in(path: Path) -> set[str]:
    """Functions, classes and module-level names, methods and fields as 'Class.name'."""

    def collect(body: list[ast.stmt], prefix: str) -> set[str]:
        found: set[str] = set()
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found.add(prefix + node.name)
            elif isinstance(node, ast.ClassDef):
                found |= {prefix + node.name} | collect(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Assign):
                found |= {prefix + target.id for target in node.targets if isinstance(target, ast.Name)}
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(prefix + node.target.id)
        return found

    return collect(ast.parse(path.read_text(encoding="utf-8")).body, "")


def missing_stops(text: str) -> list[str]:
    missing = []
    for file, name in _STOP.findall(text):
        path = next((base / file for base in (PACKAGE, ROOT) if (base / file).is_file()), None)
        if path is None or name not in names_in(path):
            missing.append(f"{file}:{name}")
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_stop_exists(page: Path) -> None:
    assert missing_stops(page.read_text(encoding="utf-8")) == []


def test_architecture_has_both_traces() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    for heading in ("## A prompt to tokens", "## A map from file to sharded head"):
        section = text.partition(heading)[2].partition("\n## ")[0]
        assert len(_STOP.findall(section)) >= 5, heading


def test_a_missing_stop_is_found() -> None:
    text = "`config/option.py:option`, `config/option.py:Options.check`, `config/option.py:optoin`, `config/nothing.py:option`"
    assert missing_stops(text) == ["config/option.py:optoin", "config/nothing.py:option"]
