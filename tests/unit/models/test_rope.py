"""Rotary tables equal transformers', bit for bit, for every kind; GGUF spellings lead to the same tables."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hothead.errors import ModelConfigError
from hothead.models.rope import RopeConfig, inverse_frequencies, rope_from_gguf, rope_from_hugging_face, rope_tables

HEAD_DIM = 64
LENGTH = 4096

KINDS: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": 1e4},
    {"rope_type": "default", "rope_theta": 1e6},
    {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    {"rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 1024},
    {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 1024},
    {"rope_type": "yarn", "rope_theta": 1e4, "factor": 16.0, "original_max_position_embeddings": 256, "beta_fast": 16.0, "beta_slow": 2.0},
    {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 1024, "attention_factor": 0.7},
    {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 1024, "mscale": 0.7, "mscale_all_dim": 1.0},
    {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 1024, "truncate": False},
    {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0},
]  # fmt: skip
IDS = [f"{number} {kind['rope_type']}" for number, kind in enumerate(KINDS)]


def reference(parameters: dict[str, Any]) -> Any:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=4 * HEAD_DIM, num_attention_heads=4, max_position_embeddings=LENGTH, rope_parameters=dict(parameters), vocab_size=8
    )
    return LlamaRotaryEmbedding(config)


def declared(parameters: dict[str, Any]) -> RopeConfig:
    return rope_from_hugging_face({"rope_parameters": parameters}, LENGTH, "tiny")


@pytest.mark.parametrize("parameters", KINDS, ids=IDS)
def test_frequencies_and_scale_are_those_of_transformers(parameters: dict[str, Any]) -> None:
    rotary = reference(parameters)
    frequencies, scale = inverse_frequencies(declared(parameters), HEAD_DIM)
    torch.testing.assert_close(frequencies, rotary.inv_freq, rtol=0, atol=0)
    assert scale == rotary.attention_scaling


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("parameters", KINDS, ids=IDS)
def test_rotated_vectors_are_those_of_transformers(parameters: dict[str, Any], dtype: torch.dtype) -> None:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    query = torch.randn(1, 2, 300, HEAD_DIM, generator=torch.Generator().manual_seed(0)).to(dtype)  # [B, heads, S, Dh]
    cos, sin = reference(parameters)(query, torch.arange(300)[None])
    expected, _ = apply_rotary_pos_emb(query, query, cos, sin)
    our_cos, our_sin = rope_tables(declared(parameters), HEAD_DIM, 300, dtype)
    assert our_cos.dtype == our_sin.dtype == dtype
    torch.testing.assert_close(query * our_cos + query.roll(HEAD_DIM // 2, -1) * our_sin, expected, rtol=0, atol=0)


@given(
    theta=st.floats(100.0, 1e7),
    factor=st.floats(1.0, 64.0),
    original=st.integers(64, 8192),
    slow=st.floats(0.5, 4.0),
    head_dim=st.sampled_from([8, 16, 64, 128]),
)
@settings(max_examples=60, deadline=None)
def test_yarn_lies_between_kept_and_stretched_frequencies(theta: float, factor: float, original: int, slow: float, head_dim: int) -> None:
    plain, _ = inverse_frequencies(RopeConfig("default", theta), head_dim)
    yarn, scale = inverse_frequencies(
        RopeConfig("yarn", theta, factor=factor, original_context_length=original, beta_slow=slow, beta_fast=32.0), head_dim
    )
    assert (yarn <= plain * (1 + 1e-5)).all()
    assert (yarn >= plain / factor * (1 - 1e-5)).all()
    assert scale >= 1


def test_gguf_frequency_factors_are_llama3(tmp_path: object) -> None:
    scaled = declared(KINDS[3])
    plain, _ = inverse_frequencies(RopeConfig("default", scaled.theta), HEAD_DIM)
    expected, _ = inverse_frequencies(scaled, HEAD_DIM)
    rope = rope_from_gguf({"llama.rope.freq_base": 5e5}, "llama", HEAD_DIM, tuple((plain / expected).tolist()), LENGTH, "tiny")
    found, scale = inverse_frequencies(rope, HEAD_DIM)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    assert scale == 1.0


def test_gguf_scaling_keys() -> None:
    fields: dict[str, object] = {
        "qwen2.rope.freq_base": 1e6,
        "qwen2.rope.scaling.type": "yarn",
        "qwen2.rope.scaling.factor": 4.0,
        "qwen2.rope.scaling.original_context_length": 1024,
    }
    assert rope_from_gguf(fields, "qwen2", HEAD_DIM, (), LENGTH, "tiny") == declared(KINDS[5])
    stretched = rope_from_gguf({**fields, "qwen2.rope.scaling.attn_factor": 0.5}, "qwen2", HEAD_DIM, (), LENGTH, "tiny")
    assert stretched.attention_factor == pytest.approx(0.5 * (0.1 * math.log(4) + 1))
    linear: dict[str, object] = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    assert rope_from_gguf(linear, "llama", HEAD_DIM, (), LENGTH, "tiny") == declared(KINDS[2])
    assert rope_from_gguf({"llama.rope.scale_linear": 4.0}, "llama", HEAD_DIM, (), LENGTH, "tiny") == declared(KINDS[2])
    assert rope_from_gguf({}, "llama", HEAD_DIM, (), LENGTH, "tiny") == RopeConfig()


def test_frequency_factors_of_the_wrong_number() -> None:
    with pytest.raises(ModelConfigError, match=r"31 values .* 64"):
        rope_from_gguf({}, "llama", HEAD_DIM, (1.0,) * 31, LENGTH, "tiny")
