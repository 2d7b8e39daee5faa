"""A frozen weight in 8 or 4 bits, for draft heads: the target verifies what they draft, so only speed and acceptance can change.

int8: one scale for each row, symmetric. int4: one scale and one offset for each group of columns of a row. Products are torch's own kernels
for packed weights.
"""

from __future__ import annotations

import torch

from hothead.errors import OptionError

_GROUP_SIZES = (64, 32, 128)
"""Columns that share a scale in int4; the first that divides the width is taken."""
_INT8_MAX, _INT4_MAX = 127, 15


class Int8Linear:
    """y = x @ weight.T with int8 weights. weight: [O, I]."""

    def __init__(self, weight: torch.Tensor) -> None:
        scales = (weight.float().abs().amax(1) / _INT8_MAX).clamp_min(1e-12)
        codes = torch.round(weight.float() / scales[:, None]).to(torch.int8)
        self._set(codes, scales.to(weight.dtype))

    def _set(self, codes: torch.Tensor, scales: torch.Tensor) -> None:
        self._codes, self._scales = codes.contiguous(), scales
        self.num_outputs, self.num_inputs = codes.shape

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """inputs: [N, I] -> [N, O] in the inputs' dtype."""
        return torch._weight_int8pack_mm(inputs, self._codes, self._scales)

    def first_rows(self, num_rows: int) -> Int8Linear:
        """The same for the first output rows, quantized as they are."""
        part = Int8Linear.__new__(Int8Linear)
        part._set(self._codes[:num_rows], self._scales[:num_rows])
        return part

    def dequantized(self) -> torch.Tensor:
        """[O, I] float32: what the product multiplies with."""
        return self._codes.float() * self._scales.float()[:, None]


class Int4Linear:
    """y = x @ weight.T with 4-bit weights in groups of columns. weight: [O, I]; I a multiple of 32, or OptionError."""

    def __init__(self, weight: torch.Tensor) -> None:
        num_outputs, num_inputs = weight.shape
        group = next((size for size in _GROUP_SIZES if num_inputs % size == 0), None)
        if group is None:
            raise OptionError(
                f"a hot head of {num_inputs} columns cannot be stored in int4: columns share scales in groups of "
                f"{', '.join(map(str, sorted(_GROUP_SIZES)))}.",
                advice="Use --hot-head-dtype int8.",
            )
        parts = weight.float().view(num_outputs, -1, group)
        lowest, highest = parts.amin(-1), parts.amax(-1)
        scales = ((highest - lowest) / _INT4_MAX).clamp_min(1e-12)
        codes = (
            torch.round((parts - lowest[..., None]) / scales[..., None]).clamp(0, _INT4_MAX).to(torch.uint8).view(num_outputs, num_inputs)
        )
        # The kernel's code 8 stands for the offset.
        self._set(codes, torch.stack([scales, lowest + 8 * scales], -1).to(weight.dtype))

    def _set(self, codes: torch.Tensor, scales: torch.Tensor) -> None:
        self.num_outputs, self.num_inputs = codes.shape
        self._codes, self._scales = codes, scales
        self._group = self.num_inputs // scales.shape[1]
        # Kernels want rows in sixteens; padded ones are cut off again.
        padding = -self.num_outputs % 16
        padded = torch.nn.functional.pad(codes.int(), (0, 0, 0, padding))
        self._packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(padded, 1)
        self._kernel_scales = torch.nn.functional.pad(scales, (0, 0, 0, 0, 0, padding)).transpose(0, 1).contiguous()

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """inputs: [N, I] -> [N, O] in the inputs' dtype."""
        product: torch.Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(inputs, self._packed, self._group, self._kernel_scales)
        return product[:, : self.num_outputs]

    def first_rows(self, num_rows: int) -> Int4Linear:
        """The same for the first output rows, quantized as they are."""
        part = Int4Linear.__new__(Int4Linear)
        part._set(self._codes[:num_rows], self._scales[:num_rows])
        return part

    def dequantized(self) -> torch.Tensor:
        """[O, I] float32: what the product multiplies with."""
        scales, offsets = self._scales.float().unbind(-1)
        codes = self._codes.view(self.num_outputs, -1, self._group).float() - 8
        return (codes * scales[..., None] + offsets[..., None]).view(self.num_outputs, self.num_inputs)


def check_kernels(device: torch.device, dtype_name: str) -> None:
    """Raise OptionError where there is no product for weights of so few bits."""
    names = {"int8": ("_weight_int8pack_mm",), "int4": ("_convert_weight_to_int4pack_for_cpu", "_weight_int4pack_mm_for_cpu")}[dtype_name]
    missing = [name for name in names if not hasattr(torch.ops.aten, name)]
    if device.type != "cpu" or missing:
        raise OptionError(
            f"A hot head in {dtype_name} is implemented for the CPU only, with the kernels of torch 2.6 or later.",
            f"The device is {device}, torch {torch.__version__}.",
            advice="Use --hot-head-dtype bf16.",
        )
