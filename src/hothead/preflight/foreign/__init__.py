"""Other engines' launches, judged from their command line: SGLang, vLLM and llama.cpp."""

from __future__ import annotations

from hothead.preflight.foreign.judge import ENGINES, FOREIGN_CHECKS, judge
from hothead.preflight.foreign.report import ForeignReport, ParallelLaunch

__all__ = ["ENGINES", "FOREIGN_CHECKS", "ForeignReport", "ParallelLaunch", "judge"]
