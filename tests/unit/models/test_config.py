"""Configurations: what the families declare, both spellings of the rotary embedding, and everything that must be refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from hothead.errors import CheckpointError, ModelConfigError, ModelNotFoundError
from hothead.models.config import ModelConfig, from_hugging_face
from hothead.models.config_files import load_config

CLASSES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
FAMILIES = list(CLASSES)


def tiny(family: str = "llama", **changes: Any) -> dict[str, Any]:
    config: dict[str, Any] = {
        "model_type": family,
        "architectures": [CLASSES.get(family, "Other")],
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "bfloat16",
    }
    return {**config, **changes}


def read(family: str = "llama", generation: dict[str, Any] | None = None, **changes: Any) -> ModelConfig:
    return from_hugging_face(tiny(family, **changes), generation, "tiny")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_plain_configuration_of_every_family_is_read(family: str) -> None:
    config = read(family)
    assert (config.family, config.vocab_size, config.hidden_size, config.num_layers) == (family, 320, 64, 4)
    assert config.head_dim == (128 if family == "qwen3" else 16)
    assert config.attention_bias == (family == "qwen2")
    assert not config.attention_output_bias
    assert config.has_qk_norm == (family == "qwen3")
    assert config.eos_token_ids == (2,)
    assert config.torch_dtype == "bfloat16"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("is_tied", [False, True])
def test_tensor_shapes_are_those_of_transformers(family: str, is_tied: bool) -> None:
    import torch
    import transformers

    values = tiny(family, tie_word_embeddings=is_tied, head_dim=16)
    with torch.device("meta"):
        model = getattr(transformers, CLASSES[family])(transformers.AutoConfig.for_model(**values))
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if is_tied:
        expected.pop("lm_head.weight")
    config = from_hugging_face(values, None, "tiny")
    assert config.tensor_shapes() == expected
    assert config.num_parameters == sum(np.prod(shape, dtype=np.int64) for shape in expected.values())


@pytest.mark.parametrize(("family", "has_output_bias"), [("llama", True), ("qwen3", True)])
def test_biases_by_configuration(family: str, has_output_bias: bool) -> None:
    config = read(family, attention_bias=True)
    assert config.attention_bias
    assert config.attention_output_bias == has_output_bias
    assert read("llama", mlp_bias=True).mlp_bias


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("qwen2", {}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 2}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 0}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 9}),
        ("qwen3", {"use_sliding_window": False, "sliding_window": 32, "max_window_layers": 1}),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 32, "layer_types": ["sliding_attention", "full_attention"] * 2}),
    ],
)
def test_windows_of_qwen_are_those_of_transformers(family: str, changes: dict[str, Any]) -> None:
    import transformers

    reference = transformers.AutoConfig.for_model(**tiny(family, **changes))
    expected = tuple(reference.sliding_window if kind == "sliding_attention" else None for kind in reference.layer_types)
    assert read(family, **changes).sliding_windows == expected


def test_windows_of_mistral_and_llama() -> None:
    assert read("mistral", sliding_window=32).sliding_windows == (32,) * 4
    assert read("mistral", sliding_window=None).sliding_windows == (None,) * 4
    assert read("mistral", max_position_embeddings=8192).sliding_windows == (4096,) * 4  # the family's default
    assert read("mistral").sliding_windows == (None,) * 4  # 4096 is never filled by 128 positions
    assert read("llama", sliding_window=32).sliding_windows == (None,) * 4


def test_the_generation_configuration_has_the_last_word_on_end_tokens() -> None:
    assert read(generation={"eos_token_id": [7, 5, 7]}).eos_token_ids == (7, 5)
    assert read(generation={}).eos_token_ids == (2,)
    assert read(eos_token_id=[3, 4]).eos_token_ids == (3, 4)
    assert read(eos_token_id=None).eos_token_ids == ()


def test_null_and_absent_key_value_heads() -> None:
    assert read(num_key_value_heads=None).num_kv_heads == 4
    values = tiny()
    del values["num_key_value_heads"]
    assert from_hugging_face(values, None, "tiny").num_kv_heads == 4


def test_both_spellings_of_the_dtype() -> None:
    assert read(dtype="float16").torch_dtype == "float16"
    assert read(torch_dtype="float32").torch_dtype == "float32"
    assert read(torch_dtype=None).torch_dtype == "float32"


REFUSED = [
    ({"model_type": "gemma3"}, "architecture 'gemma3'"),
    ({"model_type": "lama"}, "Did you mean llama"),
    ({"model_type": None}, "model_type"),
    ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
    ({"hidden_act": "gelu"}, "'gelu'"),
    ({"num_local_experts": 8}, "num_local_experts = 8"),
    ({"num_experts": 64, "num_experts_per_tok": 4}, "num_experts = 64, num_experts_per_tok = 4"),
    ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
    ({"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
    ({"pretraining_tp": 2}, "pretraining_tp = 2"),
    ({"layer_types": ["full_attention", "chunked_attention"] * 2}, "'chunked_attention'"),
    ({"layer_types": ["full_attention"] * 3}, "3 entries for 4 layers"),
    ({"layer_types": ["sliding_attention"] * 4}, "no sliding window is in effect"),
    ({"quantization_config": {"quant_method": "bitsandbytes", "bits": 4}}, "'bitsandbytes'"),
    ({"quantization_config": {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}}, "'gptq' with checkpoint_format"),
    ({"quantization_config": {"quant_method": "compressed-tensors"}}, "'compressed-tensors' with no config_groups"),
    ({"quantization_config": "int8"}, "'int8'"),
    ({"torch_dtype": "float8_e4m3fn"}, "'float8_e4m3fn'"),
    ({"num_attention_heads": 6, "num_key_value_heads": 4, "head_dim": 16}, "6 query heads are not a multiple of 4"),
    ({"num_attention_heads": 5, "num_key_value_heads": 5}, "hidden_size 64 is not a multiple of num_attention_heads 5"),
    ({"head_dim": 15}, "head dimension of 15"),
    ({"eos_token_id": 320}, "end token 320 is at or past the vocabulary size 320"),
    ({"eos_token_id": "x"}, "eos_token_id = 'x'"),
    ({"vocab_size": -1}, "vocab_size = -1"),
    ({"vocab_size": True}, "vocab_size = True"),
    ({"hidden_size": None}, "hidden_size"),
    ({"num_hidden_layers": 2.5}, "num_hidden_layers = 2.5"),
    ({"rms_norm_eps": "small"}, "rms_norm_eps = 'small'"),
]


@pytest.mark.parametrize(("changes", "expected"), REFUSED, ids=[", ".join(changes) for changes, _ in REFUSED])
def test_what_is_not_implemented_is_refused_by_name(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ModelConfigError, match=re.escape(expected)) as caught:
        read(**changes)
    assert "tiny" in str(caught.value)


@pytest.mark.parametrize(
    "changes", [{"attention_bias": True}, {"mlp_bias": True}, {"layer_types": ["full_attention"] * 4, "sliding_window": 8}]
)
def test_contradictions_within_a_family(changes: dict[str, Any]) -> None:
    with pytest.raises(ModelConfigError):
        read("mistral", **changes)


ROPE_REFUSED = [
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic'"),
    ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0, "short_factor": [1.0]}}, "'longrope'"),
    ({"rope_scaling": {"rope_type": "mrope", "mrope_section": [1]}}, "'mrope'"),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 2]}}, "mrope_section = [1, 2]"),
    ({"rope_scaling": {"rope_type": "linear"}}, "without 'factor'"),
    ({"rope_scaling": {"rope_type": "linear", "factor": -2}}, "factor = -2"),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "without 'low_freq_factor'"),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4, "high_freq_factor": 1}}, "is not above"),
    ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}, "sliding_attention": {"rope_theta": 1e6}}}, "per kind of layer"),
    ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25}}, "partial_rotary_factor = 0.25"),
    ({"rope_theta": 0}, "rope_theta = 0"),
    ({"rope_scaling": "yarn"}, "not a table"),
]


@pytest.mark.parametrize(("changes", "expected"), ROPE_REFUSED, ids=[expected for _, expected in ROPE_REFUSED])
def test_rotary_embeddings_that_are_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(ModelConfigError, match=re.escape(expected)):
        read(**changes)


def test_old_and_new_spelling_of_the_rotary_embedding_are_the_same() -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    old = read(rope_theta=5e5, rope_scaling=scaling)
    assert old.rope == read(rope_parameters={**scaling, "rope_theta": 5e5}).rope
    assert old.rope.theta == 5e5
    assert read(rope_parameters={"full_attention": {"rope_theta": 5e5, "rope_type": "default"}}).rope == read(rope_theta=5e5).rope


def test_a_folder_is_read_with_its_generation_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny()))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [9]}))
    assert load_config(tmp_path).eos_token_ids == (9,)


@pytest.mark.parametrize("content", ["{", "[1]", "\ud800"])
def test_a_damaged_configuration_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(ModelConfigError, match=r"config\.json"):
        load_config(tmp_path)


def test_a_folder_without_configuration(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"config\.json"):
        load_config(tmp_path)


def write_gguf(path: Path, architecture: str = "llama", tensors: dict[str, np.ndarray] | None = None, **fields: Any) -> Path:
    """Fields without a dot in the name of `general` and `tokenizer` ones belong to the architecture; "__" stands for a dot."""
    writer = gguf.GGUFWriter(path, architecture)
    values: dict[str, Any] = {
        "context_length": 128,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "block_count": 4,
        "attention__head_count": 4,
        "attention__head_count_kv": 2,
        "attention__layer_norm_rms_epsilon": 1e-5,
        "tokenizer__ggml__eos_token_id": 2,
        **fields,
    }
    for name, value in values.items():
        key = name.replace("__", ".")
        key = key if key.startswith("tokenizer.") else f"{architecture}.{key}"
        if value is None:
            continue
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        else:
            writer.add_string(key, value)
    for name, tensor in (tensors or {"token_embd.weight": np.zeros((320, 64), np.float32)}).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_file_is_read(tmp_path: Path) -> None:
    fields = {"rope__freq_base": 5e5, "tokenizer__ggml__eot_token_id": 5, "tokenizer__ggml__bos_token_id": 1}
    config = load_config(write_gguf(tmp_path / "m.gguf", **fields))
    assert (config.family, config.vocab_size, config.head_dim, config.num_kv_heads) == ("llama", 320, 16, 2)
    assert config.rope.theta == 5e5
    assert config.eos_token_ids == (2, 5)
    assert config.bos_token_id == 1
    assert config.tie_word_embeddings
    assert config.torch_dtype == "float32"


def test_a_gguf_file_tells_head_and_biases_by_its_tensors(tmp_path: Path) -> None:
    tensors = {"token_embd.weight": np.zeros((320, 64), np.float16), "output.weight": np.zeros((320, 64), np.float16)}
    tensors["blk.0.attn_q.bias"] = np.zeros(64, np.float32)
    config = load_config(write_gguf(tmp_path / "m.gguf", "qwen2", tensors))
    assert not config.tie_word_embeddings
    assert config.attention_bias
    assert config.torch_dtype == "float16"


GGUF_REFUSED = [
    ("gemma", {}, "'gemma'"),
    ("llama", {"expert_count": 8}, "llama.expert_count = 8"),
    ("llama", {"attention__key_length": 16, "attention__value_length": 8}, "keys of 16 and values of 8"),
    ("llama", {"rope__dimension_count": 8}, "rotates only 8 of 16"),
    ("llama", {"rope__scaling__type": "longrope"}, "'longrope'"),
    ("llama", {"vocab_size": 319}, "vocab_size is 319, but token_embd.weight has 320 rows"),
    ("llama", {"block_count": None}, "block_count"),
    ("llama", {"attention__head_count_kv": [2, 2, 4, 2]}, "different attention.head_count_kv per layer"),
    ("qwen2", {"attention__sliding_window": 32}, "does not say which layers"),
    ("llama", {"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0"),
]


@pytest.mark.parametrize(("architecture", "fields", "expected"), GGUF_REFUSED, ids=[expected for _, _, expected in GGUF_REFUSED])
def test_gguf_files_that_are_refused(tmp_path: Path, architecture: str, fields: dict[str, Any], expected: str) -> None:
    path = write_gguf(tmp_path / "m.gguf", architecture, **fields)
    with pytest.raises(ModelConfigError, match=re.escape(expected)):
        load_config(path)


def test_equal_numbers_per_layer_are_one_number(tmp_path: Path) -> None:
    assert load_config(write_gguf(tmp_path / "m.gguf", attention__head_count_kv=[2, 2, 2, 2])).num_kv_heads == 2


def test_a_gguf_file_without_embedding(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tensors={"output_norm.weight": np.zeros(64, np.float32)})
    with pytest.raises(CheckpointError, match=r"token_embd\.weight"):
        load_config(path)


def test_reading_a_configuration_does_not_import_torch(tmp_path: Path, source_path: dict[str, str]) -> None:
    import subprocess
    import sys

    (tmp_path / "config.json").write_text(json.dumps(tiny()))
    write_gguf(tmp_path / "m.gguf")
    code = "import sys; from hothead.models.config_files import load_config as load; load(sys.argv[1]); load(sys.argv[2]); "
    code += "print('torch' in sys.modules)"
    command = [sys.executable, "-c", code, str(tmp_path), str(tmp_path / "m.gguf")]
    assert subprocess.run(command, capture_output=True, text=True, check=True, env=source_path).stdout.strip() == "False"
