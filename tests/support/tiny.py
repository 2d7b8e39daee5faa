"""Small models of every family with random weights, as folders that look like published ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from hothead.models.config import from_hugging_face
from hothead.models.eagle import EagleNetwork
from hothead.models.eagle3 import eagle3_shapes
from hothead.models.eagle3_config import read_eagle3_config
from hothead.vocab.formats.encodings import as_mask, as_offsets

TEXT = "the quick brown fox jumps over the lazy dog and the lazy dog sleeps while the fox runs to the river and drinks water. "
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
EOS_TOKEN_ID = 2
NUM_PADDING_ROWS = 11
"""Rows of the head behind the tokenizer's last token."""

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 8},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"},
}


def make_model(
    folder: Path, family: str = "llama", *, seed: int = 0, num_shards: int = 1, dtype: torch.dtype = torch.float32, **changes: Any
) -> Path:
    """A two-layer model with a tokenizer and a chat template. changes: entries of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    vocab_size = tokenizer.get_vocab_size() + NUM_PADDING_ROWS
    config = base_config(vocab_size) | FAMILIES[family] | changes
    _write(folder / "config.json", config)
    _write(folder / "generation_config.json", {"eos_token_id": EOS_TOKEN_ID})
    _write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
        },
    )
    shapes = from_hugging_face(config, None, str(folder)).tensor_shapes()
    save_sharded(random_weights(shapes, seed, dtype), folder, num_shards)
    return folder


def make_eagle(folder: Path, target: Path, *, seed: int = 1, dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
    """An EAGLE head with random weights for a model of `make_model`."""
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((target / "config.json").read_text()) | {
        "architectures": ["LlamaForCausalLMEagle"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "layer_types": None,
        "sliding_window": None,
    }
    config |= changes
    _write(folder / "config.json", {key: value for key, value in config.items() if value is not None})
    model = from_hugging_face({**config, "architectures": ["LlamaForCausalLM"]}, None, str(folder))
    weights = random_weights(EagleNetwork.tensor_shapes(model, has_fusion_bias=False), seed, dtype)
    save_file(weights, str(folder / "model.safetensors"))
    return folder


def make_eagle3(
    folder: Path, target: Path, hot_token_ids: Sequence[int] | None, *, form: str = "authors", seed: int = 1, **changes: Any
) -> Path:
    """An EAGLE-3 head with random weights for a model of `make_model`. form: authors (safetensors), bin, or speculators.

    hot_token_ids: of its rows, ascending; None is a head over the whole vocabulary without a table. changes: entries of config.json, None
    takes one out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model = json.loads((target / "config.json").read_text())
    layer = {key: value for key, value in model.items() if key not in ("layer_types", "sliding_window", "torch_dtype", "architectures")}
    layer |= {"model_type": "llama", "num_hidden_layers": 1, "tie_word_embeddings": False}
    sizes = {"draft_vocab_size": model["vocab_size"] if hot_token_ids is None else len(hot_token_ids)}
    if form == "speculators":
        config: dict[str, Any] = {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": str(target)}},
            "transformer_layer_config": layer,
            "norm_before_residual": True,
            **sizes,
        }
    else:
        config = {**layer, "architectures": ["LlamaForCausalLMEagle3"], **sizes}
    _write(folder / "config.json", {key: value for key, value in (config | changes).items() if value is not None})
    names = ["embed_tokens.weight"] if form == "speculators" else ["midlayer.x"]
    weights = random_weights(eagle3_shapes(read_eagle3_config(folder), names, sizes["draft_vocab_size"]), seed)
    if hot_token_ids is not None:
        ids = np.asarray(hot_token_ids, np.int64)
        weights |= {"d2t": torch.from_numpy(as_offsets(ids)), "t2d": torch.from_numpy(as_mask(ids, model["vocab_size"]))}
    if form == "bin":
        torch.save(weights, folder / "pytorch_model.bin")
    else:
        save_file(weights, str(folder / "model.safetensors"))
    return folder


def base_config(vocab_size: int) -> dict[str, Any]:
    return {
        "vocab_size": vocab_size,
        "hidden_size": 48,
        "intermediate_size": 70,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 256,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 0,
        "eos_token_id": EOS_TOKEN_ID,
    }


def random_weights(shapes: Mapping[str, tuple[int, ...]], seed: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Weights large enough for logits to differ clearly: near ties would make equal roads disagree."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=generator)
        if "norm" in name:
            values = 1 + 0.1 * values
        elif name.endswith(("embed_tokens.weight", "lm_head.weight")):
            values = values * 0.5
        else:
            values = values * (1.5 / shape[-1] ** 0.5 if len(shape) > 1 else 0.1)
        weights[name] = values.to(dtype)
    return weights


def save_sharded(weights: dict[str, torch.Tensor], folder: Path, num_shards: int) -> None:
    """One file, or several with the index that published checkpoints have."""
    if num_shards == 1:
        save_file(weights, str(folder / "model.safetensors"))
        return
    names = sorted(weights)
    weight_map = {}
    for shard in range(num_shards):
        file = f"model-{shard + 1:05d}-of-{num_shards:05d}.safetensors"
        part = names[shard::num_shards]
        save_file({name: weights[name] for name in part}, str(folder / file))
        weight_map |= dict.fromkeys(part, file)
    size = sum(weight.numel() * weight.element_size() for weight in weights.values())
    _write(folder / "model.safetensors.index.json", {"metadata": {"total_size": size}, "weight_map": weight_map})


def make_tokenizer() -> Tokenizer:
    """Byte-level BPE over one sentence: about 300 tokens, every byte among them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIAL_TOKENS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer


def _write(file: Path, values: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(values))
