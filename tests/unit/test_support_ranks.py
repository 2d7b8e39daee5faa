"""The helper that other tests run ranks with: results in order, errors and dead ranks reported instead of waited for."""

from __future__ import annotations

import os
import time

import pytest
import torch
from tests.support.ranks import process_ids, run_on_ranks

from hothead.errors import HotMapError
from hothead.parallel.groups import RankGroup


def gather_ranks(group: RankGroup, offset: int) -> list[int]:
    return [offset + int(rank) for rank in group.all_gather(torch.tensor([group.rank])).flatten()]


def fail_on_rank_1(group: RankGroup) -> None:
    if group.rank == 1:
        raise HotMapError("what", "details", advice="advice")
    group.barrier()


def die_on_rank_1(group: RankGroup) -> None:
    if group.rank == 1:
        os._exit(7)
    time.sleep(60)


def sleep_on_rank_1(group: RankGroup) -> None:
    time.sleep(60 if group.rank == 1 else 0)


def test_results_come_in_order_of_rank_and_processes_are_used_again() -> None:
    assert run_on_ranks(gather_ranks, 1, 5) == [[5]]
    assert run_on_ranks(gather_ranks, 2, 5) == [[5, 6]] * 2
    assert run_on_ranks(gather_ranks, 3, 1) == [[1, 2, 3]] * 3
    before = process_ids()
    assert run_on_ranks(gather_ranks, 2, 0) == [[0, 1]] * 2
    with pytest.raises(HotMapError, match="what") as failed:
        run_on_ranks(fail_on_rank_1, 2)
    assert failed.value.advice == "advice"
    assert "fail_on_rank_1" in failed.value.__notes__[0]
    assert run_on_ranks(gather_ranks, 2, 0) == [[0, 1]] * 2
    assert process_ids() == before


def test_dead_ranks_and_time_out_are_raised_here_and_the_next_call_works() -> None:
    with pytest.raises(ChildProcessError, match="rank 1 of 2 died, exit code 7"):
        run_on_ranks(die_on_rank_1, 2)
    assert process_ids() == []
    with pytest.raises(TimeoutError, match=r"have not finished after 2.0 s"):
        run_on_ranks(sleep_on_rank_1, 2, timeout_s=2.0)
    assert run_on_ranks(gather_ranks, 2, 0) == [[0, 1]] * 2
