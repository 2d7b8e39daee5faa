"""What a check is and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["ok", "note", "warning", "error"]
Number = int | float | str


@dataclass(frozen=True, slots=True)
class CheckInfo:
    """A check by its name, as `--list`, `--explain` and the generated page show it.

    engine: whose launches it judges ("hothead", "sglang", "vllm", "llama.cpp"). title: one line. story: why it matters and what happens
    without it. sources: where it was seen.
    """

    check_id: str
    engine: str
    title: str
    story: str
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's answer for one launch. An error is a no; a warning becomes one under --strict.

    what: one sentence with what was found. numbers: by name, for people and programs. advice: a command or an option that works, "" for ok.
    """

    check_id: str
    severity: Severity
    what: str
    numbers: Mapping[str, Number] = field(default_factory=dict)
    advice: str = ""
