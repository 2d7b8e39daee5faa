"""What a model's configuration says, checked: one frozen record for Hugging Face folders and GGUF files.

A feature that is not implemented is refused by name with what was found, and so is a configuration that contradicts itself: a wrong guess
here would produce fluent nonsense later. Nothing in this module imports torch, so that checks answer in milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hothead.errors import ModelConfigError, nearest
from hothead.models.families import FAMILIES, UNIMPLEMENTED_KEYS, Family, When
from hothead.models.quantization import read_quantization
from hothead.models.rope import RopeConfig, rope_from_hugging_face, stretched_length

_DTYPES = ("bfloat16", "float16", "float32")
_LAYER_KINDS = ("full_attention", "sliding_attention")


@dataclass(frozen=True)
class ModelConfig:
    """One decoder.

    vocab_size counts the rows of embedding and head, padding included (the tokenizer knows how many are real). sliding_windows has one
    entry per layer: None, or W, where a token attends to the last W positions, its own included. attention_bias is on q, k and v,
    attention_output_bias on o. torch_dtype is what the checkpoint stores ("bfloat16" for quantized ones). source: the name in messages.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool
    attention_bias: bool
    attention_output_bias: bool
    mlp_bias: bool
    has_qk_norm: bool
    sliding_windows: tuple[int | None, ...]
    context_length: int
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    torch_dtype: str
    source: str

    def __post_init__(self) -> None:
        _check_sizes(self)

    @property
    def num_parameters(self) -> int:
        """Weights in embedding, layers, norms and head; a tied head counts once."""
        return sum(math.prod(shape) for shape in self.tensor_shapes().values())

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor that a checkpoint of this model must have, by its Hugging Face name."""
        query_rows, kv_rows = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, self.hidden_size)}
        for layer in range(self.num_layers):
            prefix = f"model.layers.{layer}"
            shapes[f"{prefix}.input_layernorm.weight"] = (self.hidden_size,)
            shapes[f"{prefix}.post_attention_layernorm.weight"] = (self.hidden_size,)
            for name, rows, columns, has_bias in (
                ("self_attn.q_proj", query_rows, self.hidden_size, self.attention_bias),
                ("self_attn.k_proj", kv_rows, self.hidden_size, self.attention_bias),
                ("self_attn.v_proj", kv_rows, self.hidden_size, self.attention_bias),
                ("self_attn.o_proj", self.hidden_size, query_rows, self.attention_output_bias),
                ("mlp.gate_proj", self.intermediate_size, self.hidden_size, self.mlp_bias),
                ("mlp.up_proj", self.intermediate_size, self.hidden_size, self.mlp_bias),
                ("mlp.down_proj", self.hidden_size, self.intermediate_size, self.mlp_bias),
            ):
                shapes[f"{prefix}.{name}.weight"] = (rows, columns)
                if has_bias:
                    shapes[f"{prefix}.{name}.bias"] = (rows,)
            if self.has_qk_norm:
                shapes[f"{prefix}.self_attn.q_norm.weight"] = (self.head_dim,)
                shapes[f"{prefix}.self_attn.k_norm.weight"] = (self.head_dim,)
        shapes["model.norm.weight"] = (self.hidden_size,)
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (self.vocab_size, self.hidden_size)
        return shapes


def from_hugging_face(config: Mapping[str, Any], generation_config: Mapping[str, Any] | None, where: str) -> ModelConfig:
    """Check and convert the contents of config.json and, where there is one, generation_config.json.

    where: the model's name in messages. Raises ModelConfigError.
    """
    family = _family(config, where)
    read_quantization(config, where, ModelConfigError)  # refuses what cannot be read
    refuse_keys(config, UNIMPLEMENTED_KEYS, where, "")
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelConfigError(f"{where} uses the activation {activation!r} (hidden_act), which is not implemented.", "Implemented: silu.")
    read = IntReader(config, where)
    num_heads = read("num_attention_heads")
    num_kv_heads = read("num_key_value_heads", family.default_num_kv_heads or num_heads, if_null=num_heads)
    hidden_size = read("hidden_size")
    context_length = read("max_position_embeddings", family.default_context_length)
    num_layers = read("num_hidden_layers")
    head_dim = config.get("head_dim") or family.default_head_dim
    if head_dim is None and hidden_size % num_heads:
        raise ModelConfigError(
            f"{where} contradicts itself: hidden_size {hidden_size} is not a multiple of num_attention_heads {num_heads}, "
            "and no head_dim is given."
        )
    has_bias = bool(config.get("attention_bias", False))
    dtype = config.get("dtype", config.get("torch_dtype")) or "float32"
    rope = rope_from_hugging_face(config, context_length, where)
    return ModelConfig(
        family=family.name,
        vocab_size=read("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=read("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=hidden_size // num_heads if head_dim is None else read("head_dim", head_dim),
        rms_norm_eps=read_epsilon(config.get("rms_norm_eps", 1e-6), where),
        rope=rope,
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        attention_bias=_has(family.qkv_bias, has_bias, "attention_bias", family, where),
        attention_output_bias=_has(family.output_bias, has_bias and family.qkv_bias == "config", "attention_bias", family, where),
        mlp_bias=_has(family.mlp_bias, bool(config.get("mlp_bias", False)), "mlp_bias", family, where),
        has_qk_norm=family.has_qk_norm,
        sliding_windows=_windows(config, family, num_layers, context_length, where),
        context_length=max(context_length, stretched_length(rope)),
        eos_token_ids=_eos_token_ids(config, generation_config, family, where),
        bos_token_id=read_token_id(config.get("bos_token_id", family.default_bos_token_id), "bos_token_id", where),
        torch_dtype=str(dtype).removeprefix("torch."),
        source=where,
    )


def _family(config: Mapping[str, Any], where: str) -> Family:
    """The family of `model_type`, cross-checked with `architectures` where that is given."""
    model_type = config.get("model_type")
    if model_type not in FAMILIES:
        raise unknown_architecture(str(model_type or ""), "model_type", FAMILIES, where)
    family = FAMILIES[model_type]
    architectures = config.get("architectures") or [family.hugging_face_class]
    if family.hugging_face_class not in architectures:
        raise ModelConfigError(
            f"{where} is a {', '.join(map(str, architectures))} (architectures), which is not implemented.",
            f"Implemented for model_type {family.name!r}: {family.hugging_face_class}.",
        )
    return family


def unknown_architecture(name: str, key: str, known: Iterable[str], where: str) -> ModelConfigError:
    implemented = f"Implemented: {', '.join(sorted(known))}."
    if not name:
        return ModelConfigError(f"{where} does not say its {key}.", implemented)
    hint = nearest(name, known)
    return ModelConfigError(
        f"{where} is a model of the architecture {name!r} ({key}), which is not implemented.",
        f"{implemented} {hint}" if hint.startswith("Did") else implemented,
    )


def refuse_keys(config: Mapping[str, Any], table: Mapping[str, tuple[object, ...]], where: str, prefix: str) -> None:
    found = [f"{prefix}{key} = {config[key]!r}" for key, harmless in table.items() if key in config and config[key] not in harmless]
    if found:
        raise ModelConfigError(
            f"{where} needs {'a feature' if len(found) == 1 else 'features'} not implemented: {', '.join(found)}.",
            f"Implemented: {', '.join(FAMILIES)} models without {'it' if len(found) == 1 else 'them'}.",
        )


def _has(when: When, declared: bool, key: str, family: Family, where: str) -> bool:
    if when == "never" and declared:
        raise ModelConfigError(f"{where} contradicts itself: {key} is true, but {family.name} models have no such bias.")
    return when == "always" or (when == "config" and declared)


def _windows(config: Mapping[str, Any], family: Family, num_layers: int, context_length: int, where: str) -> tuple[int | None, ...]:
    """One window per layer, by the family's rule; a window that the context window never fills is none."""
    kinds = config.get("layer_types")
    if kinds is not None:
        _check_layer_kinds(kinds, num_layers, where)
    window = config.get("sliding_window", family.default_sliding_window)
    if family.windows == "none" or (family.windows == "upper layers" and not config.get("use_sliding_window", False)):
        window = None
    if window is not None:
        window = IntReader(config, where)("sliding_window", window)
    if family.windows == "upper layers" and kinds is None:
        declared = config.get("max_window_layers")
        first = 28 if declared is None else declared
        if not isinstance(first, int) or isinstance(first, bool) or first < 0:
            raise ModelConfigError(f"{where} has max_window_layers = {declared!r}; it must be a whole number from 0.")
        kinds = [_LAYER_KINDS[window is not None and layer >= first] for layer in range(num_layers)]
    elif kinds is None:
        kinds = [_LAYER_KINDS[window is not None]] * num_layers
    num_sliding = kinds.count("sliding_attention")
    if num_sliding and window is None:
        raise ModelConfigError(
            f"{where} contradicts itself: {num_sliding} of {num_layers} layers are 'sliding_attention' (layer_types), "
            "but no sliding window is in effect.",
            f"sliding_window = {config.get('sliding_window')!r}, use_sliding_window = {config.get('use_sliding_window')!r}.",
        )
    if family.windows == "all layers" and window is not None and num_sliding != num_layers:
        raise ModelConfigError(
            f"{where} gives only {num_sliding} of {num_layers} layers a sliding window (layer_types), "
            f"which is not implemented for {family.name}."
        )
    is_effective = window is not None and window < context_length
    return tuple(window if is_effective and kind == "sliding_attention" else None for kind in kinds)


