"""Which draft tokens survive: the path along which the drafter guessed what the target chose.

The rule is the same for greedy and for sampled requests. The target has made its own choice after every node (`choose.py`); a draft token
is accepted exactly when it is that choice. What is emitted is therefore what plain decoding emits, whatever was drafted.
"""

from __future__ import annotations

from collections.abc import Sequence

from hothead.records import ROOT, TokenTree, Verdict


def accept(tree: TokenTree, root_choice: int, node_choices: Sequence[int]) -> Verdict:
    """Follow the target's choices from the root for as long as the tree holds them.

    root_choice: the target's choice after the last committed token. node_choices: [T], its choice after each node.
    The emitted tokens are the accepted path and the choice after its end, the bonus token. Of equal siblings the first one counts.
    """
    assert len(node_choices) == len(tree), (len(node_choices), len(tree))
    child_of: dict[tuple[int, int], int] = {}
    for node, (parent, token_id) in enumerate(zip(tree.parents.tolist(), tree.token_ids.tolist(), strict=True)):
        child_of.setdefault((parent, token_id), node)
    accepted: list[int] = []
    emitted = [int(root_choice)]
    next_node = child_of.get((ROOT, emitted[-1]))
    while next_node is not None:
        accepted.append(next_node)
        emitted.append(int(node_choices[next_node]))
        next_node = child_of.get((next_node, emitted[-1]))
    return Verdict(tuple(accepted), tuple(emitted))


def accept_batch(trees: Sequence[TokenTree], choices: Sequence[int]) -> list[Verdict]:
    """One verdict per tree. choices: flat, for each tree its root's choice followed by its nodes' choices, T + 1 numbers."""
    num_expected = sum(len(tree) + 1 for tree in trees)
    assert len(choices) == num_expected, (len(choices), num_expected)
    verdicts = []
    start = 0
    for tree in trees:
        stop = start + 1 + len(tree)
        verdicts.append(accept(tree, choices[start], choices[start + 1 : stop]))
        start = stop
    return verdicts
