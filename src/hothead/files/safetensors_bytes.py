"""A safetensors file whose bytes follow from its content alone.

The library writes the entries of `__metadata__` in another order every time, so that equal maps would have unequal files.
Layout: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

_ALIGNMENT = 8
_DTYPES = {"i8": "I64", "b1": "BOOL"}


def encode_safetensors(tensors: Mapping[str, npt.NDArray[np.generic]], metadata: Mapping[str, str]) -> bytes:
    """int64 and boolean tensors, the larger numbers first, so that all of them lie aligned; then by name."""
    header: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    parts: list[bytes] = []
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):
        parts.append(np.ascontiguousarray(tensor, tensor.dtype.newbyteorder("<")).tobytes())
        start, end = end, end + len(parts[-1])
        header[name] = {"dtype": _DTYPES[tensor.dtype.str[1:]], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])
