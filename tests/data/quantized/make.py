"""Writes the checkpoints of this folder: one quantized output head each, made and decoded by the library that defines the format.

    python tests/data/quantized/make.py

Needs compressed-tensors 0.20.1, and on PYTHONPATH the unpacked sources of auto-gptq 0.7.1 (wheel) and autoawq 0.2.9 (sdist); no CUDA.
Each file holds the stored tensors under `lm_head.` and, as `decoded`, what the library makes of them. `formats.json` holds the
quantization_config.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

FOLDER = Path(__file__).parent
NUM_ROWS, NUM_INPUTS = 200, 128  # rows no multiple of 64; 200 = 8 * 25 since awq and gptq pack eight of them


def compressed(name: str, layout: str, weights: dict[str, Any], seed: int) -> dict[str, Any]:
    """A head in a format of compressed-tensors, quantized with scales from its own values."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    args = QuantizationArgs(**weights)
    activations = QuantizationArgs(num_bits=8, type=weights["type"], dynamic=True, strategy="token")
    scheme = QuantizationScheme(
        targets=["Linear"], weights=args, input_activations=activations if layout.endswith("-quantized") and "pack" not in layout else None
    )
    rows = NUM_ROWS - 3 if weights["strategy"] != "block" else NUM_ROWS  # 197: no multiple of a pack either
    head = torch.randn(rows, NUM_INPUTS, generator=torch.Generator().manual_seed(seed)) / 8
    state: dict[str, torch.Tensor] = {"weight": head.bfloat16()}
    if weights["strategy"] == "channel":
        parts = head.unsqueeze(1)
    elif weights["strategy"] == "tensor":
        parts = head.reshape(1, 1, -1)
    elif weights["strategy"] == "block":
        height, width = weights["block_structure"]
        padded = torch.nn.functional.pad(head, (0, -NUM_INPUTS % width, 0, -rows % height))
        parts = padded.unflatten(0, (-1, height)).unflatten(2, (-1, width)).transpose(1, 2).flatten(2)
    else:
        parts = head.unflatten(1, (-1, weights["group_size"]))
    low, high = parts.amin(-1), parts.amax(-1)
    extra = {}
    if layout.startswith("nvfp4"):
        state["weight_global_scale"] = generate_gparam(low.min().view(1), high.max().view(1))
        extra = {"global_scale": state["weight_global_scale"]}
    scale, zero_point = calculate_qparams(low, high, args, **extra)
    state["weight_scale"] = scale.view(1) if weights["strategy"] == "tensor" else scale
    state["weight_scale"] = state["weight_scale"] if layout.startswith("nvfp4") else state["weight_scale"].bfloat16()
    if not weights.get("symmetric", True):
        state["weight_zero_point"] = zero_point
    compressor = BaseCompressor.get_value_from_registry(layout)
    stored = compressor.compress(state, scheme)
    decoded = compressor.decompress(stored, scheme)["weight"]
    save(name, stored, decoded)
    group = {"targets": ["Linear"], "weights": json.loads(args.model_dump_json()), "format": layout}
    return {"quant_method": "compressed-tensors", "format": layout, "config_groups": {"group_0": group}, "ignore": []}


