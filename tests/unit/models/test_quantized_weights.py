"""Quantized safetensors: every cut of every format equals the same cut of what the defining library dequantizes, bit for bit.

tests/data/quantized is made by those libraries (tests/fixtures/make_quantized.py).
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tests.support.quantized import CASES, DATA, expected_head, head_name

from hothead.errors import CheckpointError
from hothead.models.quantization import CompressedTensors, read_quantization
from hothead.models.weights import base, open_weights
from hothead.models.weights.accounting import account
from hothead.models.weights.quantized.compressed_tensors import scheme_of
from hothead.models.weights.quantized.integers import num_words, unpack, unpack_rows, words_of
from hothead.models.weights.quantized.matrix import fp8_floats

FORMATS = {
    "awq": "int4 in groups of 32 (awq)",
    "awq-one-group": "int4 by row (awq)",
    "deepseek-fp8": "fp8 in blocks of 64 x 32 (fp8)",
    "fp8-blocks": "fp8 in blocks of 64 x 32 (compressed-tensors)",
    "fp8-rows": "fp8 by row (compressed-tensors)",
    "fp8-tensor": "fp8 with one scale (compressed-tensors)",
    "gptq-int2-one-group": "int2 by row (gptq)",
    "gptq-int3": "int3 in groups of 32 (gptq)",
    "gptq-int4": "int4 in groups of 32 (gptq)",
    "gptq-int4-order": "int4 in groups of 16, activation order (gptq)",
    "gptq-int8-order": "int8 in groups of 32, activation order (gptq)",
    "gptq-v1-with-zeros": "int4 in groups of 32 (gptq)",
    "gptq-v2": "int4 in groups of 32 (gptq)",
    "int3-groups": "int3 in groups of 32 (compressed-tensors)",
    "int4-float16": "int4 by row (compressed-tensors)",
    "int4-groups": "int4 in groups of 32 (compressed-tensors)",
    "int4-groups-asymmetric": "int4 in groups of 32 (compressed-tensors)",
    "int4-rows-odd": "int4 by row (compressed-tensors)",
    "int8-packed-asymmetric": "int8 by row (compressed-tensors)",
    "int8-rows": "int8 by row (compressed-tensors)",
    "int8-rows-asymmetric": "int8 by row (compressed-tensors)",
    "int8-tensor": "int8 with one scale (compressed-tensors)",
    "nvfp4": "fp4 in groups of 16 (compressed-tensors)",
    "tied-int4-groups": "int4 in groups of 32 (compressed-tensors)",
}


def same_bits(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Minus zero is not zero here."""
    kind = {2: torch.int16, 4: torch.int32}[expected.element_size()]
    return found.dtype == expected.dtype and torch.equal(found.contiguous().view(kind), expected.contiguous().view(kind))


def cut(whole: torch.Tensor, rows: Any, columns: slice | None) -> torch.Tensor:
    part = whole if rows is None else whole[rows if isinstance(rows, slice) else torch.from_numpy(rows)]
    return part if columns is None else part[:, columns]


def test_every_case_has_its_name() -> None:
    assert set(CASES) == FORMATS.keys()


@pytest.mark.case(19)
@pytest.mark.parametrize("case", CASES)
def test_rows_and_columns_equal_the_librarys_matrix(case: str) -> None:
    expected = expected_head(case)
    source, name = open_weights(DATA / case), head_name(case)
    assert source.names() == {name}
    assert source.shape(name) == tuple(expected.shape)
    assert source.stored_format(name) == FORMATS[case]
    assert same_bits(source.read(name), expected)
    assert torch.equal(source.read(name, dtype=torch.bfloat16), expected.bfloat16())
    assert torch.equal(source.read(name, dtype=torch.float32), expected.float())
    last, width = len(expected) - 1, expected.shape[1]
    for rows, columns in [
        (slice(3, 60), None),
        (np.array([last, 0, 0, 17, 5, 63, 17]), None),
        (None, slice(0, 32)),
        (None, slice(width - 1, width)),
        (np.array([2, 9, last]), slice(5, width - 2)),
        (np.array([], np.int64), None),
        (slice(4, 4), slice(7, 7)),
        (np.array([1]), slice(40, 41)),
    ]:
        assert same_bits(source.read(name, rows, columns), cut(expected, rows, columns)), (rows, columns)


