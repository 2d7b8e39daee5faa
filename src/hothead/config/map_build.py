"""Options of `hothead map build` besides the corpus."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hothead.config.option import Options, option
from hothead.errors import OptionError


@dataclass(frozen=True)
class MapBuildConfig(Options):
    """What becomes of the counts."""

    heading: ClassVar[str] = "Map"

    output: Path = option(
        Path("token_map.safetensors"), flags=("--output", "-o"), help="The map's file; .pt writes the list that SGLang reads."
    )
    size: int | None = option(
        None,
        flags=("--size",),
        help="Exactly so many token ids. Left out: every one that was seen; the size is then chosen with --hot-size.",
        ge=1,
    )
    coverage: float | None = option(
        None, flags=("--coverage",), help="As many token ids as cover this share of the counts.", gt=0.0, le=1.0, metavar="SHARE"
    )
    has_bytes: bool = option(False, flags=("--bytes",), help="Every token that is one single byte is in.")
    counts_output: Path | None = option(
        None, flags=("--counts-output",), help="Write the counts too, for map merge, coverage and size.", metavar="FILE"
    )

    def check(self) -> None:
        if self.size is not None and self.coverage is not None:
            raise OptionError(f"{self.said('size')} and {self.said('coverage')} both choose the map's size.", advice="Give one of the two.")
