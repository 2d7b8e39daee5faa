"""Descriptions as text that a person reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def as_text(description: Mapping[str, Any], indent: str = "") -> str:
    """'key: value' lines, values aligned. What is nested stands indented below its key, a table one row a line, what is unknown as '-'."""
    width = max((len(str(key)) for key, value in description.items() if not _is_nested(value)), default=0) + 1
    lines = []
    for key, value in description.items():
        if isinstance(value, Mapping):
            lines += [f"{indent}{key}:", as_text(value, indent + "  ")] if value else []
        elif _is_nested(value):
            lines += [f"{indent}{key}:", *(f"{indent}  {_row(row)}" for row in value)]
        else:
            lines.append(f"{indent}{f'{key}:':<{width}} {_shown(value)}")
    return "\n".join(lines)


def as_columns(rows: Sequence[Sequence[str]]) -> str:
    """A table: the first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]) for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def _is_nested(value: Any) -> bool:
    """A mapping, or a table: a list of mappings."""
    return isinstance(value, Mapping) or (isinstance(value, list) and bool(value) and all(isinstance(row, Mapping) for row in value))


def _row(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_shown(value, thousands='')}" for name, value in row.items())


def _shown(value: Any, thousands: str = ",") -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or "-"
    return f"{value:{thousands}}" if isinstance(value, int) else str(value)
