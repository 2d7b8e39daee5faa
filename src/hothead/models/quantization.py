"""What a configuration says about quantized weights: one record per method, or a refusal that names what is implemented.

The bytes are read by `models/weights/quantized/`; nothing here imports torch, so that an unknown format is refused in milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hothead.errors import HotheadError

REGEX = "re:"
PACKED, INTEGERS, FLOATS, NVFP4, DENSE = "pack-quantized", "int-quantized", "float-quantized", "nvfp4-pack-quantized", "dense"
COMPRESSED_FORMATS = (PACKED, INTEGERS, FLOATS, "naive-quantized", NVFP4)
_GPTQ_FORMATS = ("gptq", "gptq_v2")
_GPTQ_BITS = (2, 3, 4, 8)
_CONFIG_KEYS = ("quantization_config", "compression_config")


@dataclass(frozen=True)
class WeightScheme:
    """One config group of compressed-tensors: how the weights of its targets are stored.

    targets: module names, patterns that begin with "re:", or classes (Linear, Embedding). format: of COMPRESSED_FORMATS or DENSE.
    strategy: tensor, channel, group, tensor_group or block. group_size: columns; block: rows and columns.
    """

    targets: tuple[str, ...]
    format: str
    num_bits: int
    is_float: bool
    is_symmetric: bool
    strategy: str
    group_size: int | None
    block: tuple[int, int] | None


@dataclass(frozen=True)
class CompressedTensors:
    """quant_method compressed-tensors. ignore: as targets; these modules are stored plainly."""

    schemes: tuple[WeightScheme, ...]
    ignore: tuple[str, ...]


@dataclass(frozen=True)
class Awq:
    """quant_method awq, version gemm, 4 bits. group_size -1: one group per row. Zero points are stored with and without `zero_point`."""

    group_size: int


@dataclass(frozen=True)
class Gptq:
    """quant_method gptq. bits None: they differ by module. is_v2: zero points are stored as they are, not less one. maker: lower case."""

    bits: int | None
    group_size: int
    has_activation_order: bool
    is_v2: bool
    maker: str


@dataclass(frozen=True)
class Fp8Blocks:
    """quant_method fp8 (DeepSeek, Qwen): block is rows and columns per scale, None for one scale per tensor."""

    block: tuple[int, int] | None


Quantization = CompressedTensors | Awq | Gptq | Fp8Blocks


def read_quantization(config: Mapping[str, Any], where: str, error: type[HotheadError]) -> Quantization | None:
    """The record of a config.json, None without quantized weights. Raises `error` for a method or format that is not implemented."""
    table = next((config[key] for key in _CONFIG_KEYS if config.get(key)), None)
    if table is None:
        return None
    if not isinstance(table, Mapping):
        raise _refusal(where, repr(table), error)
    method = table.get("quant_method") or ("compressed-tensors" if "config_groups" in table else "unnamed")
    if not isinstance(method, str) or method not in METHODS:
        raise _refusal(where, repr(method), error)
    return METHODS[method](_Reader(table, where, method, error))


class _Reader:
    """A table of the configuration with errors that say where."""

    def __init__(self, table: Mapping[str, Any], where: str, method: str, error: type[HotheadError]) -> None:
        self.table, self.where, self.method, self.error = table, where, method, error

    def refuse(self, what: str) -> HotheadError:
        return _refusal(self.where, f"{self.method!r} with {what}", self.error)

    def integer(self, key: str, default: int | None, allowed: Callable[[int], bool]) -> int:
        value = self.table.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not allowed(value):
            raise self.refuse(f"{key} = {value!r}")
        return value

    def within(self, table: Mapping[str, Any]) -> _Reader:
        return _Reader(table, self.where, self.method, self.error)

    def block(self, key: str) -> tuple[int, int] | None:
        value = self.table.get(key)
        if value is None:
            return None
        if isinstance(value, str):
            value = [int(size) if size.isdigit() else 0 for size in value.split("x")]  # "128x128" in older files
        if not isinstance(value, list | tuple) or len(value) != 2 or not all(type(size) is int and size > 0 for size in value):
            raise self.refuse(f"{key} = {value!r}")
        return value[0], value[1]


def _refusal(where: str, what: str, error: type[HotheadError]) -> HotheadError:
    return error(
        f"{where} is quantized in the format {what} (quantization_config), which is not implemented.",
        f"Implemented: compressed-tensors ({', '.join(COMPRESSED_FORMATS)}), awq (4 bits, version gemm), "
        f"gptq ({', '.join(_GPTQ_FORMATS)}), fp8 in blocks (weight_scale_inv), unquantized safetensors, and GGUF files.",
        advice="Use the unquantized model, or a version of it in one of these formats.",
    )


def _compressed_tensors(reader: _Reader) -> CompressedTensors:
    table = reader.table
    for key in ("sparsity_config", "transform_config"):
        # Rotated weights need a rotation of what they are multiplied with; sparse ones are stored in another way.
        content = table.get(key) or {}
        if content and not (isinstance(content, Mapping) and (content.get("format") == DENSE or content.get("config_groups") == {})):
            raise reader.refuse(key)
    groups = table.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise reader.refuse("no config_groups")
    schemes = []
    for name, group in groups.items():
        if not isinstance(group, Mapping):
            raise reader.refuse(f"the preset {name!r}")
        if group.get("weights") is not None:  # else only activations are quantized
            schemes.append(_scheme(reader, group))
    return CompressedTensors(tuple(schemes), _patterns(reader, table.get("ignore") or [], "ignore"))


def _scheme(reader: _Reader, group: Mapping[str, Any]) -> WeightScheme:
    format_name = group.get("format") or reader.table.get("format")
    if format_name not in (*COMPRESSED_FORMATS, DENSE):
        raise reader.refuse(f"format = {format_name!r}")
    if not isinstance(group["weights"], Mapping):
        raise reader.refuse(f"weights = {group['weights']!r}")
    weights = reader.within(group["weights"])
    num_bits = weights.integer("num_bits", 8, lambda bits: 1 <= bits <= 8)
    group_size = None if weights.table.get("group_size") is None else weights.integer("group_size", None, lambda size: size >= -1)
    block = weights.block("block_structure")
    strategy = weights.table.get("strategy") or _default_strategy(group_size, block)
    is_float = weights.table.get("type", "int") == "float"
    is_symmetric = weights.table.get("symmetric", True) is True
    if strategy not in ("tensor", "channel", "group", "tensor_group", "block"):
        raise reader.refuse(f"strategy = {strategy!r}")
    if strategy in ("group", "tensor_group"):
        weights.integer("group_size", None, lambda size: size > 0)
    if strategy == "block" and block is None:
        raise reader.refuse("strategy = 'block' and no block_structure")
    has_kind = {PACKED: not is_float, INTEGERS: not is_float, FLOATS: is_float, NVFP4: is_float}.get(format_name, True)
    if format_name == NVFP4:
        has_kind = has_kind and num_bits == 4 and strategy in ("group", "tensor_group")
    elif is_float:
        has_kind = has_kind and num_bits == 8 and is_symmetric
    if not has_kind:
        raise reader.refuse(f"format = {format_name!r} for {num_bits}-bit {'float' if is_float else 'int'} weights by {strategy}")
    targets = _patterns(reader, group.get("targets") or [], "targets")
    return WeightScheme(targets, str(format_name), num_bits, is_float, is_symmetric, strategy, group_size, block)


def _default_strategy(group_size: int | None, block: tuple[int, int] | None) -> str:
    """What compressed-tensors takes where none is named."""
    if block is not None:
        return "block"
    if group_size is None:
        return "tensor"
    return "channel" if group_size == -1 else "group"


def _patterns(reader: _Reader, values: object, key: str) -> tuple[str, ...]:
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        raise reader.refuse(f"{key} = {values!r}")
    for value in values:
        if value.startswith(REGEX):
            try:
                re.compile(value.removeprefix(REGEX))
            except re.error:
                raise reader.refuse(f"the pattern {value!r} in {key}") from None
    return tuple(values)


def _awq(reader: _Reader) -> Awq:
    version = str(reader.table.get("version", "gemm")).lower()
    if version != "gemm":
        raise reader.refuse(f"version = {version!r}")
    reader.integer("bits", 4, lambda bits: bits == 4)
    return Awq(reader.integer("group_size", 128, lambda size: size == -1 or size > 0))


def _gptq(reader: _Reader) -> Gptq:
    table = reader.table
    format_name = str(table.get("checkpoint_format") or table.get("format") or "gptq").lower()
    if format_name not in _GPTQ_FORMATS or table.get("is_marlin_format"):
        raise reader.refuse(f"checkpoint_format = {'marlin' if table.get('is_marlin_format') else format_name!r}")
    if str(table.get("pack_dtype", "int32")).removeprefix("torch.") != "int32":
        raise reader.refuse(f"pack_dtype = {table['pack_dtype']!r}")
    bits = reader.integer("bits", None, lambda bits: bits in _GPTQ_BITS)
    group_size = reader.integer("group_size", 128, lambda size: size == -1 or size > 0)
    meta = table.get("meta")
    return Gptq(
        bits=None if table.get("dynamic") else bits,
        group_size=group_size,
        has_activation_order=bool(table.get("desc_act", False)),
        is_v2=format_name == "gptq_v2",
        maker=str(meta.get("quantizer", "") if isinstance(meta, Mapping) else "").lower(),
    )


def _fp8(reader: _Reader) -> Fp8Blocks:
    table = reader.table
    if table.get("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
        raise reader.refuse(f"fmt = {table['fmt']!r}")
    return Fp8Blocks(reader.block("weight_block_size"))


METHODS: dict[str, Callable[[_Reader], Quantization]] = {
    "compressed-tensors": _compressed_tensors,
    "awq": _awq,
    "gptq": _gptq,
    "fp8": _fp8,
}
