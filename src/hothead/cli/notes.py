"""What goes to stderr: notes, warnings, progress, figures."""

from __future__ import annotations

import sys
import time
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


@contextmanager
def steps(what: str, line_s: float = 30.0) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal, a line now and then elsewhere; the value is called with (done, in all)."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        with Progress(TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    last_s = time.monotonic()

    def show(done: int, total: int) -> None:
        nonlocal last_s
        if done == total or time.monotonic() - last_s >= line_s:
            last_s = time.monotonic()
            line(f"{what}: {done} of {total}")

    yield show


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, line: str | None = None
) -> None:
    print(f"Warning: {message}", file=sys.stderr)