def _check_layer_kinds(kinds: object, num_layers: int, where: str) -> None:
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        length = len(kinds) if isinstance(kinds, list) else "no"
        raise ModelConfigError(f"{where} contradicts itself: layer_types has {length} entries for {num_layers} layers.")
    unknown = sorted({str(kind) for kind in kinds} - set(_LAYER_KINDS))
    if unknown:
        raise ModelConfigError(
            f"{where} has layers of kind {', '.join(map(repr, unknown))} (layer_types), which are not implemented.",
            f"Implemented: {', '.join(_LAYER_KINDS)}.",
        )


def _eos_token_ids(config: Mapping[str, Any], generation_config: Mapping[str, Any] | None, family: Family, where: str) -> tuple[int, ...]:
    """All end tokens: generation_config.json has the last word, as in transformers."""
    for table in (generation_config or {}, config):
        declared = table.get("eos_token_id")
        if declared is not None:
            token_ids = [read_token_id(value, "eos_token_id", where) for value in (declared if isinstance(declared, list) else [declared])]
            return tuple(dict.fromkeys(token_id for token_id in token_ids if token_id is not None))
    return () if "eos_token_id" in config else family.default_eos_token_ids


def read_token_id(value: object, key: str, where: str) -> int | None:
    if value is None or value == -1:  # -1 means none in older configurations
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ModelConfigError(f"{where} has {key} = {value!r}; it must be a token id.")
    return value


