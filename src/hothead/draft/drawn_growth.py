"""How a tree of drawn tokens grows, for the rejection rule: which draft tokens are kept must not depend on what they are.

A ranking by the tokens' own probabilities, as `growth.py` does it, would keep the probable ones among those drawn and bend what is emitted.
Here a place among siblings is kept or dropped before its token is looked at: by the chance that its parent is reached, times the chance
that all siblings drawn before it are rejected. The best topk places of a level are kept, until the tree is full. What outranks a place is
then decided by other tokens than its own, so each kept token is a draw from what its law has left, as the rule asks for.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hothead.draft.base import TreeShape
from hothead.draft.growth import TreeGrowth
from hothead.records import EMPTY_TREE, ROOT, TokenTree

LEAST_KEPT = 0.7
"""A token that was drawn is taken to be kept with at least this probability, however improbable it was: the rule compares p with q, not p
with other tokens."""

MIN_PLACE = 1e-3
"""A place that is needed less often than this is not worth a node. Far above rounding, so that ranks and machines agree."""


class DrawnGrowth(TreeGrowth):
    """One request's tree of drawn tokens. Candidates come in the order in which they were drawn; a node's value is the log of the chance
    that its path is kept."""

    def __init__(self, shape: TreeShape, log_probs: NDArray[np.floating], token_ids: NDArray[np.int64], max_nodes: int) -> None:
        """log_probs, token_ids: [K], the root's draws. max_nodes: draft tokens of the tree at most."""
        self._kept: list[int] = []
        self._kept_of_level: set[int] = set()
        self._num_left = min(max_nodes, shape.num_nodes)
        self._places, values = _chances(log_probs[None])
        super().__init__(shape, values[0], token_ids)

    def add(self, log_probs: NDArray[np.floating], token_ids: NDArray[np.int64]) -> None:
        needed, values = _chances(log_probs)
        is_open = [node in self._kept_of_level for node in self.frontier.tolist()]
        self._places = np.where(np.asarray(is_open)[:, None], np.concatenate(self._values)[self.frontier][:, None] + needed, -np.inf)
        super().add(values, token_ids)

    def tree(self, num_nodes: int) -> TokenTree:
        """The kept nodes, parents first; num_nodes is what the growth began with."""
        if not self._kept:
            return EMPTY_TREE
        index_of = {ROOT: ROOT} | {node: index for index, node in enumerate(self._kept)}
        parents = [index_of[int(parent)] for parent in np.concatenate(self._parents)[self._kept]]
        return TokenTree(np.concatenate(self._token_ids)[self._kept], np.asarray(parents, np.int64))

    def law_of_parent(self) -> NDArray[np.int64]:
        """[T + 1]: the draw from which the children of the root and of each node come; 0 is the root's, 1 + e that of expansion e."""
        return np.asarray([0, *(1 + self._expansion_of_node.get(node, ROOT) for node in self._kept)], np.int64)

    @property
    def frontier_mass(self) -> float:
        """The chance that the text runs through a kept node of the frontier; 0 where the tree is full."""
        kept = [node for node in self.frontier.tolist() if node in self._kept_of_level]
        return float(np.exp(np.concatenate(self._values)[kept]).sum()) if self._num_left else 0.0

    def _choose_frontier(self, first: int) -> None:
        """Keep this level's best places, and expand the kept nodes; others fill up the frontier, so that all requests' are equally wide."""
        # Equal chances are common; rounded, they go to the first one on every rank and machine.
        places, values = self._places.reshape(-1).round(6), self._values[-1].round(6)
        num_kept = min(self.shape.topk, self._num_left, int((places > math.log(MIN_PLACE)).sum()))
        kept = np.sort(np.argsort(-places, kind="stable")[:num_kept])
        self._kept_of_level = set((first + kept).tolist())
        self._kept += (first + kept).tolist()
        self._num_left -= num_kept
        is_kept = np.zeros(len(places), bool)
        is_kept[kept] = True
        order = np.lexsort((-values, ~is_kept))
        self.frontier = first + np.sort(order[: self.shape.topk])


def _chances(log_probs: NDArray[np.floating]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Draws of some laws [F, K] -> logs of the chance that each is needed, since those before it were rejected, and that it is kept
    then."""
    shares = np.exp(log_probs.astype(np.float64))
    left = np.clip(1.0 - (np.cumsum(shares, axis=1) - shares), 1e-9, 1.0)
    kept = np.clip(shares / left, LEAST_KEPT, 1.0 - 1e-9)
    rejected = np.cumsum(np.log1p(-kept), axis=1)
    needed = np.concatenate([np.zeros((len(kept), 1)), rejected[:, :-1]], axis=1)
    return needed, np.where(np.isfinite(log_probs), needed + np.log(kept), -np.inf)
