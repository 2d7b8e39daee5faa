"""Options of `hothead map size` besides the corpus."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hothead.config.option import Options, option
from hothead.errors import OptionError


@dataclass(frozen=True)
class MapSizeConfig(Options):
    """What the prediction rests on. Without a run and without assumptions a short run is made."""

    heading: ClassVar[str] = "Prediction"

    sizes: str | None = option(
        None,
        flags=("--sizes",),
        help="Hot sizes to compare. Left out: powers of two from 1024, the whole map, and the full head.",
        metavar="H,H,...",
    )
    run: Path | None = option(
        None, flags=("--run",), help="A run to take the drafter's quality from: lines of hothead generate --json.", metavar="FILE"
    )
    run_hot_size: int | None = option(
        None, flags=("--run-hot-size",), help="Hot size of that run. Left out: the whole map.", ge=1, metavar="H"
    )
    tokens_per_step: float | None = option(
        None, flags=("--tokens-per-step",), help="Assume a drafter instead: tokens per verify step with the whole map.", gt=1.0, metavar="X"
    )
    step_ms: float | None = option(
        None, flags=("--step-ms",), help="With it: milliseconds of a verify step without the draft head.", gt=0.0, metavar="MS"
    )
    num_steps: int = option(5, flags=("--speculative-num-steps",), help="With it: draft steps per verify step.", ge=1, le=64, metavar="N")
    draft: str | None = option(
        None, flags=("--speculative-draft-model-path", "--draft"), help="Draft head for the run that is made here.", metavar="DRAFT"
    )
    prompts: Path | None = option(
        None,
        flags=("--prompts",),
        help="JSONL file of prompts for the run that is made here. Left out: eight of hothead's own.",
        metavar="FILE",
    )
    head_times: Path | None = option(
        None,
        flags=("--head-times",),
        help="Head times measured elsewhere: JSON {hot size: seconds per verify step} or CSV.",
        metavar="FILE",
    )
    write_head_times: Path | None = option(
        None, flags=("--write-head-times",), help="Write the head times that were measured here.", metavar="FILE"
    )
    num_threads: int | None = option(None, flags=("--num-threads", "--threads"), help="CPU threads. Left out: one per core.", ge=1)
    json: bool = option(False, flags=("--json",), help="Print one JSON object.")
    plot: Path | None = option(None, flags=("--plot",), help="Draw tokens/s and hit rate against size.", metavar="FILE.png")

    def check(self) -> None:
        if self.sizes is not None and not all(part.strip().isdecimal() and int(part) > 0 for part in self.sizes.split(",")):
            raise OptionError(f"{self.said('sizes')} is no list of hot sizes.", advice="Give numbers: --sizes 1024,4096,8192.")
        if self.run is not None and self.tokens_per_step is not None:
            raise OptionError(
                f"{self.said('run')} and {self.said('tokens_per_step')} both tell the drafter's quality.", advice="Give one of the two."
            )
        if (self.tokens_per_step is None) != (self.step_ms is None):
            raise OptionError(
                f"{self.label('tokens_per_step')} and {self.label('step_ms')} go together: a drafter and what a step costs.",
                advice="Give both or none.",
            )
        if self.run_hot_size is not None and self.run is None:
            raise OptionError(f"{self.said('run_hot_size')} has no effect without --run.", advice="Drop it, or give --run FILE.")
        if self.head_times is not None and self.write_head_times is not None:
            raise OptionError("Head times that were given are not measured, so there is nothing to write.", advice="Drop one of the two.")
        for name in ("prompts", "draft"):
            if getattr(self, name) is not None and (self.run is not None or self.tokens_per_step is not None):
                raise OptionError(
                    f"{self.said(name)} has no effect: no run is made here.", advice="Drop it, or --run and --tokens-per-step."
                )

    @property
    def size_list(self) -> list[int] | None:
        return None if self.sizes is None else sorted({int(part) for part in self.sizes.split(",")})
