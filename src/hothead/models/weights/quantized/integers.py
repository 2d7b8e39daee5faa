"""Unsigned integers of 1 to 8 bits in 32-bit words, lowest bits first and without gaps: value i begins at bit i * bits.

The order of GPTQ (AutoGPTQ, GPTQModel) along input rows, and of compressed-tensors (`pack_to_int32`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hothead.models.weights.quantized.matrix import RowIds


def num_words(num_values: int, bits: int) -> int:
    return -(-num_values * bits // 32)


def words_of(start: int, stop: int, bits: int) -> slice:
    """The words of a row that hold its values start to stop."""
    return slice(start * bits // 32, num_words(stop, bits))


def unpack(words: NDArray[Any], start: int, stop: int, bits: int) -> torch.Tensor:
    """words: [R, those of `words_of`], 32 bits each, writable -> values start to stop: [R, stop - start] uint8."""
    first = start * bits // 32
    part = np.ascontiguousarray(words).view(np.uint8)  # [R, 4 * words]
    raw = torch.from_numpy(part)
    skipped = start - first * 32 // bits if 32 % bits == 0 else 0
    if bits == 8:
        values = raw
    elif bits in (1, 2, 4):
        values = torch.empty((*raw.shape, 8 // bits), dtype=torch.uint8)
        for place in range(8 // bits):
            torch.bitwise_and(raw >> (place * bits), (1 << bits) - 1, out=values[..., place])
        values = values.flatten(1)
    else:
        at = np.arange(start, stop) * bits - first * 32
        wide = np.pad(part, ((0, 0), (0, 1))).astype(np.uint16)
        pairs = wide[:, at // 8] | wide[:, at // 8 + 1] << 8
        values = torch.from_numpy((pairs >> (at % 8) & ((1 << bits) - 1)).astype(np.uint8))
    return values[:, skipped : skipped + stop - start]


def unpack_rows(words: NDArray[Any], rows: RowIds, bits: int) -> NDArray[np.uint8]:
    """words: [words, C], packed along the rows -> values of these rows: [R, C]."""
    at = rows * bits
    first = at // 32
    low = words[first].astype(np.int64) & 0xFFFFFFFF
    high = words[np.minimum(first + 1, len(words) - 1)].astype(np.int64) & 0xFFFFFFFF
    pairs = (high << 32 | low) >> (at % 32)[:, None]
    return np.asarray(pairs & ((1 << bits) - 1), dtype=np.uint8)
