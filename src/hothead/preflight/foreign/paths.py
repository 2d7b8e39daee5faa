"""Where a path of a command lies."""

from __future__ import annotations

import os
from pathlib import Path


def located(name: str, folder: Path) -> Path:
    """The path as a shell in this folder would hand it over; ~ of a user who is not there stays as it is."""
    return folder / os.path.expanduser(name)  # noqa: PTH111 - Path.expanduser raises for unknown users
