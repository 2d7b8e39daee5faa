"""How a checkpoint's weights are quantized, by its config.json: read without torch and without weights.

Formats: compressed-tensors (https://github.com/vllm-project/compressed-tensors), AutoAWQ's gemm layout, AutoGPTQ's layout and its v2, and
FP8 weights with block scales as DeepSeek and Qwen publish them. All are decoded to floats when they are read; activations stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hothead.errors import ModelConfigError

LAYOUTS = ("scaled", "packed", "nvfp4", "awq", "gptq")
"""scaled: int8 or fp8 values beside scales. packed: compressed-tensors' int32 words along the inputs. nvfp4: two values a byte, fp8
scales."""

IMPLEMENTED = (
    "compressed-tensors (int-quantized, float-quantized, naive-quantized, pack-quantized, nvfp4-pack-quantized), awq (gemm), "
    "gptq (2, 4 and 8 bits), fp8"
)

_COMPRESSED_LAYOUTS = {
    "int-quantized": "scaled",
    "float-quantized": "scaled",
    "naive-quantized": "scaled",
    "pack-quantized": "packed",
    "nvfp4-pack-quantized": "nvfp4",
}
_STRATEGIES = ("tensor", "channel", "group", "block", "tensor_group")


@dataclass(frozen=True, slots=True)
class WeightScheme:
    """How the weights of some modules are stored.

    method: the library. layout: of LAYOUTS. strategy: what shares a scale. group_size: inputs that do, under group. block: rows and inputs
    that do, under block. zero_offset: what is added to a stored zero point. targets: class names, module names, or "re:" and a pattern.
    """

    method: str
    layout: str
    num_bits: int
    is_float: bool
    strategy: str
    group_size: int = 0
    block: tuple[int, int] = (0, 0)
    is_symmetric: bool = True
    zero_offset: int = 0
    targets: tuple[str, ...] = ("Linear",)

    @property
    def label(self) -> str:
        """For people: "int4 in groups of 128 (compressed-tensors)"."""
        kind = f"{'fp' if self.is_float else 'int'}{self.num_bits}"
        shared = {
            "tensor": "one scale",
            "channel": "a scale per row",
            "group": f"groups of {self.group_size}",
            "tensor_group": f"groups of {self.group_size} and one scale over all",
            "block": f"blocks of {self.block[0]} x {self.block[1]}",
        }[self.strategy]
        joined = ", " if self.strategy in ("tensor", "channel") else " in "
        return f"{kind}{joined}{shared} ({self.method})"


@dataclass(frozen=True, slots=True)
class Quantization:
    """All schemes of one checkpoint."""

    method: str
    schemes: tuple[WeightScheme, ...]
    where: str

    def scheme_of(self, module: str) -> WeightScheme:
        """The scheme of a module that has quantized tensors, by its full name. Raises ModelConfigError where none is meant for it."""
        if len(self.schemes) == 1:
            return self.schemes[0]
        found = [scheme for scheme in self.schemes if any(_is_meant(target, module) for target in scheme.targets)]
        if len({replace(scheme, targets=()) for scheme in found}) != 1:
            raise ModelConfigError(
                f"{self.where}: {len(found)} of {len(self.schemes)} quantization groups are meant for {module}.",
                advice="Exactly one must be: look at config_groups in config.json.",
            )
        return found[0]


def read_quantization(config: Mapping[str, Any], where: str) -> Quantization | None:
    """From the contents of config.json; None where the weights are plain. Raises ModelConfigError for a format that is not implemented."""
    table = config.get("quantization_config") or config.get("compression_config")
    if not table:
        return None
    if not isinstance(table, Mapping):
        raise _not_implemented(repr(table), where)
    method = str(table.get("quant_method", table.get("format", "unnamed")))
    readers = {"compressed-tensors": _compressed_tensors, "awq": _awq, "gptq": _gptq, "fp8": _fp8}
    if method not in readers:
        raise _not_implemented(repr(method), where)
    try:
        return Quantization(method, readers[method](table, where), where)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelConfigError(
            f"{where}: quantization_config of the method {method!r} is damaged ({type(error).__name__}: {error}).",
            advice="Fetch config.json again.",
        ) from error


def _compressed_tensors(table: Mapping[str, Any], where: str) -> tuple[WeightScheme, ...]:
    schemes = []
    for group in table["config_groups"].values():
        weights = group.get("weights")
        if weights is None:
            continue
        name = str(group.get("format") or table.get("format"))
        layout = _COMPRESSED_LAYOUTS.get(name)
        strategy = str(weights.get("strategy") or ("group" if weights.get("group_size") else "tensor"))
        if layout is None or strategy not in _STRATEGIES or table.get("sparsity_config") or weights.get("dynamic"):
            raise _not_implemented(f"{name!r} with {strategy} scales of compressed-tensors", where)
        if weights.get("actorder") in ("group", True):
            raise _not_implemented(f"{name!r} with groups in order of activation (actorder) of compressed-tensors", where)
        block = weights.get("block_structure") or (0, 0)
        schemes.append(
            WeightScheme(
                "compressed-tensors",
                layout,
                int(weights["num_bits"]),
                weights.get("type", "int") == "float",
                strategy,
                int(weights.get("group_size") or 0),
                (int(block[0]), int(block[1])),
                bool(weights.get("symmetric", True)),
                targets=tuple(map(str, group.get("targets") or ("Linear",))),
            )
        )
    if not schemes:
        raise _not_implemented("'compressed-tensors' without quantized weights", where)
    return tuple(schemes)


def _awq(table: Mapping[str, Any], where: str) -> tuple[WeightScheme, ...]:
    version, num_bits = str(table.get("version", "gemm")).lower(), int(table.get("bits", table.get("w_bit", 4)))
    if version != "gemm" or num_bits != 4:
        raise _not_implemented(f"{version!r} of awq with {num_bits} bits", where)
    group_size = int(table.get("group_size", table.get("q_group_size", 128)))
    strategy = "channel" if group_size == -1 else "group"
    return (WeightScheme("awq", "awq", 4, False, strategy, max(group_size, 0), is_symmetric=False),)


def _gptq(table: Mapping[str, Any], where: str) -> tuple[WeightScheme, ...]:
    num_bits, group_size = int(table["bits"]), int(table["group_size"])
    form = str(table.get("checkpoint_format") or "gptq")
    if num_bits not in (2, 4, 8) or form not in ("gptq", "gptq_v2"):
        raise _not_implemented(f"{form!r} of gptq with {num_bits} bits", where)
    strategy = "channel" if group_size == -1 else "group"
    zero_offset = 1 if form == "gptq" else 0
    return (WeightScheme("gptq", "gptq", num_bits, False, strategy, max(group_size, 0), is_symmetric=False, zero_offset=zero_offset),)


def _fp8(table: Mapping[str, Any], where: str) -> tuple[WeightScheme, ...]:
    form = str(table.get("fmt", "e4m3"))
    if form not in ("e4m3", "float8_e4m3fn"):
        raise _not_implemented(f"{form!r} of fp8", where)
    block: Sequence[int] | None = table.get("weight_block_size")
    if block is None:
        return (WeightScheme("fp8", "scaled", 8, True, "tensor"),)
    return (WeightScheme("fp8", "scaled", 8, True, "block", block=(int(block[0]), int(block[1]))),)


def _is_meant(target: str, module: str) -> bool:
    if target.startswith("re:"):
        return re.match(target[3:], module) is not None
    if target in ("Linear", "Embedding"):
        return module.endswith("embed_tokens") == (target == "Embedding")
    return target == module


def _not_implemented(what: str, where: str) -> ModelConfigError:
    return ModelConfigError(
        f"{where} is quantized in the format {what} (quantization_config), which is not implemented.",
        f"Implemented: {IMPLEMENTED}; and GGUF files (Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, K-quants).",
        advice="Use the unquantized model, or a version of it in one of these formats.",
    )
