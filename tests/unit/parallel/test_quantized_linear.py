"""Heads in 8 and 4 bits: the kernel's product is that of the dequantized weight, which is near the weight."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.support.ranks import run_on_ranks

from hothead.errors import OptionError
from hothead.parallel.groups import RankGroup, SingleRank
from hothead.parallel.hot_head import HotHead
from hothead.parallel.quantized_linear import Int4Linear, Int8Linear, check_kernels

KINDS = {"int8": Int8Linear, "int4": Int4Linear}
WIDTH = 96


def weight_of(num_rows: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(num_rows, WIDTH, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_rows", [1, 15, 64, 333])
@pytest.mark.parametrize("num_inputs", [1, 5])
def test_the_product_is_that_of_the_dequantized_weight(kind: str, dtype: torch.dtype, num_rows: int, num_inputs: int) -> None:
    weight = weight_of(num_rows, dtype)
    linear = KINDS[kind](weight)
    inputs = torch.randn(num_inputs, WIDTH, generator=torch.Generator().manual_seed(1)).to(dtype)
    product = linear(inputs)
    assert product.dtype == dtype
    assert product.shape == (num_inputs, num_rows)
    exact = inputs.float() @ linear.dequantized().T
    torch.testing.assert_close(product.float(), exact, rtol=0.02, atol=0.15 if dtype == torch.bfloat16 else 0.02)
    error = (linear.dequantized() - weight.float()).norm() / weight.float().norm()
    assert error < {"int8": 0.02, "int4": 0.12}[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_a_prefix_has_the_same_codes(kind: str) -> None:
    linear = KINDS[kind](weight_of(70, torch.bfloat16))
    part = linear.first_rows(33)
    assert torch.equal(part.dequantized(), linear.dequantized()[:33])
    inputs = torch.ones(2, WIDTH, dtype=torch.bfloat16)
    torch.testing.assert_close(part(inputs), linear(inputs)[:, :33])


def candidates(group: RankGroup, kind: str) -> tuple[list[list[int]], list[list[float]]]:
    weight = weight_of(500, torch.float32)
    token_ids = np.random.default_rng(0).permutation(500)[:301]
    head = HotHead.build(lambda ids: weight[torch.from_numpy(ids)], token_ids, group, "balanced", 500, kind)
    found = head.candidates(torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(2)), 6)
    small = head.with_size(40).candidates(torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(2)), 6)
    assert set(small.token_ids.flatten().tolist()) <= set(token_ids[:40].tolist())
    return found.token_ids.tolist(), found.log_probs.tolist()


@pytest.mark.parametrize("kind", ["int8", "int4", "bf16"])
def test_candidates_do_not_depend_on_the_number_of_ranks(kind: str) -> None:
    (alone_ids, alone_probs), *_ = run_on_ranks(candidates, 1, kind)
    for token_ids, log_probs in run_on_ranks(candidates, 3, kind):
        assert token_ids == alone_ids
        torch.testing.assert_close(torch.tensor(log_probs), torch.tensor(alone_probs), rtol=1e-3, atol=1e-2)


def test_a_rank_without_rows_quantizes_nothing() -> None:
    class Last(SingleRank):
        rank, size = 2, 3

    head = HotHead.build(lambda ids: torch.zeros(len(ids), WIDTH), np.array([4, 2]), Last(), "balanced", 9, "int8")
    assert head.num_local_rows == 0


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(OptionError, match="60 columns cannot be stored in int4: columns share scales in groups of 32, 64, 128"):
        Int4Linear(torch.zeros(4, 60))
    with pytest.raises(OptionError, match="implemented for the CPU only"):
        check_kernels(torch.device("meta"), "int8")
