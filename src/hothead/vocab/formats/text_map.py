"""Token ids as text: one a line, all in one line, or a JSON list; what follows # on a line is a comment."""

from __future__ import annotations

import io
import re

import numpy as np
import numpy.typing as npt

from hothead.errors import HotMapError
from hothead.vocab.formats.encodings import read_list
from hothead.vocab.formats.stored import MAX_NUM_IDS, StoredMap

_WORD = re.compile(r"[\[\]]|[^\s,;\[\]]+")
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_START = re.compile(rb"[\s\xef\xbb\xbf]*[-+\[#0-9]")


def is_text(start: bytes) -> bool:
    """Whether a file that begins like this may be one."""
    return _START.match(start) is not None and b"\0" not in start


def decode(data: bytes, encoding: str | None) -> StoredMap:
    """Raises HotMapError with the line of what is no integer, and for a table: its columns could be ids and counts."""
    numbers: list[int] = []
    brackets = ""
    first_line = wide_line = 0  # of a number; of a second number in the same line
    for line, text in enumerate(io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig"), start=1):
        num_before = len(numbers)
        for found in _WORD.finditer(text.partition("#")[0]):
            word = found[0]
            if word in "[]":
                brackets += word
                if brackets not in ("[", "[]") or (word == "[" and numbers):
                    raise HotMapError(f"line {line} has a list inside a list or behind one.", advice="Token ids are one list (1-D).")
                continue
            if not _INTEGER.fullmatch(word):
                raise HotMapError(f"line {line} holds {word[:40]!r}, which is no token id.", advice="One integer a line, or a JSON list.")
            if brackets == "[]":
                raise HotMapError(f"line {line} goes on behind the end of its list.", advice="Token ids are one list (1-D).")
            numbers.append(int(word))
            if len(numbers) > MAX_NUM_IDS:
                raise HotMapError(f"it holds more than {MAX_NUM_IDS} numbers, and no vocabulary has so many tokens.")
        if len(numbers) > num_before:
            first_line = first_line or line
            wide_line = wide_line or (line if len(numbers) > num_before + 1 else 0)
            if wide_line and line > first_line and not brackets:
                raise HotMapError(
                    f"it is a table: line {wide_line} holds several numbers, and there are other lines.",
                    advice="One token id a line (cut the other columns off), all in one line, or a JSON list.",
                )
    if not numbers:
        raise HotMapError("it is a text without any number.", advice="One token id a line, most frequent first.")
    if brackets == "[":
        raise HotMapError("it ends inside its list.", advice="Fetch it again.")
    return read_list(numbers, encoding)


def encode(token_ids: npt.NDArray[np.int64], about: str) -> bytes:
    """One id a line, most frequent first."""
    return ("".join(f"# {line}\n" for line in about.splitlines()) + "\n".join(map(str, token_ids.tolist())) + "\n").encode()
