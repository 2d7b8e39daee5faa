"""The rotary embedding: what a configuration declares, and its cosine and sine tables.

Kinds: default, linear, llama3 and yarn as in Hugging Face configurations, and factors, where a GGUF file stores the divisor of each
frequency. `dynamic` and `longrope` depend on the length of the running text and are refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from hothead.errors import ModelConfigError, nearest

if TYPE_CHECKING:  # reading a configuration must not wait for torch
    import torch

RopeKind = Literal["default", "linear", "llama3", "yarn", "factors"]

HUGGING_FACE_KINDS = ("default", "linear", "llama3", "yarn")
_NUMBER_KEYS = ("rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "attention_factor")
_YARN_KEYS = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")
_KNOWN_KEYS = {"rope_type", "type", *_NUMBER_KEYS, *_YARN_KEYS, "partial_rotary_factor", "finetuned"}


@dataclass(frozen=True)
class RopeConfig:
    """One model's rotary embedding. Fields that a kind does not use keep their defaults.

    attention_factor scales cosine and sine (yarn; None: the paper's value). original_context_length is the training length that llama3 and
    yarn scale from. frequency_factors: kind `factors` only, one divisor per frequency (head_dim / 2 of them).
    """

    kind: RopeKind = "default"
    theta: float = 10000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_length: int = 0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    is_truncated: bool = True
    frequency_factors: tuple[float, ...] = ()


def rope_tables(
    config: RopeConfig, head_dim: int, num_positions: int, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and signed sine for positions 0 .. num_positions - 1, each [num_positions, head_dim].

    The rotation of x [..., head_dim] is `x * cos + x.roll(head_dim // 2, -1) * sin_signed`: the half swap of the usual convention moves its
    minus sign into the table. Computed in float32 and cast at the end, so that the bits are those of transformers.
    """
    import torch

    frequencies, scale = inverse_frequencies(config, head_dim)
    positions = torch.arange(num_positions, dtype=torch.float32)
    angles = positions[:, None] * frequencies  # [S, Dh / 2]
    cos, sin = angles.cos() * scale, angles.sin() * scale
    return (
        torch.cat((cos, cos), dim=-1).to(device=device, dtype=dtype),
        torch.cat((-sin, sin), dim=-1).to(device=device, dtype=dtype),
    )


def inverse_frequencies(config: RopeConfig, head_dim: int) -> tuple[torch.Tensor, float]:
    """Radians per position, [head_dim / 2] float32, and the factor on cosine and sine."""
    import torch

    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain = 1.0 / (config.theta**exponents)
    if config.kind == "linear":
        return plain / config.factor, 1.0
    if config.kind == "llama3":
        return _llama3(config, plain), 1.0
    if config.kind == "yarn":
        return _yarn(config, head_dim, exponents), yarn_attention_factor(config)
    if config.kind == "factors":
        divisors = torch.tensor(config.frequency_factors, dtype=torch.float32)
        assert divisors.shape == plain.shape, (divisors.shape, plain.shape)
        return plain / divisors, 1.0
    return plain, 1.0


def _llama3(config: RopeConfig, plain: torch.Tensor) -> torch.Tensor:
    """Llama 3.1: long waves are stretched by the factor, short ones kept, those between mixed."""
    import torch

    length = config.original_context_length
    longest, shortest = length / config.low_freq_factor, length / config.high_freq_factor
    waves = 2 * math.pi / plain
    stretched = torch.where(waves > longest, plain / config.factor, plain)
    smooth = (length / waves - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
    mixed = (1 - smooth) * stretched / config.factor + smooth * stretched
    return torch.where((waves >= shortest) & (waves <= longest), mixed, stretched)


def _yarn(config: RopeConfig, head_dim: int, exponents: torch.Tensor) -> torch.Tensor:
    """YaRN (arXiv 2309.00071), section 3.2: a ramp between interpolated (slow) and kept (fast) frequencies."""
    import torch

    def dimension_of(num_rotations: float) -> float:
        return (head_dim * math.log(config.original_context_length / (num_rotations * 2 * math.pi))) / (2 * math.log(config.theta))

    low, high = dimension_of(config.beta_fast), dimension_of(config.beta_slow)
    if config.is_truncated:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # the ramp divides by high - low
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    waves = config.theta**exponents
    kept_share = 1 - ramp
    return 1.0 / (config.factor * waves) * (1 - kept_share) + 1.0 / waves * kept_share


def stretched_length(config: RopeConfig) -> int:
    """Positions that YaRN was declared to reach: configurations often keep the training length as max_position_embeddings and give the
    factor beside it. 0 for other kinds."""
    return round(config.factor * config.original_context_length) if config.kind == "yarn" else 0


def yarn_attention_factor(config: RopeConfig) -> float:
    """The declared factor on cosine and sine, or what the YaRN paper recommends for this stretch."""
    if config.attention_factor is not None:
        return config.attention_factor

    def magnitude(scale: float) -> float:
        return 1.0 if config.factor <= 1 else 0.1 * scale * math.log(config.factor) + 1.0

    if config.mscale and config.mscale_all_dim:
        return magnitude(config.mscale) / magnitude(config.mscale_all_dim)
    return magnitude(1.0)


def rope_from_hugging_face(config: Mapping[str, object], context_length: int, where: str) -> RopeConfig:
    """From `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before).

    Raises ModelConfigError for kinds and keys that are not implemented and for missing or contradicting numbers.
    """
    declared = _flat_parameters(config, where)
    unknown = ", ".join(f"{key} = {declared[key]!r}" for key in sorted(set(declared) - _KNOWN_KEYS))
    kind = declared.get("rope_type", declared.get("type", "default"))
    if kind not in HUGGING_FACE_KINDS:
        raise ModelConfigError(
            f"{where} uses the rotary embedding type {kind!r}, which is not implemented.",
            f"Implemented: {', '.join(HUGGING_FACE_KINDS)}. {nearest(str(kind), HUGGING_FACE_KINDS)}",
            advice="Use a model with one of these, or a version of this model with a fixed context window.",
        )
    if unknown:
        raise ModelConfigError(
            f"{where} sets rotary embedding parameters that are not implemented: {unknown}.",
            f"Known: {', '.join((*_NUMBER_KEYS, *_YARN_KEYS))}.",
        )
    if declared.get("partial_rotary_factor") not in (None, 1):
        raise ModelConfigError(
            f"{where} rotates only a part of each head (partial_rotary_factor = {declared['partial_rotary_factor']!r}), "
            "which is not implemented.",
            "Implemented: 1 (the whole head).",
        )
    number, outer_number = _NumberReader(declared, where), _NumberReader(config, where)
    theta = number("rope_theta", outer_number("rope_theta", 10000.0))
    if kind == "linear":
        return RopeConfig("linear", theta, factor=number("factor", None))
    if kind == "default":
        return RopeConfig("default", theta)
    key = "original_max_position_embeddings"  # a length outside the rotary table has the last word, as in transformers
    original = int(number(key, context_length) if config.get(key) is None else outer_number(key, None))
    if kind == "llama3":
        rope = RopeConfig(
            "llama3",
            theta,
            factor=number("factor", None),
            low_freq_factor=number("low_freq_factor", None),
            high_freq_factor=number("high_freq_factor", None),
            original_context_length=original,
        )
        if rope.high_freq_factor <= rope.low_freq_factor:
            raise ModelConfigError(
                f"{where} contradicts itself: high_freq_factor {rope.high_freq_factor:g} is not above "
                f"low_freq_factor {rope.low_freq_factor:g}."
            )
        return rope
    return RopeConfig(
        "yarn",
        theta,
        factor=number("factor", context_length / original),
        original_context_length=original,
        attention_factor=number("attention_factor", None) if declared.get("attention_factor") is not None else None,
        beta_fast=number("beta_fast", 32.0),
        beta_slow=number("beta_slow", 1.0),
        mscale=number("mscale", None) if declared.get("mscale") else None,
        mscale_all_dim=number("mscale_all_dim", None) if declared.get("mscale_all_dim") else None,
        is_truncated=bool(declared.get("truncate", True)),
    )


def rope_from_gguf(
    fields: Mapping[str, object], prefix: str, head_dim: int, frequency_factors: tuple[float, ...], context_length: int, where: str
) -> RopeConfig:
    """From the `<prefix>.rope.*` keys and the values of the tensor `rope_freqs.weight` (empty: the file has none)."""
    number = _NumberReader({key.removeprefix(f"{prefix}.rope."): value for key, value in fields.items()}, where)
    theta = number("freq_base", 10000.0)
    kind = fields.get(f"{prefix}.rope.scaling.type", "none")
    if frequency_factors:
        if len(frequency_factors) != head_dim // 2:
            raise ModelConfigError(
                f"{where} contradicts itself: rope_freqs.weight has {len(frequency_factors)} values for a head dimension of {head_dim}.",
                f"Expected {head_dim // 2}.",
            )
        if kind not in ("none", "llama3"):
            raise ModelConfigError(
                f"{where} has both rope_freqs.weight and rope.scaling.type = {kind!r}; both together are not implemented."
            )
        return RopeConfig("factors", theta, frequency_factors=frequency_factors)
    legacy_factor = number("scale_linear", 1.0)
    factor = number("scaling.factor", legacy_factor)
    if kind in ("none", ""):
        return RopeConfig("default", theta) if legacy_factor == 1 else RopeConfig("linear", theta, factor=legacy_factor)
    if kind == "linear":
        return RopeConfig("linear", theta, factor=factor)
    if kind == "yarn":
        rope = RopeConfig(
            "yarn",
            theta,
            factor=factor,
            original_context_length=int(number("scaling.original_context_length", context_length)),
            beta_fast=number("scaling.yarn_beta_fast", 32.0),
            beta_slow=number("scaling.yarn_beta_slow", 1.0),
        )
        # the file's factor multiplies the paper's value; a Hugging Face configuration's replaces it
        declared = number("scaling.attn_factor", number("scaling.yarn_attn_factor", 1.0))
        return rope if declared == 1 else replace(rope, attention_factor=declared * yarn_attention_factor(rope))
    raise ModelConfigError(
        f"{where} uses the rotary embedding type {kind!r} (rope.scaling.type), which is not implemented.",
        "Implemented: none, linear, yarn, and llama3 through rope_freqs.weight.",
    )


def _flat_parameters(config: Mapping[str, object], where: str) -> dict[str, object]:
    """The one dictionary of rotary parameters; nested ones (per kind of layer) must agree."""
    declared = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(declared, Mapping):
        raise ModelConfigError(f"{where} has rope parameters that are not a table: {declared!r}.")
    nested = {key: value for key, value in declared.items() if isinstance(value, Mapping)}
    if nested:
        distinct: list[Mapping[str, object]] = []
        for value in nested.values():
            if value not in distinct:
                distinct.append(value)
        if len(distinct) > 1 or len(nested) < len(declared):
            raise ModelConfigError(
                f"{where} has a different rotary embedding per kind of layer ({', '.join(nested)}), which is not implemented."
            )
        return dict(distinct[0])
    return dict(declared)


class _NumberReader:
    """Reads positive numbers out of a table; a missing one without a default, or anything else, is an error that names the key."""

    def __init__(self, table: Mapping[str, object], where: str) -> None:
        self.table = table
        self.where = where

    def __call__(self, key: str, default: float | None) -> float:
        value = self.table.get(key)
        if value is None:
            if default is None:
                raise ModelConfigError(f"{self.where} declares a rotary embedding without {key!r}.")
            return float(default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise ModelConfigError(f"{self.where} has {key} = {value!r}; it must be a number above 0.")
        return float(value)
