"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from hothead.errors import OutputError


def write_whole(path: Path, data: bytes) -> None:
    """Write to a temporary name in the same folder, then rename: nobody ever sees half a file. Raises OutputError."""
    write_all_whole({path: data})


def write_all_whole(contents: Mapping[Path, bytes]) -> None:
    """Several files: none is renamed before all are written. Raises OutputError."""
    temporaries = {path: path.with_name(f".{path.name}.{os.getpid()}.tmp") for path in contents}
    path = next(iter(contents))
    try:
        try:
            for path, data in contents.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                temporaries[path].write_bytes(data)
            for path, temporary in temporaries.items():
                temporary.replace(path)
        finally:
            for temporary in temporaries.values():
                temporary.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(
            f"'{path}' cannot be written: {error.strerror or error}.", f"{len(contents[path])} bytes were to be written."
        ) from error


def check_writable(path: Path) -> None:
    """Raise OutputError now, and not after an hour of work, if a file cannot be written there. Makes its folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"'{path}' cannot be written: {error.strerror or error}.") from error
    if path.is_dir():
        raise OutputError(f"'{path}' cannot be written: it is a folder.", advice="Give the name of a file.")
    if not os.access(path.parent, os.W_OK):
        raise OutputError(f"'{path}' cannot be written: the folder '{path.parent}' is read-only.")
