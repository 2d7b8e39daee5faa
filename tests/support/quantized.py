"""The quantized heads of tests/data with what the libraries that define their formats make of them, and whole quantized models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

DATA = Path(__file__).resolve().parent.parent / "data" / "quantized"
CASES = sorted(folder.name for folder in DATA.iterdir())


def head_name(case: str) -> str:
    return "model.embed_tokens.weight" if case.startswith("tied") else "lm_head.weight"


@cache
def expected_head(case: str) -> torch.Tensor:
    """The library's own dequantized matrix, in the dtype that it gives."""
    with np.load(DATA / case / "expected.npz") as stored:
        return torch.from_numpy(stored["bits"]).view(getattr(torch, str(stored["dtype"])))


Packed = tuple[dict[str, torch.Tensor], torch.Tensor]
"""Stored tensors of one matrix by their names in the module, and the matrix that they stand for."""


def quantize_model(model: Path, folder: Path, method: str) -> tuple[Path, Path]:
    """A model of `make_model` with all linear layers and the head (tied: the embedding) quantized, and its twin with the weights that those
    stand for, plainly in float32 -> their folders.
    """
    table, pack = METHODS[method]
    stored, plain = {}, {}
    for name, weight in load_file(model / "model.safetensors").items():
        is_head = name == "model.embed_tokens.weight" and json.loads((model / "config.json").read_text())["tie_word_embeddings"]
        if name.endswith(("_proj.weight", "lm_head.weight")) or is_head:
            parts, plain[name] = pack(weight)
            stored |= {name.removesuffix("weight") + leaf: part.contiguous() for leaf, part in parts.items()}
        else:
            stored[name] = plain[name] = weight
    for kind, tensors, changes in (("quantized", stored, {"quantization_config": table}), ("plain", plain, {})):
        shutil.copytree(model, folder / kind)
        config = json.loads((model / "config.json").read_text()) | changes
        (folder / kind / "config.json").write_text(json.dumps(config))
        save_file(tensors, folder / kind / "model.safetensors")
    return folder / "quantized", folder / "plain"


def _int4(weight: torch.Tensor, groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """groups: [columns] -> values [rows, columns] from 0 to 15, zero points and scales [rows, groups], the matrix that they stand for."""
    zeros, scales, values = [], [], torch.empty(weight.shape, dtype=torch.int64)
    for group in range(int(groups.max()) + 1):
        part = weight[:, groups == group]
        scale = (part.amax(1) - part.amin(1)).clamp(min=1e-3) / 15
        zero = (-part.amin(1) / scale).round().clamp(1, 15).long()
        values[:, groups == group] = ((part / scale[:, None]).round().long() + zero[:, None]).clamp(0, 15)
        zeros.append(zero)
        scales.append(scale)
    zero_points, scale = torch.stack(zeros, 1), torch.stack(scales, 1)
    return values, zero_points, scale, (values - zero_points[:, groups]).float() * scale[:, groups]


def _words(values: torch.Tensor) -> torch.Tensor:
    """[R, C] of 4 bits -> [R, ceil(C / 8)] int32, the first value lowest."""
    padded = torch.nn.functional.pad(values, (0, -values.shape[1] % 8)).unflatten(1, (-1, 8))
    return (padded << torch.arange(0, 32, 4)).sum(-1).to(torch.uint32).view(torch.int32)


def _pack_rows(weight: torch.Tensor) -> Packed:
    values, zeros, scales, dequantized = _int4(weight, torch.zeros(weight.shape[1], dtype=torch.int64))
    parts = {"weight_packed": _words(values), "weight_scale": scales, "weight_zero_point": _words(zeros.t()).t()}
    return parts | {"weight_shape": torch.tensor(weight.shape)}, dequantized


def _pack_gptq(weight: torch.Tensor) -> Packed:
    columns = weight.shape[1]
    groups = (torch.arange(columns) // 16)[torch.randperm(columns, generator=torch.Generator().manual_seed(columns))]
    values, zeros, scales, dequantized = _int4(weight, groups)
    parts = {"qweight": _words(values).t(), "qzeros": _words(zeros.t() - 1), "scales": scales.t(), "g_idx": groups.int()}
    return parts | {"bias": torch.zeros(len(weight))}, dequantized


def _pack_fp8(weight: torch.Tensor) -> Packed:
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -columns % 16, 0, -rows % 16)).unflatten(0, (-1, 16)).unflatten(2, (-1, 16))
    scales = padded.abs().amax((1, 3)) / 448
    tiles = scales.repeat_interleave(16, 0).repeat_interleave(16, 1)[:rows, :columns]
    stored = (weight / tiles).to(torch.float8_e4m3fn)
    return {"weight": stored, "weight_scale_inv": scales}, stored.float() * tiles


_WEIGHTS = {"num_bits": 4, "type": "int", "strategy": "channel", "symmetric": False}
METHODS: dict[str, tuple[dict[str, Any], Callable[[torch.Tensor], Packed]]] = {
    "compressed-tensors": (
        {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"group_0": {"targets": ["Linear", "Embedding"], "weights": _WEIGHTS}},
        },
        _pack_rows,
    ),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": True}, _pack_gptq),
    "fp8": ({"quant_method": "fp8", "weight_block_size": [16, 16]}, _pack_fp8),
}
