"""What a request did and what it cost: counts of drafted, accepted and emitted tokens, and where the time went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hothead.records import Batch, TokenTree, Verdict

STAGES = ("draft", "draft_head", "verify", "other")


@dataclass(frozen=True, slots=True)
class RowStats:
    """One row of one step. tree_depth: levels that were drafted. num_accepted: draft tokens kept, the bonus token excluded."""

    request_id: str
    num_drafted: int
    num_accepted: int
    tree_depth: int
    is_verify_step: bool


@dataclass(frozen=True, slots=True)
class StepStats:
    """One step: a row per request, seconds by stage, calls that reached other ranks and the bytes of those calls (the whole step's:
    requests of a batch share them)."""

    rows: tuple[RowStats, ...]
    stage_s: dict[str, float]
    num_collectives: int = 0
    num_rank_bytes: int = 0

    @staticmethod
    def make(
        batch: Batch,
        trees: Sequence[TokenTree],
        verdicts: Sequence[Verdict],
        *,
        draft_s: float,
        draft_head_s: float,
        verify_s: float,
        total_s: float,
        num_collectives: int,
        num_rank_bytes: int,
    ) -> StepStats:
        rows = tuple(
            RowStats(row.request_id, len(tree), len(verdict.accepted_nodes), int(tree.depths.max(initial=0)), row.is_scored)
            for row, tree, verdict in zip(batch, trees, verdicts, strict=True)
        )
        other_s = total_s - draft_s - draft_head_s - verify_s
        return StepStats(rows, dict(zip(STAGES, (draft_s, draft_head_s, verify_s, other_s), strict=True)), num_collectives, num_rank_bytes)


@dataclass(slots=True)
class RequestStats:
    """Adds up a request's steps. Times are wall seconds on rank 0."""

    num_prompt_tokens: int
    start_s: float
    num_steps: int = 0
    """Verify steps: forwards in which the target chose at least one token."""
    num_drafted: int = 0
    num_accepted: int = 0
    num_emitted: int = 0
    num_hot: int | None = None
    """Emitted tokens in the hot vocabulary; None where no hot vocabulary is used."""
    stage_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    num_collectives: int = 0
    """Calls that reached other ranks, prefill included; requests of one batch share their steps' calls."""
    num_rank_bytes: int = 0
    """Payload of those calls; a gather counts its whole result."""
    first_token_s: float | None = None
    last_token_s: float | None = None
    num_first_emitted: int = 0
    """Tokens that the first step emitted: they end the time to first token and do not count as decoding."""
    step_sizes: list[int] = field(default_factory=list)
    """Tokens that each verify step emitted: all but the last one of a step were drafted."""
    _reached: list[int] = field(default_factory=list)
    _accepted: list[int] = field(default_factory=list)

    def add_step(self, row: RowStats, stage_s: dict[str, float], num_collectives: int = 0, num_rank_bytes: int = 0) -> None:
        self.num_collectives += num_collectives
        self.num_rank_bytes += num_rank_bytes
        for stage, seconds in stage_s.items():
            self.stage_s[stage] += seconds
        if not row.is_verify_step:
            return
        self.num_steps += 1
        self.num_drafted += row.num_drafted
        self.num_accepted += row.num_accepted
        for counts, depth in ((self._reached, row.tree_depth), (self._accepted, row.num_accepted)):
            counts.extend([0] * (depth - len(counts)))
            for level in range(depth):
                counts[level] += 1

    def add_tokens(self, token_ids: Sequence[int], is_hot: NDArray[np.bool_] | None, now_s: float) -> None:
        """token_ids: what this step emitted. is_hot: [V], or None without a hot vocabulary."""
        if not token_ids:
            return
        if self.first_token_s is None:
            self.first_token_s = now_s
            self.num_first_emitted = len(token_ids)
        self.last_token_s = now_s
        self.num_emitted += len(token_ids)
        self.step_sizes.append(len(token_ids))
        if is_hot is not None:
            self.num_hot = (self.num_hot or 0) + int(is_hot[list(token_ids)].sum())

    @property
    def tokens_per_step(self) -> float:
        return self.num_emitted / self.num_steps if self.num_steps else 0.0

    @property
    def hot_hit_rate(self) -> float | None:
        """Share of emitted tokens that lie in the hot vocabulary."""
        return None if self.num_hot is None or not self.num_emitted else self.num_hot / self.num_emitted

    @property
    def accepted_by_depth(self) -> list[float]:
        """For each depth, the share of the steps that drafted so deep in which a draft token of that depth was kept."""
        accepted = self._accepted + [0] * (len(self._reached) - len(self._accepted))
        return [kept / reached for kept, reached in zip(accepted, self._reached, strict=True)]

    @property
    def ttft_s(self) -> float | None:
        """Seconds from adding the request to its first token."""
        return None if self.first_token_s is None else self.first_token_s - self.start_s

    @property
    def decode_s(self) -> float:
        if self.first_token_s is None or self.last_token_s is None:
            return 0.0
        return self.last_token_s - self.first_token_s

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Tokens after the first step's, per second since then; None when there are none."""
        num_decoded = self.num_emitted - self.num_first_emitted
        return num_decoded / self.decode_s if num_decoded and self.decode_s > 0 else None
