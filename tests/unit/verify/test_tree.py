"""The walk along the target's choices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hothead.records import EMPTY_TREE, ROOT, TokenTree, Verdict, chain
from hothead.verify.tree import accept, accept_batch


def tree(token_ids: list[int], parents: list[int]) -> TokenTree:
    return TokenTree(np.asarray(token_ids, np.int64), np.asarray(parents, np.int64))


def test_empty_tree_is_plain_decoding() -> None:
    assert accept(EMPTY_TREE, 7, []) == Verdict((), (7,))


def test_chain() -> None:
    drafted = chain([10, 11, 12])
    assert accept(drafted, 9, [0, 0, 0]) == Verdict((), (9,))
    assert accept(drafted, 10, [5, 12, 13]) == Verdict((0,), (10, 5))
    assert accept(drafted, 10, [11, 5, 13]) == Verdict((0, 1), (10, 11, 5))
    assert accept(drafted, 10, [11, 12, 13]) == Verdict((0, 1, 2), (10, 11, 12, 13))


def test_a_later_match_does_not_count() -> None:
    # Node 1's token is what the target chose at the root, but it stands one level too deep.
    assert accept(chain([10, 11]), 11, [11, 12]) == Verdict((), (11,))


def test_tree() -> None:
    # root -> 10 (node 0), 20 (node 1); 10 -> 11 (2), 12 (3); 20 -> 11 (4); 12 -> 13 (5)
    drafted = tree([10, 20, 11, 12, 11, 13], [ROOT, ROOT, 0, 0, 1, 3])
    assert accept(drafted, 20, [0, 11, 0, 0, 99, 0]) == Verdict((1, 4), (20, 11, 99))
    assert accept(drafted, 10, [12, 0, 0, 13, 0, 14]) == Verdict((0, 3, 5), (10, 12, 13, 14))
    assert accept(drafted, 10, [11, 0, 8, 0, 0, 0]) == Verdict((0, 2), (10, 11, 8))
    assert accept(drafted, 30, [0] * 6) == Verdict((), (30,))


def test_of_equal_siblings_the_first_counts() -> None:
    drafted = tree([10, 10, 11, 12], [ROOT, ROOT, 0, 1])
    assert accept(drafted, 10, [11, 12, 50, 60]) == Verdict((0, 2), (10, 11, 50))


def test_choices_may_be_numpy_and_come_out_as_plain_integers() -> None:
    verdict = accept(chain([10, 11]), np.int64(10), np.asarray([11, 12]))  # type: ignore[arg-type]
    assert verdict == Verdict((0, 1), (10, 11, 12))
    assert all(type(number) is int for number in (*verdict.accepted_nodes, *verdict.token_ids))


def test_end_token_in_the_draft_is_a_token_like_any_other() -> None:
    # What ends a request is decided on the emitted tokens: drafted or not, the same tokens are emitted.
    end = 2
    assert accept(chain([10, end, 11]), 10, [end, 11, 12]).token_ids == (10, end, 11, 12)
    assert accept(chain([10, 11]), 10, [end, 12]).token_ids == (10, end)
    assert accept(EMPTY_TREE, end, []).token_ids == (end,)


def test_batch() -> None:
    trees = [chain([1, 2]), EMPTY_TREE, tree([5, 6], [ROOT, ROOT])]
    verdicts = accept_batch(trees, [1, 2, 3, 8, 6, 0, 7])
    assert verdicts == [Verdict((0, 1), (1, 2, 3)), Verdict((), (8,)), Verdict((1,), (6, 7))]
    assert accept_batch([], []) == []


@pytest.mark.parametrize("num_choices", [0, 2, 4])
def test_one_choice_per_node(num_choices: int) -> None:
    with pytest.raises(AssertionError):
        accept(chain([1, 2, 3]), 1, [0] * num_choices)
    with pytest.raises(AssertionError):
        accept_batch([chain([1, 2])], [0] * num_choices)


@st.composite
def random_trees(draw: st.DrawFn) -> TokenTree:
    num_nodes = draw(st.integers(0, 12))
    parents = [draw(st.integers(ROOT, node - 1)) for node in range(num_nodes)]
    token_ids = [draw(st.integers(0, 3)) for _ in range(num_nodes)]
    return tree(token_ids, parents)


@given(random_trees(), st.randoms(use_true_random=False))
def test_any_tree(drafted: TokenTree, random: object) -> None:
    """The accepted nodes are one path from the root, each node is its parent's choice, and it could not have gone on."""
    choices = [random.randrange(4) for _ in range(len(drafted) + 1)]  # type: ignore[attr-defined]
    verdict = accept(drafted, choices[0], choices[1:])
    assert len(verdict.token_ids) == len(verdict.accepted_nodes) + 1
    previous = ROOT
    for node, token_id in zip(verdict.accepted_nodes, verdict.token_ids, strict=False):
        assert drafted.parents[node] == previous
        assert drafted.token_ids[node] == token_id == choices[previous + 1]
        previous = node
    assert verdict.token_ids[-1] == choices[previous + 1]
    children = [int(token_id) for token_id, parent in zip(drafted.token_ids, drafted.parents, strict=True) if parent == previous]
    assert verdict.token_ids[-1] not in children
