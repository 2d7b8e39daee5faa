"""STANDALONE: a small model of the same vocabulary drafts, with its own head cut to the hot rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from hothead.draft.base import TreeShape
from hothead.draft.tree_drafter import TreeDrafter
from hothead.models.attention import AttentionPlan, AttentionRow
from hothead.models.decoder import Decoder
from hothead.parallel.hot_head import HotHead
from hothead.records import EMPTY_TREE, Batch, BatchRow, TokenTree, Verdict


class StandaloneDrafter(TreeDrafter):
    """Reads the same tokens as the target, into a pool of its own at the same slots. What was accepted is read again when the next draft
    begins: while it was a draft, its keys and values lay in scratch slots."""

    def __init__(
        self,
        decoder: Decoder,
        hot_head: HotHead,
        num_slots: int,
        max_context: int,
        shape: TreeShape,
        hot_token_ids: NDArray[np.int64] | None,
    ) -> None:
        """max_context: committed tokens up to which the draft model may draft. hot_token_ids: None where the head is not cut."""
        super().__init__(hot_head, shape, decoder.device, decoder.dtype, hot_token_ids)
        self.decoder = decoder
        self.max_context = max_context
        self.num_out_of_window = 0
        """Requests that outgrew the draft model's window."""
        self.pool = decoder.new_pool(num_slots)
        self._num_read: dict[str, int] = {}  # per request: committed tokens whose keys and values are in the pool
        self._outgrown: set[str] = set()

    def propose(self, batch: Batch) -> list[TokenTree]:
        trees = [EMPTY_TREE] * len(batch)
        reading = [(index, row) for index, row in enumerate(batch) if self._is_inside(row)]
        if not reading:
            return trees
        last = self._read([row for _, row in reading])
        ready = [place for place, (_, row) in enumerate(reading) if row.max_draft_tokens > 0]
        if ready:
            grown = self._grow([reading[place][1] for place in ready], last[torch.tensor(ready, device=self.device)])
            for place, tree in zip(ready, grown, strict=True):
                trees[reading[place][0]] = tree
        return trees

    def observe(self, batch: Batch, trees: Sequence[TokenTree], verdicts: Sequence[Verdict], hidden: torch.Tensor) -> None:
        """Nothing to learn: accepted tokens are read by the next `propose`."""

    def forget(self, request_id: str) -> None:
        self._num_read.pop(request_id, None)
        self._outgrown.discard(request_id)

    def _num_prefix(self, row: BatchRow) -> int:
        return len(row.token_ids)

    def _run(self, token_ids: torch.Tensor, features: torch.Tensor, positions: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
        return self.decoder.forward(token_ids, positions, plan, self.pool)

    def _is_inside(self, row: BatchRow) -> bool:
        """Whether the draft model's window holds the request; past it its guesses are worth nothing, and it goes on without a draft."""
        if row.num_computed <= self.max_context:
            return True
        if row.request_id not in self._outgrown:
            self._outgrown.add(row.request_id)
            self.num_out_of_window += 1
        return False

    def _read(self, rows: list[BatchRow]) -> torch.Tensor:
        """Committed tokens that are new, up to where the target computes in this step -> the output behind each row's last one, [B, D]."""
        pieces = []
        for row in rows:
            # The last token is read again where nothing is new, as after a step that was left: its output is needed.
            start = min(self._num_read.get(row.request_id, 0), row.num_computed - 1)
            positions = np.arange(start, row.num_computed, dtype=np.int64)
            pieces.append(AttentionRow(row.slots[: row.num_computed], start, len(positions), positions))
            self._num_read[row.request_id] = row.num_computed
        positions = np.concatenate([piece.positions for piece in pieces])
        token_ids = np.concatenate([row.token_ids[piece.positions] for row, piece in zip(rows, pieces, strict=True)])
        write_slots = np.concatenate([piece.slots[piece.positions] for piece in pieces])
        output = self._pass(token_ids, torch.empty(0, device=self.device), positions, pieces, write_slots)
        ends = np.cumsum([len(piece.positions) for piece in pieces]) - 1
        return output[torch.from_numpy(ends).to(self.device)]
