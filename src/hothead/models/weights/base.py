"""What every source of weights offers, and the one way to cut rows and columns out of stored bytes."""

from __future__ import annotations

import math
import mmap
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hothead.errors import CheckpointError
from hothead.models.weights.decode import StoredFormat

Rows = slice | NDArray[np.int64] | None
CHUNK_VALUES = 1 << 22  # values decoded at a time: 16 MB of float32


class WeightSource(Protocol):
    """A checkpoint, by Hugging Face tensor names. Nothing is read before `read`, and then only what was asked for."""

    source: str  # the model's name in messages
    passed_over: frozenset[str]  # stored tensors without a logical name that nothing here needs

    def names(self) -> frozenset[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def stored_format(self, name: str) -> str:
        """As the checkpoint calls it: "BF16", "F32", "Q4_1", ..."""
        ...

    def read(self, name: str, rows: Rows = None, columns: slice | None = None, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        """The tensor [R, C] (or [R]), cut to rows (a slice, or ids in the order wanted, repeats allowed) and a slice of columns.

        dtype None keeps what is stored, and gives float32 for a quantized tensor. The result is the caller's own memory.
        Raises CheckpointError for an absent name, a row or column out of range, or a storage format that is not implemented.
        """
        ...

    def close(self) -> None:
        """Let go of the files. Tensors that were read stay valid."""
        ...


def expect_scattered(memory: np.memmap, offset: int, num_bytes: int) -> None:
    """Tell the system that rows here and there of a mapped tensor are read: without it every row brings its neighbours along, and an eighth
    of a head's rows the whole head."""
    mapped = getattr(memory, "_mmap", None)
    if mapped is not None and hasattr(mmap, "MADV_RANDOM"):
        start = offset // mmap.PAGESIZE * mmap.PAGESIZE
        mapped.madvise(mmap.MADV_RANDOM, start, offset + num_bytes - start)


def read_stored(
    stored: NDArray[np.uint8],
    shape: tuple[int, ...],
    stored_format: StoredFormat,
    rows: Rows,
    columns: slice | None,
    dtype: torch.dtype | None,
    name: str,
) -> torch.Tensor:
    """Decode a part of a tensor whose bytes are mapped, touching the bytes of that part only.

    stored: all bytes of the tensor, [num_bytes]. Quantized blocks never cross a row, so every row is cut out by itself.
    """
    if len(shape) < 2 and not (stored_format.is_plain and columns is None):
        raise CheckpointError(f"Tensor {name} of shape {list(shape)}, stored as {stored_format.name}, cannot be cut into columns.")
    num_rows, num_columns = shape[0] if shape else 1, math.prod(shape[1:])
    wanted = check_rows(rows, num_rows, name)
    cut = check_columns(columns, num_columns, name)
    block, block_bytes = stored_format.block_size, stored_format.block_bytes
    byte_columns = slice(cut.start // block * block_bytes, -(-cut.stop // block) * block_bytes)
    skipped = cut.start % block  # values before the first wanted one, in its block
    width = cut.stop - cut.start
    matrix = stored.reshape(num_rows, num_columns // block * block_bytes)

    def decoded(part: slice | NDArray[np.int64]) -> torch.Tensor:
        raw = np.array(matrix[part][:, byte_columns])  # a copy: mapped memory is read-only
        return stored_format.decode(raw)[:, skipped : skipped + width]

    count = _count(wanted, num_rows)
    dtype = dtype or stored_format.dtype
    if not count or not width:
        return torch.empty((count, width) if columns is not None else (count, *shape[1:]), dtype=dtype)
    step = count if dtype == stored_format.dtype and stored_format.is_plain else max(1, CHUNK_VALUES // max(width, 1))
    if count <= step:
        result = decoded(_part(wanted, 0, count)).to(dtype).contiguous()
    else:
        result = torch.empty((count, width), dtype=dtype)
        for start in range(0, count, step):
            stop = min(start + step, count)
            result[start:stop] = decoded(_part(wanted, start, stop))
    if columns is not None:
        return result
    return result.reshape(count, *shape[1:]) if shape else result.reshape(())


def _part(wanted: Rows, start: int, stop: int) -> slice | NDArray[np.int64]:
    """Elements start .. stop - 1 of the wanted rows."""
    if wanted is None:
        return slice(start, stop)
    if isinstance(wanted, slice):
        return slice(wanted.start + start, wanted.start + stop)
    return wanted[start:stop]


def _count(wanted: Rows, num_rows: int) -> int:
    if wanted is None:
        return num_rows
    return wanted.stop - wanted.start if isinstance(wanted, slice) else len(wanted)


def check_rows(rows: Rows, num_rows: int, name: str) -> Rows:
    """The same rows with a plain start and stop; nothing is clipped: a row out of range is an error."""
    if rows is None:
        return None
    if isinstance(rows, slice):
        return _check_slice(rows, num_rows, "rows", name)
    row_ids = np.ascontiguousarray(rows, dtype=np.int64)
    if row_ids.ndim != 1:
        raise CheckpointError(f"Tensor {name}: row ids must be one list, not of shape {list(row_ids.shape)}.")
    outside = np.flatnonzero((row_ids < 0) | (row_ids >= num_rows))
    if outside.size:
        raise CheckpointError(
            f"Tensor {name} has {num_rows} rows; {outside.size} of {row_ids.size} row ids are out of range.",
            f"The first is {row_ids[outside[0]]} at position {outside[0]}.",
        )
    return row_ids


def check_columns(columns: slice | None, num_columns: int, name: str) -> slice:
    """As `check_rows`."""
    return slice(0, num_columns) if columns is None else _check_slice(columns, num_columns, "columns", name)


def _check_slice(part: slice, size: int, what: str, name: str) -> slice:
    start, stop = 0 if part.start is None else part.start, size if part.stop is None else part.stop
    if part.step not in (None, 1) or not 0 <= start <= stop <= size:
        raise CheckpointError(f"Tensor {name} has {size} {what}; {what} {start} to {stop} (step {part.step or 1}) cannot be cut out.")
    return slice(int(start), int(stop))