@given(case=st.sampled_from(CASES), data=st.data(), chunk=st.sampled_from([1, 200, 1 << 22]))
def test_any_cut_of_any_format(case: str, data: st.DataObject, chunk: int) -> None:
    expected = expected_head(case)
    num_rows, num_columns = expected.shape
    rows = np.array(data.draw(st.lists(st.integers(0, num_rows - 1), max_size=12)), np.int64)
    ends = data.draw(st.tuples(st.integers(0, num_columns), st.integers(0, num_columns)))
    columns = slice(min(ends), max(ends))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "CHUNK_VALUES", chunk)
        assert same_bits(open_weights(DATA / case).read(head_name(case), rows, columns), cut(expected, rows, columns))


@given(bits=st.integers(1, 8), num_columns=st.integers(1, 70), data=st.data())
def test_integers_without_gaps(bits: int, num_columns: int, data: st.DataObject) -> None:
    """Against Python's own long integers, in both directions."""
    row = data.draw(st.lists(st.integers(0, (1 << bits) - 1), min_size=num_columns, max_size=num_columns))
    number = sum(value << (place * bits) for place, value in enumerate(row))
    words = np.frombuffer(number.to_bytes(4 * num_words(num_columns, bits), "little"), np.int32)
    start = data.draw(st.integers(0, num_columns))
    stop = data.draw(st.integers(start, num_columns))
    assert unpack(words[None, words_of(start, stop, bits)].copy(), start, stop, bits).tolist() == [row[start:stop]]
    ids = np.array(data.draw(st.lists(st.integers(0, num_columns - 1), max_size=9)), np.int64)
    assert unpack_rows(words[:, None], ids, bits)[:, 0].tolist() == [row[index] for index in ids]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_every_8_bit_float(dtype: torch.dtype) -> None:
    raw = np.arange(256, dtype=np.uint8)
    expected = torch.from_numpy(raw).view(torch.float8_e4m3fn).to(dtype)
    found = fp8_floats(raw, dtype)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(), expected.nan_to_num())


def test_a_row_out_of_range_and_an_absent_tensor() -> None:
    source = open_weights(DATA / "awq")
    with pytest.raises(CheckpointError, match="224 rows"):
        source.read("lm_head.weight", np.array([224]))
    with pytest.raises(CheckpointError, match="64 columns"):
        source.read("lm_head.weight", columns=slice(0, 65))
    for name in ("lm_head.qweight", "other.weight"):
        with pytest.raises(CheckpointError, match=f"no tensor {name}"):
            source.read(name)


