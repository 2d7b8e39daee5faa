"""What drafters with a network have in common: a token tree that grows level by level, each level one pass and one look at the hot head.

Draft tokens' keys and values go to scratch slots behind the committed ones, in the network's own pool.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

import numpy as np
import torch
from numpy.typing import NDArray

from hothead.draft.base import TreeShape
from hothead.draft.drawn_growth import DrawnGrowth
from hothead.draft.growth import TreeGrowth
from hothead.models.attention import AttentionPlan, AttentionRow
from hothead.parallel.hot_head import Candidates, HotHead
from hothead.records import ROOT, BatchRow, TokenTree
from hothead.verify.choose import ChoiceRow, draft_noise, inverse_temperatures
from hothead.verify.rejection import Proposal, draft_seed

MIN_FRONTIER_MASS = 0.3
"""A further level must be reached with at least this probability to be worth its time: measured best of 0.08 to 0.35 on a CPU, where a
level costs a twentieth of a verify step."""


class TreeDrafter(ABC):
    """Grows trees for all requests of a batch at once."""

    def __init__(
        self,
        hot_head: HotHead,
        shape: TreeShape,
        device: torch.device,
        dtype: torch.dtype,
        hot_token_ids: NDArray[np.int64] | None,
    ) -> None:
        """hot_token_ids: None where the head is not cut."""
        self.draws = False
        self.proposals: dict[str, Proposal] = {}
        self.hot_head = hot_head
        self.shape = shape
        self.device = device
        self.dtype = dtype
        self.hot_token_ids = hot_token_ids
        self.num_scratch_slots = max(shape.num_nodes, shape.topk * (shape.num_steps - 1))
        self.head_s = 0.0

    @abstractmethod
    def _num_prefix(self, row: BatchRow) -> int:
        """Committed positions that the network has seen when it drafts."""

    @abstractmethod
    def _run(self, token_ids: torch.Tensor, features: torch.Tensor, positions: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
        """One pass of the network -> [N, D], its output, from which `_head_input` makes what the hot head reads.

        token_ids, positions: [N] int64; features: [N, D], the output from which each token was drafted.
        """

    def _head_input(self, output: torch.Tensor) -> torch.Tensor:
        """The network's output [N, D] -> what the hot head reads [N, D]."""
        return output

    def _grow(self, rows: list[BatchRow], features: torch.Tensor) -> list[TokenTree]:
        """features: [B, D], the network's output behind the last committed token."""
        candidates = self._candidates(features, rows, depth=1)
        laws = [candidates.laws]
        growths = [
            DrawnGrowth(self.shape, log_probs, token_ids, row.max_draft_tokens)
            if self._is_drawn(row)
            else TreeGrowth(self.shape, log_probs, token_ids)
            for row, log_probs, token_ids in zip(rows, candidates.log_probs.cpu().numpy(), candidates.token_ids.cpu().numpy(), strict=True)
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
            laws.append(candidates.laws)
            log_probs = candidates.log_probs.view(len(rows), num_frontier, -1).cpu().numpy()
            token_ids = candidates.token_ids.view(len(rows), num_frontier, -1).cpu().numpy()
            for growth, level_log_probs, level_token_ids in zip(growths, log_probs, token_ids, strict=True):
                growth.add(level_log_probs, level_token_ids)
        if self.draws:
            self.proposals = self._proposals(rows, growths, laws)
        return [growth.tree(row.max_draft_tokens) for growth, row in zip(growths, rows, strict=True)]

    def _is_drawn(self, row: BatchRow) -> bool:
        return self.draws and not row.sampling.is_greedy

    def _proposals(self, rows: list[BatchRow], growths: list[TreeGrowth], laws: list[torch.Tensor | None]) -> dict[str, Proposal]:
        """laws: per level [B * F, R], a request's rows together; all of them are there where anything was drawn."""
        of_row = [
            torch.cat(parts) for parts in zip(*(law.view(len(rows), -1, law.shape[-1]) for law in laws if law is not None), strict=True)
        ]
        return {
            row.request_id: Proposal(self.hot_head, law, growth.law_of_parent())
            for row, growth, law in zip(rows, growths, of_row, strict=False)
            if isinstance(growth, DrawnGrowth)
        }

    def _expand(self, rows: list[BatchRow], growths: list[TreeGrowth], outputs: torch.Tensor, depth: int) -> torch.Tensor:
        """Run the frontier's nodes through the network -> their outputs [B, F, D]."""
        token_ids, positions, attention_rows, write_slots, features = [], [], [], [], []
        for index, (row, growth) in enumerate(zip(rows, growths, strict=True)):
            level_token_ids, feeding, visible = growth.expand()
            num_prefix = self._num_prefix(row)
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
        output = self._pass(
            np.concatenate(token_ids), torch.cat(features), np.concatenate(positions), attention_rows, np.concatenate(write_slots)
        )
        return output.view(len(rows), -1, output.shape[-1])

    def _pass(
        self,
        token_ids: NDArray[np.int64],
        features: torch.Tensor,
        positions: NDArray[np.int64],
        rows: list[AttentionRow],
        write_slots: NDArray[np.int64],
    ) -> torch.Tensor:
        plan = AttentionPlan(rows, write_slots, self.device, self.dtype)
        return self._run(torch.from_numpy(token_ids).to(self.device), features, torch.from_numpy(positions).to(self.device), plan)

    def _candidates(self, features: torch.Tensor, rows: list[BatchRow], depth: int) -> Candidates:
        """Best topk tokens after each feature row. Sampled rows rank what the coupled rule will, score / T plus the shared noise; for the
        rejection rule they are draws with noise of their own."""
        start = time.perf_counter()
        choices = [ChoiceRow(row.sampling, self._seed(row, depth, index), len(row.token_ids) - 1 + depth) for index, row in enumerate(rows)]
        choose = self.hot_head.draw if any(self._is_drawn(row) for row in rows) else self.hot_head.candidates
        candidates = choose(
            self._head_input(features),
            self.shape.topk,
            inverse_temperature=inverse_temperatures(choices, self.device),
            noise=draft_noise(choices),
        )
        if not self.hot_head.group.is_alike:
            candidates = self._agreed(candidates)
        self.head_s += time.perf_counter() - start
        return candidates

    def _seed(self, row: BatchRow, depth: int, index: int) -> int:
        """Of the noise of one feature row, the index-th of its level."""
        if not self._is_drawn(row):
            return row.seed
        return draft_seed(row.seed, len(row.token_ids), (depth - 1) * self.shape.topk + index % self.shape.topk)

    def _agreed(self, candidates: Candidates) -> Candidates:
        """Rank 0's candidates on every rank. Unlike machines may differ in the last bit, and ranks that grow different trees, or stop at
        different levels, would wait for each other in different collectives."""
        packed = torch.cat([candidates.log_probs.view(torch.int32), candidates.token_ids.int()], 1)
        self.hot_head.group.broadcast(packed)
        num_candidates = candidates.token_ids.shape[1]
        log_probs = packed[:, :num_candidates].contiguous().view(torch.float32)
        return Candidates(log_probs, packed[:, num_candidates:].long(), candidates.laws)
