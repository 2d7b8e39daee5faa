"""compressed-tensors' pack-quantized: integers of 1 to 8 bits in int32 words along the inputs, rows apart.

value = (stored - 2^(bits - 1) - zero point) * scale, in the scale's type. Zero points are packed along the rows.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from hothead.errors import CheckpointError
from hothead.models.weights.quantized.layouts import Tensors, groups_of, per_input, unpacked, word_range


class PackedWeight:
    """weight_packed [O, words], weight_scale [O, G], weight_shape [2], and weight_zero_point [words, G] where not symmetric."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors, scheme = tensors, tensors.scheme
        if tensors.has("weight_g_idx"):
            raise CheckpointError(
                f"{tensors.source.source}: {tensors.module} has groups in order of activation (weight_g_idx), which is not implemented.",
                advice="Use a version of this model that was quantized without it.",
            )
        tensors.check("weight_shape", (2,))
        num_rows, num_inputs = (int(size) for size in tensors.read("weight_shape").tolist())
        self.shape = (num_rows, num_inputs)
        tensors.check("weight_packed", (num_rows, -(-num_inputs * scheme.num_bits // 32)))
        self._group_size = {"tensor": 0, "channel": num_inputs, "group": scheme.group_size}.get(scheme.strategy, -1)
        if self._group_size < 0 or (self._group_size and num_inputs % self._group_size):
            raise CheckpointError(
                f"{tensors.source.source}: {tensors.module} has {num_inputs} inputs, which {scheme.label} cannot hold.",
                advice="Configuration and weights belong to different models.",
            )
        if self._group_size:
            num_groups = num_inputs // self._group_size
            tensors.check("weight_scale", (num_rows, num_groups))
            if not scheme.is_symmetric:
                tensors.check("weight_zero_point", (-(-num_rows * scheme.num_bits // 32), num_groups))

    def read(self, rows: NDArray[np.int64], inputs: slice) -> torch.Tensor:
        num_bits, middle = self._tensors.scheme.num_bits, 1 << (self._tensors.scheme.num_bits - 1)
        words, first = word_range(inputs, num_bits)
        stored = unpacked(self._tensors.read("weight_packed", rows, words), first, inputs.stop - inputs.start, num_bits) - middle
        if not self._group_size:
            scale = self._tensors.read("weight_scale").reshape(1, 1)
            values = stored.to(scale.dtype)
            if not self._tensors.scheme.is_symmetric:
                values = values - self._tensors.read("weight_zero_point").reshape(1, 1).to(scale.dtype)
            return values * scale
        groups = groups_of(inputs, self._group_size)
        scale = self._tensors.read("weight_scale", rows, groups)
        values = stored.to(scale.dtype)
        if not self._tensors.scheme.is_symmetric:
            zero_points = self._zero_points(rows, groups).to(scale.dtype)
            values = values - per_input(zero_points, inputs, self._group_size, groups.start)
        return values * per_input(scale, inputs, self._group_size, groups.start)

    def _zero_points(self, rows: NDArray[np.int64], groups: slice) -> torch.Tensor:
        """[n, groups] int32. Words hold the zero points of neighbouring rows; a number may begin in one word and end in the next."""
        num_bits = self._tensors.scheme.num_bits
        starts = rows * num_bits
        num_words = self._tensors.shape("weight_zero_point")[0]
        low = self._tensors.read("weight_zero_point", starts // 32, groups).long() & 0xFFFFFFFF
        high = self._tensors.read("weight_zero_point", np.minimum(starts // 32 + 1, num_words - 1), groups).long() & 0xFFFFFFFF
        shift = torch.from_numpy(starts % 32).unsqueeze(1)
        stored = ((low | high << 32) >> shift) & ((1 << num_bits) - 1)
        return (stored - (1 << (num_bits - 1))).int()
