"""Which stored tensors belong together, and the WeightSource over them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from hothead.models.quantization import Quantization
from hothead.models.weights.base import Rows, check_rows, check_slice
from hothead.models.weights.quantized.awq import AwqWeight
from hothead.models.weights.quantized.gptq import GptqWeight
from hothead.models.weights.quantized.layouts import Tensors, WeightLayout
from hothead.models.weights.quantized.nvfp4 import Nvfp4Weight
from hothead.models.weights.quantized.packed import PackedWeight
from hothead.models.weights.quantized.scaled import ScaledWeight
from hothead.models.weights.safetensors import SafetensorsWeights

_LAYOUTS: dict[str, Callable[[Tensors], WeightLayout]] = {
    "scaled": ScaledWeight,
    "packed": PackedWeight,
    "nvfp4": Nvfp4Weight,
    "awq": AwqWeight,
    "gptq": GptqWeight,
}
_MARKS = ("weight_packed", "weight_scale", "weight_scale_inv", "qweight")
"""A module that has one of these is quantized."""
_PARTS = frozenset(
    {"weight", *_MARKS, "weight_zero_point", "weight_shape", "weight_global_scale", "weight_g_idx", "qzeros", "scales", "g_idx"}
)
_OF_ACTIVATIONS = frozenset(
    {"input_scale", "input_zero_point", "input_global_scale", "output_scale", "output_zero_point", "k_scale", "v_scale", "q_scale"}
)
"""Scales for quantized activations and KV caches: nothing here is quantized while it is computed, so they are not needed."""
_CHUNK_VALUES = 1 << 22


class QuantizedWeights:
    """A WeightSource. A module's quantized tensors show up as its one `weight`."""

    def __init__(self, stored: SafetensorsWeights, quantization: Quantization) -> None:
        self.source = stored.source
        self._stored, self._quantization = stored, quantization
        split = [name.rpartition(".")[::2] for name in stored.names()]
        self._quantized = frozenset(module for module, part in split if part in _MARKS)
        self._names = frozenset(
            f"{module}.{part}"
            for module, part in split
            if part not in _OF_ACTIVATIONS and not (module in self._quantized and part in _PARTS)
        ) | frozenset(f"{module}.weight" for module in self._quantized)
        self._layouts: dict[str, WeightLayout] = {}

    def names(self) -> frozenset[str]:
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        module = self._module(name)
        return self._stored.shape(name) if module is None else self._layout(module).shape

    def stored_format(self, name: str) -> str:
        module = self._module(name)
        return self._stored.stored_format(name) if module is None else self._quantization.scheme_of(module).label

    def read(self, name: str, rows: Rows = None, columns: slice | None = None, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        module = self._module(name)
        if module is None:
            return self._stored.read(name, rows, columns, dtype=dtype)
        layout = self._layout(module)
        num_rows, num_inputs = layout.shape
        wanted = _row_ids(check_rows(rows, num_rows, name), num_rows)
        inputs = check_slice(slice(0, num_inputs) if columns is None else columns, num_inputs, "columns", name)
        width = inputs.stop - inputs.start
        result = torch.empty((len(wanted), width), dtype=dtype or torch.float32)
        step = max(1, _CHUNK_VALUES // max(width, 1))
        for start in range(0, len(wanted) if width else 0, step):
            result[start : start + step] = layout.read(wanted[start : start + step], inputs)
        return result

    def close(self) -> None:
        self._stored.close()

    def _module(self, name: str) -> str | None:
        """The module whose quantized weight this is."""
        module, _, part = name.rpartition(".")
        return module if part == "weight" and module in self._quantized else None

    def _layout(self, module: str) -> WeightLayout:
        if module not in self._layouts:
            scheme = self._quantization.scheme_of(module)
            self._layouts[module] = _LAYOUTS[scheme.layout](Tensors(self._stored, module, scheme))
        return self._layouts[module]


def _row_ids(rows: Rows, num_rows: int) -> NDArray[np.int64]:
    if isinstance(rows, np.ndarray):
        return rows
    return np.arange(num_rows) if rows is None else np.arange(rows.start, rows.stop)
