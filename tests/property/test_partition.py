"""Vocabulary shards and head splits for any sizes: one owner per token id, rows and ids invert each other, nothing differs by more than
one.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hothead.errors import OptionError
from hothead.parallel.partition import HeadSplit, VocabShards, balanced_range, hot_indices_of_rank


@st.composite
def vocab_shards(draw: st.DrawFn) -> VocabShards:
    num_added = draw(st.one_of(st.just(0), st.integers(0, 200)))
    try:
        return VocabShards(draw(st.integers(1, 3000)), num_added, draw(st.integers(1, 16)))
    except OptionError:
        assume(False)
        raise


@given(vocab_shards())
def test_every_token_id_has_one_owner_and_its_row_inverts(shards: VocabShards) -> None:
    owned = [
        token_id
        for rank in range(shards.num_shards)
        for row in range(shards.rows_per_shard)
        if (token_id := shards.token_id(rank, row)) is not None
    ]
    assert sorted(owned) == list(range(shards.num_token_ids))
    for token_id in range(0, shards.num_token_ids, 7):
        rank, row = shards.owner(token_id), shards.local_row(token_id)
        assert 0 <= row < shards.rows_per_shard
        assert shards.token_id(rank, row) == token_id


@given(vocab_shards())
def test_padding_is_what_no_token_id_takes(shards: VocabShards) -> None:
    assert shards.padded_rows == shards.rows_per_shard * shards.num_shards
    for rank in range(shards.num_shards):
        rows = [shards.token_id(rank, row) for row in range(shards.rows_per_shard)]
        assert rows.count(None) == shards.num_padded(rank)
        base, added = range(*shards.range(rank)), range(*shards.added_range(rank))
        assert [token_id for token_id in rows if token_id is not None] == [*base, *added]


@given(st.integers(0, 1000), st.integers(1, 40))
def test_balanced_ranges_cover_in_order_and_differ_by_at_most_one(total: int, num_parts: int) -> None:
    ranges = [balanced_range(total, num_parts, index) for index in range(num_parts)]
    assert [item for start, stop in ranges for item in range(start, stop)] == list(range(total))
    sizes = [stop - start for start, stop in ranges]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(st.integers(1, 8), st.integers(1, 8), st.data())
def test_a_rank_holds_the_kv_head_of_each_of_its_query_heads(num_kv_heads: int, queries_per_kv: int, data: st.DataObject) -> None:
    num_query_heads = num_kv_heads * queries_per_kv
    tp_size = data.draw(st.integers(1, num_query_heads))
    heads = [HeadSplit(num_query_heads, num_kv_heads, tp_size).for_rank(rank) for rank in range(tp_size)]
    assert [query for local in heads for query in range(local.query_start, local.query_stop)] == list(range(num_query_heads))
    for local in heads:
        queries = range(local.query_start, local.query_stop)
        assert [local.kv_start + index for index in local.kv_head_of_query] == [query // queries_per_kv for query in queries]
        assert set(local.kv_head_of_query) == set(range(local.num_kv_heads))  # no KV head that nobody needs
    counts = [local.num_query_heads for local in heads]
    assert max(counts) - min(counts) <= 1


@pytest.mark.case(4, 5)
@given(st.integers(1, 600), st.integers(1, 9), st.data())
def test_hot_rows_have_one_owner_and_every_prefix_is_balanced(num_hot: int, size: int, data: st.DataObject) -> None:
    token_ids = np.arange(num_hot)[::-1]
    rows = [hot_indices_of_rank(token_ids, "balanced", rank, size, 1000) for rank in range(size)]
    assert sorted(np.concatenate(rows)) == list(range(num_hot))
    prefix = data.draw(st.integers(1, num_hot))
    counts = [int((row < prefix).sum()) for row in rows]
    assert max(counts) - min(counts) <= 1
    owned = [hot_indices_of_rank(token_ids, "owner", rank, size, 1000) for rank in range(size)]
    assert sorted(np.concatenate(owned)) == list(range(num_hot))
