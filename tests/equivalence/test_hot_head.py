"""The candidates of the hot head do not depend on tp_size or placement: real process groups against one rank, exact ids in float32.

Weights and hidden states are small whole numbers, so that sums are exact in any order and equal scores are as common as they are in
bfloat16.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.support.ranks import run_on_ranks

from hothead.parallel.groups import RankGroup
from hothead.parallel.hot_head import Candidates, HotHead
from hothead.parallel.partition import PLACEMENTS

VOCAB_SIZE, HIDDEN_SIZE, NUM_ROWS = 1010, 12, 5

CASES = [
    # hot vocabulary, candidates, prefix
    (301, 7, 301),  # does not divide by 2 or 3
    (301, 7, 50),
    (1010, 10, 1010),  # the whole vocabulary
    (1, 1, 1),  # smaller than the ranks
    (2, 2, 2),
    (11, 8, 9),  # more candidates than local rows
]


def integers(low: int, high: int, *shape: int, seed: int) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).float()


def noise(token_ids: torch.Tensor) -> torch.Tensor:
    """Like the sampler's: the same for the same (row, token id) on every rank. Eighths, so that ties stay."""
    return ((token_ids * 7919 + 1) % 97 // 8 / 8).expand(NUM_ROWS, -1) * torch.arange(NUM_ROWS).unsqueeze(1)


def ranked_ids(size: int, skew: bool) -> np.ndarray:
    """All hot ids at low numbers (skew), or anywhere."""
    return np.random.default_rng(size).permutation(size if skew else VOCAB_SIZE)[:size]


def all_candidates(group: RankGroup, placement: str) -> list[Candidates]:
    weight = integers(-3, 4, VOCAB_SIZE, HIDDEN_SIZE, seed=0)
    hidden = integers(-2, 3, NUM_ROWS, HIDDEN_SIZE, seed=1)
    inverse_temperature = torch.tensor([0.25, 0.5, 1.0, 2.0, 4.0])
    results = []
    for num_hot, num_candidates, prefix in CASES:
        for skew in (False, True):
            head = HotHead.build(lambda ids: weight[torch.from_numpy(ids)], ranked_ids(num_hot, skew), group, placement, VOCAB_SIZE)
            if prefix < num_hot:
                head = head.with_size(prefix)
            before = group.num_collectives, group.num_bytes
            results += [
                head.candidates(hidden, num_candidates),
                head.candidates(hidden, num_candidates, inverse_temperature=inverse_temperature),
                head.candidates(hidden, num_candidates, inverse_temperature=inverse_temperature, noise=noise),
            ]
            is_merged = group.size > 1 and placement != "replicated"
            assert group.num_collectives - before[0] == (3 if is_merged else 0)
            # bytes depend on K and P, not on V, H or D
            assert group.num_bytes - before[1] <= 3 * NUM_ROWS * (16 * num_candidates * group.size + 64)
            if placement == "balanced":
                assert abs(head.num_local_rows - prefix / group.size) < 1
    return results


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_candidates_do_not_depend_on_ranks_or_placement(size: int, placement: str) -> None:
    (expected,) = run_on_ranks(all_candidates, 1, "balanced")
    assert any((row.diff() == 0).any() for found in expected for row in found.log_probs)  # ties are really there
    for results in run_on_ranks(all_candidates, size, placement):
        for found, wanted in zip(results, expected, strict=True):
            assert torch.equal(found.token_ids, wanted.token_ids)
            torch.testing.assert_close(found.log_probs, wanted.log_probs, rtol=0, atol=1e-5)


def same_bits(group: RankGroup, placement: str) -> list[Candidates]:
    generator = torch.Generator().manual_seed(3)
    weight, hidden = torch.randn(VOCAB_SIZE, 64, generator=generator), torch.randn(9, 64, generator=generator)
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        narrow = weight.to(dtype)
        head = HotHead.build(lambda ids, rows=narrow: rows[torch.from_numpy(ids)], ranked_ids(400, False), group, placement, VOCAB_SIZE)
        found.append(head.candidates(hidden.to(dtype), 6))
    return found


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_rank_has_the_same_bits(placement: str) -> None:
    (expected,) = run_on_ranks(same_bits, 1, placement)
    first, *others = run_on_ranks(same_bits, 3, placement)
    for result in others:
        for found, wanted in zip(result, first, strict=True):
            assert torch.equal(found.token_ids, wanted.token_ids)
            assert torch.equal(found.log_probs, wanted.log_probs)
    assert torch.equal(first[0].token_ids, expected[0].token_ids)
    torch.testing.assert_close(first[1].log_probs, expected[1].log_probs, rtol=0, atol=0.05)
