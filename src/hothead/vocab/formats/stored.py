"""The fields of a token map as a file gives them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hothead.errors import HotMapError

MAX_FILE_BYTES = 64 * 2**20
"""A map of 262144 token ids with counts has 4 MiB."""

MAX_NUM_IDS = 2**20
"""Numbers of a list whose elements are objects while it is read (text, pickles): four times the largest vocabularies."""


PAIR = ("d2t", "t2d")
"""What checkpoints call the table from draft ids to target ids, and the mask of the target ids that have a draft id."""


@dataclass(frozen=True)
class StoredMap:
    """Ids and counts are not checked yet. notes: what a reader of the file should know, one sentence each.

    hint: the way out if the ids turn out to be none.
    """

    token_ids: npt.ArrayLike
    counts: npt.ArrayLike | None = None
    vocab_size: int | None = None
    num_fillers: int = 0
    provenance: Mapping[str, str] = field(default_factory=dict)
    tokenizer_fingerprint: str = ""
    sample: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    hint: str = ""


def ids_fingerprint(token_ids: npt.ArrayLike) -> str:
    """sha256 of the ids in order, as little-endian 64-bit integers."""
    return hashlib.sha256(np.ascontiguousarray(token_ids, dtype="<i8").tobytes()).hexdigest()


def find_table(names: Iterable[str], table: str) -> str | None:
    """The tensor of a checkpoint that is this table: it has the table's name, or is the only one that ends in it ("model.d2t").

    None where there is none; HotMapError for several.
    """
    found = [name for name in names if name == table or name.endswith(f".{table}")]
    if table in found or not found:
        return table if found else None
    if len(found) > 1:
        raise HotMapError(f"it has {len(found)} tensors {table}: {', '.join(sorted(found)[:3])!s:.200}.", advice="Give a file with one.")
    return found[0]
