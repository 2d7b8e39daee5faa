"""Options of `hothead map build` besides the corpus."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hothead.config.option import Options, option
from hothead.errors import OptionError


@dataclass(frozen=True)
class MapBuildConfig(Options):
    """What becomes of the counts, and what the model writes itself."""

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
    num_self: int | None = option(
        None,
        flags=("--self",),
        help="The model writes N responses, and they count (kept beside the map: an interrupted run asks for the rest only).",
        ge=1,
        metavar="N",
    )
    prompts: Path | None = option(
        None,
        flags=("--prompts",),
        help="With --self: JSONL file of prompts to answer. Left out: the model writes the prompts too.",
        metavar="FILE",
    )
    temperature: float = option(0.0, flags=("--temperature",), help="With --self: of the responses; 0 is greedy.", ge=0.0)
    max_tokens: int = option(256, flags=("--max-tokens",), help="With --self: longest response.", ge=1)
    seed: int = option(0, flags=("--seed",), help="With --self: of sampled prompts and responses.", ge=0)

    def check(self) -> None:
        if self.size is not None and self.coverage is not None:
            raise OptionError(f"{self.said('size')} and {self.said('coverage')} both choose the map's size.", advice="Give one of the two.")
        if self.num_self is None:
            for name in ("prompts", "temperature", "max_tokens", "seed"):
                if name in self.origins:
                    raise OptionError(f"{self.said(name)} has no effect without --self.", advice="Add --self N, or drop the option.")
