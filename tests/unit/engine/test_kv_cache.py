from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hothead.config.sampling import SamplingParams
from hothead.engine.kv_cache import KVCache
from hothead.models.attention import KVPool
from hothead.records import BatchRow, TokenTree, Verdict


def make_cache(num_slots: int = 64, block_size: int = 4) -> KVCache:
    return KVCache(KVPool(1, num_slots, 1, 1, torch.float32, torch.device("cpu")), block_size)


def test_a_fresh_request_has_consecutive_slots() -> None:
    cache = make_cache()
    assert cache.reserve("a", 9)
    assert cache.slots("a").tolist() == list(range(12))


def test_a_refused_reservation_changes_nothing() -> None:
    cache = make_cache(num_slots=16)
    assert cache.reserve("a", 8)
    assert not cache.reserve("b", 9)
    assert cache.num_free_blocks == 2
    assert not cache.reserve("a", 17)
    assert cache.slots("a").tolist() == list(range(8))
    cache.check_integrity()


def test_integrity_notices_a_lost_block() -> None:
    cache = make_cache()
    cache.reserve("a", 8)
    cache._free.pop()
    with pytest.raises(AssertionError):
        cache.check_integrity()


def test_integrity_notices_a_shared_block() -> None:
    cache = make_cache()
    cache.reserve("a", 8)
    cache.reserve("b", 8)
    cache._blocks["b"][0] = cache._blocks["a"][0]
    with pytest.raises(AssertionError):
        cache.check_integrity()


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 40)), max_size=60))
def test_any_order_of_growth_and_release_keeps_integrity(actions: list[tuple[str, int]]) -> None:
    """A size of 0 frees the request."""
    cache = make_cache()
    sizes: dict[str, int] = {}
    for request_id, size in actions:
        if size == 0:
            cache.free(request_id)
            sizes.pop(request_id, None)
        elif cache.reserve(request_id, size):
            sizes[request_id] = max(size, sizes.get(request_id, 0))
        cache.check_integrity()
    taken = [slot for request_id in sizes for slot in cache.slots(request_id).tolist()]
    assert len(taken) == len(set(taken))
    for request_id, size in sizes.items():
        assert len(cache.slots(request_id)) >= size


def test_commit_moves_the_accepted_path_into_place() -> None:
    cache = make_cache(num_slots=32, block_size=4)
    cache.pool.data.copy_(torch.arange(32.0).view(1, 1, 32, 1, 1).expand_as(cache.pool.data))
    cache.reserve("other", 5)
    cache.reserve("a", 16)
    slots = cache.slots("a")
    tree = TokenTree(np.arange(5, dtype=np.int64), np.asarray([-1, -1, 1, 1, 3], np.int64))
    row = BatchRow("a", np.arange(7, dtype=np.int64), 6, 1, slots, 5, SamplingParams(), 0)
    cache.commit((row,), [tree], [Verdict((1, 3, 4), (1, 3, 4, 9))])
    kept = cache.pool.data[0, 0, slots[:10], 0, 0].tolist()
    assert kept == [*slots[:7].tolist(), slots[7 + 1], slots[7 + 3], slots[7 + 4]]
