"""Weights from `.safetensors`: one file, or shards with an index.

The header is read here and the data is mapped, so that rows by token id cost one copy of those rows and nothing else.
Layout: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hothead.errors import CheckpointError
from hothead.models.weights.base import Rows, expect_scattered, read_stored
from hothead.models.weights.decode import stored_format

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit
# As numbers of the stored size; numpy has neither BF16 nor F8.
_NUMBERS: dict[str, type[np.generic]] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": np.uint16,
    "F8_E4M3": np.uint8,
    "U8": np.uint8,
    "I8": np.int8,
    "I16": np.int16,
    "I32": np.int32,
    "I64": np.int64,
}


@dataclass(frozen=True)
class _Place:
    """One tensor: where its bytes lie in which file."""

    file: Path
    shape: tuple[int, ...]
    format: str
    offset: int
    num_bytes: int


class SafetensorsWeights:
    """A WeightSource over one or more `.safetensors` files, which are opened when a tensor of theirs is first read."""

    passed_over: frozenset[str] = frozenset()

    def __init__(self, source: str, places: dict[str, _Place]) -> None:
        self.source = source
        self._places = places
        self._maps: dict[Path, np.memmap] = {}

    @classmethod
    def open(cls, path: Path) -> SafetensorsWeights:
        """A `.safetensors` file, or a folder with one or with shards. Reads headers only; raises CheckpointError."""
        if path.is_file():
            return cls(path.name, _read_header(path))
        if (path / INDEX_NAME).is_file():
            return cls(path.name, _read_index(path / INDEX_NAME))
        if (path / SINGLE_NAME).is_file():
            return cls(path.name, _read_header(path / SINGLE_NAME))
        others = sorted(file.name for file in path.glob("*") if file.suffix in (".bin", ".pt", ".pth", ".safetensors", ".gguf"))
        raise CheckpointError(
            f"{path} holds no {SINGLE_NAME} and no {INDEX_NAME}.",
            f"Found: {', '.join(others[:5])}." if others else "It holds no other weights either.",
            advice="Convert the model to .safetensors, or give a .gguf file itself." if others else "Fetch the model again.",
        )

    def names(self) -> frozenset[str]:
        return frozenset(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._place(name).shape

    def stored_format(self, name: str) -> str:
        return self._place(name).format

    def read(self, name: str, rows: Rows = None, columns: slice | None = None, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        place = self._place(name)
        stored = self._map(place.file)[place.offset : place.offset + place.num_bytes]
        decoder = stored_format(place.format, f"Tensor {name} of {self.source}")
        if isinstance(rows, np.ndarray):
            expect_scattered(self._map(place.file), place.offset, place.num_bytes)
        return read_stored(stored, place.shape, decoder, rows, columns, dtype, name)

    def mapped(self, name: str) -> NDArray[Any]:
        """The whole tensor as numbers of its size in mapped memory, read-only; BF16 and F8 as unsigned integers. Nothing is read yet."""
        place = self._place(name)
        if place.format not in _NUMBERS:
            raise CheckpointError(f"Tensor {name} of {self.source} is stored as {place.format}, which is not implemented.")
        if not place.num_bytes:
            return np.empty(place.shape, _NUMBERS[place.format])
        stored = self._map(place.file)[place.offset : place.offset + place.num_bytes]
        return stored.view(_NUMBERS[place.format]).reshape(place.shape)

    def close(self) -> None:
        self._maps.clear()

    def _place(self, name: str) -> _Place:
        if name not in self._places:
            raise CheckpointError(f"{self.source} has no tensor {name}.", f"It has {len(self._places)} tensors.")
        return self._places[name]

    def _map(self, file: Path) -> np.memmap:
        if file not in self._maps:
            try:
                self._maps[file] = np.memmap(file, dtype=np.uint8, mode="r")
            except OSError as error:
                raise CheckpointError(f"{file} cannot be opened: {error}.", advice="Fetch the model again.") from error
        return self._maps[file]


def _read_index(index: Path) -> dict[str, _Place]:
    """All shards' tensors; the index and the shards must agree on every name."""
    weight_map = _json_table(index, index.read_bytes()).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) and Path(shard).name == shard for shard in weight_map.values()):
        raise CheckpointError(f"{index} has no usable weight_map.", advice="Fetch the model again.")
    shards = sorted(set(weight_map.values()))
    absent = [shard for shard in shards if not (index.parent / shard).is_file()]
    if absent:
        num_tensors = sum(shard in absent for shard in weight_map.values())
        raise CheckpointError(
            f"{index.parent} is half a checkpoint: {len(absent)} of {len(shards)} shards are missing.",
            f"Missing: {', '.join(absent[:5])}{', ...' if len(absent) > 5 else ''} ({num_tensors} of {len(weight_map)} tensors).",
            advice="Fetch the missing files.",
        )
    places: dict[str, _Place] = {}
    for shard in shards:
        places.update(_read_header(index.parent / shard))
    lost = sorted(set(weight_map) - set(places))
    if lost:
        raise CheckpointError(
            f"{index.parent} is damaged: {len(lost)} of {len(weight_map)} tensors of the index are in no shard.",
            f"The first is {lost[0]}, announced in {weight_map[lost[0]]}.",
            advice="Fetch the model again.",
        )
    return places


