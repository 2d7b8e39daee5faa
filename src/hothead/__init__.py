"""Speculative decoding with a hot vocabulary that works at any tp_size, with any drafter, greedy or sampled.

    from hothead import Engine, EngineConfig, SamplingParams

    with Engine(EngineConfig()) as engine:
        prompt = engine.tokenizer.apply_chat_template([{"role": "user", "content": "Explain gravity in two sentences."}])
        print(engine.generate([prompt], SamplingParams(max_tokens=64))[0].text)

Names are imported when they are first used, so that `import hothead` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hothead.config.engine import EngineConfig
    from hothead.config.sampling import SamplingParams
    from hothead.engine import Completion, Engine, RequestStats
    from hothead.errors import HotheadError, HotMapError, OptionError
    from hothead.models.catalog import load_tokenizer
    from hothead.records import Request, StepOutput
    from hothead.vocab.token_map import TokenMap

__version__ = "0.1.0"

__all__ = [
    "Completion",
    "Engine",
    "EngineConfig",
    "HotMapError",
    "HotheadError",
    "OptionError",
    "Request",
    "RequestStats",
    "SamplingParams",
    "StepOutput",
    "TokenMap",
    "__version__",
    "load_tokenizer",
]

_MODULES = {
    "Completion": "hothead.engine",
    "Engine": "hothead.engine",
    "EngineConfig": "hothead.config.engine",
    "HotMapError": "hothead.errors",
    "HotheadError": "hothead.errors",
    "OptionError": "hothead.errors",
    "Request": "hothead.records",
    "RequestStats": "hothead.engine",
    "SamplingParams": "hothead.config.sampling",
    "StepOutput": "hothead.records",
    "TokenMap": "hothead.vocab.token_map",
    "load_tokenizer": "hothead.models.catalog",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'hothead' has no attribute '{name}'")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
