"""What goes to stderr: notes, warnings, progress, figures."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO


def note(text: str) -> None:
    """Something that the user should know and that stops nothing."""
    print(f"Note: {text}", file=sys.stderr)


def line(text: str) -> None:
    """One line of progress."""
    print(text, file=sys.stderr, flush=True)


def figures(text: str) -> None:
    """The line of figures at the end, dimmed on a terminal."""
    print(f"\033[2m{text}\033[0m" if sys.stderr.isatty() else text, file=sys.stderr)


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Warnings become one line each; those that are meant for programmers (deprecations and the like) are left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = _show_warning
        yield


@contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on a terminal, nothing elsewhere; the value is called once per finished item."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, line: str | None = None
) -> None:
    print(f"Warning: {message}", file=sys.stderr)
