"""`.npy` files: one array of token ids, or the pair `d2t.npy` and `t2d.npy` in one folder that speculators writes."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hothead.errors import HotMapError
from hothead.vocab.formats.encodings import as_mask, as_offsets, read_list, read_pair
from hothead.vocab.formats.stored import MAX_FILE_BYTES, StoredMap

MAGIC = b"\x93NUMPY"
PAIR_FILES = ("d2t.npy", "t2d.npy")


def read(path: Path, vocab_size: int | None, encoding: str | None) -> StoredMap:
    """path: a folder with the pair, one of the pair, or a single array. Raises HotMapError."""
    folder = path if path.is_dir() else path.parent
    if path.is_dir() or path.name in PAIR_FILES:  # an array has no name of its own
        d2t, t2d = (read_array(folder / name) if (folder / name).is_file() else None for name in PAIR_FILES)
        token_ids, vocab_size, notes = read_pair(d2t, t2d, vocab_size, encoding)
        return StoredMap(token_ids, vocab_size=vocab_size, notes=notes)
    return read_list(read_array(path), encoding)


def read_array(path: Path) -> npt.NDArray[np.generic]:
    """A 1-D array of integers or booleans; its header is checked before anything is allocated. Raises HotMapError."""
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise HotMapError(f"'{path.name}' is too large: {size} bytes, and at most {MAX_FILE_BYTES} are read.")
    file = io.BytesIO(path.read_bytes())
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype.kind not in "iub":
        raise HotMapError(f"it holds {dtype}, not integers.", advice="Save the token ids as an array of int64.")
    if len(shape) != 1:
        raise HotMapError(f"token ids must be a list (1-D), but they have the shape {list(shape)!s:.80}.")
    if shape[0] * dtype.itemsize != size - file.tell():
        raise HotMapError(f"it says that it has {shape[0]} numbers, and {size - file.tell()} bytes follow.", advice="Fetch it again.")
    return np.frombuffer(file.read(), dtype)


def encode_pair(token_ids: npt.NDArray[np.int64], vocab_size: int) -> dict[str, bytes]:
    """Both files by name; draft ids in ascending order of token id, since t2d picks the target's columns in that order."""
    in_order = np.sort(token_ids)
    return dict(zip(PAIR_FILES, map(_encode, (as_offsets(in_order), as_mask(in_order, vocab_size))), strict=True))


def _encode(array: npt.NDArray[np.generic]) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()
