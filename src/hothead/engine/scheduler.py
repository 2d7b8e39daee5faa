"""Who runs in the next step, and how many tokens each: admission, chunked prefill, preemption."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass

from hothead.engine.kv_cache import KVCache
from hothead.engine.sequence import Sequence
from hothead.records import Batch, BatchRow, Request, Verdict


@dataclass(frozen=True, slots=True)
class RowOutput:
    """What one step committed for one request."""

    request_id: str
    token_ids: tuple[int, ...]
    finish_reason: str | None


class Scheduler:
    """First come, first served. Running requests keep their place; the newest gives way when blocks run out and is computed again later."""

    def __init__(
        self,
        cache: KVCache,
        *,
        max_concurrency: int,
        max_prefill_tokens: int,
        context_length: int,
        max_tree_nodes: int,
        num_scratch_slots: int,
        eos_token_ids: frozenset[int],
        forget: Callable[[str], None],
    ) -> None:
        """max_prefill_tokens: prompt tokens per step, all requests together. num_scratch_slots: slots behind the last committed token
        that a draft or a tree may use. forget: told about every request that leaves the cache."""
        self.cache = cache
        self.max_concurrency = max_concurrency
        self.max_prefill_tokens = max_prefill_tokens
        self.context_length = context_length
        self.max_tree_nodes = max_tree_nodes
        self.num_scratch_slots = num_scratch_slots
        self.eos_token_ids = eos_token_ids
        self.num_preemptions = 0
        self._forget = forget
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    @property
    def max_request_tokens(self) -> int:
        """Prompt and new tokens that one request can have: the context's end, or all that the cache holds."""
        return min(self.context_length, self.cache.num_blocks * self.cache.block_size - self.num_scratch_slots)

    def add(self, request: Request) -> None:
        """The prompt has at most `max_request_tokens` - 1 tokens and the sampling a seed; who calls has seen to both."""
        assert 0 < len(request.prompt_token_ids) < self.max_request_tokens, (len(request.prompt_token_ids), self.max_request_tokens)
        self._waiting.append(Sequence(request, self.max_request_tokens))

    def finish(self, request_id: str) -> None:
        """End a request now, waiting or running. Unknown ones (ended already) are fine."""
        self._waiting = deque(sequence for sequence in self._waiting if sequence.request_id != request_id)
        for sequence in [sequence for sequence in self._running if sequence.request_id == request_id]:
            self._release(sequence)

    def next_batch(self) -> Batch:
        """Rows in order of arrival. Empty only when there is no work."""
        self._admit()
        budget = self.max_prefill_tokens
        rows: list[BatchRow] = []
        for sequence in list(self._running):
            if sequence not in self._running:
                continue  # preempted by an older one in this loop
            num_new = min(sequence.num_pending, max(budget, 1)) if sequence.num_pending > 1 else 1
            if sequence.num_pending > 1:
                if budget <= 0:
                    continue
                budget -= num_new
            if self._make_room(sequence, sequence.num_cached + num_new + self.num_scratch_slots):
                rows.append(self._row(sequence, num_new))
        return tuple(rows)

    def finish_step(self, batch: Batch, verdicts: Items[Verdict]) -> list[RowOutput]:
        """Commit what was emitted; requests that reached their end leave."""
        sequences = {sequence.request_id: sequence for sequence in self._running}
        outputs = []
        for row, verdict in zip(batch, verdicts, strict=True):
            sequence = sequences[row.request_id]
            sequence.num_cached = row.num_computed + len(verdict.accepted_nodes)
            if not verdict.token_ids:
                continue
            committed = sequence.append(verdict.token_ids, self._end_token_ids(sequence))
            outputs.append(RowOutput(row.request_id, committed, sequence.finish_reason))
            if sequence.finish_reason is not None:
                self._release(sequence)
        return outputs

    def _end_token_ids(self, sequence: Sequence) -> frozenset[int]:
        sampling = sequence.request.sampling
        own = frozenset(sampling.stop_token_ids)
        return own if sampling.ignore_eos else own | self.eos_token_ids

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self.max_concurrency:
            sequence = self._waiting[0]
            # Room for the whole prompt: a request that is admitted by halves would only be preempted again.
            if not self.cache.reserve(sequence.request_id, len(sequence.token_ids) + self.num_scratch_slots):
                return
            self._running.append(self._waiting.popleft())

    def _make_room(self, sequence: Sequence, num_tokens: int) -> bool:
        """Reserve slots, sending the newest requests back to wait while blocks are short. False if this one had to go itself."""
        while not self.cache.reserve(sequence.request_id, num_tokens):
            victim = self._running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        self._release(sequence)
        sequence.num_cached = 0
        self._waiting.appendleft(sequence)

    def _release(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self.cache.free(sequence.request_id)
        self._forget(sequence.request_id)

    def _row(self, sequence: Sequence, num_new: int) -> BatchRow:
        is_scored = num_new == sequence.num_pending
        return BatchRow(
            request_id=sequence.request_id,
            token_ids=sequence.token_ids,
            num_cached=sequence.num_cached,
            num_new=num_new,
            slots=self.cache.slots(sequence.request_id),
            # The last token comes from the target itself, so a draft is at most one shorter than what may still be emitted.
            max_draft_tokens=min(self.max_tree_nodes, sequence.num_remaining - 1) if is_scored else 0,
            sampling=sequence.request.sampling,
            seed=sequence.seed,
        )
