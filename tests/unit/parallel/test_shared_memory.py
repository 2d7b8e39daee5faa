"""Collectives through shared memory give what torch.distributed gives, at a fraction; a dead rank is noticed, waiting burns no core."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch
from tests.support.ranks import run_on_ranks

from hothead.errors import RankError
from hothead.parallel import shared_memory
from hothead.parallel.groups import RankGroup
from hothead.parallel.shared_memory import BUFFER_BYTES, SharedMemoryRanks, open_channels

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64, torch.uint8)


def shared(plain: RankGroup) -> SharedMemoryRanks:
    channels = open_channels(plain, 1)
    assert channels is not None
    return SharedMemoryRanks(plain, channels[0])


def both_roads(plain: RankGroup) -> list[str]:
    """What differs between the two, over shapes, dtypes and layouts."""
    fast, different = shared(plain), []
    generator = torch.Generator().manual_seed(plain.rank)
    for round_number in range(30):
        for dtype in DTYPES:
            shape = [(576,), (3, 5), (1,), (2, 3, 4)][round_number % 4]
            mine = torch.randint(0, 20, shape, generator=generator).to(dtype)
            if round_number % 3 == 0 and len(shape) == 2:
                mine = mine.t()
            source = round_number % plain.size
            for name in ("all_reduce", "all_gather", "broadcast"):
                arguments = (source,) if name == "broadcast" else ()
                ours, theirs = (getattr(group, name)(mine.clone(), *arguments) for group in (fast, plain))
                if not torch.equal(ours, theirs) or ours.shape != theirs.shape:
                    different.append(f"{name} {dtype} {shape}")
        fast.barrier()
    return different


@pytest.mark.parametrize("size", [2, 3, 4])
def test_results_are_those_of_torch_distributed(size: int) -> None:
    assert run_on_ranks(both_roads, size) == [[]] * size


def counted(plain: RankGroup) -> tuple[int, int, list[float], bool]:
    fast = shared(plain)
    large = torch.full((BUFFER_BYTES // 4 + 1,), float(plain.rank + 1))  # one number more than a buffer holds
    total = fast.all_reduce(large.clone())
    parts = fast.all_gather(large)
    told = fast.broadcast(large.clone(), 1)
    fast.barrier()
    same_object = torch.zeros(5)
    is_in_place = fast.all_reduce(same_object) is same_object
    return fast.num_collectives, fast.num_bytes, [total[-1].item(), *parts[:, -1].tolist(), told[-1].item()], is_in_place


def test_large_parts_take_the_plain_road_and_all_are_counted() -> None:
    num_bytes = (BUFFER_BYTES // 4 + 1) * 4
    expected = (5, num_bytes + 2 * num_bytes + num_bytes + 20, [3.0, 1.0, 2.0, 2.0], True)
    assert run_on_ranks(counted, 2) == [expected] * 2


def unequal_work(plain: RankGroup) -> list[float]:
    """Ranks that arrive at different times, over and over: no part is overwritten before all have read it."""
    fast, seen = shared(plain), []
    for number in range(300):
        if (number + plain.rank) % 7 == 0:
            time.sleep(0.001)
        seen.append(fast.all_reduce(torch.full((50,), float(number * (plain.rank + 1))))[17].item())
        if number % 2:
            fast.broadcast(torch.full((50,), float(plain.rank)), number % plain.size)
    return seen


def test_slow_ranks_see_every_part() -> None:
    assert run_on_ranks(unequal_work, 3) == [[float(number * 6) for number in range(300)]] * 3


def timed(plain: RankGroup) -> tuple[float, float]:
    """Least microseconds of an all-reduce of 576 floats on both roads, in turns: other work on the machine only ever adds."""
    fast, times = shared(plain), {}
    values = torch.zeros(576)
    for _ in range(80):  # short ones: on a busy machine some fall between what else runs
        for name, group, number in (("shared", fast, 20), ("torch", plain, 4)):
            group.barrier()
            start = time.perf_counter()
            for _ in range(number):
                group.all_reduce(values)
            times.setdefault(name, []).append((time.perf_counter() - start) / number * 1e6)
    return min(times["shared"]), min(times["torch"])


def test_it_is_faster() -> None:
    """Ten times and more where each rank has a core; on a busy machine, where both share one, still less."""
    ours, theirs = run_on_ranks(timed, 2)[0]
    assert ours < theirs, (ours, theirs)


def patient(plain: RankGroup) -> float:
    """CPU seconds that a rank spends waiting for another one that sleeps for a second."""
    fast = shared(plain)
    fast.barrier()
    start = time.process_time()
    if plain.rank == 1:
        time.sleep(1.0)
    fast.barrier()
    return time.process_time() - start


def test_waiting_burns_no_core() -> None:
    assert max(run_on_ranks(patient, 2)) < 0.3


def die_or_wait(plain: RankGroup, path: str) -> None:
    fast = shared(plain)
    fast.barrier()
    if plain.rank == 1:
        os._exit(3)
    try:
        fast.all_reduce(torch.zeros(4))
    except RankError as error:
        Path(path).write_text(str(error))


def test_a_rank_that_dies_is_noticed(tmp_path: Path) -> None:
    said = tmp_path / "said"
    with pytest.raises(ChildProcessError, match="rank 1 of 2 died"):
        run_on_ranks(die_or_wait, 2, str(said))
    assert said.read_text().startswith("Rank 0 lost rank 1: its process ")


def nothing_is_left(plain: RankGroup) -> list[str]:
    fast = shared(plain)
    fast.barrier()
    return [path.name for path in Path("/dev/shm").glob("hothead-*")]


def test_no_file_stays_even_while_it_is_used() -> None:
    assert run_on_ranks(nothing_is_left, 2) == [[], []]


def refused(plain: RankGroup, how: str) -> bool:
    original = shared_memory._make, shared_memory.is_possible
    if how == "no room":
        shared_memory._make = lambda num_bytes: None
    elif how == "one cannot" and plain.rank == 1:
        shared_memory.is_possible = lambda: False
    try:
        return open_channels(plain, 1) is None
    finally:
        shared_memory._make, shared_memory.is_possible = original


@pytest.mark.parametrize("how", ["no room", "one cannot"])
def test_all_ranks_agree_to_do_without(how: str) -> None:
    assert run_on_ranks(refused, 2, how) == [True, True]
