"""A JSON file that must hold a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hothead.errors import HotheadError


def read_json_table(file: Path, error_kind: type[HotheadError]) -> dict[str, Any]:
    """The file's table. Raises `error_kind` if it cannot be read, is not JSON, or holds something else."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise error_kind(f"{file} cannot be read as JSON: {error}.", advice="Fetch it again.") from error
    if not isinstance(content, dict):
        raise error_kind(f"{file} holds a {type(content).__name__} instead of a table.")
    return content
