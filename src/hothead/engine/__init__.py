"""Many requests at once. Read `core.py` first: `EngineCore.step` is the table of contents."""

from hothead.engine.engine import Completion, Engine
from hothead.engine.stats import RequestStats

__all__ = ["Completion", "Engine", "RequestStats"]
