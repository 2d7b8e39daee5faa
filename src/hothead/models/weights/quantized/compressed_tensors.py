"""compressed-tensors: 8-bit integers, packed integers, 8-bit floats and NVFP4, as `compressed_tensors` 0.20 decompresses them.

Every format stores the rows of the weight as rows; scales and zero points lie in tiles over rows and columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import torch

from hothead.models.quantization import NVFP4, PACKED, REGEX, CompressedTensors, WeightScheme
from hothead.models.weights.quantized.integers import num_words, unpack, unpack_rows, words_of
from hothead.models.weights.quantized.matrix import (
    FLOAT_FORMATS,
    Module,
    Part,
    QuantizedMatrix,
    RowIds,
    Scales,
    fp8_floats,
    scaled,
    tile_text,
)

LEAVES = frozenset({"weight_packed", "weight_scale", "weight_zero_point", "weight_global_scale", "weight_shape", "weight_g_idx"})
_WIDE_FLOATS = ("F32", "F16", "BF16")
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def matrix(module: Module, quantization: CompressedTensors) -> QuantizedMatrix:
    """The weight of a module that has quantized parts. Raises CheckpointError."""
    scheme = scheme_of(module.name, quantization)
    if scheme is None:
        raise module.error("is quantized, but no config group targets it")
    if module.has("weight_g_idx") and scheme.format != PACKED:
        raise module.error(f"has a weight_g_idx, which {scheme.format} has not")
    kinds: dict[str, Callable[[Module, WeightScheme], QuantizedMatrix]] = {PACKED: _PackedIntegers, NVFP4: _Nvfp4}
    return kinds.get(scheme.format, _EightBits)(module, scheme)


def scheme_of(name: str, quantization: CompressedTensors) -> WeightScheme | None:
    """The group of a module: an exact name counts before a pattern, a pattern before a class. None if ignored or not targeted."""
    kind = "Embedding" if name.endswith("embed_tokens") else "Linear"
    if _match(name, kind, quantization.ignore) is not None:
        return None
    ranked = [(_match(name, kind, scheme.targets), number) for number, scheme in enumerate(quantization.schemes)]
    best = min(((rank, number) for rank, number in ranked if rank is not None), default=None)
    return None if best is None else quantization.schemes[best[1]]


def _match(name: str, kind: str, targets: tuple[str, ...]) -> int | None:
    """0 for the name itself, 1 for a pattern, 2 for the class, None for no match."""
    patterns = [target.removeprefix(REGEX) for target in targets if target.startswith(REGEX)]
    if name in targets:
        return 0
    if any(re.match(pattern, name) for pattern in patterns):
        return 1
    return 2 if kind in targets else None


def _scales(module: Module, scheme: WeightScheme, shape: tuple[int, int], formats: tuple[str, ...]) -> Scales:
    height, width = _tile(scheme, shape)
    return Scales.of(module, "weight_scale", shape, height, width, formats)


def _tile(scheme: WeightScheme, shape: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns that share a scale."""
    if scheme.strategy == "block":
        assert scheme.block is not None
        return scheme.block
    if scheme.strategy in ("group", "tensor_group"):
        assert scheme.group_size is not None
        return 1, scheme.group_size
    return (1 if scheme.strategy == "channel" else max(shape[0], 1)), max(shape[1], 1)


class _EightBits:
    """int-quantized, float-quantized, naive-quantized: one byte per value."""

    def __init__(self, module: Module, scheme: WeightScheme) -> None:
        kind = "F8_E4M3" if scheme.is_float else "I8"
        self._weight = module.part("weight", (kind,), (None, None))
        self.shape = (self._weight.shape[0], self._weight.shape[1])
        self._is_float = scheme.is_float
        self._scales = _scales(module, scheme, self.shape, _WIDE_FLOATS)
        self._zeros = _plain_zeros(module, scheme, self._scales, self.shape)
        self.dtype = self._scales.floats(np.empty(0, np.int64)).dtype
        tiles = tile_text(*self.shape, self._scales.height, self._scales.width)
        self.format = f"{'fp' if scheme.is_float else 'int'}{scheme.num_bits} {tiles} (compressed-tensors)"
        self.parts = _names(self._weight, self._scales, self._zeros)

    def decode(self, rows: RowIds, columns: slice) -> torch.Tensor:
        raw = self._weight.values[:, columns][rows]
        values = fp8_floats(raw, self.dtype) if self._is_float else torch.from_numpy(raw)
        zeros = None
        if self._zeros is not None:
            values, zeros = values.to(torch.int16), torch.from_numpy(self._zeros.numbers(rows).astype(np.int16))
        return scaled(values, zeros, self._scales.floats(rows), self._scales.width, columns.start)


