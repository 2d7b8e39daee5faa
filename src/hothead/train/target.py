"""The target as training needs it: its features, its embedding and head rows, and what the draft head's configuration takes over."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch

from hothead.models.config import ModelConfig
from hothead.models.config_files import load_config
from hothead.models.decoder import Decoder
from hothead.models.eagle3_config import default_feature_layers
from hothead.models.rope import RopeConfig, rope_tables
from hothead.models.tokenizer import Tokenizer
from hothead.models.weights import open_weights
from hothead.parallel.groups import SingleRank
from hothead.train.examples import FrozenTarget
from hothead.train.network import HeadShape, RotaryTables


def load_target(path: Path, name: str, dtype: torch.dtype, max_length: int, *, is_for_eagle3: bool = False) -> FrozenTarget:
    """Read the target at `path` (a folder or a .gguf file) whole, on one rank. is_for_eagle3: its features are then the inputs of
    EAGLE-3's low, middle and high layer."""
    config = load_config(path)
    source = open_weights(path)
    try:
        decoder = Decoder.load(config, source, SingleRank(), dtype, torch.device("cpu"), max_length)
        embedding = decoder.embedding.weight_local
        head = embedding if config.tie_word_embeddings else source.read("lm_head.weight", dtype=dtype)
    finally:
        source.close()
    layers = default_feature_layers(config.num_layers) if is_for_eagle3 else ()

    def joined_states(sequences: Sequence[Sequence[int]]) -> torch.Tensor:
        final, captured = decoder.captured_states(sequences, layers)
        return torch.cat([captured, final], -1)

    return FrozenTarget(
        name,
        Tokenizer.load(path).fingerprint,
        _weights_fingerprint(path),
        HeadShape(
            config.hidden_size, config.intermediate_size, config.num_heads, config.num_kv_heads, config.head_dim, config.rms_norm_eps
        ),
        embedding,
        head,
        lambda num_positions, table_dtype: _rotary(config, num_positions, table_dtype),
        joined_states if is_for_eagle3 else decoder.hidden_states,
        config.eos_token_ids,
        head_config(config),
        decoder.final_norm,
        layers,
    )


def head_config(config: ModelConfig) -> dict[str, object]:
    """config.json of an EAGLE head for this target, without what training adds.

    The head's rotary embedding is the plain one with the target's base: its layer is trained with it, whatever scaling the target uses.
    """
    return {
        "architectures": ["LlamaForCausalLMEagle"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope.theta,
        "max_position_embeddings": config.context_length,
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": False,
        "mlp_bias": False,
        "bias": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids),
    }


def _rotary(config: ModelConfig, num_positions: int, dtype: torch.dtype) -> RotaryTables:
    return RotaryTables(*rope_tables(RopeConfig(theta=config.rope.theta), config.head_dim, num_positions, dtype))


def _weights_fingerprint(path: Path) -> str:
    """sha256 over name, size and time of every file of weights: hashing gigabytes would take longer than training needs to start."""
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    lines = [f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
