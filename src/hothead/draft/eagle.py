"""EAGLE: drafts from the target's own features with one decoder layer and a hot head. After EAGLE-2 (arXiv 2406.16858) and FR-Spec (arXiv
2502.14856).

Pairs of (feature at i, token at i + 1) are what the network eats. Those of committed tokens run in `observe`, as soon as the target's
features are there, and leave keys and values at the same slots as the target's; those of draft tokens run level by level in `propose`, in
scratch slots.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from hothead.draft.base import TreeShape
from hothead.draft.growth import TreeGrowth
from hothead.models.attention import AttentionPlan, AttentionRow
from hothead.models.eagle import EagleNetwork
from hothead.parallel.full_head import VocabEmbedding
from hothead.parallel.hot_head import Candidates, HotHead
from hothead.records import EMPTY_TREE, ROOT, Batch, BatchRow, TokenTree, Verdict
from hothead.verify.choose import ChoiceRow, draft_noise, inverse_temperatures

MIN_FRONTIER_MASS = 0.3
"""A further level must be reached with at least this probability to be worth its time: measured best of 0.08 to 0.35 on a CPU, where a
level costs a twentieth of a verify step."""


class EagleDrafter:
    """Drafts for all requests of a batch at once, level by level."""

    def __init__(
        self,
        network: EagleNetwork,
        embedding: VocabEmbedding,
        hot_head: HotHead,
        num_slots: int,
        max_context: int,
        shape: TreeShape,
        dtype: torch.dtype,
        hot_token_ids: NDArray[np.int64] | None,
    ) -> None:
        """max_context: committed tokens up to which the network may draft. hot_token_ids: None where the head is not cut."""
        self.hot_token_ids = hot_token_ids
        self.network = network
        self.embedding = embedding
        self.hot_head = hot_head
        self.max_context = max_context
        self.num_out_of_window = 0
        """Requests that outgrew the draft network's window."""
        self.shape = shape
        self.num_scratch_slots = max(shape.num_nodes, shape.topk * (shape.num_steps - 1))
        self.head_s = 0.0
        self.device = network.layers[0].mlp_norm.device
        self.dtype = dtype
        self.pool = network.new_pool(num_slots, dtype, self.device)
        self._features: dict[str, torch.Tensor] = {}  # per request: the network's output at its last observed pair, [D]

    def propose(self, batch: Batch) -> list[TokenTree]:
        ready = [index for index, row in enumerate(batch) if row.max_draft_tokens > 0 and row.request_id in self._features]
        trees = [EMPTY_TREE] * len(batch)
        if ready:
            for index, tree in zip(ready, self._grow([batch[index] for index in ready]), strict=True):
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
            start += row.num_new + len(tree)
        if not pieces:
            return
        index = torch.from_numpy(np.concatenate([piece.hidden_rows for piece in pieces])).to(self.device)
        positions = np.concatenate([piece.positions for piece in pieces])
        rows = [AttentionRow(piece.slots, int(piece.positions[0]), len(piece.positions), piece.positions) for piece in pieces]
        write_slots = np.concatenate([piece.slots[piece.positions] for piece in pieces])
        token_ids = np.concatenate([piece.token_ids for piece in pieces])
        output = self._forward(token_ids, hidden[index], positions, rows, write_slots)
        end = 0
        for piece in pieces:
            end += len(piece.positions)
            self._features[piece.request_id] = output[end - 1]

    def forget(self, request_id: str) -> None:
        self._features.pop(request_id, None)

    def _grow(self, rows: list[BatchRow]) -> list[TokenTree]:
        features = torch.stack([self._features[row.request_id] for row in rows])  # [B, D]
        candidates = self._candidates(features, rows, depth=1)
        growths = [
            TreeGrowth(self.shape, log_probs, token_ids)
            for log_probs, token_ids in zip(candidates.log_probs.cpu().numpy(), candidates.token_ids.cpu().numpy(), strict=True)
        ]
        outputs = features[:, None]  # [B, 1 + E, D]: the last observed output, then one per expansion
        num_levels = min(self.shape.num_steps, max(row.max_draft_tokens for row in rows))
        for depth in range(1, num_levels):
            if max(growth.frontier_mass for growth in growths) < MIN_FRONTIER_MASS:
                break
            outputs = torch.cat([outputs, self._expand(rows, growths, outputs, depth)], dim=1)
            num_frontier = len(growths[0].frontier)
            flat = outputs[:, -num_frontier:].reshape(len(rows) * num_frontier, -1)
            candidates = self._candidates(flat, [row for row in rows for _ in range(num_frontier)], depth + 1)
            log_probs = candidates.log_probs.view(len(rows), num_frontier, -1).cpu().numpy()
            token_ids = candidates.token_ids.view(len(rows), num_frontier, -1).cpu().numpy()
            for growth, level_log_probs, level_token_ids in zip(growths, log_probs, token_ids, strict=True):
                growth.add(level_log_probs, level_token_ids)
        return [growth.tree(row.max_draft_tokens) for growth, row in zip(growths, rows, strict=True)]

    def _expand(self, rows: list[BatchRow], growths: list[TreeGrowth], outputs: torch.Tensor, depth: int) -> torch.Tensor:
        """Run the frontier's nodes through the network -> their outputs [B, F, D]."""
        token_ids, positions, attention_rows, write_slots, features = [], [], [], [], []
        for index, (row, growth) in enumerate(zip(rows, growths, strict=True)):
            level_token_ids, feeding, visible = growth.expand()
            num_prefix = len(row.token_ids) - 1  # pairs of committed tokens: the last token has no feature yet
            num_queries, num_expansions = visible.shape
            level_positions = np.full(num_queries, num_prefix + depth - 1, np.int64)
            # Every level expands the same number of nodes, one depth further than the level before.
            tail_positions = num_prefix + np.repeat(np.arange(depth, dtype=np.int64), num_queries)
            slots = row.slots[: num_prefix + num_expansions]
            attention_rows.append(AttentionRow(slots, num_prefix, num_queries, level_positions, visible, tail_positions))
            write_slots.append(slots[-num_queries:])
            token_ids.append(level_token_ids)
            positions.append(level_positions)
            features.append(outputs[index, torch.from_numpy(feeding - ROOT).to(self.device)])
        output = self._forward(
            np.concatenate(token_ids), torch.cat(features), np.concatenate(positions), attention_rows, np.concatenate(write_slots)
        )
        return output.view(len(rows), -1, output.shape[-1])

    def _forward(
        self,
        token_ids: NDArray[np.int64],
        features: torch.Tensor,
        positions: NDArray[np.int64],
        rows: list[AttentionRow],
        write_slots: NDArray[np.int64],
    ) -> torch.Tensor:
        plan = AttentionPlan(rows, write_slots, self.device, self.dtype)
        embeddings = self.embedding(torch.from_numpy(token_ids).to(self.device))
        return self.network.forward(embeddings, features, torch.from_numpy(positions).to(self.device), plan, self.pool)

    def _candidates(self, features: torch.Tensor, rows: list[BatchRow], depth: int) -> Candidates:
        """Best topk tokens after each feature row; sampled rows rank what the coupled rule will: score / T plus the shared noise."""
        start = time.perf_counter()
        choices = [ChoiceRow(row.sampling, row.seed, len(row.token_ids) - 1 + depth) for row in rows]
        candidates = self.hot_head.candidates(
            features, self.shape.topk, inverse_temperature=inverse_temperatures(choices, self.device), noise=draft_noise(choices)
        )
        self.head_s += time.perf_counter() - start
        return candidates


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
