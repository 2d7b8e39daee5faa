"""AutoAWQ, version gemm: qweight [in, out / 8], eight 4-bit output rows in each word, interleaved; scales and zero points by input group.

As `dequantize_gemm` of autoawq 0.2.9. A row of the weight lies in one byte of each word of its column, and only those bytes are gathered.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hothead.models.quantization import Awq
from hothead.models.weights.quantized.matrix import Module, RowIds, Scales, scaled, tile_text

LEAVES = frozenset({"qweight", "qzeros", "scales"})
_PLACES = np.array([0, 4, 1, 5, 2, 6, 3, 7])  # which four bits of a word hold output row 0, 1, ... of its eight


class AwqMatrix:
    """The weight of a module that has a qweight. Raises CheckpointError."""

    def __init__(self, module: Module, quantization: Awq) -> None:
        qweight = module.part("qweight", ("I32",), (None, None))
        num_columns, num_rows = qweight.shape[0], 8 * qweight.shape[1]
        self.shape = (num_rows, num_columns)
        width = max(num_columns, 1) if quantization.group_size == -1 else quantization.group_size
        groups = math.ceil(num_columns / width)
        scales = module.part("scales", ("F16", "BF16", "F32"), (groups, num_rows))
        qzeros = module.part("qzeros", ("I32",), (groups, num_rows // 8))
        self._scales = Scales(scales, 1, width, is_transposed=True)
        self._weight, self._zeros = _as_bytes(qweight.values), _as_bytes(qzeros.values)
        self.dtype = self._scales.floats(np.empty(0, np.int64)).dtype
        self.format = f"int4 {tile_text(num_rows, num_columns, 1, width)} (awq)"
        self.parts = frozenset({qweight.name, scales.name, qzeros.name})

    def decode(self, rows: RowIds, columns: slice) -> torch.Tensor:
        values, zeros = _halves(self._weight[columns], rows), _halves(self._zeros, rows)
        return scaled(values, zeros, self._scales.floats(rows), self._scales.width, columns.start)


def _as_bytes(words: NDArray[Any]) -> NDArray[np.uint8]:
    return words.view(np.uint8) if words.size else np.empty((len(words), 4 * words.shape[1]), np.uint8)


def _halves(raw: NDArray[np.uint8], rows: RowIds) -> torch.Tensor:
    """raw: [C, bytes of all rows] -> the 4-bit values of some rows: [R, C] int8."""
    places = _PLACES[rows % 8]
    gathered = np.take(raw, rows // 8 * 4 + places // 2, axis=1)  # [C, R]
    gathered = gathered >> (places % 2 * 4).astype(np.uint8) & 15
    return torch.from_numpy(gathered).t().contiguous().view(torch.int8)
