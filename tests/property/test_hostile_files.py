"""Files are hostile: whatever bytes a reader gets, a map comes out or a HotMapError, quickly and in little memory."""

from __future__ import annotations

import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hothead.errors import DataError, HotMapError
from hothead.vocab.count import TokenCounts
from hothead.vocab.formats.registry import FORMATS
from hothead.vocab.token_map import TokenMap

MAX_ALLOCATED_BYTES = 64 << 20


def _samples(folder: Path) -> dict[str, bytes]:
    """One good file of every format."""
    token_map = TokenMap(np.array([40, 3, 30, 7]), np.array([9, 5, 2, 0]), 50, 0, {"corpus": "chats"}, "ab" * 32)
    samples = {}
    for name in FORMATS:
        path = folder / name
        token_map.save(path, name)
        if path.is_dir():
            samples |= {f"{name}/{file.name}": file.read_bytes() for file in path.iterdir()}
        else:
            samples[name] = path.read_bytes()
    for name, content in {
        "torch dict": {"d2t": torch.tensor([3, 6, 28, 37]), "t2d": torch.ones(4, dtype=torch.bool)},
        "torch checkpoint": _checkpoint(),
        "torch tensor": torch.arange(9),
    }.items():
        torch.save(content, folder / name)
        samples[name] = (folder / name).read_bytes()
    torch.save([5, 4, 3], folder / "old", _use_new_zipfile_serialization=False)
    return samples | {"torch before 1.6": (folder / "old").read_bytes()}


def _checkpoint() -> dict[str, torch.Tensor]:
    """A state_dict, with its attributes, of bf16 weights and the two tables."""
    head = torch.nn.Linear(3, 4, dtype=torch.bfloat16)
    head.register_buffer("d2t", torch.tensor([3, 6, 28, 37]))
    head.register_buffer("t2d", torch.isin(torch.arange(50), torch.tensor([3, 7, 30, 40])))
    return head.state_dict()


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return _samples(tmp_path_factory.mktemp("samples"))


def load_or_refuse(path: Path, load: Callable[[Path], Any], error: type[Exception]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            load(path)
        except error:
            pass


@st.composite
def damages(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """Cut it, change bytes, put in large numbers, repeat a part."""
    kind = draw(st.sampled_from(["cut", "bytes", "number", "repeat", "insert"]))
    place, length = draw(st.floats(0, 1)), draw(st.integers(1, 16))
    patch = draw(st.binary(min_size=length, max_size=length))
    number = draw(st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**60, 2**63 - 1, 2**64 - 1]))

    def damage(data: bytes) -> bytes:
        at = int(place * len(data))
        if kind == "cut":
            return data[:at]
        if kind == "bytes":
            return data[:at] + patch + data[at + length :]
        if kind == "number":
            return data[:at] + number.to_bytes(8, "little") + data[at + 8 :]
        if kind == "repeat":
            return data[:at] + data[at : at + length] * 50 + data[at + length :]
        return data[:at] + patch + data[at:]

    return damage


@settings(max_examples=1500, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=2000)
@given(data=st.data())
def test_damaged_files_of_every_format(samples: dict[str, bytes], tmp_path: Path, data: st.DataObject) -> None:
    content = samples[data.draw(st.sampled_from(sorted(samples)))]
    for damage in data.draw(st.lists(damages(), min_size=1, max_size=3)):
        content = damage(content)
    path = tmp_path / "map"
    path.write_bytes(content)
    load_or_refuse(path, TokenMap.load, HotMapError)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=2000)
@given(data=st.data())
def test_damaged_folders_of_draft_models(samples: dict[str, bytes], tmp_path: Path, data: st.DataObject) -> None:
    files = {
        "model.safetensors": samples["eagle3"],
        "d2t.npy": samples["numpy/d2t.npy"],
        "t2d.npy": samples["numpy/t2d.npy"],
        "pytorch_model.bin": samples["torch checkpoint"],
        "model.safetensors.index.json": b'{"weight_map": {"d2t": "shard.safetensors", "t2d": "shard.safetensors"}}',
        "shard.safetensors": samples["eagle3"],
        "config.json": b'{"draft_vocab_size": 4, "vocab_size": 50, "transformer_layer_config": {"vocab_size": 50}}',
    }
    for name, content in files.items():
        (tmp_path / name).unlink(missing_ok=True)
        if data.draw(st.booleans(), name):
            damage = data.draw(damages()) if data.draw(st.booleans()) else bytes
            (tmp_path / name).write_bytes(damage(content))
    load_or_refuse(tmp_path, TokenMap.load, HotMapError)


@settings(max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=2000)
@given(
    start=st.sampled_from([b"", b"PK\x03\x04", b"\x80\x02", b"GGUF\x03\0\0\0", b"\x93NUMPY\x01\0", b"\x40\0\0\0\0\0\0\0{", b"[1, "]),
    rest=st.binary(max_size=300),
)
def test_any_bytes_behind_any_magic(tmp_path: Path, start: bytes, rest: bytes) -> None:
    path = tmp_path / "map"
    path.write_bytes(start + rest)
    load_or_refuse(path, TokenMap.load, HotMapError)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=2000)
