"""The target's side of a step: one forward over every new token and every tree node of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hothead.models.attention import AttentionPlan, AttentionRow, KVPool
from hothead.models.decoder import Decoder
from hothead.parallel.full_head import ShardedLogits
from hothead.records import Batch, BatchRow, TokenTree


@dataclass(frozen=True, slots=True)
class Scores:
    """hidden: [N, F], the features that the drafter reads, for each row's new tokens and then its tree nodes. logits: for each scored
    row its root, then its nodes ([M, V], cut over ranks), None when no row is scored."""

    hidden: torch.Tensor
    logits: ShardedLogits | None


class Target:
    """The decoder and its KV pool. feature_layers: layers whose inputs the drafter reads; none for the states after the final norm."""

    def __init__(self, decoder: Decoder, pool: KVPool, feature_layers: Sequence[int] = ()) -> None:
        self.decoder = decoder
        self.pool = pool
        self.feature_layers = tuple(feature_layers)

    def score(self, batch: Batch, trees: Sequence[TokenTree]) -> Scores:
        device = self.decoder.device
        token_ids, positions, write_slots, attention_rows, scored = [], [], [], [], []
        start = 0
        for row, tree in zip(batch, trees, strict=True):
            attention_row = _attention_row(row, tree)
            token_ids += [row.token_ids[row.num_cached : row.num_computed], tree.token_ids]
            positions.append(attention_row.positions)
            write_slots.append(attention_row.slots[row.num_cached :])
            attention_rows.append(attention_row)
            stop = start + row.num_new + len(tree)
            if row.is_scored:
                scored.append(np.arange(start + row.num_new - 1, stop, dtype=np.int64))
            start = stop
        plan = AttentionPlan(attention_rows, np.concatenate(write_slots), device, self.decoder.dtype)
        tokens, places = _tensor(token_ids, device), _tensor(positions, device)
        hidden, captured = self.decoder.forward_captured(tokens, places, plan, self.pool, self.feature_layers)
        features = captured if self.feature_layers else hidden
        if not scored:
            return Scores(features, None)
        num_scored = sum(len(part) for part in scored)
        return Scores(features, self.decoder.head.logits(hidden if num_scored == len(hidden) else hidden[_tensor(scored, device)]))


def _attention_row(row: BatchRow, tree: TokenTree) -> AttentionRow:
    num_queries = row.num_new + len(tree)
    committed = np.arange(row.num_cached, row.num_computed, dtype=np.int64)
    positions = np.concatenate([committed, row.num_computed - 1 + tree.depths])
    mask = None if tree.is_chain else _tail_mask(row.num_new, tree)
    return AttentionRow(row.slots[: row.num_computed + len(tree)], row.num_cached, num_queries, positions, mask)


def _tail_mask(num_new: int, tree: TokenTree) -> NDArray[np.bool_]:
    """[num_new + T, num_new + T]: committed tokens are causal; a node sees them, its ancestors and itself."""
    mask = np.tri(num_new + len(tree), dtype=bool)
    mask[num_new:, num_new:] = False
    for node, parent in enumerate(tree.parents.tolist()):
        if parent >= 0:
            mask[num_new + node, num_new:] = mask[num_new + parent, num_new:]
        mask[num_new + node, num_new + node] = True
    return mask


def _tensor(parts: Sequence[NDArray[np.int64]], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(parts)).to(device)
