"""What every quantized matrix offers, and what all formats share: parts with checked shapes, scales by tile, 8-bit floats."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hothead.errors import CheckpointError
from hothead.models.weights.safetensors import SafetensorsWeights

RowIds = NDArray[np.int64]
_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn}
FLOAT_FORMATS = tuple(_FLOATS)


class QuantizedMatrix(Protocol):
    """One logical [rows, columns] weight over several stored tensors."""

    shape: tuple[int, int]
    format: str  # for people: "int4 in groups of 128 (awq)"
    dtype: torch.dtype  # what decode gives
    parts: frozenset[str]  # the stored tensors that it is made of

    def decode(self, rows: RowIds, columns: slice) -> torch.Tensor:
        """Rows in the order given, columns start to stop -> [R, C] of self.dtype, bit for bit as the defining library's whole matrix."""
        ...


@dataclass(frozen=True)
class Part:
    """One stored tensor: values are the mapped bytes as numbers; F8 and BF16 as unsigned integers of their size."""

    name: str
    format: str
    values: NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def floats(self, values: NDArray[Any]) -> torch.Tensor:
        """A copy of some of the values as floats of the stored kind."""
        return torch.from_numpy(np.array(values)).view(_FLOATS[self.format])


class Module:
    """The stored tensors of one module, e.g. all that begin with "lm_head."."""

    def __init__(self, stored: SafetensorsWeights, name: str) -> None:
        self.name = name
        self._stored = stored

    def has(self, leaf: str) -> bool:
        return f"{self.name}.{leaf}" in self._stored.names()

    def format(self, leaf: str) -> str:
        """Of a tensor that is there."""
        return self._stored.stored_format(f"{self.name}.{leaf}")

    def part(self, leaf: str, formats: tuple[str, ...], shape: tuple[int | None, ...] | None = None) -> Part:
        """A tensor that must be there, in one of the formats and with this shape (None: any size)."""
        name = f"{self.name}.{leaf}"
        if not self.has(leaf):
            raise self.error(f"has no {leaf}, without which it cannot be decoded")
        part = Part(name, self._stored.stored_format(name), self._stored.mapped(name))
        if part.format not in formats:
            raise self.error(f"stores its {leaf} as {part.format} instead of {' or '.join(formats)}")
        if shape is not None:
            self.check_shape(leaf, part.shape, shape)
        return part

    def check_shape(self, leaf: str, found: tuple[int, ...], needed: tuple[int | None, ...]) -> None:
        if len(found) != len(needed) or any(size not in (None, is_size) for is_size, size in zip(found, needed, strict=True)):
            sizes = ["any" if size is None else size for size in needed]
            raise self.error(f"has a {leaf} of shape {list(found)} instead of {sizes}".replace("'", ""))

    def error(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"The quantized tensor {self.name}.weight of {self._stored.source} {what}.",
            advice="Fetch the model again, or check that its quantization_config belongs to these weights.",
        )


@dataclass(frozen=True)
class Scales:
    """One number per tile of height x width values. part: [ceil(rows / height), ceil(columns / width)], turned round if is_transposed."""

    part: Part
    height: int
    width: int
    is_transposed: bool = False

    @staticmethod
    def of(module: Module, leaf: str, shape: tuple[int, int], height: int, width: int, formats: tuple[str, ...] = FLOAT_FORMATS) -> Scales:
        """Raises CheckpointError if the part is missing or has another shape than such tiles need."""
        needed = (math.ceil(shape[0] / height), math.ceil(shape[1] / width))
        part = module.part(leaf, formats)
        if part.shape not in (needed, *([needed[:1]] if needed[1] == 1 else []), *([()] if needed == (1, 1) else [])):
            module.check_shape(leaf, part.shape, needed)
        return Scales(Part(part.name, part.format, part.values.reshape(needed)), height, width)

    def numbers(self, rows: RowIds) -> NDArray[Any]:
        """[R, tiles per row] as stored, those of some rows."""
        tiles = rows if self.height == 1 else rows // self.height
        return np.ascontiguousarray(self.part.values[:, tiles].T) if self.is_transposed else self.part.values[tiles]

    def floats(self, rows: RowIds) -> torch.Tensor:
        return self.part.floats(self.numbers(rows))


def scaled(values: torch.Tensor, zeros: torch.Tensor | None, scales: torch.Tensor, width: int, start: int) -> torch.Tensor:
    """(value - zero point) * scale in the scales' dtype, as every defining library computes it.

    values: [R, C] of columns start to start + C. zeros, scales: [R, tiles per row], each for `width` columns.
    """
    result = torch.empty(values.shape, dtype=scales.dtype)
    for first, last, size in _tiles(start, start + values.shape[1], width):
        tiles = slice(first // width, -(-last // width))
        here = slice(first - start, last - start)
        part = values[:, here].unflatten(1, (-1, size))  # [R, tiles, size]
        if zeros is not None:
            part = part - zeros[:, tiles, None]
        torch.mul(part.to(scales.dtype), scales[:, tiles, None], out=result[:, here].unflatten(1, (-1, size)))
    return result


def _tiles(start: int, stop: int, width: int) -> Iterator[tuple[int, int, int]]:
    """(first, last, columns per tile): a cut tile, whole tiles, a cut tile; what is there of them."""
    if start % width:
        last = min(stop, -(-start // width) * width)
        yield start, last, last - start
        start = last
    whole = stop // width * width
    if start < whole:
        yield start, whole, width
        start = whole
    if start < stop:
        yield start, stop, stop - start


def fp8_floats(raw: NDArray[np.uint8], dtype: torch.dtype) -> torch.Tensor:
    """E4M3 bytes -> floats, by table: torch's own conversion takes three times as long on a CPU."""
    bits = {2: torch.int16, 4: torch.int32}[dtype.itemsize]
    table = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(dtype).view(bits).numpy()
    return torch.from_numpy(table[raw]).view(dtype)


def tile_text(rows: int, columns: int, height: int, width: int) -> str:
    """How many values share a scale, for people."""
    if height >= rows and width >= columns:
        return "with one scale"
    if height == 1:
        return "by row" if width >= columns else f"in groups of {width}"
    return f"in blocks of {height} x {width}"
