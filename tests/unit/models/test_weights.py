"""Weights: every cut of every format equals the same cut of the whole tensor, and every damaged file is refused with the numbers."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from hothead.errors import CheckpointError
from hothead.files.gguf_header import read_gguf_header
from hothead.models.config_files import load_config
from hothead.models.weights import base, open_weights
from hothead.models.weights.accounting import account
from hothead.models.weights.decode import QUANTIZED
from hothead.models.weights.gguf import interleaved_rows

ROWS, COLUMNS = 12, 256
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8
BLOCKS_32 = [Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1]
K_QUANTS = [Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K]


def values(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# safetensors


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("single")
    save_file(
        {
            "half": values(ROWS, COLUMNS).to(torch.bfloat16),
            "wide": values(ROWS, COLUMNS, seed=1),
            "vector": values(COLUMNS, seed=2).to(torch.float16),
            "scalar": torch.tensor(2.5),
            "cube": values(2, 3, 4, seed=3),
            "whole": torch.arange(6),
        },
        path / "model.safetensors",
    )
    return path


def test_safetensors_are_read_as_stored(folder: Path) -> None:
    from safetensors.torch import load_file

    source = open_weights(folder)
    expected = load_file(folder / "model.safetensors")
    assert source.names() == frozenset(expected)
    for name in ("half", "wide", "vector", "scalar", "cube"):
        assert source.shape(name) == tuple(expected[name].shape)
        found = source.read(name)
        assert found.dtype == expected[name].dtype
        assert torch.equal(found, expected[name])
        assert torch.equal(source.read(name, dtype=torch.float64), expected[name].double())
    assert (source.stored_format("half"), source.stored_format("vector")) == ("BF16", "F16")
    source.close()


def test_reading_a_file_equals_reading_its_folder(folder: Path) -> None:
    source = open_weights(folder / "model.safetensors")
    assert torch.equal(source.read("wide"), open_weights(folder).read("wide"))


def test_what_was_read_belongs_to_the_caller(folder: Path) -> None:
    source = open_weights(folder)
    first = source.read("half")
    source.close()
    first.zero_()
    assert source.read("half").any()


row_cuts = st.one_of(
    st.none(),
    st.tuples(st.integers(0, ROWS), st.integers(0, ROWS)).map(lambda ends: slice(min(ends), max(ends))),
    st.lists(st.integers(0, ROWS - 1), max_size=20).map(lambda ids: np.array(ids, np.int64)),
)
column_cuts = st.one_of(
    st.none(), st.tuples(st.integers(0, COLUMNS), st.integers(0, COLUMNS)).map(lambda ends: slice(min(ends), max(ends)))
)


def cut(whole: torch.Tensor, rows: Any, columns: slice | None) -> torch.Tensor:
    part = whole if rows is None else whole[rows if isinstance(rows, slice) else torch.from_numpy(rows)]
    return part if columns is None else part[:, columns]


@given(name=st.sampled_from(["half", "wide"]), rows=row_cuts, columns=column_cuts, chunk=st.sampled_from([1, 300, 1 << 22]))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_cut_of_a_plain_tensor(folder: Path, name: str, rows: Any, columns: slice | None, chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "CHUNK_VALUES", chunk)
        source = open_weights(folder)
        whole = source.read(name)
        assert torch.equal(source.read(name, rows, columns), cut(whole, rows, columns))
        assert torch.equal(source.read(name, rows, columns, dtype=torch.float16), cut(whole, rows, columns).half())


def test_rows_of_vectors_and_cubes(folder: Path) -> None:
    source = open_weights(folder)
    assert torch.equal(source.read("vector", slice(3, 9)), source.read("vector")[3:9])
    assert torch.equal(source.read("cube", np.array([1, 1, 0])), source.read("cube")[[1, 1, 0]])
    with pytest.raises(CheckpointError, match="columns"):
        source.read("vector", columns=slice(0, 1))


def test_what_cannot_be_cut_is_refused(folder: Path) -> None:
    source = open_weights(folder)
    with pytest.raises(CheckpointError, match=r"2 of 3 row ids are out of range[\s\S]*first is 12 at position 1"):
        source.read("wide", np.array([0, ROWS, -1]))
    with pytest.raises(CheckpointError, match="rows 3 to 13"):
        source.read("wide", slice(3, ROWS + 1))
    with pytest.raises(CheckpointError, match="step 2"):
        source.read("wide", slice(0, 4, 2))
    with pytest.raises(CheckpointError, match="columns 0 to 257"):
        source.read("wide", columns=slice(0, COLUMNS + 1))
    with pytest.raises(CheckpointError, match="no tensor nothing"):
        source.read("nothing")
    with pytest.raises(CheckpointError, match=r"stored as I64[\s\S]*Implemented"):
        source.read("whole")


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    save_file({"a": values(3, 4), "b": values(2, 4)}, tmp_path / "one.safetensors")
    save_file({"c": values(5, 4)}, tmp_path / "two.safetensors")
    weight_map = {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return tmp_path


def test_shards_are_one_source(sharded: Path) -> None:
    source = open_weights(sharded)
    assert source.names() == {"a", "b", "c"}
    assert torch.equal(source.read("c", np.array([4, 0])), values(5, 4)[[4, 0]])


def test_a_missing_shard_is_named(sharded: Path) -> None:
    (sharded / "two.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"half a checkpoint: 1 of 2 shards[\s\S]*two.safetensors \(1 of 3 tensors\)"):
        open_weights(sharded)


def test_a_tensor_of_the_index_that_no_shard_has(sharded: Path) -> None:
    save_file({"other": values(5, 4)}, sharded / "two.safetensors")
    with pytest.raises(CheckpointError, match=r"1 of 3 tensors of the index are in no shard[\s\S]*c, announced in two"):
        open_weights(sharded)


@pytest.mark.parametrize("index", ["{", "[]", "{}", '{"weight_map": {"a": "../one.safetensors"}}', '{"weight_map": {"a": 1}}'])
def test_a_damaged_index(sharded: Path, index: str) -> None:
    (sharded / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match=r"index\.json"):
        open_weights(sharded)


@pytest.mark.parametrize("num_bytes", [0, 4, 8, 40])
def test_a_file_cut_in_its_header(folder: Path, tmp_path: Path, num_bytes: int) -> None:
    cut_file = tmp_path / "model.safetensors"
    cut_file.write_bytes((folder / "model.safetensors").read_bytes()[:num_bytes])
    with pytest.raises(CheckpointError, match=f"{num_bytes} bytes in all"):
        open_weights(tmp_path)


def test_a_file_cut_in_its_data(folder: Path, tmp_path: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(content[:-10])
    with pytest.raises(CheckpointError, match=f"truncated: it has {len(content) - 10} of {len(content)} bytes"):
        open_weights(tmp_path)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 12]},
        {"dtype": "F32", "shape": [2, 2], "data_offsets": [16, 0]},
        {"dtype": "F32", "shape": [2, 2]},
        {"dtype": "F32", "shape": [-2, -2], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": 4, "data_offsets": [0, 16]},
    ],
)
def test_a_damaged_header_entry(tmp_path: Path, entry: dict[str, Any]) -> None:
    header = json.dumps({"x": entry}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
    with pytest.raises(CheckpointError, match="tensor x"):
        open_weights(tmp_path)


def test_folders_and_files_that_hold_no_weights(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        open_weights(tmp_path / "absent")
    with pytest.raises(CheckpointError, match=r"no model\.safetensors"):
        open_weights(tmp_path)
    (tmp_path / "model.pth").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"model\.pth[\s\S]*Convert"):
        open_weights(tmp_path)
    with pytest.raises(CheckpointError, match="not a file of weights"):
        open_weights(tmp_path / "model.pth")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin cannot be read"):
        open_weights(tmp_path)


# torch.save


class _Runs:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("run",))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_what_torch_saved_is_read_by_rows_and_columns(tmp_path: Path, dtype: torch.dtype) -> None:
    base = torch.randn(9, 6).to(dtype)
    weights = {"whole": base, "part": torch.nn.Parameter(base[3:8]), "one": base[2], "d2t": torch.arange(3)}
    torch.save(weights, tmp_path / "pytorch_model.bin")
    source = open_weights(tmp_path)
    assert source.names() == set(weights)
    assert source.shape("part") == (5, 6)
    for name in ("whole", "part", "one"):
        assert torch.equal(source.read(name), weights[name].detach())
    assert torch.equal(source.read("part", rows=np.array([4, 0]), columns=slice(1, 3)), base[3:8][[4, 0]][:, 1:3])
    with pytest.raises(CheckpointError, match="no tensor none"):
        source.read("none")
    source.close()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"x": _Runs()}, "__builtin__.print"),
        ([1, 2], "holds a list"),
        ({"x": 3}, "holds a int as x"),
        ({"x": torch.randn(4, 3).T}, "do not lie one after the other"),
    ],
)
def test_what_torch_saved_and_is_no_table_of_weights(tmp_path: Path, content: object, said: str) -> None:
    torch.save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=said):
        open_weights(tmp_path)


def test_a_file_of_torch_that_was_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "pytorch_model.bin"
    torch.save({"x": torch.randn(100, 100)}, file)
    file.write_bytes(file.read_bytes()[:-5000])
    with pytest.raises(CheckpointError, match="cannot be read"):
        open_weights(tmp_path)


# GGUF


def quantized_bytes(kind: Kind, num_rows: int, num_columns: int, seed: int = 0) -> np.ndarray:
    """Valid blocks: quantized where the library can, else random bytes with moderate scales in every 16-bit place a scale may have."""
    try:
        return gguf.quantize(values(num_rows, num_columns, seed=seed).numpy(), kind)
    except NotImplementedError:
        block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        rng = np.random.default_rng(seed)
        blocks = rng.integers(0, 60, (num_rows, num_columns // block_size, block_bytes), dtype=np.uint8)  # no float16 of these is infinite
        return blocks.reshape(num_rows, -1)


def write(path: Path, tensors: dict[str, tuple[np.ndarray, Kind | None]], architecture: str = "llama") -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    for name, (content, kind) in tensors.items():
        writer.add_tensor(name, content, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("kind", [*BLOCKS_32, *K_QUANTS, Kind.IQ4_NL, Kind.IQ4_XS, Kind.TQ1_0, Kind.MXFP4], ids=lambda kind: kind.name)
def test_every_cut_of_a_quantized_tensor_equals_the_library(tmp_path: Path, kind: Kind) -> None:
    content = quantized_bytes(kind, ROWS, COLUMNS * 2)
    expected = torch.from_numpy(gguf.dequantize(content, kind))
    source = open_weights(write(tmp_path / "m.gguf", {"token_embd.weight": (content, kind)}))
    name = "model.embed_tokens.weight"
    assert source.stored_format(name) == kind.name
    assert source.shape(name) == (ROWS, COLUMNS * 2)
    assert torch.equal(source.read(name), expected)
    assert torch.equal(source.read(name, dtype=torch.bfloat16), expected.bfloat16())
    for rows, columns in [
        (slice(3, 7), None),
        (np.array([11, 0, 0, 5]), None),
        (None, slice(0, 256)),
        (None, slice(5, 333)),
        (np.array([2, 9]), slice(40, 41)),
        (slice(4, 4), slice(7, 7)),
    ]:
        assert torch.equal(source.read(name, rows, columns), cut(expected, rows, columns))


@pytest.mark.parametrize(
    ("content", "kind", "dtype"),
    [
        (values(ROWS, COLUMNS).numpy(), None, torch.float32),
        (values(ROWS, COLUMNS).half().numpy(), None, torch.float16),
        (values(ROWS, COLUMNS).bfloat16().view(torch.uint8).numpy(), Kind.BF16, torch.bfloat16),
    ],
    ids=["F32", "F16", "BF16"],
)
def test_plain_formats_of_gguf(tmp_path: Path, content: np.ndarray, kind: Kind | None, dtype: torch.dtype) -> None:
    source = open_weights(write(tmp_path / "m.gguf", {"output.weight": (content, kind)}))
    found = source.read("lm_head.weight")
    assert found.dtype == dtype
    assert torch.equal(found, values(ROWS, COLUMNS).to(dtype))


def test_the_named_formats_can_be_decoded() -> None:
    assert {kind.name for kind in (*BLOCKS_32, *K_QUANTS)} <= QUANTIZED


def permuted(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """What the GGUF converter does to q and k of Llama models."""
    return weight.reshape(num_heads, 2, weight.shape[0] // num_heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def attention(seed: int = 0) -> dict[str, np.ndarray]:
    return {
        "attn_q.weight": values(HEADS * HEAD_DIM, 32, seed=seed).numpy(),
        "attn_k.weight": values(KV_HEADS * HEAD_DIM, 32, seed=seed + 1).numpy(),
        "attn_v.weight": values(KV_HEADS * HEAD_DIM, 32, seed=seed + 2).numpy(),
        "attn_q.bias": values(HEADS * HEAD_DIM, seed=seed + 3).numpy(),
    }


@pytest.mark.parametrize("kind", [None, Kind.Q8_0, Kind.Q4_1], ids=["F32", "Q8_0", "Q4_1"])
def test_llama_query_and_key_rows_come_back_in_their_own_order(tmp_path: Path, kind: Kind | None) -> None:
    plain = attention()
    heads = {"attn_q.weight": HEADS, "attn_k.weight": KV_HEADS, "attn_q.bias": HEADS}
    stored: dict[str, tuple[np.ndarray, Kind | None]] = {}
    for name, content in plain.items():
        ordered = permuted(content, heads[name]) if name in heads else content
        is_quantized = kind is not None and content.ndim > 1
        stored[f"blk.0.{name}"] = (gguf.quantize(ordered, kind), kind) if kind is not None and is_quantized else (ordered, None)
    source = open_weights(write(tmp_path / "m.gguf", stored))
    for name, content in plain.items():
        full_name = f"model.layers.0.self_attn.{name.replace('attn_', '').replace('.', '_proj.')}"
        expected = torch.from_numpy(content)
        if kind is not None and content.ndim > 1:
            expected = torch.from_numpy(gguf.dequantize(gguf.quantize(content, kind), kind))
        assert torch.equal(source.read(full_name), expected)
        assert torch.equal(source.read(full_name, slice(8, 15)), expected[8:15])
        assert torch.equal(source.read(full_name, np.array([15, 1, 1])), expected[[15, 1, 1]])
        if content.ndim > 1:
            assert torch.equal(source.read(full_name, slice(5, 12), slice(3, 17)), expected[5:12, 3:17])
    with pytest.raises(CheckpointError, match="rows 8 to 33"):
        source.read("model.layers.0.self_attn.q_proj.weight", slice(8, 33))


def test_other_architectures_are_not_permuted(tmp_path: Path) -> None:
    plain = attention()
    source = open_weights(write(tmp_path / "m.gguf", {f"blk.0.{name}": (content, None) for name, content in plain.items()}, "qwen2"))
    assert torch.equal(source.read("model.layers.0.self_attn.q_proj.weight"), torch.from_numpy(plain["attn_q.weight"]))


@given(num_heads=st.integers(1, 5), half=st.integers(1, 8), data=st.data())
@settings(max_examples=60, deadline=None)
def test_interleaving_is_the_converters_permutation(num_heads: int, half: int, data: st.DataObject) -> None:
    num_rows = num_heads * half * 2
    stored = permuted(np.arange(num_rows), num_heads)
    assert np.array_equal(stored[interleaved_rows(None, num_rows, num_heads)], np.arange(num_rows))
    rows = np.array(data.draw(st.lists(st.integers(0, num_rows - 1))), np.int64)
    assert np.array_equal(stored[interleaved_rows(rows, num_rows, num_heads)], rows)


def test_header_equals_the_librarys_reader(tmp_path: Path) -> None:
    tensors: dict[str, tuple[np.ndarray, Kind | None]] = {
        "output_norm.weight": (values(32).numpy(), None),
        "token_embd.weight": (quantized_bytes(Kind.Q6_K, 3, 256), Kind.Q6_K),
    }
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(64)
    writer.add_array("a.strings", ["ä", "", "b" * 300])
    writer.add_array("a.numbers", [1, -2, 3])
    writer.add_array("a.floats", [0.5, -1.5])
    writer.add_bool("a.flag", True)
    writer.add_float64("a.double", 0.1)
    writer.add_uint64("a.big", 1 << 40)
    for name, (content, kind) in tensors.items():
        writer.add_tensor(name, content, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header, reader = read_gguf_header(path), gguf.GGUFReader(path)
    expected = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert header.fields == expected
    for tensor in reader.tensors:
        found = header.tensors[tensor.name]
        assert found.shape == tuple(reversed(tensor.shape.tolist()))
        assert (found.format, found.offset, found.num_bytes) == (tensor.tensor_type.name, tensor.data_offset, tensor.n_bytes)
    assert header.float32_values("output_norm.weight") == tuple(values(32).tolist())
    assert header.float32_values("rope_freqs.weight") == ()
    with pytest.raises(CheckpointError, match="Q6_K instead of F32"):
        header.float32_values("token_embd.weight")


def test_a_gguf_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    content = write(tmp_path / "m.gguf", {"output_norm.weight": (values(32).numpy(), None)}).read_bytes()
    path = tmp_path / "cut.gguf"
    for num_bytes in [*range(1, 60), *range(60, len(content) - 32, 7), len(content) - 1]:
        path.write_bytes(content[:num_bytes])
        with pytest.raises(CheckpointError, match=r"cut\.gguf"):
            open_weights(path)


@pytest.mark.parametrize(
    ("position", "replacement", "expected"),
    [
        (0, b"GGML", "not a GGUF file"),
        (4, struct.pack("<I", 1), "version 1"),
        (4, struct.pack(">I", 3), "big-endian"),
        (8, struct.pack("<Q", 1 << 60), "cannot be read|truncated"),
        (16, struct.pack("<Q", 1 << 60), "cannot be read|truncated"),
    ],
)
def test_a_damaged_gguf_header(tmp_path: Path, position: int, replacement: bytes, expected: str) -> None:
    path = write(tmp_path / "m.gguf", {"output_norm.weight": (values(32).numpy(), None)})
    content = bytearray(path.read_bytes())
    content[position : position + len(replacement)] = replacement
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=expected):
        open_weights(path)


def test_an_empty_file_and_a_split_one(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"empty\.gguf"):
        open_weights(tmp_path / "empty.gguf")
    writer = gguf.GGUFWriter(tmp_path / "part.gguf", "llama")
    writer.add_uint16("split.count", 3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match="one of 3 parts"):
        open_weights(tmp_path / "part.gguf")


# Accounting


def source_with(tmp_path: Path, **shapes: tuple[int, ...]) -> base.WeightSource:
    save_file({name.replace("__", "."): torch.zeros(shape) for name, shape in shapes.items()}, tmp_path / "model.safetensors")
    return open_weights(tmp_path)


def test_a_complete_checkpoint_is_accounted_for(tmp_path: Path) -> None:
    source = source_with(tmp_path, a=(2, 3), model__layers__0__self_attn__rotary_emb__inv_freq=(4,))
    account(source, {"a": (2, 3)})


def test_missing_left_over_and_misshapen_tensors_are_listed(tmp_path: Path) -> None:
    source = source_with(tmp_path, a=(2, 3), extra=(1,))
    with pytest.raises(CheckpointError) as caught:
        account(source, {"a": (3, 2), "b": (1,), "c": (1,)})
    text = str(caught.value)
    assert "Missing: b, c (2 of 3)." in text
    assert "Left over: extra (1 of 2)." in text
    assert "a is [2, 3] instead of [3, 2]." in text


def test_half_a_checkpoint_says_so_and_long_lists_are_cut(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"half a checkpoint[\s\S]*b0, b1, b2, b3, b4, \.\.\. \(9 of 10\)"):
        account(source_with(tmp_path, a=(1,)), {"a": (1,), **{f"b{number}": (1,) for number in range(9)}})


@pytest.mark.case(24)
def test_a_stored_copy_of_a_tied_head_is_passed_over(tmp_path: Path) -> None:
    source = source_with(tmp_path, a=(1,), lm_head__weight=(1,))
    account(source, {"a": (1,)}, has_tied_head=True)
    with pytest.raises(CheckpointError, match="lm_head"):
        account(source, {"a": (1,)})


@pytest.mark.real_model
def test_the_default_models_rows_equal_the_librarys_reader(default_model: Path) -> None:
    source = open_weights(default_model)
    account(source, load_config(default_model).tensor_shapes(), has_tied_head=True)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(default_model).tensors}

    def whole(name: str) -> torch.Tensor:
        return torch.from_numpy(np.array(gguf.dequantize(tensors[name].data, tensors[name].tensor_type)))

    token_ids = np.array([49151, 0, 17, 30000])
    assert torch.equal(source.read("model.embed_tokens.weight", token_ids), whole("token_embd.weight")[torch.from_numpy(token_ids)])
    down = source.read("model.layers.29.mlp.down_proj.weight", dtype=torch.bfloat16)
    assert torch.equal(down, whole("blk.29.ffn_down.weight").bfloat16())
    expected = whole("blk.7.attn_k.weight").reshape(3, 32, 2, 576).transpose(1, 2).reshape(192, 576)
    assert torch.equal(source.read("model.layers.7.self_attn.k_proj.weight", slice(64, 128)), expected[64:128])
