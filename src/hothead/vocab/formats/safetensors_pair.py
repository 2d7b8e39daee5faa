"""`d2t` and `t2d` in a safetensors file: of a draft checkpoint of EAGLE-3 or speculators, whatever else it holds, or alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hothead.errors import HotMapError
from hothead.files.safetensors_bytes import encode_safetensors
from hothead.vocab.formats.encodings import as_mask, as_offsets, read_pair
from hothead.vocab.formats.stored import MAX_FILE_BYTES, PAIR, StoredMap, find_table

MAX_HEADER_BYTES = 16 * 2**20
_DTYPES = {"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "U16": "<u2", "U32": "<u4", "U64": "<u8", "BOOL": "?"}


def read_header(path: Path, num_bytes: int) -> dict[str, Any]:
    """The JSON header. num_bytes: of the file. Raises HotMapError for one that is cut off or larger than a header is."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > num_bytes - 8:
            raise HotMapError(f"it is a safetensors file whose end is missing: its header alone has {length} bytes, the file {num_bytes}.")
        if length > MAX_HEADER_BYTES:
            raise HotMapError(f"its header has {length} bytes, and at most {MAX_HEADER_BYTES} are read.")
        header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise HotMapError("its header is not a JSON object.")
    return header


def read(path: Path, header: dict[str, Any], vocab_size: int | None, encoding: str | None) -> StoredMap:
    """Only the two tensors are read. Raises HotMapError."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = 8 + int.from_bytes(file.read(8), "little")
    names = [find_table(header, table) for table in PAIR]
    d2t, t2d = (None if name is None else _tensor(path, header[name], name, start, size) for name in names)
    token_ids, vocab_size, notes = read_pair(d2t, t2d, vocab_size, encoding)
    return StoredMap(token_ids, vocab_size=vocab_size, notes=notes)


def encode(token_ids: npt.NDArray[np.int64], vocab_size: int) -> bytes:
    """The file's bytes: draft ids in ascending order of token id, since t2d picks the target's columns in that order."""
    in_order = np.sort(token_ids)
    return encode_safetensors({"d2t": as_offsets(in_order), "t2d": as_mask(in_order, vocab_size)}, {"format": "pt"})


def _tensor(path: Path, entry: Any, name: str, start: int, size: int) -> npt.NDArray[np.generic]:
    dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    if dtype not in _DTYPES:
        raise HotMapError(f"its {name} must hold integers or booleans, but it holds {dtype!s:.20}.")
    if len(shape) != 1:
        raise HotMapError(f"its {name} must be a list (1-D), but it has the shape {shape!s:.80}.")
    kind = np.dtype(_DTYPES[dtype])
    if not 0 <= begin <= end <= size - start or end - begin != shape[0] * kind.itemsize:
        raise HotMapError(f"its {name} lies outside the file, or has not the size that its shape {shape!s:.80} says.")
    if end - begin > MAX_FILE_BYTES:
        raise HotMapError(f"its {name} has {end - begin} bytes, and at most {MAX_FILE_BYTES} are read.")
    with path.open("rb") as file:
        file.seek(start + begin)
        return np.frombuffer(file.read(end - begin), kind)
