"""The rejection rule emits the target's distribution, whatever the draft law, the hot vocabulary and the tree: chi-square at fixed seeds.

A correct rule fails a check for about one choice of seeds in 10^6 (P_VALUE).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from hothead.config.sampling import SamplingParams
from hothead.draft.base import TreeShape
from hothead.draft.growth import TreeGrowth
from hothead.draft.tree_drafter import TreeDrafter
from hothead.parallel.full_head import ShardedLogits
from hothead.parallel.groups import SingleRank
from hothead.parallel.hot_head import HotHead
from hothead.parallel.partition import VocabShards
from hothead.records import ROOT, BatchRow, TokenTree, Verdict
from hothead.verify.filters import probabilities
from hothead.verify.noise import gumbel, uniform
from hothead.verify.rejection import draft_seed, reject, try_siblings

P_VALUE = 1e-6
NUM_DRAWS = 100_000
NUM_REQUESTS = 8_000
V = 12
HOT = np.array([7, 0, 3, 10, 5, 1], np.int64)  # most frequent first; six tokens cannot be drafted at all
PROMPT = [4, 2]
GROUP = SingleRank()


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def check_law(tokens: NDArray[np.int64], shares: NDArray[np.float64]) -> None:
    counts = np.bincount(tokens, minlength=len(shares))
    expected = shares * len(tokens)
    possible = expected > 0
    assert counts[~possible].sum() == 0
    assert expected[possible].min() >= 5, "too few draws for this distribution"
    if possible.sum() == 1:
        return
    result = stats.chisquare(counts[possible], expected[possible] * (counts.sum() / expected.sum()))
    assert result.pvalue > P_VALUE, (result, counts / len(tokens), shares)


PAIRS = {
    "three in five": ([0.6, 0.3, 0.1], [0.2, 0.3, 0.5]),  # came out at 63 % elsewhere
    "a fifth": ([0.2, 0.5, 0.3], [0.1, 0.1, 0.8]),  # came out at 29 % elsewhere
    "equal": ([0.5, 0.25, 0.25], [0.5, 0.25, 0.25]),
    "mass outside": ([0.1, 0.2, 0.1], [0.5, 0.3, 0.2]),
    "none inside": ([0.0, 0.0, 0.0], [0.4, 0.3, 0.3]),
    "impossible tokens": ([0.0, 0.9, 0.0], [0.6, 0.0, 0.4]),
}


@pytest.mark.case(20, 36)
@pytest.mark.parametrize("num_siblings", [1, 2, 3])
@pytest.mark.parametrize("name", PAIRS)
def test_siblings_leave_the_target_law(name: str, num_siblings: int) -> None:
    """p over three hot tokens and one that is not; 1e5 draws with the noise that the engine uses."""
    p, q = (np.asarray(one, np.float32) for one in PAIRS[name])
    rest = 1.0 - float(p.sum(dtype=np.float64))
    num_siblings = min(num_siblings, int((q > 0).sum()))
    with np.errstate(divide="ignore"):
        perturbed = torch.from_numpy(np.log(q)) + gumbel([draft_seed(1, 0, 0)] * NUM_DRAWS, range(NUM_DRAWS), torch.arange(3))
    drawn = perturbed.topk(num_siblings).indices.tolist()
    points = np.random.default_rng(5).random(NUM_DRAWS)
    tokens = np.empty(NUM_DRAWS, np.int64)
    for index in range(NUM_DRAWS):
        uniforms = [uniform(100 + number, index) for number in range(num_siblings)]
        kept, residual, factor = try_siblings(p, q, drawn[index], uniforms)
        if kept is not None:
            tokens[index] = drawn[index][kept]
        else:
            assert residual is not None
            left = np.append(residual, factor * max(0.0, rest)).cumsum(dtype=np.float64)
            tokens[index] = np.searchsorted(left / left[-1], points[index], side="right")
    check_law(tokens, np.append(p.astype(np.float64), max(0.0, rest) if rest > 1e-6 else 0.0))


def target_logits(text: list[int]) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng([3, *text]).normal(0.0, 1.2, V)).float()


def draft_logits(text: list[int], closeness: float) -> torch.Tensor:
    """Of the hot tokens: a noisy copy of the target's, to the power of closeness."""
    return (
        closeness * target_logits(text)[torch.from_numpy(HOT)]
        + torch.from_numpy(np.random.default_rng([8, *text]).normal(0.0, 0.7, len(HOT))).float()
    )


def hot_head() -> HotHead:
    """Whose rows copy the hidden state: what is given as hidden are the logits."""
    return HotHead.build(lambda token_ids: torch.eye(len(HOT))[[HOT.tolist().index(one) for one in token_ids]], HOT, GROUP, "balanced", V)


