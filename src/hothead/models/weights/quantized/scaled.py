"""int8 or fp8 values beside scales: compressed-tensors' int-, float- and naive-quantized, and fp8 with `weight_scale_inv`.

value = (stored - zero point) * scale, in the scale's type. Scales: one, one a row, one for each group of inputs in a row, or one for each
block of rows and inputs.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from hothead.errors import CheckpointError
from hothead.models.weights.quantized.layouts import Tensors


class ScaledWeight:
    """weight [O, I] int8 or float8_e4m3fn; weight_scale or weight_scale_inv, and weight_zero_point of its shape where not symmetric."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors, scheme = tensors, tensors.scheme
        self.shape = _matrix(tensors)
        stored = tensors.source.stored_format(f"{tensors.module}.weight")
        if stored != ("F8_E4M3" if scheme.is_float else "I8"):
            raise CheckpointError(
                f"{tensors.source.source}: {tensors.module}.weight is stored as {stored}, and config.json says {scheme.label}.",
                advice="Configuration and weights belong to different models.",
            )
        self._scale = next((name for name in ("weight_scale_inv", "weight_scale") if tensors.has(name)), "weight_scale")
        num_rows, num_inputs = self.shape
        # How many rows and inputs share a scale.
        self._height, self._width = {
            "tensor": (num_rows, num_inputs),
            "channel": (1, num_inputs),
            "group": (1, scheme.group_size),
            "block": scheme.block,
        }.get(scheme.strategy, (0, 0))
        if min(self._height, self._width) < 1:
            raise CheckpointError(f"{tensors.source.source}: {tensors.module} is stored as {scheme.label}, which is not implemented.")
        self._grid = (-(-num_rows // self._height), -(-num_inputs // self._width))
        flat = {(), (1,)} if scheme.strategy == "tensor" else {self._grid[:1]} if self._grid[1] == 1 else set()
        for name in (self._scale, *([] if scheme.is_symmetric else ["weight_zero_point"])):
            if tensors.shape(name) not in flat:
                tensors.check(name, self._grid)

    def read(self, rows: NDArray[np.int64], inputs: slice) -> torch.Tensor:
        stored = self._tensors.read("weight", rows, inputs)
        scale = self._of_inputs(self._scale, rows, inputs)
        values = stored.to(scale.dtype)
        if not self._tensors.scheme.is_symmetric:
            values = values - self._of_inputs("weight_zero_point", rows, inputs).to(scale.dtype)
        return values * scale

    def _of_inputs(self, name: str, rows: NDArray[np.int64], inputs: slice) -> torch.Tensor:
        """[n, C], or [1, 1] or [n, 1] where that is enough."""
        if self._tensors.scheme.strategy == "tensor":
            return self._tensors.read(name).reshape(1, 1)
        grid_rows = np.unique(rows // self._height)
        values = self._tensors.read(name, grid_rows).view(len(grid_rows), self._grid[1])
        values = values[torch.from_numpy(np.searchsorted(grid_rows, rows // self._height))]
        if self._grid[1] == 1:
            return values
        return values[:, torch.arange(inputs.start, inputs.stop) // self._width]


def _matrix(tensors: Tensors) -> tuple[int, int]:
    shape = tensors.shape("weight")
    if len(shape) != 2:
        raise CheckpointError(f"{tensors.source.source}: {tensors.module}.weight must be a matrix, but it is {list(shape)}.")
    return shape[0], shape[1]
