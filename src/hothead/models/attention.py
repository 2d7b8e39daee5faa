"""Where keys and values lie, and who may look at whom: one plan for prompts, chains, trees and drafts alike.

A step computes N new tokens of several requests. Each request's context is a list of KV slots: first a prefix that all of its new tokens
see, then a tail in which a mask says who sees whom (causal for a prompt, ancestors for a token tree). The plan is built once per step and
used by every layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

MAX_BATCHED_QUERIES = 64
"""Rows with more new tokens than this are attended one by one: padding others to their length would cost more than it saves."""


class KVPool:
    """Keys and values of all layers of one network on this rank, addressed by slot.

    data: [2, L, S, Hkv, Dh]: keys and values, layer, slot, local KV head, head dimension.
    """

    def __init__(self, num_layers: int, num_slots: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        # Not zeroed: pages that no request touches then cost nothing. A slot is written before any plan reads it.
        self.data = torch.empty(2, num_layers, num_slots, num_kv_heads, head_dim, dtype=dtype, device=device)

    @property
    def num_slots(self) -> int:
        return self.data.shape[2]

    @staticmethod
    def bytes_per_slot(num_layers: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
        return 2 * num_layers * num_kv_heads * head_dim * dtype.itemsize

    def move(self, from_slots: NDArray[np.int64], to_slots: NDArray[np.int64]) -> None:
        """Copy slots of all layers; sources are read before any target is written."""
        source = torch.from_numpy(from_slots).to(self.data.device)
        target = torch.from_numpy(to_slots).to(self.data.device)
        self.data[:, :, target] = self.data[:, :, source]


@dataclass(frozen=True, slots=True)
class AttentionRow:
    """One request's part of a step.

    slots: [S] int64, context in order, this step's tokens included. num_prefix: leading slots that every new token sees.
    num_queries: new tokens T. tail_mask: [T, S - num_prefix] bool, True where a new token sees a tail slot; None for causal (then the
    tail is the T new tokens). positions: [T] int64 of the new tokens. tail_positions: [S - num_prefix] int64; prefix slot i has position i.
    """

    slots: NDArray[np.int64]
    num_prefix: int
    num_queries: int
    positions: NDArray[np.int64]
    tail_mask: NDArray[np.bool_] | None = None
    tail_positions: NDArray[np.int64] | None = None

    def key_positions(self) -> NDArray[np.int64]:
        tail = self.positions if self.tail_positions is None else self.tail_positions
        return np.concatenate([np.arange(self.num_prefix, dtype=np.int64), tail])

    def visible(self, window: int | None) -> NDArray[np.bool_]:
        """[T, S] bool: which context slots each new token sees, within a sliding window if the layer has one."""
        visible = np.ones((self.num_queries, len(self.slots)), bool)
        visible[:, self.num_prefix :] = np.tri(self.num_queries, dtype=bool) if self.tail_mask is None else self.tail_mask
        if window is not None:
            visible &= self.positions[:, None] - self.key_positions()[None, :] < window
        return visible


@dataclass(slots=True)
class _Group:
    """Rows attended in one call: B rows padded to T queries and S slots."""

    rows: list[AttentionRow]
    query_index: torch.Tensor | slice
    """Flat query of each (row, t): a slice of consecutive ones, or [B * T] int64, 0 where padded."""
    valid_index: torch.Tensor | None
    """Entries of [B * T] that are not padding; None when there is none."""
    slot_index: torch.Tensor | slice
    """[B * S] int64, or a slice when one row's slots are consecutive (read in place, no copy)."""
    num_queries: int
    num_slots: int
    is_causal: bool
    masks: dict[tuple[int | None, int], torch.Tensor | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UnevenHeads:
    """Query heads that share KV heads in groups of different sizes, as a rank may have them. kv_head_of_query: [Hq] int64.

    Each group is filled up to the largest one's size g with a query head of its own, so that keys and values need no copy. fold: [Hkv * g]
    int64, query head of each place. unfold: [Hq] int64, place of each query head.
    """

    kv_head_of_query: torch.Tensor
    fold: torch.Tensor
    unfold: torch.Tensor

    @staticmethod
    def of(kv_head_of_query: Sequence[int], num_kv_heads: int, device: torch.device) -> UnevenHeads | None:
        """None where the query heads are num_kv_heads groups of equal size, in order."""
        members = [[query for query, kv in enumerate(kv_head_of_query) if kv == head] for head in range(num_kv_heads)]
        size = max(map(len, members))
        if all(len(group) == size for group in members) and list(kv_head_of_query) == sorted(kv_head_of_query):
            return None
        fold = [query for group in members for query in group + group[:1] * (size - len(group))]
        unfold = [fold.index(query) for query in range(len(kv_head_of_query))]
        return UnevenHeads(*(torch.tensor(index, dtype=torch.int64, device=device) for index in (kv_head_of_query, fold, unfold)))


class AttentionPlan:
    """What all layers of one step need to know about slots and masks.

    write_slots: [N] int64, where the new tokens' keys and values go, in flat order; None for a pass that keeps nothing (then the rows'
    contexts are exactly their own new tokens, read from the keys and values at hand).
    """

    def __init__(
        self, rows: Sequence[AttentionRow], write_slots: NDArray[np.int64] | None, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.device = device
        self.dtype = dtype
        self.num_tokens = sum(row.num_queries for row in rows)
        self.write_index: torch.Tensor | slice | None = None if write_slots is None else _as_index(write_slots, device)
        starts = np.cumsum([0] + [row.num_queries for row in rows])
        self._groups = [self._make_group([rows[i] for i in members], [int(starts[i]) for i in members]) for members in _split(rows)]

    @staticmethod
    def for_sequences(lengths: Sequence[int], device: torch.device, dtype: torch.dtype) -> AttentionPlan:
        """Whole sequences side by side, each causal, nothing cached: for features and for tests."""
        rows = []
        start = 0
        for length in lengths:
            positions = np.arange(length, dtype=np.int64)
            rows.append(AttentionRow(start + positions, 0, length, positions))
            start += length
        return AttentionPlan(rows, None, device, dtype)

    def attend(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        pool: KVPool | None,
        layer: int,
        uneven: UnevenHeads | None,
        window: int | None = None,
    ) -> torch.Tensor:
        """queries: [N, Hq, Dh]; keys, values: [N, Hkv, Dh] of the new tokens -> [N, Hq, Dh].

        Writes the new keys and values to the pool first. uneven: None when query heads are Hkv groups of equal size.
        """
        if pool is not None:
            assert self.write_index is not None
            all_keys, all_values = pool.data[0, layer], pool.data[1, layer]
            _put(all_keys, self.write_index, keys)
            _put(all_values, self.write_index, values)
        else:
            all_keys, all_values = keys, values
        if len(self._groups) == 1 and isinstance(self._groups[0].query_index, slice):
            return self._attend_group(self._groups[0], queries, all_keys, all_values, uneven, window)
        output = torch.empty_like(queries)
        for group in self._groups:
            attended = self._attend_group(group, queries[group.query_index], all_keys, all_values, uneven, window)
            if group.valid_index is None:
                output[group.query_index] = attended
            else:
                assert isinstance(group.query_index, torch.Tensor)
                output[group.query_index[group.valid_index]] = attended[group.valid_index]
        return output

    def _attend_group(
        self,
        group: _Group,
        queries: torch.Tensor,
        all_keys: torch.Tensor,
        all_values: torch.Tensor,
        uneven: UnevenHeads | None,
        window: int | None,
    ) -> torch.Tensor:
        num_rows, num_queries, num_slots = len(group.rows), group.num_queries, group.num_slots
        is_causal = group.is_causal and (window is None or num_slots <= window)
        folding = None if is_causal else uneven
        if folding is not None:
            queries = queries.index_select(1, folding.fold)
        num_query_heads, head_dim = queries.shape[1:]
        keys = _take(all_keys, group.slot_index).view(num_rows, num_slots, -1, head_dim).transpose(1, 2)  # [B, Hkv, S, Dh]
        values = _take(all_values, group.slot_index).view(num_rows, num_slots, -1, head_dim).transpose(1, 2)
        queries = queries.view(num_rows, num_queries, num_query_heads, head_dim)
        if uneven is not None and is_causal:
            keys, values = keys[:, uneven.kv_head_of_query], values[:, uneven.kv_head_of_query]  # [B, Hq, S, Dh]
            group_size = 1
        elif is_causal and num_query_heads != keys.shape[1]:
            keys = keys.repeat_interleave(num_query_heads // keys.shape[1], dim=1)
            values = values.repeat_interleave(num_query_heads // values.shape[1], dim=1)
            group_size = 1
        else:
            group_size = num_query_heads // keys.shape[1]
        # The query heads that share a KV head become rows of one matrix: g * T queries against the same keys.
        folded = queries.view(num_rows, num_queries, -1, group_size, head_dim).permute(0, 2, 3, 1, 4)
        folded = folded.reshape(num_rows, -1, group_size * num_queries, head_dim)  # [B, Hkv, g * T, Dh]
        if is_causal:
            attended = F.scaled_dot_product_attention(folded, keys, values, is_causal=True)
        else:
            attended = F.scaled_dot_product_attention(folded, keys, values, attn_mask=self._mask(group, window, group_size))
        unfolded = attended.view(num_rows, -1, group_size, num_queries, head_dim).permute(0, 3, 1, 2, 4)
        heads = unfolded.reshape(num_rows * num_queries, num_query_heads, head_dim)
        return heads if folding is None else heads.index_select(1, folding.unfold)

    def _mask(self, group: _Group, window: int | None, group_size: int) -> torch.Tensor | None:
        """[B, 1, g * T, S] additive mask, or None when everything is visible."""
        if (window, group_size) not in group.masks:
            group.masks[window, group_size] = self._make_mask(group, window, group_size)
        return group.masks[window, group_size]

    def _make_mask(self, group: _Group, window: int | None, group_size: int) -> torch.Tensor | None:
        visible = np.ones((len(group.rows), group.num_queries, group.num_slots), bool)
        for index, row in enumerate(group.rows):
            # Padded queries keep seeing everything: their output is dropped, and an empty row would give NaN.
            visible[index, : row.num_queries, : len(row.slots)] = row.visible(window)
            visible[index, : row.num_queries, len(row.slots) :] = False
        if visible.all():
            return None
        mask = torch.zeros(visible.shape, dtype=self.dtype).masked_fill_(torch.from_numpy(~visible), float("-inf"))
        return mask.to(self.device).repeat(1, group_size, 1)[:, None]

    def _make_group(self, rows: list[AttentionRow], starts: list[int]) -> _Group:
        num_queries = max(row.num_queries for row in rows)
        num_slots = max(len(row.slots) for row in rows)
        is_causal = len(rows) == 1 and rows[0].num_prefix == 0 and rows[0].tail_mask is None and num_queries > 1
        queries = np.zeros((len(rows), num_queries), np.int64)
        is_valid = np.zeros((len(rows), num_queries), bool)
        slots = np.zeros((len(rows), num_slots), np.int64)
        for index, (row, start) in enumerate(zip(rows, starts, strict=True)):
            queries[index, : row.num_queries] = start + np.arange(row.num_queries)
            is_valid[index, : row.num_queries] = True
            slots[index, : len(row.slots)] = row.slots
            slots[index, len(row.slots) :] = row.slots[0]
        valid_index = None if is_valid.all() else torch.from_numpy(np.flatnonzero(is_valid)).to(self.device)
        return _Group(
            rows=rows,
            query_index=_as_index(queries.reshape(-1), self.device),
            valid_index=valid_index,
            slot_index=_as_index(slots.reshape(-1), self.device),
            num_queries=num_queries,
            num_slots=num_slots,
            is_causal=is_causal,
        )


def _take(source: torch.Tensor, index: torch.Tensor | slice) -> torch.Tensor:
    """Rows of [slots, Hkv, Dh]. Whole rows of a matrix are copied four times as fast as source[index] copies them."""
    return source[index] if isinstance(index, slice) else source.flatten(1).index_select(0, index)


def _put(target: torch.Tensor, index: torch.Tensor | slice, rows: torch.Tensor) -> None:
    if isinstance(index, slice):
        target[index] = rows
    else:
        target.index_copy_(0, index, rows)


def _split(rows: Sequence[AttentionRow]) -> list[list[int]]:
    """Which rows go together: long ones alone, short ones with others whose context is at most twice as long."""
    alone = [[i] for i, row in enumerate(rows) if row.num_queries > MAX_BATCHED_QUERIES]
    short = [i for i, row in enumerate(rows) if row.num_queries <= MAX_BATCHED_QUERIES]
    short.sort(key=lambda i: (len(rows[i].slots), i))
    groups: list[list[int]] = []
    for i in short:
        if groups and len(rows[i].slots) <= 2 * len(rows[groups[-1][0]].slots):
            groups[-1].append(i)
        else:
            groups.append([i])
    return alone + [sorted(group) for group in groups]


def _as_index(values: NDArray[np.int64], device: torch.device) -> torch.Tensor | slice:
    """A slice where the values are consecutive (a view, no copy), else an index tensor."""
    if len(values) and values[-1] - values[0] == len(values) - 1 and (len(values) == 1 or (np.diff(values) == 1).all()):
        return slice(int(values[0]), int(values[-1]) + 1)
    return torch.from_numpy(values).to(device)
