"""The library reads what is written, and equal content gives equal bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load

from hothead.files.safetensors_bytes import encode_safetensors

METADATA = {"b": 'ä\n"', "a": "", "format": "pt"}
TENSORS = {"t2d": np.array([True, False, True]), "counts": np.array([9, -1]), "empty": np.zeros(0, np.int64), "wide": np.arange(6)[::2]}


def test_the_library_reads_it(tmp_path: Path) -> None:
    data = encode_safetensors(TENSORS, METADATA)
    read = load(data)
    assert {name: (tensor.dtype, tensor.tolist()) for name, tensor in read.items()} == {
        name: (tensor.dtype, tensor.tolist()) for name, tensor in TENSORS.items()
    }
    (tmp_path / "x").write_bytes(data)
    with safe_open(tmp_path / "x", "numpy") as file:
        assert file.metadata() == METADATA
    assert load(encode_safetensors({}, {})) == {}


def test_bytes_follow_from_the_content_alone() -> None:
    backwards = [dict(reversed(list(one.items()))) for one in (TENSORS, METADATA)]
    assert encode_safetensors(*backwards) == encode_safetensors(TENSORS, METADATA)


def test_numbers_lie_aligned() -> None:
    for length in range(20):
        data = encode_safetensors({"t2d": np.ones(3, bool), "x": np.arange(2)}, {"a": "x" * length})
        header_bytes = int.from_bytes(data[:8], "little")
        assert header_bytes % 8 == 0
        assert data[8 + header_bytes : 8 + header_bytes + 16] == np.arange(2).tobytes()
