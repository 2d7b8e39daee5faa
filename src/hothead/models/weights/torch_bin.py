"""Weights from `pytorch_model.bin`, read by the instructions that build tensors and by no other: nothing in the file is run.

The zip archive that torch.save writes stores every tensor as plain bytes, which are mapped as those of a safetensors file are.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hothead.errors import CheckpointError, HotMapError
from hothead.files.torch_file import StoredTensor, open_torch_file
from hothead.models.weights.base import Rows, read_stored
from hothead.models.weights.decode import stored_format

BIN_NAME = "pytorch_model.bin"
_FORMATS = {"Double": ("F64", 8), "Float": ("F32", 4), "Half": ("F16", 2), "BFloat16": ("BF16", 2)}
_OTHER_SIZES = {"Long": 8, "Int": 4, "Short": 2, "Char": 1, "Byte": 1, "Bool": 1}


@dataclass(frozen=True)
class _Place:
    """One tensor: where its bytes lie in the file."""

    shape: tuple[int, ...]
    format: str
    offset: int
    num_bytes: int


class TorchWeights:
    """A WeightSource over one file that torch.save wrote."""

    passed_over: frozenset[str] = frozenset()

    def __init__(self, path: Path, places: dict[str, _Place]) -> None:
        self.source = path.name
        self._path = path
        self._places = places
        self._map: NDArray[np.uint8] | None = None

    @classmethod
    def open(cls, path: Path) -> TorchWeights:
        """Reads the names and places of tensors only. Raises CheckpointError for anything but a table of tensors."""
        try:
            with open_torch_file(path) as content:
                if not isinstance(content, dict):
                    raise CheckpointError(f"{path} holds a {type(content).__name__}, not a table of weights.")
                return cls(path, {name: _place(path, name, tensor) for name, tensor in content.items()})
        except HotMapError as error:
            raise CheckpointError(f"{path} cannot be read: {error.what}", *error.details, advice=error.advice) from error
        except CheckpointError:
            raise
        except Exception as error:
            # The bytes may be anything: whatever the parser trips over is a damaged file, and only that.
            raise CheckpointError(
                f"{path} cannot be read: the file is damaged.", f"{type(error).__name__}: {error!s:.200}", advice="Fetch it again."
            ) from error

    def names(self) -> frozenset[str]:
        return frozenset(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._of(name).shape

    def stored_format(self, name: str) -> str:
        return self._of(name).format

    def read(self, name: str, rows: Rows = None, columns: slice | None = None, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        place = self._of(name)
        decoder = stored_format(place.format, f"Tensor {name} of {self.source}")
        if self._map is None:
            self._map = np.memmap(self._path, dtype=np.uint8, mode="r")
        return read_stored(self._map[place.offset : place.offset + place.num_bytes], place.shape, decoder, rows, columns, dtype, name)

    def close(self) -> None:
        self._map = None

    def _of(self, name: str) -> _Place:
        if name not in self._places:
            raise CheckpointError(f"{self.source} has no tensor {name}.", f"It has {len(self._places)} tensors.")
        return self._places[name]


def _place(path: Path, name: str, tensor: object) -> _Place:
    if not isinstance(tensor, StoredTensor):
        raise CheckpointError(
            f"{path} holds a {type(tensor).__name__} as {name!s:.80}, not a tensor.", advice="Give a file with a state_dict alone."
        )
    kind = tensor.kind
    if kind not in _FORMATS and kind not in _OTHER_SIZES:
        raise CheckpointError(f"Tensor {name} of {path} is stored as {kind}, which is not implemented.", advice="Save it as .safetensors.")
    stored_as, itemsize = _FORMATS.get(kind, (kind, _OTHER_SIZES.get(kind, 0)))
    return _Place(tensor.shape, stored_as, *tensor.place(itemsize))
