from __future__ import annotations

import torch

from hothead.config.sampling import SamplingParams
from hothead.engine.kv_cache import KVCache
from hothead.engine.scheduler import Scheduler
from hothead.models.attention import KVPool
from hothead.records import NO_VERDICT, Batch, Request, Verdict

CPU = torch.device("cpu")


def make(num_slots: int = 256, *, block_size: int = 4, scratch: int = 3, **options: int) -> tuple[Scheduler, list[str]]:
    forgotten: list[str] = []
    cache = KVCache(KVPool(1, num_slots, 1, 1, torch.float32, CPU), block_size)
    settings = {"max_concurrency": 4, "max_prefill_tokens": 16, "context_length": 64, "max_tree_nodes": 3} | options
    return Scheduler(cache, num_scratch_slots=scratch, eos_token_ids=frozenset({2}), forget=forgotten.append, **settings), forgotten


def request(name: str, num_tokens: int, max_tokens: int = 8, **sampling: object) -> Request:
    return Request(name, tuple(range(3, 3 + num_tokens)), SamplingParams(max_tokens=max_tokens, seed=1, **sampling))  # type: ignore[arg-type]


def answer(scheduler: Scheduler, batch: Batch, *tokens: int) -> list[tuple[str, tuple[int, ...], str | None]]:
    """The target emits the same tokens for every scored row; all but the last were drafted."""
    verdict = Verdict(tuple(range(len(tokens) - 1)), tokens)
    outputs = scheduler.finish_step(batch, [verdict if row.is_scored else NO_VERDICT for row in batch])
    scheduler.cache.check_integrity()
    return [(output.request_id, output.token_ids, output.finish_reason) for output in outputs]


def test_prompts_run_in_chunks_and_requests_in_order() -> None:
    scheduler, _ = make()
    scheduler.add(request("a", 20))
    scheduler.add(request("b", 6))
    first = scheduler.next_batch()
    assert [(row.request_id, row.num_cached, row.num_new, row.is_scored) for row in first] == [("a", 0, 16, False)]
    assert answer(scheduler, first, 9) == []
    second = scheduler.next_batch()
    assert [(row.request_id, row.num_cached, row.num_new, row.is_scored) for row in second] == [("a", 16, 4, True), ("b", 0, 6, True)]
    assert answer(scheduler, second, 9) == [("a", (9,), None), ("b", (9,), None)]
    assert [(row.num_cached, row.num_new) for row in scheduler.next_batch()] == [(20, 1), (6, 1)]


def test_drafts_leave_room_for_the_target_s_own_token() -> None:
    scheduler, _ = make()
    scheduler.add(request("a", 4, max_tokens=3))
    batch = scheduler.next_batch()
    assert batch[0].max_draft_tokens == 2
    answer(scheduler, batch, 9)
    batch = scheduler.next_batch()
    assert batch[0].max_draft_tokens == 1
    assert answer(scheduler, batch, 8, 7) == [("a", (8, 7), "length")]
    assert not scheduler.has_work


def test_several_tokens_at_once_end_at_the_first_end_token() -> None:
    scheduler, forgotten = make()
    scheduler.add(request("a", 4))
    scheduler.add(request("b", 4, ignore_eos=True))
    scheduler.add(request("c", 4, stop_token_ids=(7,)))
    batch = scheduler.next_batch()
    assert answer(scheduler, batch, 7, 2, 9) == [("a", (7, 2), "stop"), ("b", (7, 2, 9), None), ("c", (7,), "stop")]
    assert forgotten == ["a", "c"]
    assert [row.request_id for row in scheduler.next_batch()] == ["b"]


def test_the_context_s_end_ends_a_request() -> None:
    scheduler, _ = make(context_length=8)
    scheduler.add(request("a", 6, max_tokens=50))
    assert answer(scheduler, scheduler.next_batch(), 9) == [("a", (9,), None)]
    assert answer(scheduler, scheduler.next_batch(), 9) == [("a", (9,), "length")]


def test_no_more_than_max_concurrency_run() -> None:
    scheduler, _ = make(max_concurrency=2)
    for name in "abc":
        scheduler.add(request(name, 2, max_tokens=1))
    assert [row.request_id for row in scheduler.next_batch()] == ["a", "b"]


def test_the_newest_gives_way_and_comes_back_with_its_tokens() -> None:
    scheduler, forgotten = make(num_slots=32, max_prefill_tokens=64)
    scheduler.add(request("a", 10, max_tokens=12))
    scheduler.add(request("b", 8, max_tokens=12))
    seen: dict[str, int] = {"a": 0, "b": 0}
    while scheduler.has_work:
        for name, tokens, _ in answer(scheduler, scheduler.next_batch(), 9):
            seen[name] += len(tokens)
    assert scheduler.num_preemptions > 0
    assert "b" in forgotten
    assert seen == {"a": 12, "b": 12}
    assert scheduler.cache.num_free_blocks == scheduler.cache.num_blocks


def test_finish_ends_waiting_and_running_requests() -> None:
    scheduler, forgotten = make(max_concurrency=1)
    scheduler.add(request("a", 4))
    scheduler.add(request("b", 4))
    scheduler.next_batch()
    scheduler.finish("b")
    scheduler.finish("a")
    scheduler.finish("never was")
    assert forgotten == ["a"]
    assert not scheduler.has_work
    assert scheduler.cache.num_free_blocks == scheduler.cache.num_blocks


def test_one_request_may_fill_the_cache_but_not_more() -> None:
    scheduler, _ = make(num_slots=32, context_length=1000)
    assert scheduler.max_request_tokens == 29
    scheduler.add(request("a", 20, max_tokens=500))
    count = 0
    while scheduler.has_work:
        count += sum(len(tokens) for _, tokens, _ in answer(scheduler, scheduler.next_batch(), 9))
    assert count == 9
