from __future__ import annotations

import pytest
import torch

from hothead.parallel.linear import Linear, can_pack


@pytest.mark.parametrize("num_rows", [1, 2, 16, 70])
@pytest.mark.parametrize("shape", [(5, 3), (64, 64), (192, 70)], ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
def test_the_packed_road_equals_the_plain_one(num_rows: int, shape: tuple[int, int], has_bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, generator=generator).bfloat16()
    bias = torch.randn(shape[0], generator=generator).bfloat16() if has_bias else None
    if not can_pack(weight):
        pytest.skip("this machine's torch has no native bfloat16 in oneDNN")
    inputs = torch.randn(num_rows, shape[1], generator=generator).bfloat16()
    packed, plain = Linear(weight, bias, is_packed=True), Linear(weight, bias, is_packed=False)
    assert packed.is_packed
    assert not plain.is_packed
    exact = inputs.double() @ weight.double().T + (0 if bias is None else bias.double())
    rounding = 2**-8 * exact.abs() + 2**-8
    assert ((packed(inputs).double() - exact).abs() <= rounding).all()
    assert ((plain(inputs).double() - exact).abs() <= rounding).all()


def test_only_bf16_is_packed_by_itself() -> None:
    assert not Linear(torch.randn(4, 4)).is_packed
    assert not can_pack(torch.empty(0, 4, dtype=torch.bfloat16))
