"""quant_method fp8, as DeepSeek and Qwen publish it: E4M3 weights and a float scale per block of rows and columns (`weight_scale_inv`), or
one for the whole tensor (AutoFP8 calls it `weight_scale`).

The value is weight * weight_scale_inv in float32, as in DeepSeek's `weight_dequant` and in transformers; the last blocks may be cut.
"""

from __future__ import annotations

import torch

from hothead.models.quantization import Fp8Blocks
from hothead.models.weights.quantized.matrix import Module, RowIds, Scales, fp8_floats, scaled, tile_text

LEAVES = frozenset({"weight_scale_inv", "weight_scale"})


class Fp8BlockMatrix:
    """The weight of a module that has one of LEAVES. Raises CheckpointError."""

    dtype = torch.float32

    def __init__(self, module: Module, quantization: Fp8Blocks) -> None:
        self._weight = module.part("weight", ("F8_E4M3",), (None, None))
        self.shape = (self._weight.shape[0], self._weight.shape[1])
        height, width = quantization.block or (max(self.shape[0], 1), max(self.shape[1], 1))
        leaf = "weight_scale" if module.has("weight_scale") and not module.has("weight_scale_inv") else "weight_scale_inv"
        self._scales = Scales.of(module, leaf, self.shape, height, width, ("F32", "BF16", "F16"))
        self.format = f"fp8 {tile_text(*self.shape, height, width)} (fp8)"
        self.parts = frozenset({self._weight.name, self._scales.part.name})

    def decode(self, rows: RowIds, columns: slice) -> torch.Tensor:
        values = fp8_floats(self._weight.values[:, columns][rows], torch.float32)
        return scaled(values, None, self._scales.floats(rows).float(), self._scales.width, columns.start)
