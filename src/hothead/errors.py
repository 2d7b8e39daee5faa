"""Every error that a user can cause: what happened, the numbers, what to do.

The first line says what happened, the indented lines give the numbers, the last one the way out. The command line prints
`str(error)` and leaves with `exit_code`; it never prints a traceback for one of these unless `--debug` is given.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class HotheadError(Exception):
    """Base of all errors that a user can cause.

    what: one sentence. details: one line each, with the numbers. advice: what to do, as a command where there is one.
    """

    exit_code = 2

    def __init__(self, what: str, *details: str, advice: str = "") -> None:
        self.what = what
        self.details = details
        self.advice = advice
        super().__init__(what, *details, advice)

    def __str__(self) -> str:
        return "\n".join([self.what, *(f"  {line}" for line in (*self.details, self.advice) if line)])

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process boundaries (a rank reports to the others), and keyword arguments do not survive pickling by default.
        return (_rebuild, (type(self), self.what, self.details, self.advice))


class OptionError(HotheadError):
    """An option has a value that it cannot take, or two options contradict each other."""


class ModelNotFoundError(HotheadError):
    """No model has this name, and no folder or file lies at this path."""


class DownloadError(HotheadError):
    """A model could not be fetched, or what came does not have the expected hash."""


class ModelConfigError(HotheadError):
    """The model needs a feature that is not implemented, or its configuration contradicts itself."""


class CheckpointError(HotheadError):
    """Weights are missing, left over, of the wrong shape, truncated, or in an unknown format."""


class TokenizerError(HotheadError):
    """The tokenizer or its chat template is missing or unusable."""


class HotMapError(HotheadError):
    """A token map is malformed or does not fit the model that it is used with."""


class DraftError(HotheadError):
    """A draft model or head cannot be used with this target."""


class PromptError(HotheadError):
    """A prompt is empty or too long for the context window or the KV cache."""


class DataError(HotheadError):
    """An input file (prompts, responses, corpus) cannot be read as what it should be."""


class OutputError(HotheadError):
    """A result cannot be written."""


class RankError(HotheadError):
    """A rank died or could not be started."""


def _rebuild(kind: type[HotheadError], what: str, details: tuple[str, ...], advice: str) -> HotheadError:
    return kind(what, *details, advice=advice)


def nearest(name: str, known: Iterable[str], limit: int = 3) -> str:
    """'Did you mean a, b?' for a mistyped name, or the known names when none is near."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=limit, cutoff=0.5)
    if close:
        return f"Did you mean {', '.join(close)}?"
    return f"Known: {', '.join(names)}." if names else ""