class LawDrafter(TreeDrafter):
    """The drafters' own growth over a network that knows its text: what it gives for a node are the draft logits after it."""

    def __init__(self, shape: TreeShape, closeness: float) -> None:
        super().__init__(hot_head(), shape, torch.device("cpu"), torch.float32, HOT)
        self.draws = True
        self.logits_after = cache(lambda text: draft_logits(list(text), closeness))

    def draft(self, rows: list[BatchRow]) -> list[TokenTree]:
        return self._grow(rows, torch.stack([self.logits_after(tuple(row.token_ids.tolist())) for row in rows]))

    def _expand(self, rows: list[BatchRow], growths: list[TreeGrowth], outputs: torch.Tensor, depth: int) -> torch.Tensor:
        texts = []
        for row, growth in zip(rows, growths, strict=True):
            growth.expand()
            parents, token_ids = np.concatenate(growth._parents).tolist(), np.concatenate(growth._token_ids).tolist()
            for node in growth.frontier.tolist():
                path: list[int] = []
                while node != ROOT:
                    path.insert(0, token_ids[node])
                    node = parents[node]
                texts.append((*row.token_ids.tolist(), *path))
        return torch.stack([self.logits_after(text) for text in texts]).view(len(rows), -1, len(HOT))

    def _num_prefix(self, row: BatchRow) -> int:
        raise NotImplementedError

    _run = propose = observe = forget = _num_prefix  # type: ignore[assignment]


def row_of(seed: int, max_draft_tokens: int, sampling: SamplingParams) -> BatchRow:
    return BatchRow(str(seed), np.asarray(PROMPT), 0, len(PROMPT), np.arange(40), max_draft_tokens, sampling, seed)


def verdicts(num_requests: int, shape: TreeShape, sampling: SamplingParams) -> list[Verdict]:
    """One step of many requests that differ in their seed only."""
    drafter = LawDrafter(shape, closeness=1.0)
    logits_after = cache(lambda text: target_logits(list(text)))
    result = []
    for start in range(0, num_requests, 1000):
        rows = [row_of(seed, shape.num_nodes, sampling) for seed in range(start, min(start + 1000, num_requests))]
        trees = drafter.draft(rows)
        logits = []
        for tree in trees:
            texts = {ROOT: tuple(PROMPT)}
            for node, (parent, token_id) in enumerate(zip(tree.parents.tolist(), tree.token_ids.tolist(), strict=True)):
                texts[node] = (*texts[parent], token_id)
            logits += [logits_after(text) for text in texts.values()]
        sharded = ShardedLogits(torch.stack(logits), VocabShards(V), GROUP)
        result += reject(sharded, rows, trees, [drafter.proposals[row.request_id] for row in rows])
    return result


SHAPES = {"chain of 2": TreeShape(2, 1, 3), "tree of 3 x 2": TreeShape(2, 3, 6), "cut tree": TreeShape(3, 2, 5)}
SAMPLINGS = {"temperature": SamplingParams(temperature=0.8), "filtered": SamplingParams(temperature=1.1, top_k=7, min_p=0.03)}


@pytest.mark.case(20, 21)
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", SHAPES)
def test_steps_leave_the_target_law(name: str, sampling: str) -> None:
    """The first token, and the second one where a step emits two, with the growth's own choice of which draws to keep."""
    params = SAMPLINGS[sampling]
    emitted = [verdict.token_ids for verdict in verdicts(NUM_REQUESTS, SHAPES[name], params)]
    first = probabilities(target_logits(PROMPT).unsqueeze(0), [params])[0].double().numpy()
    check_law(np.asarray([token_ids[0] for token_ids in emitted]), first)
    common = max(HOT.tolist(), key=lambda token_id: float(first[token_id]))
    seconds = np.asarray([token_ids[1] for token_ids in emitted if token_ids[0] == common and len(token_ids) > 1])
    second = probabilities(target_logits([*PROMPT, common]).unsqueeze(0), [params])[0].double().numpy()
    assert len(seconds) > 1000
    check_law(seconds, second)


@pytest.mark.case(20, 21)
def test_what_the_growth_keeps_does_not_depend_on_the_tokens_drawn() -> None:
    """A ranking of draws by their own probability would show here: the second draw of the root is kept in some trees and not in others."""
    shape = TreeShape(2, 2, 3)
    drafter = LawDrafter(shape, closeness=0.7)
    rows = [row_of(seed, 1, SamplingParams(temperature=1.0)) for seed in range(NUM_REQUESTS)]
    trees = drafter.draft(rows)
    assert all(len(tree) == 1 for tree in trees)
    law = torch.softmax(draft_logits(PROMPT, 0.7), 0).double().numpy()
    shares = np.zeros(V)
    shares[HOT] = law
    check_law(np.asarray([int(tree.token_ids[0]) for tree in trees]), shares)


@pytest.mark.parametrize("max_draft_tokens", [1, 2, 3, 5])
def test_a_tree_is_as_large_as_asked(max_draft_tokens: int) -> None:
    drafter = LawDrafter(TreeShape(2, 3, 6), closeness=1.0)
    (tree,) = drafter.draft([row_of(5, max_draft_tokens, SamplingParams(temperature=1.0))])
    assert len(tree) == max_draft_tokens
    assert len(drafter.proposals["5"].law_of_parent) == len(tree) + 1


def test_a_draft_law_that_is_the_target_law_is_always_kept() -> None:
    p = np.asarray([0.5, 0.3, 0.2], np.float32)
    for index in range(3):
        assert try_siblings(p, p, [index], [1 - 2.0**-30])[0] == 0
