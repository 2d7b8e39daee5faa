"""compressed-tensors' nvfp4-pack-quantized: two 4-bit floats (sign, two bits of exponent, one of mantissa) a byte, the first one in the
low half.

value = stored * (scale of its 16 inputs / global scale), rounded to bfloat16 as the library does.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from hothead.errors import CheckpointError
from hothead.models.weights.quantized.layouts import Tensors, groups_of, per_input

_VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


class Nvfp4Weight:
    """weight_packed [O, I / 2] uint8, weight_scale [O, I / 16] float8_e4m3fn, weight_global_scale [1] float32."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors, self._group_size = tensors, tensors.scheme.group_size or 16
        shape = tensors.shape("weight_packed")
        if len(shape) != 2 or 2 * shape[1] % self._group_size:
            raise CheckpointError(f"{tensors.source.source}: {tensors.module}.weight_packed has the impossible shape {list(shape)}.")
        self.shape = (shape[0], 2 * shape[1])
        tensors.check("weight_scale", (shape[0], 2 * shape[1] // self._group_size))
        tensors.check("weight_global_scale", (1,))

    def read(self, rows: NDArray[np.int64], inputs: slice) -> torch.Tensor:
        pairs = self._tensors.read("weight_packed", rows, slice(inputs.start // 2, -(-inputs.stop // 2)))
        codes = torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(1)[:, inputs.start % 2 :][:, : inputs.stop - inputs.start]
        groups = groups_of(inputs, self._group_size)
        scale = self._tensors.read("weight_scale", rows, groups).to(torch.bfloat16) / self._tensors.read("weight_global_scale")
        values = _VALUES.to(torch.bfloat16)[codes.long()].to(scale.dtype)
        return (values * per_input(scale, inputs, self._group_size, groups.start)).to(torch.bfloat16)
