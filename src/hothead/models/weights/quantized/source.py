"""A checkpoint with quantized tensors under its logical names: `lm_head.weight`, whatever stored tensors that is made of.

What is stored says whether a module is quantized, config.json says how. Rows are decoded when they are read, and only those.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hothead.errors import CheckpointError
from hothead.models.quantization import Awq, CompressedTensors, Fp8Blocks, Gptq, Quantization
from hothead.models.weights import base
from hothead.models.weights.base import Rows, check_columns, check_rows
from hothead.models.weights.quantized import awq, compressed_tensors, fp8_blocks, gptq
from hothead.models.weights.quantized.matrix import Module, QuantizedMatrix
from hothead.models.weights.safetensors import SafetensorsWeights

# How activations and the KV cache were quantized when calibrating; both stay in the run's dtype here.
_ACTIVATIONS = re.compile(r"\.((input|output|q|k|v)_(scale|zero_point|global_scale)|activation_scale)$")
_QUANTIZED_WEIGHTS = ("F8_E4M3", "F8_E5M2", "I8", "U8")

METHODS: dict[type, tuple[frozenset[str], Callable[[Module, Any], QuantizedMatrix]]] = {
    CompressedTensors: (compressed_tensors.LEAVES, compressed_tensors.matrix),
    Awq: (awq.LEAVES, awq.AwqMatrix),
    Gptq: (gptq.LEAVES, gptq.GptqMatrix),
    Fp8Blocks: (fp8_blocks.LEAVES, fp8_blocks.Fp8BlockMatrix),
}
"""For each method: names of stored parts after the module's, and what makes a matrix of them."""


class QuantizedWeights:
    """A WeightSource. passed_over: scales of activations and of the KV cache."""

    def __init__(self, stored: SafetensorsWeights, quantization: Quantization) -> None:
        """Reads headers, shapes and orders of groups; raises CheckpointError for a missing part or one of the wrong shape."""
        self.source = stored.source
        self._stored = stored
        leaves, make = METHODS[type(quantization)]
        names = stored.names()
        split = {name: name.rpartition(".")[::2] for name in names}
        modules = {module for module, leaf in split.values() if leaf in leaves}
        modules |= {
            module for name, (module, leaf) in split.items() if leaf == "weight" and stored.stored_format(name) in _QUANTIZED_WEIGHTS
        }
        self._matrices = {f"{module}.weight": make(Module(stored, module), quantization) for module in sorted(modules)}
        used = frozenset().union(*(matrix.parts for matrix in self._matrices.values()))
        self.passed_over = frozenset(name for name in names - used if _ACTIVATIONS.search(name))
        self._plain = names - used - self.passed_over
        twice = sorted(self._plain & self._matrices.keys())
        if twice:
            raise CheckpointError(
                f"{self.source} stores {twice[0]} twice, plainly and quantized ({len(twice)} such tensors).",
                advice="Check that its quantization_config belongs to these weights.",
            )

    def names(self) -> frozenset[str]:
        return self._plain | self._matrices.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._matrices[name].shape if name in self._matrices else self._stored.shape(self._check_name(name))

    def stored_format(self, name: str) -> str:
        return self._matrices[name].format if name in self._matrices else self._stored.stored_format(self._check_name(name))

    def read(self, name: str, rows: Rows = None, columns: slice | None = None, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        """As every WeightSource; dtype None gives what the defining library's dequantized matrix has."""
        if name not in self._matrices:
            return self._stored.read(self._check_name(name), rows, columns, dtype=dtype)
        matrix = self._matrices[name]
        wanted = check_rows(rows, matrix.shape[0], name)
        cut = check_columns(columns, matrix.shape[1], name)
        row_ids = wanted if isinstance(wanted, np.ndarray) else np.arange(matrix.shape[0], dtype=np.int64)[wanted or slice(None)]
        result = torch.empty((len(row_ids), cut.stop - cut.start), dtype=dtype or matrix.dtype)
        step = max(1, base.CHUNK_VALUES // max(result.shape[1], 1))
        for start in range(0, len(row_ids) if result.shape[1] else 0, step):
            result[start : start + step] = matrix.decode(row_ids[start : start + step], cut)
        return result

    def close(self) -> None:
        self._matrices.clear()
        self._plain = frozenset()
        self._stored.close()

    def _check_name(self, name: str) -> str:
        if name not in self._plain:
            raise CheckpointError(f"{self.source} has no tensor {name}.", f"It has {len(self.names())} tensors.")
        return name
