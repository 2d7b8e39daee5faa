"""Token ids as text: one a line or a JSON list; what follows # on a line is a comment."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from hothead.errors import HotMapError
from hothead.vocab.formats.encodings import read_list
from hothead.vocab.formats.stored import StoredMap

_SEPARATORS = re.compile(r"[\s,;\[\]]+")
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_START = re.compile(rb"[\s\xef\xbb\xbf]*[-+\[#0-9]")


def is_text(start: bytes) -> bool:
    """Whether a file that begins like this may be one."""
    return _START.match(start) is not None and b"\0" not in start


def decode(data: bytes, encoding: str | None) -> StoredMap:
    """Raises HotMapError with the line of what is no integer."""
    numbers: list[int] = []
    for line, raw in enumerate(data.decode("utf-8-sig").splitlines(), start=1):
        for word in _SEPARATORS.split(raw.partition("#")[0]):
            if not word:
                continue
            if not _INTEGER.fullmatch(word):
                raise HotMapError(f"line {line} holds {word[:40]!r}, which is no token id.", advice="One integer a line, or a JSON list.")
            numbers.append(int(word))
    if not numbers:
        raise HotMapError("it is a text without any number.", advice="One token id a line, most frequent first.")
    return StoredMap(read_list(numbers, encoding))


def encode(token_ids: npt.NDArray[np.int64], about: str) -> bytes:
    """One id a line, most frequent first."""
    return ("".join(f"# {line}\n" for line in about.splitlines()) + "\n".join(map(str, token_ids.tolist())) + "\n").encode()
