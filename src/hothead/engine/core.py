"""One step of many requests, on every rank alike: who runs, what is drafted, what the target says, what is kept.

Ranks run the same core on the same requests. Everything random or close is decided from merged data, and drafted trees are taken from
rank 0, so ranks cannot drift apart. Stop strings, text and the clock are rank 0's business (`engine.py`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from hothead.draft.base import Drafter
from hothead.engine.kv_cache import KVCache
from hothead.engine.scheduler import RowOutput, Scheduler
from hothead.engine.stats import StepStats
from hothead.engine.target import Scores, Target
from hothead.parallel.full_head import ShardedLogits
from hothead.parallel.groups import RankGroup
from hothead.records import NO_VERDICT, Batch, BatchRow, TokenTree, Verdict
from hothead.verify.choose import ChoiceRow, choose_tokens
from hothead.verify.rejection import Proposal, reject
from hothead.verify.tree import accept_batch


@dataclass(frozen=True, slots=True)
class StepResult:
    """outputs: rows that emitted something. stats: what the step did and cost."""

    outputs: list[RowOutput]
    stats: StepStats


class EngineCore:
    """Scheduler, drafter, target and cache of one rank."""

    def __init__(self, scheduler: Scheduler, drafter: Drafter, target: Target, cache: KVCache, group: RankGroup) -> None:
        self.scheduler = scheduler
        self.drafter = drafter
        self.target = target
        self.cache = cache
        self.group = group

    @torch.inference_mode()
    def step(self) -> StepResult:
        """The table of contents. Plain decoding is the same step with empty trees."""
        clock = _Clock(self.drafter, self.group)
        batch = self.scheduler.next_batch()  # who runs, how many tokens each
        trees = self._agree(self.drafter.propose(batch))  # token ids only
        clock.drafted()
        scores = self.target.score(batch, trees)  # one forward over every tree node
        verdicts = verify(batch, trees, scores, self.drafter.proposals)
        clock.verified()
        self.cache.commit(batch, trees, verdicts)  # keep the accepted path
        self.drafter.observe(batch, trees, verdicts, scores.hidden)
        clock.observed()
        outputs = self.scheduler.finish_step(batch, verdicts)
        return StepResult(outputs, clock.stats(batch, trees, verdicts))

    def _agree(self, trees: list[TokenTree]) -> list[TokenTree]:
        """Rank 0's trees on every rank: draft scores may differ in the last bit between unlike machines."""
        if self.group.size == 1 or self.drafter.shape.num_nodes == 0:
            return trees
        packed = np.full((len(trees), 1 + 2 * self.drafter.shape.num_nodes), 0, np.int64)
        for row, tree in zip(packed, trees, strict=True):
            row[0] = len(tree)
            row[1 : 1 + 2 * len(tree)] = np.concatenate([tree.token_ids, tree.parents])
        device = self.target.decoder.device
        agreed = self.group.broadcast(torch.from_numpy(packed).to(device)).cpu().numpy()
        return [TokenTree(row[1 : 1 + row[0]], row[1 + row[0] : 1 + 2 * row[0]]) for row in agreed]


def verify(batch: Batch, trees: Sequence[TokenTree], scores: Scores, proposals: Mapping[str, Proposal]) -> list[Verdict]:
    """The target's verdict for every row; NO_VERDICT for rows whose prompt is not through yet. proposals: by request id, for trees that
    were drawn: the rejection rule judges them, and the coupled rule all others."""
    verdicts = [NO_VERDICT] * len(batch)
    if scores.logits is None:
        return verdicts
    starts = np.cumsum([0, *(len(tree) + 1 if row.is_scored else 0 for row, tree in zip(batch, trees, strict=True))])
    scored = [index for index, row in enumerate(batch) if row.is_scored]
    drawn = [index for index in scored if len(trees[index]) and batch[index].request_id in proposals]
    coupled = [index for index in scored if index not in drawn]
    for indices, judge in ((coupled, _couple), (drawn, partial(_reject, proposals))):
        if not indices:
            continue
        logits = scores.logits
        if len(indices) < len(scored):
            logit_rows = np.concatenate([np.arange(starts[index], starts[index + 1]) for index in indices])
            logits = logits.select(torch.from_numpy(logit_rows).to(logits.local.device))
        judged = judge(logits, [batch[index] for index in indices], [trees[index] for index in indices])
        for index, verdict in zip(indices, judged, strict=True):
            verdicts[index] = verdict
    return verdicts


def _couple(logits: ShardedLogits, rows: Sequence[BatchRow], trees: Sequence[TokenTree]) -> list[Verdict]:
    choices = [
        ChoiceRow(row.sampling, row.seed, len(row.token_ids) + depth)
        for row, tree in zip(rows, trees, strict=True)
        for depth in (0, *tree.depths.tolist())
    ]
    return accept_batch(trees, choose_tokens(logits, choices).tolist())


def _reject(
    proposals: Mapping[str, Proposal], logits: ShardedLogits, rows: Sequence[BatchRow], trees: Sequence[TokenTree]
) -> list[Verdict]:
    return reject(logits, rows, trees, [proposals[row.request_id] for row in rows])


class _Clock:
    """Where the time of one step went. The draft head's share is inside the drafter's calls and is taken out of theirs."""

    def __init__(self, drafter: Drafter, group: RankGroup) -> None:
        self._drafter, self._group = drafter, group
        self._num_collectives, self._num_bytes = group.num_collectives, group.num_bytes
        self._head_s = drafter.head_s
        self._start = self._last = time.perf_counter()
        self._draft_s = self._verify_s = 0.0

    def drafted(self) -> None:
        self._draft_s += self._lap()

    def verified(self) -> None:
        self._verify_s += self._lap()

    observed = drafted

    def stats(self, batch: Batch, trees: Sequence[TokenTree], verdicts: Sequence[Verdict]) -> StepStats:
        head_s = self._drafter.head_s - self._head_s
        return StepStats.make(
            batch,
            trees,
            verdicts,
            draft_s=self._draft_s - head_s,
            draft_head_s=head_s,
            verify_s=self._verify_s,
            total_s=time.perf_counter() - self._start,
            num_collectives=self._group.num_collectives - self._num_collectives,
            num_rank_bytes=self._group.num_bytes - self._num_bytes,
        )

    def _lap(self) -> float:
        now = time.perf_counter()
        lap_s, self._last = now - self._last, now
        return lap_s
