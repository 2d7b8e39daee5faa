"""A rule: one row of a table that says when a launch is wrong, what to say, and which command is right."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter
from typing import Any

from hothead.preflight.finding import CheckInfo, Finding, Number, Severity
from hothead.preflight.foreign.facts import Facts
from hothead.preflight.foreign.options import Option, version_key
from hothead.preflight.foreign.parsed import Parsed

Condition = Callable[[Facts], object]


@dataclass(frozen=True)
class Change:
    """The launch with other options. say: why, with names of facts in braces.

    put: dest -> value with names of facts in braces, None to leave the option out, True for a flag.
    """

    say: str
    put: Mapping[str, str | bool | None]


@dataclass(frozen=True)
class Run:
    """A command that makes what is missing, with names of facts in braces; then: options of the launch to change, as in Change."""

    say: str
    command: str
    put: Mapping[str, str | bool | None] = field(default_factory=dict)


Advice = Change | Run | str


@dataclass(frozen=True)
class Rule:
    """when: the launch is as `what` says. fine_when: it was looked at and is fine, as `fine` says. numbers: facts to show.

    advice: what to do, or a choice by the facts. since, until: versions, "" for open; until itself is included.
    """

    check_id: str
    title: str
    severity: Severity
    when: Condition
    what: str
    story: str
    sources: tuple[str, ...]
    numbers: tuple[str, ...] = ()
    advice: Advice | Callable[[Facts], Advice] = ""
    fine_when: Condition | None = None
    fine: str = ""
    since: str = ""
    until: str = ""

    def applies_to(self, version: str) -> bool:
        at = version_key(version)
        return at >= version_key(self.since) and (not self.until or at <= version_key(self.until))

    def judge(self, launch: Launch) -> Finding | None:
        facts = launch.facts
        if self.when(facts):
            return Finding(
                self.check_id,
                self.severity,
                fill(self.what, facts),
                _numbers(self.numbers, facts),
                launch.advise(self.advice(facts) if callable(self.advice) else self.advice),
            )
        if self.fine_when is not None and self.fine_when(facts):
            return Finding(self.check_id, "ok", fill(self.fine, facts), _numbers(self.numbers, facts))
        return None


@dataclass(frozen=True)
class Launch:
    """A parsed command with what is known of it; writes it again with changes."""

    engine: str
    version: str
    prefix: tuple[str, ...]
    parsed: Parsed
    known: Mapping[str, Option]
    facts: Facts
    folder: Path

    def advise(self, advice: Advice) -> str:
        """What to do in a sentence, and below it the command that does it."""
        if isinstance(advice, str):
            return fill(advice, self.facts)
        lines = [fill(advice.say, self.facts)]
        if isinstance(advice, Run):
            lines.append(f"    {fill(advice.command, self.facts, quoted=True)}")
        if advice.put:
            lines.append(f"    {self.rendered(advice.put)}")
        return "\n".join(lines)

    def rendered(self, put: Mapping[str, str | bool | None]) -> str:
        """The command with these options put in place of what it has; the rest word for word."""
        words = [[word] for word in self.parsed.argv]
        added: list[str] = []
        for dest, value in put.items():
            name = self._name(dest)
            new = [] if value is None else [name] if value is True else [name, fill(str(value), self.facts)]
            used = [one for one in self.parsed.used if one.option.dest == dest and one.start >= 0]
            for one in used:
                words[one.start : one.stop] = [[] for _ in range(one.stop - one.start)]
            if used:
                words[used[-1].start] = new
            else:
                added += new
        return shlex.join([*self.prefix, *(part for word in words for part in word), *added])

    def _name(self, dest: str) -> str:
        names = [name for name, option in self.known.items() if option.dest == dest and name not in option.negative]
        return next((name for name in names if name.startswith("--")), f"--{dest.replace('_', '-')}")


def fill(text: str, facts: Mapping[str, Any], *, quoted: bool = False) -> str:
    """The text with facts in place of their names in braces; unknown ones are a question mark."""
    parts: list[str] = []
    for literal, name, _, _ in Formatter().parse(text):
        parts.append(literal)
        if name:
            value = facts[name]
            shown = "?" if value is None else str(value)
            parts.append(shlex.quote(shown) if quoted else shown)
    return "".join(parts)


def _numbers(names: Sequence[str], facts: Facts) -> dict[str, Number]:
    return {name: facts[name] for name in names if isinstance(facts[name], int | float | str)}


def info(rule: Rule, engine: str) -> CheckInfo:
    return CheckInfo(rule.check_id, engine, rule.title, rule.story, rule.sources)
