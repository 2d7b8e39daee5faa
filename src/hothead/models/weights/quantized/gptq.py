"""GPTQ: qweight [in * bits / 32, out], packed along the inputs; scales and zero points by input group; g_idx, the group of each input.

As auto-gptq 0.7.1 and gptqmodel 7.7 dequantize with torch, with or without activation order. In format v1 zero points are stored less one.
A 0 becomes -1 (all bits set), which most kernels of AutoGPTQ read as 16 and one as 0; GPTQModel, which subtracts one from whole words, adds
it to whole words again, with the carries. So such a value is right in files of GPTQModel, and refused in others.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hothead.models.quantization import Gptq
from hothead.models.weights.quantized.integers import num_words, unpack, unpack_rows, words_of
from hothead.models.weights.quantized.matrix import Module, RowIds, Scales, scaled, tile_text

LEAVES = frozenset({"qweight", "qzeros", "scales", "g_idx"})


class GptqMatrix:
    """The weight of a module that has a qweight. Raises CheckpointError."""

    def __init__(self, module: Module, quantization: Gptq) -> None:
        if module.name.endswith("embed_tokens"):
            raise module.error("is an embedding in GPTQ format, which is not implemented")
        self._module = module
        self._qweight = module.part("qweight", ("I32",), (None, None))
        num_rows = self._qweight.shape[1]
        self._bits, num_columns = _bits_and_columns(module, self._qweight.shape[0], quantization)
        self.shape = (num_rows, num_columns)
        scales = module.part("scales", ("F16", "BF16", "F32"), (None, num_rows))
        groups = scales.shape[0]
        qzeros = module.part("qzeros", ("I32",), (groups, num_words(num_rows, self._bits)))
        self._width = _group_width(module, groups, num_columns, quantization)
        self._order = _order(module, groups, num_columns, self._width, quantization)
        self._scales = Scales(scales, 1, self._width, is_transposed=True)
        self._zeros = qzeros.values
        self._is_v2, self._is_from_gptqmodel = quantization.is_v2, "gptqmodel" in quantization.maker
        self.dtype = self._scales.floats(np.empty(0, np.int64)).dtype
        order = "" if self._order is None else ", activation order"
        self.format = f"int{self._bits} {tile_text(num_rows, num_columns, 1, self._width)}{order} (gptq)"
        names = {self._qweight.name, scales.name, qzeros.name}
        self.parts = frozenset(names | ({f"{module.name}.g_idx"} if module.has("g_idx") else set()))

    def decode(self, rows: RowIds, columns: slice) -> torch.Tensor:
        words = np.take(self._qweight.values[words_of(columns.start, columns.stop, self._bits)], rows, axis=1).T  # [R, words]
        values = unpack(words, columns.start, columns.stop, self._bits).to(torch.int16)
        zeros, scales = torch.from_numpy(self._zero_points(rows)), self._scales.floats(rows)
        if self._order is None:
            return scaled(values, zeros, scales, self._width, columns.start)
        groups = self._order[columns]
        return scaled(values, zeros[:, groups], scales[:, groups], 1, 0)

    def _zero_points(self, rows: RowIds) -> NDArray[np.int16]:
        """[R, groups] as subtracted from the values."""
        words: NDArray[Any] = self._zeros.T  # [words, groups]
        bits, is_whole = self._bits, 32 % self._bits == 0
        if self._is_from_gptqmodel and not self._is_v2 and is_whole:
            per_word = 32 // bits
            needed, positions = np.unique(rows // per_word, return_inverse=True)
            ones = sum(1 << place for place in range(0, 32, bits))
            words = ((words[needed].astype(np.int64) + ones) & 0xFFFFFFFF).astype(np.uint32)
            return unpack_rows(words, positions * per_word + rows % per_word, bits).astype(np.int16)
        stored = unpack_rows(words, rows, bits).astype(np.int16)
        if self._is_v2:
            return stored
        largest = (1 << bits) - 1
        if self._is_from_gptqmodel:
            return (stored + np.int16(1)) & np.int16(largest)
        borrowed = np.argwhere(stored == largest)
        if len(borrowed):
            row, group = rows[borrowed[0][0]], borrowed[0][1]
            raise self._module.error(
                f"has a zero point of 0 stored as -1 (row {row}, group {group}), which libraries read in different ways"
            )
        return stored + np.int16(1)


def _bits_and_columns(module: Module, words: int, quantization: Gptq) -> tuple[int, int]:
    """Where bits differ by module, g_idx says how many inputs the words hold."""
    bits = quantization.bits
    if module.has("g_idx"):
        num_columns = module.part("g_idx", ("I32", "I64"), (None,)).shape[0]
        bits = bits or (words * 32 // num_columns if num_columns else 0)
        if bits not in (2, 3, 4, 8) or num_words(num_columns, bits) != words:
            raise module.error(f"has a qweight of {words} words per row, which do not hold {num_columns} inputs (g_idx) of {bits} bits")
        return bits, num_columns
    if bits is None:
        raise module.error("has no g_idx, and its quantization_config has other bits for some modules (dynamic)")
    if words * 32 % bits:
        raise module.error(f"has a qweight of {words} words per row, which is no whole number of inputs of {bits} bits")
    return bits, words * 32 // bits


def _group_width(module: Module, groups: int, num_columns: int, quantization: Gptq) -> int:
    """Columns per group. Where the configuration differs by module, a size that gives this many groups."""
    width = max(num_columns, 1) if quantization.group_size == -1 else quantization.group_size
    if quantization.bits is None and groups and math.ceil(num_columns / width) != groups:
        width = math.ceil(num_columns / groups)
    if math.ceil(num_columns / width) != groups:
        raise module.error(f"has {groups} groups of scales for {num_columns} inputs in groups of {width}")
    return width


def _order(module: Module, groups: int, num_columns: int, width: int, quantization: Gptq) -> NDArray[np.int64] | None:
    """[columns] group of each input, None where they are in order."""
    if not module.has("g_idx"):
        if quantization.has_activation_order:
            raise module.error("has no g_idx, without which activation order (desc_act) cannot be undone")
        return None
    order = np.array(module.part("g_idx", ("I32", "I64")).values, dtype=np.int64)
    if (order == np.arange(num_columns) // width).all():
        return None
    if ((order < 0) | (order >= groups)).any():
        raise module.error(f"names groups from {order.min()} to {order.max()} in its g_idx and has {groups}")
    return order
