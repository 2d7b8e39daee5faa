"""Generated pages say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scripts import generate_docs

ROOT = Path(__file__).resolve().parents[2]


def test_generated_pages_are_up_to_date(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["generate_docs.py", "--check"])
    code = generate_docs.main()
    assert code == 0, capsys.readouterr().err


def test_links_between_pages_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert not broken, broken


def test_only_marked_parts_are_replaced() -> None:
    text = "a\n<!-- generated: x -->\nold\n<!-- end -->\nb\n"
    assert generate_docs.with_generated_parts(text, {"x": "new"}) == "a\n<!-- generated: x -->\nnew\n<!-- end -->\nb\n"
