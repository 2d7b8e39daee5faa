"""NGRAM: drafts what followed the same last tokens earlier in the request. No weights, no head. After prompt lookup decoding (Saxena,
2023)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from hothead.draft.base import TreeShape
from hothead.records import EMPTY_TREE, ROOT, Batch, TokenTree, Verdict
from hothead.verify.rejection import Proposal

MAX_NGRAM = 4
"""Longest suffix that is looked up; longer matches come first."""
MIN_NGRAM = 2
"""Shortest one: a single token recurs everywhere and says little."""


class NgramDrafter:
    """Looks up the request's last tokens in its own text; topk > 1 follows that many earlier places and merges them into a tree."""

    def __init__(self, shape: TreeShape) -> None:
        self.shape = shape
        self.num_scratch_slots = shape.num_nodes
        self.hot_token_ids: NDArray[np.int64] | None = None
        self.head_s = 0.0
        self.draws = False
        self.proposals: dict[str, Proposal] = {}
        self._indexes: dict[str, NgramIndex] = {}

    def propose(self, batch: Batch) -> list[TokenTree]:
        trees = []
        for row in batch:
            num_nodes = min(row.max_draft_tokens, self.shape.num_nodes)
            if num_nodes == 0:
                trees.append(EMPTY_TREE)
                continue
            index = self._indexes.setdefault(row.request_id, NgramIndex())
            index.extend(row.token_ids)
            continuations = index.continuations(row.token_ids, self.shape.topk, self.shape.num_steps)
            trees.append(merge(continuations, num_nodes))
        return trees

    def observe(self, batch: Batch, trees: Sequence[TokenTree], verdicts: Sequence[Verdict], hidden: torch.Tensor) -> None:
        pass

    def forget(self, request_id: str) -> None:
        self._indexes.pop(request_id, None)


class NgramIndex:
    """Where each n-gram of one text occurred, kept up to date as the text grows."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, ...], list[int]] = defaultdict(list)  # n-gram -> positions of the token after it
        self._num_indexed = 0

    def extend(self, token_ids: NDArray[np.int64]) -> None:
        """Index every n-gram that has a token after it; the text's own suffix is thus not in it."""
        tokens = token_ids.tolist()
        for end in range(max(self._num_indexed, MIN_NGRAM), len(tokens)):
            for length in range(MIN_NGRAM, min(MAX_NGRAM, end) + 1):
                self._ends[tuple(tokens[end - length : end])].append(end)
        self._num_indexed = max(self._num_indexed, len(tokens))

    def continuations(self, token_ids: NDArray[np.int64], num_places: int, num_tokens: int) -> list[list[int]]:
        """What followed the longest matching suffix, newest place first."""
        tokens = token_ids.tolist()
        found: list[list[int]] = []
        for length in range(min(MAX_NGRAM, len(tokens)), MIN_NGRAM - 1, -1):
            for end in reversed(self._ends.get(tuple(tokens[-length:]), ())):
                continuation = tokens[end : end + num_tokens]
                if continuation not in found:
                    found.append(continuation)
                if len(found) == num_places:
                    return found
        return found


def merge(continuations: Sequence[Sequence[int]], num_nodes: int) -> TokenTree:
    """Continuations as one tree in which equal beginnings share nodes; the first ones get their nodes first."""
    token_ids: list[int] = []
    parents: list[int] = []
    node_of: dict[tuple[int, int], int] = {}
    for continuation in continuations:
        parent = ROOT
        for token_id in continuation:
            if (parent, token_id) not in node_of:
                if len(token_ids) == num_nodes:
                    break
                node_of[parent, token_id] = len(token_ids)
                token_ids.append(token_id)
                parents.append(parent)
            parent = node_of[parent, token_id]
    return TokenTree(np.asarray(token_ids, np.int64), np.asarray(parents, np.int64))
