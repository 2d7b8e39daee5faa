"""The plan's grouped, padded, in-place attention against a plain one, row by row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hothead.models.attention import AttentionPlan, AttentionRow, KVPool, UnevenHeads

NUM_SLOTS, HEAD_DIM, NUM_QUERY_HEADS = 400, 8, 6
CPU = torch.device("cpu")


def causal_row(slots: list[int], num_queries: int) -> AttentionRow:
    positions = np.arange(len(slots) - num_queries, len(slots), dtype=np.int64)
    return AttentionRow(np.asarray(slots, np.int64), len(slots) - num_queries, num_queries, positions)


def tree_row(slots: list[int], num_prefix: int) -> AttentionRow:
    """Five nodes: two children of the root, one of which has two children, one of which has one."""
    parents, depths = [-1, -1, 0, 0, 2], [0, 0, 1, 1, 2]
    mask = np.eye(5, dtype=bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            mask[node] |= mask[parent]
    return AttentionRow(np.asarray(slots, np.int64), num_prefix, 5, num_prefix + np.asarray(depths, np.int64), mask)


SCATTERED = np.random.default_rng(0).permutation(NUM_SLOTS).tolist()

BATCHES: dict[str, list[AttentionRow]] = {
    "one prompt": [causal_row(list(range(5, 25)), 20)],
    "one token": [causal_row(list(range(30)), 1)],
    "one token, scattered slots": [causal_row(SCATTERED[:30], 1)],
    "a chunk behind a prefix": [causal_row(list(range(40)), 12)],
    "a tree": [tree_row(list(range(25)), 20)],
    "a tree, scattered": [tree_row(SCATTERED[:25], 20)],
    "many lengths": [causal_row(SCATTERED[start : start + length], 1) for start, length in ((0, 3), (10, 40), (60, 17), (100, 90))],
    "everything": [
        causal_row(SCATTERED[:70], 70),
        tree_row(SCATTERED[80:105], 20),
        causal_row(SCATTERED[110:120], 1),
        causal_row(SCATTERED[130:230], 90),
        causal_row(list(range(300, 320)), 3),
    ],
}


@pytest.mark.parametrize("window", [None, 4, 1000])
@pytest.mark.parametrize(
    "kv_heads", [[0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1], [0, 1, 2, 3, 4, 5], [0, 0, 1, 1, 1, 2], [1, 0, 1, 1, 0, 2]], ids=str
)
@pytest.mark.parametrize("name", BATCHES)
def test_attention_equals_the_plain_one(name: str, kv_heads: list[int], window: int | None) -> None:
    rows = BATCHES[name]
    num_kv_heads = max(kv_heads) + 1
    num_tokens = sum(row.num_queries for row in rows)
    generator = torch.Generator().manual_seed(1)
    pool = KVPool(2, NUM_SLOTS, num_kv_heads, HEAD_DIM, torch.float32, CPU)
    pool.data.copy_(torch.randn(pool.data.shape, generator=generator))
    queries = torch.randn(num_tokens, NUM_QUERY_HEADS, HEAD_DIM, generator=generator)
    keys, values = (torch.randn(num_tokens, num_kv_heads, HEAD_DIM, generator=generator) for _ in range(2))
    write_slots = np.concatenate([row.slots[row.num_prefix :] for row in rows])
    uneven = UnevenHeads.of(kv_heads, num_kv_heads, CPU)
    assert (uneven is None) == (kv_heads not in ([0, 0, 1, 1, 1, 2], [1, 0, 1, 1, 0, 2]))

    plan = AttentionPlan(rows, write_slots, CPU, torch.float32)
    attended = plan.attend(queries, keys, values, pool, 1, uneven, window)

    assert torch.equal(pool.data[0, 1, write_slots], keys)
    assert torch.equal(pool.data[1, 1, write_slots], values)
    expected = plain_attention(rows, queries, pool.data[0, 1][:, kv_heads], pool.data[1, 1][:, kv_heads], window)
    torch.testing.assert_close(attended, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 4])
def test_sequences_without_a_pool(window: int | None) -> None:
    generator = torch.Generator().manual_seed(2)
    lengths = [3, 11, 1, 70]
    queries, keys, values = (torch.randn(sum(lengths), heads, HEAD_DIM, generator=generator) for heads in (NUM_QUERY_HEADS, 2, 2))
    plan = AttentionPlan.for_sequences(lengths, CPU, torch.float32)
    attended = plan.attend(queries, keys, values, None, 0, None, window)
    rows, start = [], 0
    for length in lengths:
        rows.append(causal_row(list(range(start, start + length)), length))
        start += length
    heads = [0, 0, 0, 1, 1, 1]
    torch.testing.assert_close(attended, plain_attention(rows, queries, keys[:, heads], values[:, heads], window), atol=1e-5, rtol=1e-5)


def test_moves_read_before_they_write() -> None:
    pool = KVPool(1, 8, 1, 1, torch.float32, CPU)
    pool.data.copy_(torch.arange(8.0).view(1, 1, 8, 1, 1).expand_as(pool.data))
    pool.move(np.asarray([2, 3, 5], np.int64), np.asarray([1, 2, 3], np.int64))
    assert pool.data[0, 0, :, 0, 0].tolist() == [0, 2, 3, 5, 4, 5, 6, 7]


def plain_attention(
    rows: list[AttentionRow], queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None
) -> torch.Tensor:
    """keys, values: [S, Hq, Dh], one KV head per query head."""
    outputs, start = [], 0
    for row in rows:
        tail = row.num_queries
        mask = np.tri(tail, dtype=bool) if row.tail_mask is None else row.tail_mask
        key_positions = [*range(row.num_prefix), *row.positions.tolist()]
        for index in range(tail):
            seen = [slot for slot in range(row.num_prefix)] + [row.num_prefix + j for j in range(tail) if mask[index, j]]
            if window is not None:
                seen = [slot for slot in seen if row.positions[index] - key_positions[slot] < window]
            slots = row.slots[seen]
            query = queries[start + index]  # [Hq, Dh]
            scores = torch.einsum("hd,shd->hs", query, keys[slots]) / HEAD_DIM**0.5
            outputs.append(torch.einsum("hs,shd->hd", scores.softmax(-1), values[slots]))
        start += tail
    return torch.stack(outputs)