@given(damage=damages())
def test_damaged_counts(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "counts"
    TokenCounts(40, np.arange(40), "ab" * 32, {"corpus": "x"}).save(path)
    path.write_bytes(damage(path.read_bytes()))
    load_or_refuse(path, TokenCounts.load, DataError)


def _gguf_with(num_tensors: int, num_fields: int, rest: bytes = b"") -> bytes:
    return b"GGUF" + (3).to_bytes(4, "little") + num_tensors.to_bytes(8, "little") + num_fields.to_bytes(8, "little") + rest


HUGE = (2**60).to_bytes(8, "little")
BROKEN = {
    "gguf with 2^60 tensors": _gguf_with(2**60, 0),
    "gguf with 2^60 fields": _gguf_with(0, 2**60),
    "gguf with a string of 2^60 bytes": _gguf_with(0, 1, HUGE + b"a"),
    "gguf with an array of 2^60 numbers": _gguf_with(0, 1, (1).to_bytes(8, "little") + b"a" + bytes([9, 0, 0, 0, 4, 0, 0, 0]) + HUGE),
    "gguf with deep arrays": _gguf_with(
        0, 1, (1).to_bytes(8, "little") + b"a" + bytes([9, 0, 0, 0]) + (bytes([9, 0, 0, 0]) + (1).to_bytes(8, "little")) * 20_000
    ),
    "safetensors with a header of 2^60 bytes": HUGE + b"{}",
    "safetensors with a deep header": (200_000).to_bytes(8, "little") + b'{"d2t":' + b"[" * 199_993,
    "safetensors with a tensor outside": (lambda h: len(h).to_bytes(8, "little") + h)(
        b'{"d2t":{"dtype":"I64","shape":[1152921504606846976],"data_offsets":[0,9223372036854775808]}}'
    ),
    "safetensors with negative places": (lambda h: len(h).to_bytes(8, "little") + h)(
        b'{"d2t":{"dtype":"I64","shape":[-1],"data_offsets":[8,0]}}' + b" " * 20
    ),
    "numpy with 2^50 numbers": b"\x93NUMPY\x01\0" + (118).to_bytes(2, "little")
    + b"{'descr': '<i8', 'fortran_order': False, 'shape': (1125899906842624,), }".ljust(117) + b"\n",
    "numpy with a program as header": b"\x93NUMPY\x01\0" + (118).to_bytes(2, "little")
    + b"__import__('os').system('touch run.txt')".ljust(117) + b"\n",
    "text of digits": b"1" * 5_000_000,
    "text of brackets": b"[" * 1_000_000,
}  # fmt: skip


def _sparse(start: bytes, num_bytes: int) -> Callable[[Path], None]:
    """A file that claims a size and takes no room on the disk."""

    def write(path: Path) -> None:
        with path.open("wb") as file:
            file.write(start)
            file.truncate(num_bytes)

    return write


@pytest.mark.parametrize("content", [b"1 " * 8_000_000, b"1\n" * 8_000_000])
def test_a_text_of_numbers_without_end_is_not_read_to_its_end(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "map"
    path.write_bytes(content)
    with pytest.raises(HotMapError, match="more than 1048576 numbers"):
        TokenMap.load(path)


GIB = 1 << 30


def _sparse_zip(path: Path) -> None:
    _sparse(b"PK\x03\x04", 3 * GIB)(path)
    with path.open("ab") as file:  # end of the directory: 1 entry in 2^31 bytes that begin behind 2^30
        file.write(
            b"PK\x05\x06"
            + bytes(4)
            + (1).to_bytes(2, "little") * 2
            + (2 * GIB).to_bytes(4, "little")
            + GIB.to_bytes(4, "little")
            + bytes(2)
        )


SPARSE = {
    "gguf with an array of 2^31 bytes": _sparse(
        _gguf_with(0, 1, (1).to_bytes(8, "little") + b"a" + bytes([9, 0, 0, 0, 0, 0, 0, 0]) + (2 * GIB).to_bytes(8, "little")), 3 * GIB
    ),
    "gguf with a string of 2^31 bytes": _sparse(_gguf_with(0, 1, (2 * GIB).to_bytes(8, "little")), 3 * GIB),
    "zip whose list of entries has 2^31 bytes": _sparse_zip,
    "gguf with 2^28 fields without a name": _sparse(_gguf_with(0, 1 << 28), 4 * GIB),
}


@pytest.mark.parametrize("name", SPARSE)
def test_a_large_file_is_not_read_whole(tmp_path: Path, name: str) -> None:
    path = tmp_path / "map"
    SPARSE[name](path)
    tracemalloc.start()
    try:
        with pytest.raises(HotMapError):
            TokenMap.load(path)
        assert tracemalloc.get_traced_memory()[1] < MAX_ALLOCATED_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", BROKEN)
def test_hostile_files_cost_little(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "map"
    path.write_bytes(BROKEN[name])
    tracemalloc.start()
    try:
        with pytest.raises(HotMapError):
            TokenMap.load(path)
        assert tracemalloc.get_traced_memory()[1] < MAX_ALLOCATED_BYTES
    finally:
        tracemalloc.stop()
    assert not Path("run.txt").exists()
