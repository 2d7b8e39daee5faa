"""Which KV slots belong to which request: blocks handed out, grown, compacted after a verify step, taken back."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hothead.models.attention import KVPool
from hothead.records import Batch, TokenTree, Verdict


class KVCache:
    """Block tables over one pool of KV slots. Slot = block * block_size + offset; a request's position i lies in its i-th slot."""

    def __init__(self, pool: KVPool, block_size: int) -> None:
        self.pool = pool
        self.block_size = block_size
        self.num_blocks = pool.num_slots // block_size
        self._free = list(range(self.num_blocks))  # a heap: low blocks first, so that one request's slots are consecutive when they can be
        self._blocks: dict[str, list[int]] = {}
        self._slots: dict[str, NDArray[np.int64]] = {}

    @property
    def num_free_blocks(self) -> int:
        return len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def reserve(self, request_id: str, num_tokens: int) -> bool:
        """Make room for positions 0..num_tokens-1. False, and nothing changed, when there are too few free blocks."""
        blocks = self._blocks.get(request_id, [])
        num_missing = self.blocks_for(num_tokens) - len(blocks)
        if num_missing > len(self._free):
            return False
        if num_missing > 0:
            blocks = [*blocks, *(heapq.heappop(self._free) for _ in range(num_missing))]
            self._blocks[request_id] = blocks
            firsts = np.asarray(blocks, np.int64) * self.block_size
            self._slots[request_id] = (firsts[:, None] + np.arange(self.block_size)).reshape(-1)
        return True

    def slots(self, request_id: str) -> NDArray[np.int64]:
        """Slots of all positions that are reserved."""
        return self._slots[request_id]

    def commit(self, batch: Batch, trees: Sequence[TokenTree], verdicts: Sequence[Verdict]) -> None:
        """Move the keys and values of accepted nodes to the slots of their positions. Rejected nodes' slots are written over later."""
        sources: list[int] = []
        targets: list[int] = []
        for row, verdict in zip(batch, verdicts, strict=True):
            for offset, node in enumerate(verdict.accepted_nodes):
                if node != offset:
                    sources.append(int(row.slots[row.num_computed + node]))
                    targets.append(int(row.slots[row.num_computed + offset]))
        if sources:
            self.pool.move(np.asarray(sources, np.int64), np.asarray(targets, np.int64))

    def free(self, request_id: str) -> None:
        """Give back a request's blocks; unknown requests have none."""
        for block in self._blocks.pop(request_id, ()):
            heapq.heappush(self._free, block)
        self._slots.pop(request_id, None)

    def check_integrity(self) -> None:
        """Every block is free or has exactly one owner. Raises AssertionError with the numbers."""
        owned = [block for blocks in self._blocks.values() for block in blocks]
        everything = sorted(owned + self._free)
        assert everything == list(range(self.num_blocks)), (len(owned), len(self._free), self.num_blocks)
        for request_id, blocks in self._blocks.items():
            num_slots = len(self._slots.get(request_id, ()))
            assert num_slots == len(blocks) * self.block_size, (request_id, num_slots, len(blocks))
