"""Imports go only to lower rows, never sideways. Reasons: docs/decisions/0001-import-rows.md."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "hothead"

ROWS = (
    ("errors",),
    ("config", "files"),
    ("records", "vocab"),
    ("parallel",),
    ("models", "verify"),
    ("corpus", "draft", "preflight"),
    ("engine",),
    ("serve", "bench", "train"),
    ("cli",),
    ("__init__", "__main__"),
)
ROW_OF = {name: number for number, names in enumerate(ROWS) for name in names}
WITHOUT_TORCH = ("errors", "config", "files", "records", "vocab", "corpus")
NAMES_OF_THE_PACKAGE_ITSELF = {"__version__"}


def part_of(module: str) -> str:
    """'hothead.config.engine' -> 'config'; 'hothead' -> '__init__'."""
    return [*module.split("."), "__init__"][1]


def imported_modules(tree: ast.AST, module: str) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that a module imports, wherever in the file; a name of a package counts as a module below it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*module.split(".")[: -node.level], *([node.module] if node.module else [])])
            if base != "hothead":
                yield node.lineno, base
                continue
            for alias in node.names:
                if alias.name not in NAMES_OF_THE_PACKAGE_ITSELF:
                    yield node.lineno, f"hothead.{alias.name}" if alias.name in ROW_OF else "hothead"


def violations(source: str, module: str) -> list[str]:
    """What a module of the package imports and must not."""
    own = part_of(module)
    found = []
    for line, name in imported_modules(ast.parse(source), module):
        top = name.split(".")[0]
        if own in WITHOUT_TORCH and top == "torch":
            found.append(f"{module}:{line} imports torch, which {own} does without")
        if top != "hothead":
            continue
        other = part_of(name)
        assert other in ROW_OF, f"{module}:{line} imports {name}, which has no row"
        if other != own and ROW_OF[other] >= ROW_OF[own]:
            kind = "sideways" if ROW_OF[other] == ROW_OF[own] else "upwards"
            found.append(f"{module}:{line} imports {name} {kind} (row {ROW_OF[own]} -> {ROW_OF[other]})")
    return found


def module_files() -> list[tuple[str, Path]]:
    """Name and path of every module; a package is named `folder.__init__`, so that the dots of relative imports count alike."""
    return [(".".join(["hothead", *path.relative_to(PACKAGE).with_suffix("").parts]), path) for path in sorted(PACKAGE.rglob("*.py"))]


def test_every_import_goes_down() -> None:
    found = [message for module, path in module_files() for message in violations(path.read_text(encoding="utf-8"), module)]
    assert not found, "\n".join(found)


def test_every_folder_has_a_row() -> None:
    parts = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    parts |= {path.stem for path in PACKAGE.glob("*.py")}
    assert parts <= ROW_OF.keys()


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("hothead.models.decoder", "from hothead.engine.engine import Engine", "upwards"),
        ("hothead.models.decoder", "import hothead.engine.engine", "upwards"),
        ("hothead.models.decoder", "from hothead import engine", "upwards"),
        ("hothead.models.decoder", "from ..engine import Engine", "upwards"),
        ("hothead.models.weights.gguf", "from ...engine import Engine", "upwards"),
        ("hothead.models.decoder", "def late():\n    from hothead.verify.tree import accept", "sideways"),
        ("hothead.vocab.token_map", "if TYPE_CHECKING:\n    from hothead.records import TokenTree", "sideways"),
        ("hothead.vocab.token_map", "def late():\n    import torch.nn", "torch"),
        ("hothead.cli.generate", "from hothead import Engine", "upwards"),
        ("hothead.errors", "import hothead", "upwards"),
    ],
)
def test_a_violation_is_found(module: str, source: str, expected: str) -> None:
    found = violations(source, module)
    assert len(found) == 1
    assert expected in found[0]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("hothead.engine.engine", "from hothead.draft.base import Drafter"),
        ("hothead.models.decoder", "from . import attention\nfrom .attention import Attention"),
        ("hothead.models.decoder", "import numpy as np\nimport torch"),
        ("hothead.cli.main", "from hothead import __version__"),
        ("hothead.__main__", "from hothead.cli.main import run"),
    ],
)
def test_what_is_allowed_passes(module: str, source: str) -> None:
    assert violations(source, module) == []
