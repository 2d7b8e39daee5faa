"""Options of `hothead map coverage` besides the corpus."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hothead.config.option import Options, option


@dataclass(frozen=True)
class MapCoverageConfig(Options):
    """What is shown of a map's hit rate."""

    heading: ClassVar[str] = "Coverage"

    sizes: tuple[int, ...] = option(
        (), flags=("--size",), help="Hot size to look at; may be repeated. Left out: powers of two from 1024, and the whole map.", ge=1
    )
    by: str | None = option(
        None, flags=("--by",), help="Key of JSON records that names their domain (a.b for nested ones), or 'file'.", metavar="KEY"
    )
    num_misses: int = option(10, flags=("--misses",), help="Most frequent tokens outside the map to show.", ge=0, le=1000)
    json: bool = option(False, flags=("--json",), help="Print one JSON object.")
    plot: Path | None = option(None, flags=("--plot",), help="Draw hit rate against size.", metavar="FILE.png")