def gptq(name: str, num_bits: int, group_size: int, seed: int, *, in_order_of_activation: bool = False) -> dict[str, Any]:
    """AutoGPTQ's own packing and its own product with the identity. Its packing wants inputs in order of group, so those in order of
    activation are permuted afterwards, as its quantizer stores them."""
    package = next(Path(folder) / "auto_gptq" for folder in sys.path if (Path(folder) / "auto_gptq").is_dir())
    path = package / "nn_modules/qlinear/qlinear_cuda_old.py"
    spec = importlib.util.spec_from_file_location("qlinear_cuda_old", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    generator = torch.Generator().manual_seed(seed)
    num_rows = 192  # its zero points are packed in whole words of 32 rows
    linear = torch.nn.Linear(NUM_INPUTS, num_rows, bias=False)
    linear.weight.data = torch.randn(num_rows, NUM_INPUTS, generator=generator) / 8
    size = NUM_INPUTS if group_size == -1 else group_size
    parts = linear.weight.data.unflatten(1, (-1, size))
    scales = ((parts.amax(-1) - parts.amin(-1)) / (2**num_bits - 1)).half().float()
    zeros = torch.round(-parts.amin(-1) / scales).clamp(0, 2**num_bits - 1)
    # What a clamped zero point cannot reach must not overflow into its neighbours.
    low, high = -zeros * scales, (2**num_bits - 1 - zeros) * scales
    linear.weight.data = torch.minimum(torch.maximum(parts, low[..., None]), high[..., None]).flatten(1)
    packed = module.QuantLinear(num_bits, group_size, NUM_INPUTS, num_rows, bias=False)
    packed.pack(linear, scales, zeros.clone(), None)
    packed.scales = packed.scales.half()
    decoded = packed(torch.eye(NUM_INPUTS).half()).T.contiguous()
    stored = {part: getattr(packed, part) for part in ("qweight", "qzeros", "scales", "g_idx")}
    if in_order_of_activation:
        order = torch.randperm(NUM_INPUTS, generator=generator)
        per_word = 32 // num_bits
        shifts = (num_bits * torch.arange(per_word)).int()
        values = ((stored["qweight"][:, None] >> shifts[None, :, None]) & (2**num_bits - 1)).flatten(0, 1)[order]
        stored["qweight"] = (values.unflatten(0, (-1, per_word)).long() << shifts[None, :, None]).sum(1).to(torch.int64).to(torch.int32)
        stored["g_idx"] = stored["g_idx"][order].contiguous()
        decoded = decoded[:, order].contiguous()
    save(name, stored, decoded)
    return {"quant_method": "gptq", "bits": num_bits, "group_size": group_size, "desc_act": in_order_of_activation, "sym": False}


def awq(name: str, group_size: int, seed: int) -> dict[str, Any]:
    """AutoAWQ's order of packing and its own decoding."""
    folder = next(Path(folder) / "awq" for folder in sys.path if (Path(folder) / "awq").is_dir())
    spec = importlib.util.spec_from_file_location("packing_utils", folder / "utils/packing_utils.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    generator = torch.Generator().manual_seed(seed)
    num_groups = NUM_INPUTS // group_size
    values = torch.randint(0, 16, (NUM_INPUTS, NUM_ROWS), generator=generator)
    zeros = torch.randint(0, 16, (num_groups, NUM_ROWS), generator=generator)

    def pack(numbers: torch.Tensor) -> torch.Tensor:
        ordered = numbers.unflatten(1, (-1, 8))[:, :, module.AWQ_ORDER]
        return (ordered << (4 * torch.arange(8))).sum(-1).to(torch.int32)

    stored = {
        "qweight": pack(values),
        "qzeros": pack(zeros),
        "scales": (torch.rand(num_groups, NUM_ROWS, generator=generator) / 20 + 0.01).half(),
    }
    decoded = module.dequantize_gemm(stored["qweight"], stored["qzeros"], stored["scales"], 4, group_size).T.contiguous()
    save(name, stored, decoded)
    return {"quant_method": "awq", "bits": 4, "group_size": group_size, "version": "gemm", "zero_point": True}


def save(name: str, stored: dict[str, torch.Tensor], decoded: torch.Tensor) -> None:
    tensors = {f"lm_head.{part}": tensor.detach().contiguous() for part, tensor in stored.items()}
    save_file({**tensors, "decoded": decoded.detach().contiguous()}, str(FOLDER / f"{name}.safetensors"))


def main() -> None:
    integers, floats = {"type": "int"}, {"type": "float"}
    configs = {
        name: compressed(name, layout, weights, seed)
        for seed, (name, layout, weights) in enumerate(
            [
                ("int8-channel", "int-quantized", {**integers, "num_bits": 8, "strategy": "channel"}),
                ("int8-tensor", "int-quantized", {**integers, "num_bits": 8, "strategy": "tensor"}),
                ("int8-asymmetric", "int-quantized", {**integers, "num_bits": 8, "strategy": "channel", "symmetric": False}),
                ("fp8-channel", "float-quantized", {**floats, "num_bits": 8, "strategy": "channel"}),
                ("fp8-tensor", "float-quantized", {**floats, "num_bits": 8, "strategy": "tensor"}),
                ("fp8-block", "float-quantized", {**floats, "num_bits": 8, "strategy": "block", "block_structure": [64, 48]}),
                ("int4-group", "pack-quantized", {**integers, "num_bits": 4, "strategy": "group", "group_size": 32}),
                (
                    "int4-asymmetric",
                    "pack-quantized",
                    {**integers, "num_bits": 4, "strategy": "group", "group_size": 64, "symmetric": False},
                ),
                ("int4-channel", "pack-quantized", {**integers, "num_bits": 4, "strategy": "channel"}),
                ("int8-packed", "pack-quantized", {**integers, "num_bits": 8, "strategy": "group", "group_size": 64}),
                ("int3-packed", "pack-quantized", {**integers, "num_bits": 3, "strategy": "group", "group_size": 32, "symmetric": False}),
                ("nvfp4", "nvfp4-pack-quantized", {**floats, "num_bits": 4, "strategy": "tensor_group", "group_size": 16}),
            ]
        )
    }
    configs["gptq-4"] = gptq("gptq-4", 4, 32, 20)
    configs["gptq-8"] = gptq("gptq-8", 8, 64, 21)
    configs["gptq-2"] = gptq("gptq-2", 2, -1, 22)
    configs["gptq-act-order"] = gptq("gptq-act-order", 4, 32, 23, in_order_of_activation=True)
    configs["awq"] = awq("awq", 32, 24)
    (FOLDER / "formats.json").write_text(json.dumps(configs, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
