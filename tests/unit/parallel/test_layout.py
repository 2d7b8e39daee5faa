"""Which ranks share a head: the known launches, and what must hold for all of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hothead.errors import HotMapError, ModelConfigError, OptionError
from hothead.parallel.layout import (
    EMBEDDING_FOLLOWS_ATTENTION,
    HEAD_FOLLOWS_ATTENTION,
    HEAD_FOLLOWS_TP,
    ParallelConfig,
    head_layout,
    validate_hot_token_ids_fit,
)

PURE_DP = {"dp_size": 8, "enable_dp_attention": True, "enable_dp_lm_head": True}


@pytest.mark.parametrize(
    ("family", "parallel", "is_tied", "num_rows", "num_shards", "rows_per_shard"),
    [
        ("llama", {"tp_size": 4}, False, 128256, 4, 32064),
        ("qwen3", {"tp_size": 2}, False, 248077, 2, 124064),
        ("qwen3", {"tp_size": 4}, True, 151669, 4, 37920),
        ("llama", {"tp_size": 3}, False, 32000, 3, 10688),
        ("llama", {"tp_size": 8, "dp_size": 4, "enable_dp_attention": True, "enable_dp_lm_head": True}, False, 128256, 2, 64128),
        ("llama", {"tp_size": 8, "dp_size": 4, "enable_dp_attention": True}, False, 128256, 8, 16032),
        ("llama", {"tp_size": 8, **PURE_DP}, False, 128256, 1, 128256),
        ("qwen2", {"tp_size": 8, **PURE_DP}, False, 151936, 8, 18992),  # its untied head does not follow
        ("qwen2", {"tp_size": 8, **PURE_DP}, True, 151936, 1, 151936),  # its embedding does
        ("llama", {"tp_size": 8, **PURE_DP}, True, 128256, 8, 16032),  # the other way round
        ("deepseek_v3", {"tp_size": 8, "enable_dp_attention": True, "enable_dp_lm_head": True}, False, 129280, 8, 16160),
    ],
)
def test_known_launches(family: str, parallel: dict[str, int], is_tied: bool, num_rows: int, num_shards: int, rows_per_shard: int) -> None:
    layout = head_layout(family, ParallelConfig(**parallel), num_rows, is_tied=is_tied)  # type: ignore[arg-type]
    assert (layout.num_shards, layout.shards.rows_per_shard) == (num_shards, rows_per_shard)
    assert layout.is_whole == (num_shards == 1)


@given(
    family=st.sampled_from(sorted(HEAD_FOLLOWS_ATTENTION | HEAD_FOLLOWS_TP)),
    dp_size=st.integers(1, 8),
    attn_tp_size=st.integers(1, 8),
    flags=st.sampled_from([(False, False), (True, False), (True, True)]),
    num_rows=st.integers(1, 5000),
    is_tied=st.booleans(),
    data=st.data(),
)
def test_every_token_has_one_owner_in_every_group(
    family: str, dp_size: int, attn_tp_size: int, flags: tuple[bool, bool], num_rows: int, is_tied: bool, data: st.DataObject
) -> None:
    parallel = ParallelConfig(dp_size * attn_tp_size, dp_size, *flags)
    layout = head_layout(family, parallel, num_rows, is_tied=is_tied)
    assert layout.num_shards in (parallel.tp_size, parallel.attn_tp_size)
    groups = {tuple(layout.ranks_of(rank)) for rank in range(parallel.tp_size)}
    assert sorted(rank for group in groups for rank in group) == list(range(parallel.tp_size))
    rank = data.draw(st.integers(0, parallel.tp_size - 1))
    assert [layout.shard_of(other) for other in layout.ranks_of(rank)] == list(range(layout.num_shards))
    token_id = data.draw(st.integers(0, num_rows - 1))
    owners = [shard for shard in range(layout.num_shards) if layout.shards.range(shard)[0] <= token_id < layout.shards.range(shard)[1]]
    assert owners == [layout.shards.owner(token_id)]


def test_tables_do_not_contradict_each_other() -> None:
    assert not HEAD_FOLLOWS_ATTENTION & HEAD_FOLLOWS_TP
    assert EMBEDDING_FOLLOWS_ATTENTION <= HEAD_FOLLOWS_ATTENTION | HEAD_FOLLOWS_TP


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tp_size": 0}, "must be at least 1"),
        ({"tp_size": 8, "dp_size": 3, "enable_dp_attention": True}, "cannot be cut into --dp-size 3 groups"),
        ({"tp_size": 8, "enable_dp_lm_head": True}, "needs --enable-dp-attention"),
    ],
)
def test_launches_that_contradict_themselves(options: dict[str, int], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        ParallelConfig(**options)  # type: ignore[arg-type]


def test_a_family_in_no_table_is_refused_with_the_nearest() -> None:
    with pytest.raises(ModelConfigError, match=r"'qwen4'(.|\n)*Did you mean"):
        head_layout("qwen4", ParallelConfig(), 100)


@given(st.lists(st.integers(-5, 300), min_size=1, max_size=30), st.integers(1, 200))
def test_ids_that_have_no_row_are_named(ids: list[int], num_head_rows: int) -> None:
    bad = [place for place, token_id in enumerate(ids) if not 0 <= token_id < num_head_rows]
    assume(bad)
    with pytest.raises(HotMapError) as caught:
        validate_hot_token_ids_fit(np.array(ids), num_head_rows, shard=1)
    assert f"{len(bad)} of {len(ids)} hot token ids have no row in shard 1 of the head, which has {num_head_rows} rows" in str(caught.value)
    assert f"The first is token id {ids[bad[0]]} at hot index {bad[0]}." in str(caught.value)


def test_ids_that_fit_pass() -> None:
    validate_hot_token_ids_fit(np.arange(64), 64)
