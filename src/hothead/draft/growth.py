"""How a draft tree grows: the best nodes of each level are expanded, the best of all are kept.

After EAGLE-2 (arXiv 2406.16858), section 4: a node's value is the sum of the log-probabilities along its path; each level expands the
topk nodes of the highest value, and the tree that is verified holds the nodes of the highest value overall. A child's value is never
above its parent's, so the kept nodes form a tree.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hothead.draft.base import TreeShape
from hothead.records import EMPTY_TREE, ROOT, TokenTree


class TreeGrowth:
    """One request's tree while it grows. Nodes are numbered in the order in which they were added; so are expansions."""

    def __init__(self, shape: TreeShape, log_probs: NDArray[np.floating], token_ids: NDArray[np.int64]) -> None:
        """log_probs, token_ids: [K], the root's candidates, best first."""
        self.shape = shape
        num_nodes = len(token_ids)
        self._token_ids = [token_ids]
        self._values = [log_probs.astype(np.float64)]
        self._parents = [np.full(num_nodes, ROOT, np.int64)]
        self._num_nodes = num_nodes
        self._choose_frontier(0)
        self._expansion_parents: list[int] = []  # expansion whose output feeds each expansion; ROOT for the first level
        self._expansion_of_node: dict[int, int] = {}

    def expand(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """The frontier's nodes to run through the draft network.

        -> token_ids [F]; feeding expansions [F] (whose output is the node's feature, ROOT for the request's last observed one);
        visible [F, E] bool, which of all E expansions so far, these included, each one sees.
        """
        nodes = self.frontier
        parents = np.concatenate(self._parents)[nodes]
        feeding = np.asarray([self._expansion_of_node.get(parent, ROOT) for parent in parents.tolist()], np.int64)
        for node, feed in zip(nodes.tolist(), feeding.tolist(), strict=True):
            self._expansion_of_node[node] = len(self._expansion_parents)
            self._expansion_parents.append(feed)
        visible = np.zeros((len(nodes), len(self._expansion_parents)), bool)
        for row, node in enumerate(nodes.tolist()):
            expansion = self._expansion_of_node[node]
            while expansion != ROOT:
                visible[row, expansion] = True
                expansion = self._expansion_parents[expansion]
        return np.concatenate(self._token_ids)[nodes], feeding, visible

    def add(self, log_probs: NDArray[np.floating], token_ids: NDArray[np.int64]) -> None:
        """log_probs, token_ids: [F, K], the frontier's candidates; the best of them become the next frontier."""
        values = np.concatenate(self._values)[self.frontier][:, None] + log_probs.astype(np.float64)
        first = self._num_nodes
        self._token_ids.append(token_ids.reshape(-1))
        self._values.append(values.reshape(-1))
        self._parents.append(np.repeat(self.frontier, token_ids.shape[1]))
        self._num_nodes += token_ids.size
        self._choose_frontier(first)

    def tree(self, num_nodes: int) -> TokenTree:
        """The best nodes as a tree, parents first."""
        values = np.concatenate(self._values)
        kept = np.argsort(-values, kind="stable")[: min(num_nodes, self.shape.num_nodes)]
        kept = np.sort(kept[np.isfinite(values[kept])])
        if not len(kept):
            return EMPTY_TREE
        index_of = {ROOT: ROOT} | {int(node): index for index, node in enumerate(kept)}
        parents = [index_of[int(parent)] for parent in np.concatenate(self._parents)[kept]]
        return TokenTree(np.concatenate(self._token_ids)[kept], np.asarray(parents, np.int64))

    @property
    def frontier_mass(self) -> float:
        """Probability, by the drafter's own account, that the target's text runs through one of the frontier's nodes."""
        return float(np.exp(np.concatenate(self._values)[self.frontier]).sum())

    def _choose_frontier(self, first: int) -> None:
        values = np.concatenate(self._values)[first:]
        best = np.argsort(-values, kind="stable")[: self.shape.topk]
        self.frontier: NDArray[np.int64] = first + np.sort(best)
