from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hothead.draft.base import TreeShape
from hothead.draft.growth import TreeGrowth


def level(*rows: list[float]) -> np.ndarray:
    return np.log(np.asarray(rows, np.float32))


def test_the_best_nodes_are_expanded_and_kept() -> None:
    growth = TreeGrowth(TreeShape(3, 2, 5), level([0.6, 0.3])[0], np.asarray([10, 11]))
    token_ids, feeding, visible = growth.expand()
    assert token_ids.tolist() == [10, 11]
    assert feeding.tolist() == [-1, -1]
    assert visible.tolist() == [[True, False], [False, True]]
    growth.add(level([0.5, 0.4], [0.9, 0.1]), np.asarray([[20, 21], [22, 23]]))  # values 0.3, 0.24, 0.27, 0.03
    token_ids, feeding, visible = growth.expand()
    assert token_ids.tolist() == [20, 22]
    assert feeding.tolist() == [0, 1]
    assert visible.tolist() == [[True, False, True, False], [False, True, False, True]]
    growth.add(level([0.8, 0.1], [0.2, 0.1]), np.asarray([[30, 31], [32, 33]]))  # values 0.24, 0.03, 0.054, 0.027
    tree = growth.tree(10)
    assert tree.token_ids.tolist() == [10, 11, 20, 22]
    assert tree.parents.tolist() == [-1, -1, 0, 1]


def test_a_limit_on_nodes_keeps_the_best() -> None:
    growth = TreeGrowth(TreeShape(2, 2, 6), level([0.6, 0.3])[0], np.asarray([10, 11]))
    growth.expand()
    growth.add(level([0.9, 0.1], [0.9, 0.1]), np.asarray([[20, 21], [22, 23]]))
    assert growth.tree(2).token_ids.tolist() == [10, 20]
    assert growth.tree(0).token_ids.tolist() == []


def test_impossible_tokens_are_not_drafted() -> None:
    growth = TreeGrowth(TreeShape(1, 3, 4), np.asarray([-0.1, -np.inf, -np.inf], np.float32), np.asarray([10, 11, 12]))
    assert growth.tree(3).token_ids.tolist() == [10]


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_every_tree_is_a_tree_of_its_best_nodes(num_steps: int, topk: int, num_nodes: int, seed: int) -> None:
    """Parents come first, no node is without its parent, and no dropped node is better than a kept one."""
    random = np.random.default_rng(seed)

    def candidates(num_rows: int) -> tuple[np.ndarray, np.ndarray]:
        probabilities = random.dirichlet(np.ones(topk + 2), num_rows)[:, :topk]
        order = np.argsort(-probabilities, axis=1)
        token_ids = np.stack([random.permutation(50)[:topk] for _ in range(num_rows)])
        return np.log(np.take_along_axis(probabilities, order, 1)).astype(np.float32), token_ids.astype(np.int64)

    log_probs, token_ids = candidates(1)
    growth = TreeGrowth(TreeShape(num_steps, topk, num_nodes + 1), log_probs[0], token_ids[0])
    for _ in range(num_steps - 1):
        expanded, _, visible = growth.expand()
        assert visible.shape[0] == len(expanded) == topk
        growth.add(*candidates(len(expanded)))
    tree = growth.tree(num_nodes)
    values = np.sort(np.concatenate(growth._values))[::-1]
    assert len(tree) == min(num_nodes, len(values))
    assert (tree.parents < np.arange(len(tree))).all()
    assert tree.depths.max(initial=0) <= num_steps
    for siblings in {int(parent) for parent in tree.parents}:
        tokens = tree.token_ids[tree.parents == siblings].tolist()
        assert len(tokens) == len(set(tokens))