def edited(tmp_path: Path, case: str, change: Callable[[dict[str, torch.Tensor], dict[str, Any]], Any]) -> Path:
    """A copy of a case after `change(tensors, quantization)`; tensors are named without their module."""
    shutil.copytree(DATA / case, tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    module = head_name(case).removesuffix(".weight")
    stored = {name.removeprefix(module + "."): value for name, value in load_file(tmp_path / "model.safetensors").items()}
    change(stored, config["quantization_config"])
    save_file(
        {name if name.startswith("model.") else f"{module}.{name}": value.contiguous() for name, value in stored.items()},
        tmp_path / "model.safetensors",
    )
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def parts_of(case: str) -> list[str]:
    return sorted(name.removeprefix(head_name(case).removesuffix("weight")) for name in load_file(DATA / case / "model.safetensors"))


@pytest.mark.parametrize(
    ("case", "part"), [(case, part) for case in CASES for part in parts_of(case) if not (part == "g_idx" and "order" not in case)]
)
def test_a_missing_or_misshapen_part_is_refused(tmp_path: Path, case: str, part: str) -> None:
    with pytest.raises(CheckpointError, match=f"has no {part}"):
        open_weights(edited(tmp_path / "missing", case, lambda tensors, _: tensors.pop(part)))

    def widen(tensors: dict[str, torch.Tensor], _: dict[str, Any]) -> None:
        value = tensors[part]
        tensors[part] = torch.cat([value, value, value]) if value.dim() else torch.stack([value] * 3)

    if (case, part) in (("int8-tensor", "weight"), ("fp8-tensor", "weight"), ("awq-one-group", "qweight")):
        return  # three times the rows or columns under one scale are a whole matrix; its shape is wrong, which account() says
    with pytest.raises(CheckpointError):
        open_weights(edited(tmp_path / "wide", case, widen))


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("awq", {"quant_method": "bitsandbytes"}, "'bitsandbytes'"),
    ("awq", {"quant_method": "hqq"}, "Implemented: compressed-tensors"),
    ("awq", {"quant_method": "aqlm"}, "'aqlm'"),
    ("awq", {"version": "gemv"}, "'awq' with version = 'gemv'"),
    ("awq", {"version": "marlin"}, "version = 'marlin'"),
    ("awq", {"bits": 8}, "bits = 8"),
    ("awq", {"group_size": 0}, "group_size = 0"),
    ("gptq-int4", {"checkpoint_format": "marlin"}, "checkpoint_format = 'marlin'"),
    ("gptq-int4", {"is_marlin_format": True}, "marlin"),
    ("gptq-int4", {"checkpoint_format": "bitblas"}, "'bitblas'"),
    ("gptq-int4", {"bits": 5}, "bits = 5"),
    ("gptq-int4", {"pack_dtype": "int64"}, "pack_dtype = 'int64'"),
    ("deepseek-fp8", {"fmt": "e5m2"}, "fmt = 'e5m2'"),
    ("deepseek-fp8", {"weight_block_size": [64]}, "weight_block_size"),
    ("int4-groups", {"config_groups": {"a": {"weights": 4, "targets": ["Linear"]}}}, "weights = 4"),
    ("int4-groups", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
    ("int4-groups", {"transform_config": {"config_groups": {"R1": {}}}}, "transform_config"),
    ("int4-groups", {"config_groups": {}}, "no config_groups"),
    ("int4-groups", {"config_groups": {"W4A16": ["Linear"]}}, "preset 'W4A16'"),
    ("int4-groups", {"ignore": ["re:("]}, r"pattern 're:\('"),
    ("nvfp4", {"config_groups": {"a": {"format": "mxfp4-pack-quantized", "weights": {}, "targets": ["Linear"]}}}, "mxfp4-pack-quantized"),
    ("nvfp4", {"config_groups": {"a": {"weights": {"num_bits": 4, "strategy": "channel"}, "targets": ["Linear"]}}}, "4-bit int"),
]


@pytest.mark.case(19)
@pytest.mark.parametrize(("case", "change", "expected"), REFUSED)
def test_what_is_not_implemented_is_refused_by_name(tmp_path: Path, case: str, change: dict[str, Any], expected: str) -> None:
    with pytest.raises(CheckpointError, match=expected):
        open_weights(edited(tmp_path, case, lambda _, quantization: quantization.update(change)))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 200)
    | st.sampled_from(["", "group", "block", "re:", "128x128", "int", "gptq", "gemm", "dense"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["weights", "targets", "format", "a"]), inner, max_size=3),
    max_leaves=5,
)


@given(case=st.sampled_from(CASES), data=st.data(), value=JSON)
def test_any_configuration_is_read_or_refused(case: str, data: st.DataObject, value: Any) -> None:
    table = json.loads((DATA / case / "config.json").read_text())["quantization_config"]
    place = table
    if "config_groups" in table and data.draw(st.booleans()):
        place = data.draw(st.sampled_from([table["config_groups"]["group_0"], table["config_groups"]["group_0"]["weights"]]))
    place[data.draw(st.sampled_from(sorted(place)))] = value
    with contextlib.suppress(CheckpointError):
        assert read_quantization({"quantization_config": table}, "tiny", CheckpointError) is not None


