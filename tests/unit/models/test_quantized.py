"""Quantized checkpoints: any cut of any format is the same cut of what the library that defines the format decodes, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tests.support.ranks import run_on_ranks
from tests.support.tiny import make_model

from hothead.errors import CheckpointError, ModelConfigError
from hothead.models.config_files import load_config
from hothead.models.quantization import read_quantization
from hothead.models.weights import open_weights
from hothead.models.weights.accounting import account
from hothead.models.weights.base import WeightSource
from hothead.parallel.groups import RankGroup, SingleRank
from hothead.parallel.hot_head import HotHead

DATA = Path(__file__).resolve().parents[2] / "data" / "quantized"
FORMATS: dict[str, dict[str, Any]] = json.loads((DATA / "formats.json").read_text(encoding="utf-8"))
HEAD = "lm_head.weight"


def checkpoint(folder: Path, name: str, **changes: torch.Tensor | None) -> Path:
    """A folder with the stored tensors of one format. changes: stored parts put in, or with None taken out."""
    tensors = load_file(DATA / f"{name}.safetensors")
    del tensors["decoded"]
    for part, tensor in changes.items():
        tensors.pop(f"lm_head.{part}", None)
        if tensor is not None:
            tensors[f"lm_head.{part}"] = tensor
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps({"quantization_config": FORMATS[name]}), encoding="utf-8")
    return folder


def decoded(name: str) -> torch.Tensor:
    return load_file(DATA / f"{name}.safetensors")["decoded"].float()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, WeightSource]:
    folder = tmp_path_factory.mktemp("quantized")
    return {name: open_weights(checkpoint(folder / name, name)) for name in FORMATS}


@pytest.mark.case(19)
@pytest.mark.parametrize("name", FORMATS)
def test_all_rows_equal_the_library_s(name: str, sources: dict[str, WeightSource]) -> None:
    source, expected = sources[name], decoded(name)
    assert source.names() == {HEAD}
    assert source.shape(HEAD) == tuple(expected.shape)
    assert torch.equal(source.read(HEAD), expected)
    assert torch.equal(source.read(HEAD, dtype=torch.bfloat16), expected.bfloat16())


@pytest.mark.case(19)
@pytest.mark.parametrize("name", FORMATS)
@given(st.data())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_cut_equals_the_library_s(name: str, sources: dict[str, WeightSource], data: st.DataObject) -> None:
    expected = decoded(name)
    num_rows, num_inputs = expected.shape
    scattered = st.lists(st.integers(0, num_rows - 1), max_size=30).map(lambda ids: np.asarray(ids, np.int64))
    rows = data.draw(st.none() | scattered | _slices(num_rows), "rows")
    columns = data.draw(st.none() | _slices(num_inputs), "columns")
    cut = expected if rows is None else expected[rows]
    assert torch.equal(sources[name].read(HEAD, rows, columns), cut if columns is None else cut[:, columns])


def _slices(size: int) -> st.SearchStrategy[slice]:
    return st.tuples(st.integers(0, size), st.integers(0, size)).map(lambda ends: slice(min(ends), max(ends)))


def test_formats_have_names_for_people(sources: dict[str, WeightSource]) -> None:
    assert {name: sources[name].stored_format(HEAD) for name in ("int8-channel", "fp8-block", "int4-group", "nvfp4", "awq", "gptq-2")} == {
        "int8-channel": "int8, a scale per row (compressed-tensors)",
        "fp8-block": "fp8 in blocks of 64 x 48 (compressed-tensors)",
        "int4-group": "int4 in groups of 32 (compressed-tensors)",
        "nvfp4": "fp4 in groups of 16 and one scale over all (compressed-tensors)",
        "awq": "int4 in groups of 32 (awq)",
        "gptq-2": "int2, a scale per row (gptq)",
    }


def test_gptq_of_the_second_form_keeps_its_zero_points(tmp_path: Path) -> None:
    stored = load_file(DATA / "gptq-4.safetensors")
    shifts = (4 * torch.arange(8)).int()
    numbers = ((stored["lm_head.qzeros"][..., None] >> shifts) + 1) & 15
    folder = checkpoint(tmp_path / "v2", "gptq-4", qzeros=(numbers.long() << shifts).sum(-1).to(torch.int32))
    config = {**FORMATS["gptq-4"], "checkpoint_format": "gptq_v2"}
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}), encoding="utf-8")
    assert torch.equal(open_weights(folder).read(HEAD), decoded("gptq-4"))


def test_fp8_with_scales_of_blocks(tmp_path: Path) -> None:
    """As DeepSeek and Qwen publish it: value = stored * weight_scale_inv of its block."""
    generator = torch.Generator().manual_seed(0)
    weight = (100 * torch.randn(200, 96, generator=generator)).to(torch.float8_e4m3fn)
    scale = torch.rand(4, 3, generator=generator)
    save_file({"lm_head.weight": weight, "lm_head.weight_scale_inv": scale}, str(tmp_path / "model.safetensors"))
    config = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [64, 40]}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}), encoding="utf-8")
    source = open_weights(tmp_path)
    expected = weight.float() * scale.repeat_interleave(64, 0)[:200].repeat_interleave(40, 1)[:, :96]
    assert torch.equal(source.read(HEAD), expected)
    assert torch.equal(source.read(HEAD, np.array([199, 0, 64]), slice(39, 81)), expected[[199, 0, 64], 39:81])


HOT = np.array([190, 3, 64, 7, 128, 0, 100, 191, 31, 32, 33], np.int64)


def _hot_candidates(group: RankGroup, folder: str) -> tuple[list[float], list[int]]:
    source = open_weights(folder)
    head = HotHead.build(lambda token_ids: source.read(HEAD, rows=token_ids), HOT, group, "balanced", source.shape(HEAD)[0])
    hidden = torch.randn(3, 128, generator=torch.Generator().manual_seed(4))
    found = head.candidates(hidden, 4)
    return found.log_probs.flatten().tolist(), found.token_ids.flatten().tolist()


@pytest.mark.case(19)
def test_a_hot_head_of_any_format_is_the_decoded_head_s(tmp_path: Path) -> None:
    for name in FORMATS:
        folder = checkpoint(tmp_path / name, name)
        plain = HotHead.build(lambda token_ids: decoded(name)[token_ids], HOT, SingleRank(), "balanced", len(decoded(name)))  # noqa: B023
        expected = plain.candidates(torch.randn(3, 128, generator=torch.Generator().manual_seed(4)), 4)
        for log_probs, token_ids in [_hot_candidates(SingleRank(), str(folder)), *run_on_ranks(_hot_candidates, 2, str(folder))]:
            assert token_ids == expected.token_ids.flatten().tolist(), name
            np.testing.assert_allclose(log_probs, expected.log_probs.flatten().tolist(), atol=1e-5)


def test_rows_of_a_packed_head_are_read_without_the_others(tmp_path: Path) -> None:
    """A row of another token is never decoded: broken ones do not matter."""
    stored = load_file(DATA / "int4-group.safetensors")
    scale = stored["lm_head.weight_scale"].clone()
    others = np.setdiff1d(np.arange(len(scale)), HOT)
    scale[others] = float("nan")
    source = open_weights(checkpoint(tmp_path / "broken", "int4-group", weight_scale=scale))
    assert torch.equal(source.read(HEAD, rows=HOT), decoded("int4-group")[HOT])


def test_a_whole_model_with_quantized_layers(tmp_path: Path) -> None:
    """Every linear layer stored as int8 with a scale per row, the head too: every tensor is accounted for, and the model runs."""
    plain = make_model(tmp_path / "plain", tie_word_embeddings=False)
    tensors = load_file(plain / "model.safetensors")
    quantized, rounded = {}, {}
    for name, tensor in tensors.items():
        if name.endswith("_proj.weight") or name == HEAD:
            scale = tensor.abs().amax(1, keepdim=True) / 127
            quantized[name] = torch.round(tensor / scale).to(torch.int8)
            quantized[f"{name}_scale"] = scale
            rounded[name] = quantized[name].float() * scale
        else:
            quantized[name] = rounded[name] = tensor
    quantized["model.layers.0.self_attn.k_scale"] = torch.ones(1)  # of a quantized KV cache
    config = json.loads((plain / "config.json").read_text(encoding="utf-8"))
    for folder, stored, extra in (("a", quantized, {"quantization_config": FORMATS["int8-channel"]}), ("b", rounded, {})):
        (tmp_path / folder).mkdir()
        for file in plain.glob("*.json"):
            (tmp_path / folder / file.name).write_bytes(file.read_bytes())
        (tmp_path / folder / "config.json").write_text(json.dumps(config | extra), encoding="utf-8")
        save_file(stored, str(tmp_path / folder / "model.safetensors"))
    source, expected = open_weights(tmp_path / "a"), open_weights(tmp_path / "b")
    model = load_config(tmp_path / "a")
    account(source, model.tensor_shapes())
    assert source.names() == expected.names()
    for name in source.names():
        assert torch.equal(source.read(name), expected.read(name)), name


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("int4-group", {"weight_scale": None}, "its weight_scale is missing"),
        ("int4-group", {"weight_shape": torch.tensor([197, 256])}, r"weight_packed is \[197, 16\] instead of \[197, 32\]"),
        ("int4-group", {"weight_scale": torch.ones(197, 2)}, r"weight_scale is \[197, 2\] instead of \[197, 4\]"),
        ("int4-group", {"weight_g_idx": torch.zeros(128, dtype=torch.int32)}, "order of activation"),
        ("int4-asymmetric", {"weight_zero_point": None}, "its weight_zero_point is missing"),
        ("int8-channel", {"weight": torch.ones(197, 128)}, "stored as F32, and config.json says int8"),
        ("int8-channel", {"weight_scale": torch.ones(1)}, r"instead of \[197, 1\]"),
        ("nvfp4", {"weight_global_scale": None}, "its weight_global_scale is missing"),
        ("awq", {"qzeros": None}, "its qzeros is missing"),
        ("awq", {"scales": torch.ones(3, 200)}, r"scales is \[3, 200\] instead of \[4, 200\]"),
        ("gptq-4", {"g_idx": torch.full((128,), 9, dtype=torch.int32)}, "groups outside 0 to 3"),
    ],
)
def test_half_a_quantized_weight_is_refused_by_name(name: str, changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=said):
        open_weights(checkpoint(tmp_path / "x", name, **changes)).read(HEAD)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "'bitsandbytes'"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "'gemv' of awq with 4 bits"),
        ({"quant_method": "gptq", "bits": 3, "group_size": 128}, "'gptq' of gptq with 3 bits"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "marlin"}, "'marlin' of gptq"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "'e5m2' of fp8"),
        (
            {"quant_method": "compressed-tensors", "format": "marlin-24", "config_groups": {"a": {"weights": {"num_bits": 4}}}},
            "'marlin-24'",
        ),
        ("awq", "'awq'"),
    ],
)
def test_an_unknown_format_is_refused_by_name(table: object, said: str) -> None:
    with pytest.raises(ModelConfigError, match=f"quantized in the format .*{said}.*not implemented(.|\n)*pack-quantized(.|\n)*unquantized"):
        read_quantization({"quantization_config": table}, "x")


def test_a_damaged_table_is_refused() -> None:
    with pytest.raises(ModelConfigError, match="is damaged"):
        read_quantization({"quantization_config": {"quant_method": "gptq", "bits": "many", "group_size": 1}}, "x")


def test_groups_are_chosen_by_their_targets() -> None:
    weights = {"num_bits": 8, "type": "int", "strategy": "channel"}
    four = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
    table = {
        "quant_method": "compressed-tensors",
        "config_groups": {
            "a": {"targets": ["re:.*lm_head"], "weights": weights, "format": "int-quantized"},
            "b": {"targets": ["re:.*_proj$"], "weights": four, "format": "pack-quantized"},
        },
    }
    quantization = read_quantization({"quantization_config": table}, "x")
    assert quantization is not None
    assert quantization.scheme_of("lm_head").num_bits == 8
    assert quantization.scheme_of("model.layers.0.mlp.up_proj").num_bits == 4
    with pytest.raises(ModelConfigError, match=r"0 of 2 quantization groups are meant for model\.embed_tokens"):
        quantization.scheme_of("model.embed_tokens")
