"""How findings are shown: a report for people, JSON for programs, the list of checks and the story of one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from hothead.errors import OptionError, nearest
from hothead.preflight.finding import CheckInfo, Finding, Number, Severity

SCHEMA_VERSION = 1
"""Of the JSON object; a key that goes or changes its meaning raises it, a new key does not."""

_WORDS: dict[Severity, str] = {"error": "no", "warning": "warning", "note": "note", "ok": "ok"}
_ORDER: tuple[Severity, ...] = ("error", "warning", "note", "ok")


def verdict(findings: Iterable[Finding], *, is_strict: bool = False) -> str:
    """ "no", "warning" or "fine". is_strict: a warning is a no."""
    severities = {finding.severity for finding in findings}
    if "error" in severities or (is_strict and "warning" in severities):
        return "no"
    return "warning" if "warning" in severities else "fine"


def as_text(findings: Sequence[Finding], launch: Mapping[str, Number], *, is_strict: bool = False) -> str:
    """The gravest first; what was resolved, then each finding with its numbers and the way out, then the answer."""
    title = f"{launch.get('engine', 'hothead')} {launch.get('version', '')}".strip()
    facts = ", ".join(f"{name} {value}" for name, value in launch.items() if name not in ("engine", "version"))
    lines = [title, *([f"  {facts}"] if facts else []), ""]
    for finding in sorted(findings, key=lambda one: _ORDER.index(one.severity)):
        lines.append(f"{_WORDS[finding.severity].upper()}  {finding.check_id}")
        lines.append(f"  {finding.what}")
        if finding.numbers:
            lines.append(f"  ({', '.join(f'{name} {value}' for name, value in finding.numbers.items())})")
        lines += [f"  {line}" for line in finding.advice.splitlines()]
        lines.append("")
    answer = verdict(findings, is_strict=is_strict)
    counts = ", ".join(f"{count} {_WORDS[severity]}" for severity in _ORDER if (count := sum(one.severity == severity for one in findings)))
    explain = " hothead check --explain ID tells more of one." if findings else ""
    return "\n".join([*lines, f"The answer is {answer}{f' ({counts})' if counts else ''}.{explain}"])


def as_json(findings: Sequence[Finding], launch: Mapping[str, Number], *, is_strict: bool = False) -> str:
    """schema, verdict ("no", "warning", "fine"), launch, findings (check_id, severity, what, numbers, advice)."""
    record = {
        "schema": SCHEMA_VERSION,
        "verdict": verdict(findings, is_strict=is_strict),
        "launch": dict(launch),
        "findings": [asdict(finding) for finding in findings],
    }
    return json.dumps(record, ensure_ascii=False, indent=1)


def list_checks(checks: Sequence[CheckInfo]) -> str:
    width = max(len(check.check_id) for check in checks)
    return "\n".join(f"{check.check_id:{width}}  {check.title}" for check in checks)


def explain(check_id: str, checks: Sequence[CheckInfo]) -> str:
    """The long story of a check with its sources. Raises OptionError for an id that is not known."""
    known = {check.check_id: check for check in checks}
    if check_id not in known:
        raise OptionError(f"There is no check '{check_id}'.", nearest(check_id, known), advice="hothead check --list shows all of them.")
    check = known[check_id]
    return "\n".join(
        [f"{check.check_id} ({check.engine}): {check.title}", "", check.story, *(f"Source: {source}" for source in check.sources)]
    )
