"""Known shard widths of real vocabularies, and what is refused."""

from __future__ import annotations

import pytest

from hothead.errors import HotMapError, ModelConfigError, OptionError
from hothead.parallel.partition import HeadSplit, VocabShards


@pytest.mark.parametrize(
    ("num_rows", "num_shards", "padded_rows", "rows_per_shard", "last_owned"),
    [
        (248077, 2, 248128, 124064, 124013),
        (248320, 2, 248320, 124160, 124160),
        (128256, 4, 128256, 32064, 32064),
        (151669, 4, 151680, 37920, 37909),
        (151936, 4, 151936, 37984, 37984),
        (32002, 2, 32064, 16032, 15970),
        (32000, 3, 32064, 10688, 10624),
        (49152, 1, 49152, 49152, 49152),
    ],
)
def test_known_widths(num_rows: int, num_shards: int, padded_rows: int, rows_per_shard: int, last_owned: int) -> None:
    shards = VocabShards(num_rows, num_shards=num_shards)
    assert (shards.padded_rows, shards.rows_per_shard) == (padded_rows, rows_per_shard)
    assert shards.num_owned(num_shards - 1) == last_owned
    assert shards.num_padded(num_shards - 1) == rows_per_shard - last_owned


def test_known_rows() -> None:
    llama, qwen = VocabShards(128256, num_shards=4), VocabShards(248077, num_shards=2)
    assert (llama.owner(128009), llama.local_row(128009)) == (3, 31817)
    assert (qwen.owner(200000), qwen.local_row(200000)) == (1, 75936)
    assert qwen.num_padded(1) == 51


def test_added_rows_lie_behind_the_base_rows_of_their_rank() -> None:
    shards = VocabShards(1010, num_added=16, num_shards=2)
    assert (shards.padded_rows, shards.rows_per_shard) == (1088, 544)
    assert shards.range(0) == (0, 512)
    assert shards.added_range(0) == (1010, 1026)
    assert shards.added_range(1) == (1026, 1026)
    assert (shards.owner(1025), shards.local_row(1025)) == (0, 512 + 15)
    assert shards.token_id(0, 512 + 16) is None


def test_a_rank_without_token_ids_has_an_empty_range() -> None:
    shards = VocabShards(10, num_shards=8)
    assert shards.rows_per_shard == 8
    assert [shards.num_owned(rank) for rank in range(8)] == [8, 2, 0, 0, 0, 0, 0, 0]
    assert shards.range(7) == (10, 10)


def test_the_default_model_splits_over_two_and_four_ranks() -> None:
    heads = [HeadSplit(9, 3, 2).for_rank(rank) for rank in range(2)]
    assert [(local.num_query_heads, local.kv_start, local.kv_stop) for local in heads] == [(5, 0, 2), (4, 1, 3)]
    assert heads[0].kv_head_of_query == (0, 0, 0, 1, 1)
    assert heads[1].kv_head_of_query == (0, 1, 1, 1)
    assert [HeadSplit(9, 3, 4).for_rank(rank).num_query_heads for rank in range(4)] == [3, 2, 2, 2]


def test_what_cannot_be_cut_is_refused_with_numbers() -> None:
    for tp_size in (0, 10):
        with pytest.raises(OptionError, match=rf"tp_size {tp_size} does not fit a model with 9 query heads(.|\n)*--tp-size 1 to 9"):
            HeadSplit(9, 3, tp_size)
    with pytest.raises(ModelConfigError, match="9 query heads cannot share 2 KV heads"):
        HeadSplit(9, 2, 1)
    with pytest.raises(OptionError, match="over 0 ranks"):
        VocabShards(100, num_shards=0)
    with pytest.raises(OptionError, match=r"192 rows and 16 added rows cannot be cut over 3 ranks(.|\n)*256 is not a multiple of 3"):
        VocabShards(192, num_added=16, num_shards=3)
    with pytest.raises(HotMapError, match=r"token id 1010 has no row: the vocabulary has 1010"):
        VocabShards(1010).owner(1010)
