"""AutoAWQ's gemm layout: the weight is stored transposed, eight output rows in one int32 word, in the order 0 2 4 6 1 3 5 7.

value = (stored - zero point) * scale, in the scale's type. https://github.com/casper-hansen/AutoAWQ
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from hothead.models.weights.quantized.layouts import Tensors, groups_of, per_input

_PLACES = np.array([0, 4, 1, 5, 2, 6, 3, 7], np.int64)
"""Where in its word, in units of 4 bits, an output row lies."""


class AwqWeight:
    """qweight [I, O / 8] int32, qzeros [G, O / 8] int32, scales [G, O]."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors
        num_inputs, num_words = tensors.shape("qweight")
        self.shape = (8 * num_words, num_inputs)
        self._group_size = tensors.scheme.group_size or num_inputs
        num_groups = -(-num_inputs // self._group_size)
        tensors.check("qzeros", (num_groups, num_words))
        tensors.check("scales", (num_groups, 8 * num_words))

    def read(self, rows: NDArray[np.int64], inputs: slice) -> torch.Tensor:
        groups = groups_of(inputs, self._group_size)
        stored, zero_points = self._unpack("qweight", inputs, rows), self._unpack("qzeros", groups, rows)
        scale = self._tensors.source.read_columns(f"{self._tensors.module}.scales", groups, rows).T
        differences = stored - per_input(zero_points, inputs, self._group_size, groups.start)
        return differences * per_input(scale, inputs, self._group_size, groups.start)

    def _unpack(self, name: str, part: slice, rows: NDArray[np.int64]) -> torch.Tensor:
        """[n, part] int8 of the wanted output rows."""
        words, word_of_row = np.unique(rows // 8, return_inverse=True)
        stored = self._tensors.source.read_columns(f"{self._tensors.module}.{name}", part, words).T  # [words, part]
        shifts = torch.from_numpy(4 * _PLACES[rows % 8]).int().unsqueeze(1)
        return ((stored[torch.from_numpy(word_of_row)] >> shifts) & 15).to(torch.int8)
