"""Print the commands of README blocks that carry a marker, so that what is tested is what a reader is told. Guides are marked alike.

    python scripts/readme_commands.py install

A block is marked by the line before it: `<!-- run: install -->`. More than one word may stand there: `<!-- run: python real_model -->`.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
GUIDES = sorted((README.parent / "docs" / "guides").glob("*.md"))
_BLOCK = re.compile(r"<!-- run: (?P<marks>[^>]*?) -->\n```(?P<language>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block of the README: its marks, its language, and its text."""

    marks: frozenset[str]
    language: str
    body: str

    @property
    def commands(self) -> list[str]:
        """Shell commands of the block; a backslash at the end of a line continues it, lines of output and comments are left out."""
        lines = self.body.replace("\\\n", " ").splitlines()
        if self.language == "console":
            return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return [line for line in lines if line.strip() and not line.startswith("#")]


def blocks(text: str | None = None) -> list[Block]:
    """Marked blocks in the order in which they stand in the README."""
    source = README.read_text(encoding="utf-8") if text is None else text
    return [Block(frozenset(one["marks"].split()), one["language"], one["body"]) for one in _BLOCK.finditer(source)]


def main() -> int:
    wanted = set(sys.argv[1:])
    found = [command for block in blocks() if wanted <= block.marks for command in block.commands]
    if not found:
        print(f"README.md has no block that is marked {' '.join(sorted(wanted))}", file=sys.stderr)
        return 1
    print("\n".join(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
