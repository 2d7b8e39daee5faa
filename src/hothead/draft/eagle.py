"""EAGLE and EAGLE-3: draft from the target's own features with one decoder layer and a hot head. After EAGLE-2 (arXiv 2406.16858), EAGLE-3
(arXiv 2503.01840) and FR-Spec (arXiv 2502.14856).

Pairs of (feature at i, token at i + 1) are what the network eats. Those of committed tokens run in `observe`, as soon as the target's
features are there, and leave keys and values at the same slots as the target's; those of draft tokens run level by level in `propose`, in
scratch slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hothead.draft.base import TreeShape
from hothead.draft.tree_drafter import TreeDrafter
from hothead.models.attention import AttentionPlan, AttentionRow, KVPool
from hothead.parallel.hot_head import HotHead
from hothead.records import EMPTY_TREE, Batch, BatchRow, TokenTree, Verdict


class FeatureNetwork(Protocol):
    """What differs between the two. D: hidden size of the network, which the hot head shares; F: width of the target's features."""

    def new_pool(self, num_slots: int, dtype: torch.dtype, device: torch.device) -> KVPool: ...

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        """The target's features [N, F] -> what stands in for the network's own output at those positions, [N, D]."""
        ...

    def forward(
        self, token_embeddings: torch.Tensor, features: torch.Tensor, positions: torch.Tensor, plan: AttentionPlan, pool: KVPool | None
    ) -> torch.Tensor:
        """token_embeddings: [N, E] of the tokens at i + 1, features: [N, D] at i, positions i: [N] -> output [N, D]."""
        ...

    def head_input(self, output: torch.Tensor) -> torch.Tensor:
        """The network's output [N, D] -> what its head reads [N, D]."""
        ...


class EagleDrafter(TreeDrafter):
    """Drafts for all requests of a batch at once, level by level."""

    def __init__(
        self,
        network: FeatureNetwork,
        embedding: Callable[[torch.Tensor], torch.Tensor],
        hot_head: HotHead,
        num_slots: int,
        max_context: int,
        shape: TreeShape,
        device: torch.device,
        dtype: torch.dtype,
        hot_token_ids: NDArray[np.int64] | None,
    ) -> None:
        """embedding: token ids [N] -> [N, E]. max_context: committed tokens up to which the network may draft. hot_token_ids: None where
        the head is not cut."""
        super().__init__(hot_head, shape, device, dtype, hot_token_ids)
        self.network = network
        self.embedding = embedding
        self.max_context = max_context
        self.num_out_of_window = 0
        """Requests that outgrew the draft network's window."""
        self.pool = network.new_pool(num_slots, dtype, self.device)
        self._features: dict[str, torch.Tensor] = {}  # per request: the network's output at its last observed pair, [D]
        self._num_observed: dict[str, int] = {}  # per request: pairs that it has seen

    def propose(self, batch: Batch) -> list[TokenTree]:
        # While a prompt is read in pieces the network is as far behind as the last piece is long.
        ready = [
            index
            for index, row in enumerate(batch)
            if row.max_draft_tokens > 0 and self._num_observed.get(row.request_id) == self._num_prefix(row)
        ]
        trees = [EMPTY_TREE] * len(batch)
        if ready:
            rows = [batch[index] for index in ready]
            features = torch.stack([self._features[row.request_id] for row in rows])  # [B, D]
            for index, tree in zip(ready, self._grow(rows, features), strict=True):
                trees[index] = tree
        return trees

    def observe(self, batch: Batch, trees: Sequence[TokenTree], verdicts: Sequence[Verdict], hidden: torch.Tensor) -> None:
        pieces: list[_Piece] = []
        start = 0
        for row, tree, verdict in zip(batch, trees, verdicts, strict=True):
            if row.num_computed + len(verdict.accepted_nodes) <= self.max_context:
                pieces.append(_observed(row, start, verdict))
            else:
                # Past the draft network's window its guesses are worth nothing: the request goes on without a draft.
                self.num_out_of_window += self._features.pop(row.request_id, None) is not None
                self._num_observed.pop(row.request_id, None)
            start += row.num_new + len(tree)
        if not pieces:
            return
        index = torch.from_numpy(np.concatenate([piece.hidden_rows for piece in pieces])).to(self.device)
        positions = np.concatenate([piece.positions for piece in pieces])
        rows = [AttentionRow(piece.slots, int(piece.positions[0]), len(piece.positions), piece.positions) for piece in pieces]
        write_slots = np.concatenate([piece.slots[piece.positions] for piece in pieces])
        token_ids = np.concatenate([piece.token_ids for piece in pieces])
        output = self._pass(token_ids, self.network.fuse(hidden[index]), positions, rows, write_slots)
        end = 0
        for piece in pieces:
            end += len(piece.positions)
            self._features[piece.request_id] = output[end - 1]
            self._num_observed[piece.request_id] = int(piece.positions[-1]) + 1

    def forget(self, request_id: str) -> None:
        self._features.pop(request_id, None)
        self._num_observed.pop(request_id, None)

    def _num_prefix(self, row: BatchRow) -> int:
        return len(row.token_ids) - 1  # pairs of committed tokens: the last token has no feature yet

    def _run(self, token_ids: torch.Tensor, features: torch.Tensor, positions: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
        return self.network.forward(self.embedding(token_ids), features, positions, plan, self.pool)

    def _head_input(self, output: torch.Tensor) -> torch.Tensor:
        return self.network.head_input(output)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Newly committed pairs of one request: positions [n], the tokens that follow them [n], where their features lie in the step's hidden
    states [n], and the slots of the whole context up to the last of them."""

    request_id: str
    positions: NDArray[np.int64]
    token_ids: NDArray[np.int64]
    hidden_rows: NDArray[np.int64]
    slots: NDArray[np.int64]


def _observed(row: BatchRow, start: int, verdict: Verdict) -> _Piece:
    accepted = np.asarray(verdict.accepted_nodes, np.int64)
    stop = row.num_computed + len(accepted)
    committed = np.concatenate([row.token_ids, np.asarray(verdict.token_ids, np.int64)])
    return _Piece(
        row.request_id,
        np.arange(row.num_cached, stop, dtype=np.int64),
        committed[row.num_cached + 1 : stop + 1],
        np.concatenate([np.arange(start, start + row.num_new, dtype=np.int64), start + row.num_new + accepted]),
        row.slots[:stop],
    )