def read_epsilon(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ModelConfigError(f"{where} has rms_norm_eps = {value!r}; it must be a number from 0 up to 1.")
    return float(value)


def _check_sizes(config: ModelConfig) -> None:
    where = config.source
    if config.num_heads % config.num_kv_heads:
        raise ModelConfigError(
            f"{where} contradicts itself: {config.num_heads} query heads are not a multiple of {config.num_kv_heads} key/value heads."
        )
    if config.head_dim % 2:
        raise ModelConfigError(f"{where} has a head dimension of {config.head_dim}; a rotary embedding needs an even one.")
    if config.torch_dtype not in _DTYPES:
        raise ModelConfigError(
            f"{where} is stored as {config.torch_dtype!r} (torch_dtype), which is not implemented.", f"Implemented: {', '.join(_DTYPES)}."
        )
    outside = [token_id for token_id in config.eos_token_ids if token_id >= config.vocab_size]
    if outside:
        raise ModelConfigError(
            f"{where} contradicts itself: end token {outside[0]} is at or past the vocabulary size {config.vocab_size}.",
        )


class IntReader:
    """Reads positive integers out of a table; anything else is an error that names the key."""

    def __init__(self, table: Mapping[str, Any], where: str) -> None:
        self.table = table
        self.where = where

    def __call__(self, key: str, default: int | None = None, *, if_null: int | None = None) -> int:
        value = self.table[key] if self.table.get(key) is not None else (if_null if key in self.table and if_null is not None else default)
        if value is None:
            raise ModelConfigError(f"{self.where} does not say its {key}, which is needed.")
        if isinstance(value, list) and len(set(value)) == 1:  # GGUF may store one value per layer
            value = value[0]
        if isinstance(value, list):
            raise ModelConfigError(f"{self.where} has a different {key} per layer ({value}), which is not implemented.")
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise ModelConfigError(f"{self.where} has {key} = {value!r}; it must be a whole number above 0.")
        return value