class _PackedIntegers:
    """pack-quantized: integers without gaps in 32-bit words, each row by itself; zero points packed along the rows."""

    def __init__(self, module: Module, scheme: WeightScheme) -> None:
        stored_shape = module.part("weight_shape", ("I64", "I32"), (2,))
        self.shape = (int(stored_shape.values[0]), int(stored_shape.values[1]))
        if min(self.shape) < 0:
            raise module.error(f"announces the impossible shape {list(self.shape)} in its weight_shape")
        self._bits = scheme.num_bits
        self._offset = 1 << (self._bits - 1)
        self._packed = module.part("weight_packed", ("I32",), (self.shape[0], num_words(self.shape[1], self._bits)))
        self._scales = _scales(module, scheme, self.shape, _WIDE_FLOATS)
        self._zeros = self._plain_zeros = None
        if module.has("weight_zero_point") and module.format("weight_zero_point") == "I8":
            self._plain_zeros = _plain_zeros(module, scheme, self._scales, self.shape)
        elif module.has("weight_zero_point") or not scheme.is_symmetric:
            groups = self._scales.part.shape[1]
            if scheme.is_symmetric or self._scales.height != 1:
                raise module.error(f"has packed zero points, which weights that are {_symmetry(scheme)} by {scheme.strategy} have not")
            self._zeros = module.part("weight_zero_point", ("I32",), (num_words(self.shape[0], self._bits), groups))
        self._order = _group_order(module, self.shape[1], self._scales)
        self.dtype = self._scales.floats(np.empty(0, np.int64)).dtype
        tiles = tile_text(*self.shape, self._scales.height, self._scales.width)
        self.format = f"int{self._bits} {tiles}{', activation order' if self._order is not None else ''} (compressed-tensors)"
        own = {stored_shape.name, self._packed.name} | ({f"{module.name}.weight_g_idx"} if module.has("weight_g_idx") else set())
        self.parts = _names(self._packed, self._scales, self._zeros, self._plain_zeros) | own

    def decode(self, rows: RowIds, columns: slice) -> torch.Tensor:
        words = self._packed.values[:, words_of(columns.start, columns.stop, self._bits)][rows]
        values = unpack(words, columns.start, columns.stop, self._bits).to(torch.int16)
        scales, zeros = self._scales.floats(rows), None
        if self._zeros is not None:
            zeros = torch.from_numpy(unpack_rows(self._zeros.values, rows, self._bits).astype(np.int16))
        elif self._plain_zeros is not None:
            zeros = torch.from_numpy(self._plain_zeros.numbers(rows).astype(np.int16)) + self._offset
        else:
            values -= self._offset
        if self._order is None:
            return scaled(values, zeros, scales, self._scales.width, columns.start)
        groups = self._order[columns]
        return scaled(values, None if zeros is None else zeros[:, groups], scales[:, groups], 1, 0)


class _Nvfp4:
    """nvfp4-pack-quantized: two E2M1 values per byte, lower half first; E4M3 scales divided by one float32 scale; rounded to bfloat16."""

    dtype = torch.bfloat16

    def __init__(self, module: Module, scheme: WeightScheme) -> None:
        self._packed = module.part("weight_packed", ("U8",), (None, None))
        self.shape = (self._packed.shape[0], 2 * self._packed.shape[1])
        self._scales = _scales(module, scheme, self.shape, FLOAT_FORMATS)
        self._global = module.part("weight_global_scale", _WIDE_FLOATS)
        if self._global.values.size != 1:
            module.check_shape("weight_global_scale", self._global.shape, (1,))
        self.format = f"fp4 {tile_text(*self.shape, 1, self._scales.width)} (compressed-tensors)"
        self.parts = _names(self._packed, self._scales, self._global)

    def decode(self, rows: RowIds, columns: slice) -> torch.Tensor:
        first = columns.start // 2
        raw = self._packed.values[:, first : -(-columns.stop // 2)][rows]
        values = torch.from_numpy(_PAIRS[raw]).view(torch.float32)  # [R, 2 * bytes]
        values = values[:, columns.start - 2 * first : columns.stop - 2 * first]
        scales = self._scales.floats(rows).to(torch.bfloat16) / self._global.floats(self._global.values)
        return scaled(values, None, scales, self._scales.width, columns.start).to(self.dtype)


def _pairs() -> np.ndarray:
    """[256] int64: the two float32 of a byte, lower half first in memory."""
    values = np.array([*_E2M1, *(-value for value in _E2M1)], np.float32)
    halves = np.arange(256)
    return np.stack([values[halves & 15], values[halves >> 4]], 1).view(np.int64).ravel()


_PAIRS = _pairs()


def _plain_zeros(module: Module, scheme: WeightScheme, scales: Scales, shape: tuple[int, int]) -> Scales | None:
    """Zero points that are stored one by one as int8, in the same tiles as the scales."""
    if not module.has("weight_zero_point") and scheme.is_symmetric:
        return None
    return Scales.of(module, "weight_zero_point", shape, scales.height, scales.width, ("I8",))


def _symmetry(scheme: WeightScheme) -> str:
    return "symmetric" if scheme.is_symmetric else "not symmetric"


def _group_order(module: Module, num_columns: int, scales: Scales) -> np.ndarray | None:
    """[columns] group of each column where GPTQ has reordered them (older files); -1 marks a table that was never filled."""
    if not module.has("weight_g_idx"):
        return None
    order = np.array(module.part("weight_g_idx", ("I32", "I64"), (num_columns,)).values, dtype=np.int64)
    if (order == -1).any():
        return None
    if ((order < 0) | (order >= scales.part.shape[1])).any():
        raise module.error(f"names groups from {order.min()} to {order.max()} in its weight_g_idx and has {scales.part.shape[1]}")
    return order


def _names(*parts: Part | Scales | None) -> frozenset[str]:
    return frozenset(part.part.name if isinstance(part, Scales) else part.name for part in parts if part is not None)