def _read_header(file: Path) -> dict[str, _Place]:
    """Where each tensor lies. Checks that the file holds all bytes that it announces."""
    size = file.stat().st_size
    with file.open("rb") as content:
        prefix = content.read(8)
        header_bytes = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= header_bytes <= min(size - 8, _MAX_HEADER_BYTES):
            raise CheckpointError(
                f"{file} is not a complete .safetensors file: it announces a header of {header_bytes} bytes and has {size} bytes in all.",
                advice="Fetch it again.",
            )
        header = _json_table(file, content.read(header_bytes))
    start = 8 + header_bytes
    places = {name: _read_place(file, name, entry, start) for name, entry in header.items() if name != "__metadata__"}
    needed = max((place.offset + place.num_bytes for place in places.values()), default=start)
    if needed > size:
        cut = sorted(name for name, place in places.items() if place.offset + place.num_bytes > size)
        raise CheckpointError(
            f"{file} is truncated: it has {size} of {needed} bytes.",
            f"{len(cut)} of {len(places)} tensors are incomplete, the first is {cut[0]}.",
            advice="Fetch it again.",
        )
    return places


def _read_place(file: Path, name: str, entry: Any, start: int) -> _Place:
    try:
        shape = tuple(int(size) for size in entry["shape"])
        first, last = (int(offset) for offset in entry["data_offsets"])
        kind = str(entry["dtype"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{file}: the header's entry for tensor {name} is damaged.", advice="Fetch it again.") from error
    place = _Place(file, shape, kind, start + first, last - first)
    if first < 0 or last < first or min(shape, default=1) < 0:
        raise CheckpointError(f"{file}: tensor {name} announces the impossible place {first} to {last}.", advice="Fetch it again.")
    itemsize = np.dtype(_NUMBERS[kind]).itemsize if kind in _NUMBERS else None
    if itemsize is not None and place.num_bytes != itemsize * math.prod(shape):
        raise CheckpointError(
            f"{file}: tensor {name} of shape {list(shape)} in {kind} needs {itemsize * math.prod(shape)} bytes.",
            f"Its place in the file has {place.num_bytes}.",
            advice="Fetch it again.",
        )
    return place


def _json_table(file: Path, content: bytes) -> dict[str, Any]:
    try:
        table = json.loads(content)
    except ValueError as error:
        raise CheckpointError(f"{file} is damaged: its header or index is not JSON ({error}).", advice="Fetch it again.") from error
    if not isinstance(table, dict):
        raise CheckpointError(f"{file} is damaged: its header or index is not a table.", advice="Fetch it again.")
    return table
