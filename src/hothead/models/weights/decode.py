"""How stored bytes become float tensors: one format per name, plain ones and GGUF's quantized blocks."""

from __future__ import annotations

from dataclasses import dataclass

import gguf
import numpy as np
import torch
from numpy.typing import NDArray

from hothead.errors import CheckpointError

_PLAIN: dict[str, torch.dtype] = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class StoredFormat:
    """One storage format: block_size values lie in block_bytes bytes. dtype: what decoding gives."""

    name: str
    block_size: int
    block_bytes: int
    dtype: torch.dtype

    @property
    def is_plain(self) -> bool:
        return self.name in _PLAIN

    def decode(self, raw: NDArray[np.uint8]) -> torch.Tensor:
        """raw: [R, bytes per row], writable and contiguous -> [R, values per row] of self.dtype, exact for every format.

        A plain format's result shares raw's memory.
        """
        if self.is_plain:
            return torch.from_numpy(raw).view(self.dtype)
        return torch.from_numpy(gguf.dequantize(raw, gguf.GGMLQuantizationType[self.name]))


def stored_format(name: str, where: str) -> StoredFormat:
    """The format of this name. Raises CheckpointError, which names the implemented ones."""
    if name in _PLAIN:
        return StoredFormat(name, 1, _PLAIN[name].itemsize, _PLAIN[name])
    if name in QUANTIZED:
        block_size, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
        return StoredFormat(name, block_size, block_bytes, torch.float32)
    raise CheckpointError(
        f"{where} is stored as {name}, which is not implemented.",
        f"Implemented: {', '.join((*_PLAIN, *sorted(QUANTIZED)))}.",
        advice="Use another version of this model.",
    )


def _decodable() -> frozenset[str]:
    """The quantized formats that the installed gguf library can decode, found by trying one block of zeros."""
    names = set()
    for kind in gguf.GGMLQuantizationType:
        if kind.name in _PLAIN or (kind.name[0] == "I" and kind.name[1:].isdigit()):
            continue
        try:
            gguf.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8), kind)
        except NotImplementedError:
            continue
        names.add(kind.name)
    return frozenset(names)


QUANTIZED = _decodable()
