"""What `judge` gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hothead.parallel.layout import ParallelConfig
from hothead.preflight.finding import Finding


@dataclass(frozen=True)
class ParallelLaunch:
    """What a table of ranks needs. family: a name in the tables of `parallel.layout`. num_rows: of the target's head in the checkpoint.

    map_path: the token map of the launch, or None.
    """

    family: str
    num_rows: int
    is_tied: bool
    parallel: ParallelConfig
    map_path: Path | None = None


@dataclass(frozen=True)
class ForeignReport:
    """findings: in the order of the tables. launch: what was resolved, for display. layout: where the head lies, if known."""

    findings: tuple[Finding, ...]
    launch: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    layout: ParallelLaunch | None = None
