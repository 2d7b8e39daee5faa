"""A float matrix in the stored form of some quantized formats, plainly: for whole models that must run, not for the formats themselves,
which are tested against their libraries."""

from __future__ import annotations

from typing import Any

import torch

GROUP = 16

Stored = tuple[dict[str, torch.Tensor], dict[str, Any]]
"""Tensors by what follows the module's name, and the quantization_config."""


def int8_channel(weight: torch.Tensor) -> Stored:
    scale = weight.abs().amax(1, keepdim=True) / 127
    weights = {"num_bits": 8, "type": "int", "strategy": "channel"}
    return {"weight": torch.round(weight / scale).to(torch.int8), "weight_scale": scale}, _compressed("int-quantized", weights)


def int4_group(weight: torch.Tensor) -> Stored:
    scale = weight.unflatten(1, (-1, GROUP)).abs().amax(-1) / 7
    codes = torch.round(weight / scale.repeat_interleave(GROUP, 1)).clamp(-8, 7).long() + 8
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}
    stored = {"weight_packed": _words(codes), "weight_scale": scale, "weight_shape": torch.tensor(weight.shape)}
    return stored, _compressed("pack-quantized", weights)


def nvfp4(weight: torch.Tensor) -> Stored:
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    scale = (weight.unflatten(1, (-1, GROUP)).abs().amax(-1) / 6).to(torch.float8_e4m3fn)
    scaled = weight / scale.float().clamp_min(1e-3).repeat_interleave(GROUP, 1)
    codes = (scaled.abs().unsqueeze(-1) - values).abs().argmin(-1) + 8 * (scaled < 0)
    packed = (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8)
    stored = {"weight_packed": packed, "weight_scale": scale, "weight_global_scale": torch.ones(1)}
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": GROUP}
    return stored, _compressed("nvfp4-pack-quantized", weights)


def fp8_block(weight: torch.Tensor) -> Stored:
    height, width = 32, GROUP
    padded = torch.nn.functional.pad(weight, (0, -weight.shape[1] % width, 0, -weight.shape[0] % height))
    scale = padded.unflatten(0, (-1, height)).unflatten(2, (-1, width)).abs().amax((1, 3)) / 448
    whole = scale.repeat_interleave(height, 0)[: len(weight)].repeat_interleave(width, 1)[:, : weight.shape[1]]
    config = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [height, width]}
    return {"weight": (weight / whole).to(torch.float8_e4m3fn), "weight_scale_inv": scale}, config


def awq(weight: torch.Tensor) -> Stored:
    scale = (weight.unflatten(1, (-1, GROUP)).abs().amax(-1) / 7).half()
    codes = torch.round(weight / scale.float().repeat_interleave(GROUP, 1)).clamp(-8, 7).long() + 8

    def pack(numbers: torch.Tensor) -> torch.Tensor:  # [., O] -> [., O / 8], in the order of the format
        return _words(numbers.unflatten(1, (-1, 8))[:, :, [0, 2, 4, 6, 1, 3, 5, 7]].flatten(1))

    stored = {"qweight": pack(codes.T), "qzeros": pack(torch.full_like(scale.T, 8, dtype=torch.int64)), "scales": scale.T.contiguous()}
    return stored, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}


def gptq(weight: torch.Tensor) -> Stored:
    scale = (weight.unflatten(1, (-1, GROUP)).abs().amax(-1) / 7).half()
    codes = torch.round(weight / scale.float().repeat_interleave(GROUP, 1)).clamp(-8, 7).long() + 8
    stored = {
        "qweight": _words(codes).T.contiguous(),
        "qzeros": _words(torch.full_like(scale.T, 7, dtype=torch.int64)),
        "scales": scale.T.contiguous(),
        "g_idx": (torch.arange(weight.shape[1]) // GROUP).int(),
    }
    return stored, {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False}


def _words(codes: torch.Tensor) -> torch.Tensor:
    """4-bit numbers [n, C] -> [n, C / 8] int32, the first one lowest."""
    return (codes.unflatten(1, (-1, 8)) << (4 * torch.arange(8))).sum(-1).to(torch.int32)


def _compressed(name: str, weights: dict[str, Any]) -> dict[str, Any]:
    group = {"targets": ["Linear", "Embedding"], "weights": weights, "format": name}
    return {"quant_method": "compressed-tensors", "format": name, "config_groups": {"group_0": group}}
