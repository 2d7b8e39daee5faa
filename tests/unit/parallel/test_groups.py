"""Collectives of real process groups in every dtype that travels, and their count."""

from __future__ import annotations

import pytest
import torch
from tests.support.ranks import run_on_ranks

from hothead.errors import RankError
from hothead.parallel.groups import RankGroup, SingleRank


def exchange(group: RankGroup) -> tuple[int, int]:
    for dtype in (torch.float32, torch.bfloat16, torch.int32, torch.int64):
        mine = torch.tensor([[1, 2], [3, 4]]).to(dtype) * (group.rank + 1)
        everyone = group.all_gather(mine)
        assert everyone.dtype == dtype
        assert everyone.tolist() == [[[rank + 1, 2 * rank + 2], [3 * rank + 3, 4 * rank + 4]] for rank in range(group.size)]
        total = group.all_reduce(mine)
        assert total is mine
        assert mine.tolist() == [[3, 6], [9, 12]]
        word = torch.full((3,), group.rank).to(dtype)
        assert group.broadcast(word, source=1) is word
        assert word.tolist() == [1, 1, 1]
    # Views that are not contiguous arrive in order too.
    grid = torch.arange(6).view(2, 3) + 10 * group.rank
    assert group.all_gather(grid.T).tolist() == [[[0, 3], [1, 4], [2, 5]], [[10, 13], [11, 14], [12, 15]]]
    column = grid[:, 1]
    group.all_reduce(column)
    assert grid[:, 1].tolist() == [12, 18]
    group.barrier()
    return group.num_collectives, group.num_bytes


def test_two_ranks_exchange_every_dtype_and_count_it() -> None:
    sizes = [4, 2, 4, 8]
    num_bytes = sum(size * (2 * 4 + 4 + 3) for size in sizes) + 2 * 6 * 8 + 2 * 8
    assert run_on_ranks(exchange, 2) == [(3 * 4 + 3, num_bytes)] * 2


def leave(group: RankGroup) -> None:
    if group.rank == 1:
        raise ValueError("left")
    with pytest.raises(RankError, match=r"all_reduce failed on rank 0 of 2(.|\n)*torch.distributed says"):
        group.all_reduce(torch.ones(3))


def test_a_collective_without_the_others_is_a_rank_error() -> None:
    with pytest.raises(ValueError, match="left"):
        run_on_ranks(leave, 2)


def test_one_rank_exchanges_nothing() -> None:
    group = SingleRank()
    tensor = torch.ones(2, 3)
    assert group.all_reduce(tensor) is tensor
    assert group.broadcast(tensor) is tensor
    assert group.all_gather(tensor).shape == (1, 2, 3)
    group.barrier()
    assert (group.num_collectives, group.num_bytes) == (0, 0)