CONTRADICTIONS: list[tuple[str, str, Callable[[dict[str, torch.Tensor], dict[str, Any]], Any]]] = [
    ("int4-groups", "no config group targets it", lambda _, table: table.update(ignore=["re:.*head"])),
    ("int4-groups", "no config group targets it", lambda _, table: table["config_groups"]["group_0"].update(targets=["re:model"])),
    ("int4-groups", "twice", lambda tensors, _: tensors.update(weight=torch.zeros(211, 160))),
    ("int4-groups", "weight_scale as I32", lambda tensors, _: tensors.update(weight_scale=tensors["weight_scale"].int())),
    ("int4-groups", "impossible shape", lambda tensors, _: tensors.update(weight_shape=torch.tensor([-1, 160]))),
    ("int4-groups", "packed zero points", lambda tensors, _: tensors.update(weight_zero_point=torch.zeros(27, 5, dtype=torch.int32))),
    ("int4-groups", "groups from 0 to 9", lambda tensors, _: tensors.update(weight_g_idx=(torch.arange(160) // 16).int())),
    # A checkpoint whose scales were found and never applied (quantization_status frozen).
    ("int8-rows", "weight as BF16 instead of I8", lambda tensors, _: tensors.update(weight=tensors["weight"].bfloat16())),
    ("int8-rows", "weight_g_idx", lambda tensors, _: tensors.update(weight_g_idx=torch.zeros(64).int())),
    (
        "gptq-int4",
        "embedding in GPTQ",
        lambda tensors, _: tensors.update({f"model.embed_tokens.{n}": torch.ones(1) for n in ("qweight", "g_idx")}),
    ),
    ("gptq-int4", "desc_act", lambda tensors, table: (tensors.pop("g_idx"), table.update(desc_act=True))),
    ("gptq-int4", "groups from 0 to 2", lambda tensors, _: tensors["g_idx"].add_(tensors["g_idx"])),
    ("gptq-int4", "8 bits", lambda _, table: table.update(bits=8)),
    ("gptq-v2", "other bits", lambda tensors, table: (tensors.pop("g_idx"), table.update(dynamic={"a": {"bits": 8}}))),
]


@pytest.mark.parametrize(("case", "expected", "change"), CONTRADICTIONS)
def test_a_checkpoint_that_contradicts_itself_is_refused(tmp_path: Path, case: str, expected: str, change: Any) -> None:
    with pytest.raises(CheckpointError, match=expected):
        open_weights(edited(tmp_path, case, change))


def test_a_zero_point_that_libraries_read_differently(tmp_path: Path) -> None:
    source = open_weights(edited(tmp_path, "gptq-v1-with-zeros", lambda _, table: table.pop("meta")))
    with pytest.raises(CheckpointError, match="zero point of 0 stored as -1"):
        source.read("lm_head.weight")


def test_activation_order_of_older_compressed_tensors_files(tmp_path: Path) -> None:
    """A table in order changes nothing, one that was never filled neither, and another order takes the scales along."""
    expected = expected_head("int4-groups-asymmetric")
    for number, table in enumerate([torch.arange(64) // 32, torch.full((64,), -1)]):
        folder = edited(tmp_path / str(number), "int4-groups-asymmetric", lambda tensors, _, t=table: tensors.update(weight_g_idx=t.int()))
        assert same_bits(open_weights(folder).read("lm_head.weight"), expected)
    swapped = edited(
        tmp_path / "swapped",
        "int4-groups-asymmetric",
        lambda tensors, _: tensors.update(
            weight_g_idx=(1 - torch.arange(64) // 32).int(),
            weight_scale=tensors["weight_scale"].flip(1),
            weight_zero_point=tensors["weight_zero_point"].flip(1),
        ),
    )
    assert same_bits(open_weights(swapped).read("lm_head.weight", columns=slice(3, 60)), expected[:, 3:60])
    assert "activation order" in open_weights(swapped).stored_format("lm_head.weight")


def test_a_gptq_file_without_g_idx_and_with_bits_by_module(tmp_path: Path) -> None:
    expected = expected_head("gptq-int4")
    plain = edited(tmp_path / "plain", "gptq-int4", lambda tensors, _: tensors.pop("g_idx"))
    mixed = edited(tmp_path / "mixed", "gptq-int4", lambda _, table: table.update(bits=8, group_size=64, dynamic={"lm_head": {"bits": 4}}))
    for folder in (plain, mixed):
        assert same_bits(open_weights(folder).read("lm_head.weight"), expected)


def test_rows_that_nobody_asks_for_are_not_decoded(tmp_path: Path) -> None:
    rows = np.array([190, 3, 64, 7, 128, 0, 210], np.int64)

    def spoil(tensors: dict[str, torch.Tensor], _: dict[str, Any]) -> None:
        tensors["weight_scale"][np.setdiff1d(np.arange(211), rows)] = float("nan")

    source = open_weights(edited(tmp_path, "int4-groups", spoil))
    assert same_bits(source.read("lm_head.weight", rows), expected_head("int4-groups")[rows])


def test_groups_are_chosen_by_their_targets() -> None:
    """A name before a pattern, a pattern before a class, and what is ignored not at all."""
    groups = {
        str(bits): {"targets": targets, "weights": {"num_bits": bits, "strategy": "channel"}, "format": "pack-quantized"}
        for bits, targets in ((2, ["Linear"]), (4, ["re:.*_proj$"]), (8, ["model.layers.0.mlp.up_proj"]))
    }
    table = {"quant_method": "compressed-tensors", "config_groups": groups, "ignore": ["re:.*down"]}
    quantization = read_quantization({"quantization_config": table}, "tiny", CheckpointError)
    assert isinstance(quantization, CompressedTensors)
    names = ("lm_head", "model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj", "model.layers.0.mlp.down_proj", "model.embed_tokens")
    found = [scheme_of(name, quantization) for name in names]
    assert [scheme and scheme.num_bits for scheme in found] == [2, 4, 8, None, None]


@pytest.mark.parametrize("leaf", ["weight_scale", "weight_scale_inv"])
def test_an_fp8_tensor_with_one_scale(tmp_path: Path, leaf: str) -> None:
    weight, scale = (torch.randn(20, 24, generator=torch.Generator().manual_seed(0)) * 50).to(torch.float8_e4m3fn), torch.tensor(0.3)
    save_file({"lm_head.weight": weight, f"lm_head.{leaf}": scale, "lm_head.input_scale": torch.ones(1)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}}))
    source = open_weights(tmp_path)
    account(source, {"lm_head.weight": (20, 24)})
    assert source.stored_format("lm_head.weight") == "fp8 with one scale (fp8)"
    assert same_bits(source.read("lm_head.weight", slice(3, 9), slice(1, 20)), weight.float()[3:9, 1:20] * scale)


def test_every_stored_tensor_is_accounted_for(tmp_path: Path) -> None:
    """Scales of activations and of the KV cache are passed over, zero biases too, anything else is left over."""
    shapes = {"lm_head.weight": (211, 160)}
    account(open_weights(DATA / "int4-groups"), shapes)

    def add(tensors: dict[str, torch.Tensor], _: dict[str, Any]) -> None:
        names = ("model.layers.0.self_attn.k_scale", "model.layers.0.self_attn.attn.v_scale", "input_scale", "input_global_scale")
        tensors.update({name: torch.ones(1) for name in names} | {"bias": torch.zeros(211)})

    source = open_weights(edited(tmp_path / "passed", "int4-groups", add))
    account(source, shapes)
    assert "lm_head.input_scale" in source.passed_over  # type: ignore[attr-defined]
    for name, value in (("qzeros", torch.ones(1)), ("bias", torch.ones(211)), ("model.layers.0.weight_scales", torch.ones(1))):
        folder = edited(tmp_path / name, "int4-groups", lambda tensors, _, n=name, v=value: tensors.update({n: v}))
        with pytest.raises(CheckpointError, match=f"Left over: .*{name}"):
            account(open_weights(folder), shapes)
    orphan = edited(tmp_path / "orphan", "int4-groups", lambda tensors, _: tensors.update({"model.norm.weight_scale": torch.ones(1)}))
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight"):
        open_weights(orphan)


def test_a_tied_head_that_is_stored_otherwise_than_its_embedding(tmp_path: Path) -> None:
    folder = edited(tmp_path, "int4-groups", lambda tensors, _: tensors.update({"model.embed_tokens.weight": torch.zeros(211, 160)}))
    with pytest.raises(CheckpointError, match=r"tie_word_embeddings[\s\S]*int4 in groups of 32"):
        account(open_weights(folder), {"model.embed_tokens.weight": (211, 160)}, has_tied_head=True)
