"""What is sampled is the target's distribution, and drafting changes nothing about it.

Statistical tests have fixed seeds, so they pass or fail for good. The limits are such that a correct sampler fails a check for about one
choice of seeds in 10^6: P_VALUE, or five standard deviations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from hothead.config.sampling import SamplingParams
from hothead.parallel.full_head import ShardedLogits
from hothead.parallel.groups import SingleRank
from hothead.parallel.partition import VocabShards
from hothead.records import ROOT, TokenTree
from hothead.verify.choose import ChoiceRow, choose_tokens, draft_noise
from hothead.verify.filters import filter_logits, probabilities
from hothead.verify.noise import gumbel
from hothead.verify.tree import accept

P_VALUE = 1e-6
NUM_DRAWS = 100_000

HEAVY_TAIL = np.geomspace(1.0, 1e-4 / 0.17, 50) / np.geomspace(1.0, 1e-4 / 0.17, 50).sum()
DISTRIBUTIONS = {
    "one in two": [0.5, 0.5],
    "three in five": [0.6, 0.4],  # the case that came out at 63 % elsewhere
    "nearly certain": [0.9995, 0.0003, 0.0002],
    "uniform over 40": [1 / 40] * 40,
    "heavy tail of 50, down to 1e-4": HEAVY_TAIL.tolist(),
    "some impossible": [0.25, 0.0, 0.5, 0.0, 0.25],
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small tensors: threads that wait for each other on a busy machine would be most of the time."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@cache
def noise_of(seed: int, num_positions: int = NUM_DRAWS, first_token_id: int = 0, stride: int = 1, num_tokens: int = 50) -> Tensor:
    """[positions, tokens], one seed."""
    return gumbel([seed] * num_positions, range(num_positions), first_token_id + stride * torch.arange(num_tokens))


def draws(shares: Sequence[float], noise: Tensor) -> Tensor:
    """One token per position.  noise: [N, at least V] -> [N]."""
    return (torch.tensor(shares, dtype=torch.float32).log() + noise[:, : len(shares)]).argmax(1)


def check_law(tokens: Tensor, shares: Sequence[float] | NDArray[np.float64]) -> None:
    counts = np.bincount(tokens.numpy(), minlength=len(shares))
    expected = np.asarray(shares, np.float64) * len(tokens)
    possible = expected > 0
    assert counts[~possible].sum() == 0
    assert expected[possible].min() >= 5, "too few draws for this distribution"
    result = stats.chisquare(counts[possible], expected[possible] * (counts.sum() / expected.sum()))
    assert result.pvalue > P_VALUE, (result, counts, expected)


def check_independent(first: Tensor, second: Tensor) -> None:
    """Chi-square of the joint counts against the product of the margins.  first, second: [N] small integers."""
    table = np.zeros((int(first.max()) + 1, int(second.max()) + 1))
    np.add.at(table, (first.numpy(), second.numpy()), 1)
    result = stats.chi2_contingency(table)
    assert result.pvalue > P_VALUE, (result.statistic, result.dof, table)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("seed", [0, 1, 2**62 + 12345])
def test_positions_follow_the_distribution(name: str, seed: int) -> None:
    check_law(draws(DISTRIBUTIONS[name], noise_of(seed)), DISTRIBUTIONS[name])


@pytest.mark.parametrize(("first_token_id", "stride"), [(49_000, 1), (0, 1024), (128_000, -2_048), (1, 65_536)])
def test_any_token_ids_follow_the_distribution(first_token_id: int, stride: int) -> None:
    check_law(draws(HEAVY_TAIL.tolist(), noise_of(5, NUM_DRAWS, first_token_id, stride)), HEAVY_TAIL)


def test_seeds_follow_the_distribution() -> None:
    # Many requests at one position, seeds in a row: what a server with --seed counts up to.
    noise = gumbel(range(NUM_DRAWS), [17] * NUM_DRAWS, torch.arange(50))
    check_law(draws(HEAVY_TAIL.tolist(), noise), HEAVY_TAIL)


def test_rare_tokens_of_a_large_vocabulary_get_their_share() -> None:
    # Half of the mass on one token, half spread over 16,383: the largest of many noise values decides.
    vocab_size = 16_384
    scores = torch.full((vocab_size,), math.log(0.5 / (vocab_size - 1)))
    scores[777] = math.log(0.5)
    token_ids = torch.arange(vocab_size)
    tokens = torch.cat([(scores + gumbel([3] * 20, range(start, start + 20), token_ids)).argmax(1) for start in range(0, 400, 20)])
    num_common = int((tokens == 777).sum())
    assert abs(num_common - 200) < 5 * math.sqrt(100)
    rare = tokens[tokens != 777]
    check_law(rare * 16 // vocab_size, [1 / 16] * 16)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0.6),
        SamplingParams(temperature=1.5, top_k=9),
        SamplingParams(temperature=1.0, top_p=0.8),
        SamplingParams(temperature=1.3, min_p=0.1),
        SamplingParams(temperature=0.9, top_k=20, top_p=0.9, min_p=0.02),
    ],
    ids=["temperature", "top-k", "top-p", "min-p", "all"],
)
def test_filtered_draws_follow_the_filtered_distribution(sampling: SamplingParams) -> None:
    logits = torch.from_numpy(np.log(HEAVY_TAIL)).float().unsqueeze(0)[:, :24]
    shares = probabilities(logits, [sampling])[0].double().numpy()
    check_law((filter_logits(logits, [sampling]) + noise_of(9)[:, :24]).argmax(1), shares)


@pytest.mark.parametrize("lag", [1, 2, 3, 256])
def test_positions_are_independent(lag: int) -> None:
    tokens = draws([0.4, 0.3, 0.2, 0.1], noise_of(1))
    check_independent(tokens[:-lag], tokens[lag:])


@pytest.mark.parametrize(("seed", "other"), [(0, 1), (1, 2**62 + 12345)])
def test_seeds_are_independent(seed: int, other: int) -> None:
    shares = [0.4, 0.3, 0.2, 0.1]
    check_independent(draws(shares, noise_of(seed)), draws(shares, noise_of(other)))
    # Nor is one seed's stream the other's, shifted.
    check_independent(draws(shares, noise_of(seed))[1:], draws(shares, noise_of(other))[:-1])


@pytest.mark.parametrize("distance", [1, 2, 16, 1024, 16_384, 32_768])
def test_token_ids_are_independent(distance: int) -> None:
    """Joint counts of noise octiles, and the correlation, for neighbours in one row and for the same id in neighbouring rows."""
    noise = gumbel([4] * 4, range(4), torch.arange(65_536))
    octiles = (8 * torch.exp(-torch.exp(-noise.double()))).long().clamp_(max=7)  # the law's own distribution function
    pairs = [(octiles[0, :-distance], octiles[0, distance:]), (octiles[1], octiles[2]), (octiles[0, :-distance], octiles[1, distance:])]
    for first, second in pairs:
        check_independent(first, second)
    correlation = np.corrcoef(noise[0, :-distance].numpy(), noise[0, distance:].numpy())[0, 1]
    assert abs(correlation) < 5 / math.sqrt(65_536 - distance)


def test_acceptance_tells_nothing_about_the_next_token() -> None:
    """Noise used for a draft token must not bend what is emitted: shared noise is exact here, since what is emitted is the choice."""
    target, draft = np.array([0.6, 0.3, 0.1]), [0.2, 0.3, 0.5]
    noise = noise_of(0)
    choices, drafted = draws(target.tolist(), noise), draws(draft, noise)
    is_accepted = drafted == choices
    check_law(choices, target)
    check_law(choices[1:][is_accepted[:-1]], target)
    check_law(choices[1:][~is_accepted[:-1]], target)


@pytest.mark.parametrize("draft", [[0.6, 0.3, 0.1], [0.5, 0.3, 0.2], [0.2, 0.3, 0.5], [0.0, 0.9, 0.1]], ids=str)
def test_acceptance_reaches_the_coupled_bound(draft: list[float]) -> None:
    """At least (1 - d) / (1 + d) for total variation distance d (Daliri, Musco, Suresh, arXiv 2408.07978)."""
    target = [0.6, 0.3, 0.1]
    distance = 0.5 * sum(abs(a - b) for a, b in zip(target, draft, strict=True))
    share = float((draws(target, noise_of(1)) == draws(draft, noise_of(1))).float().mean())
    bound = (1 - distance) / (1 + distance)
    assert share >= bound - 5 * math.sqrt(bound * (1 - bound) / NUM_DRAWS)


# Speculative decoding as a whole, with a target and drafters that are small functions of the text so far.

VOCAB_SIZE = 12
Drafter = Callable[[list[int], ChoiceRow], TokenTree]


def target_logits(text: Sequence[int]) -> Tensor:
    """[V]; any change anywhere in the text changes them."""
    generator = np.random.default_rng([len(text), *text])
    return torch.from_numpy(generator.normal(0.0, 1.5, VOCAB_SIZE)).float()


def choices_after(texts: list[list[int]], sampling: SamplingParams, seed: int) -> list[int]:
    logits = torch.stack([target_logits(text) for text in texts])
    rows = [ChoiceRow(sampling, seed, len(text)) for text in texts]
    return choose_tokens(ShardedLogits(logits, VocabShards(VOCAB_SIZE), SingleRank()), rows).tolist()


def path_to(tree: TokenTree, node: int) -> list[int]:
    path: list[int] = []
    while node != ROOT:
        path.insert(0, int(tree.token_ids[node]))
        node = int(tree.parents[node])
    return path


def decode(prompt: list[int], num_tokens: int, sampling: SamplingParams, seed: int, drafter: Drafter | None) -> tuple[list[int], int]:
    """The continuation and the number of steps."""
    text, num_steps = list(prompt), 0
    while len(text) < len(prompt) + num_tokens:
        if drafter is None:
            text += choices_after([text], sampling, seed)
        else:
            tree = drafter(text, ChoiceRow(sampling, seed, len(text)))
            choices = choices_after([text, *(text + path_to(tree, node) for node in range(len(tree)))], sampling, seed)
            text += accept(tree, choices[0], choices[1:]).token_ids
        num_steps += 1
    return text[len(prompt) : len(prompt) + num_tokens], num_steps


def good_drafter(text: list[int], row: ChoiceRow) -> TokenTree:
    """Two levels of the two best perturbed scores of a noisy copy of the target, as a tree drafter does it."""
    token_ids: list[int] = []
    parents: list[int] = []
    for parent in (ROOT, 0, 1):
        context = text if parent == ROOT else [*text, token_ids[parent]]
        scores = target_logits(context) + 0.3 * torch.from_numpy(np.random.default_rng(context).normal(size=VOCAB_SIZE)).float()
        noise = draft_noise([ChoiceRow(row.sampling, row.seed, len(context))])
        if noise is not None:
            scores = scores / row.sampling.temperature + noise(torch.arange(VOCAB_SIZE))[0]
        token_ids += scores.topk(2).indices.tolist()
        parents += [parent, parent]
    return TokenTree(np.asarray(token_ids, np.int64), np.asarray(parents, np.int64))


samplings = st.sampled_from(
    [
        SamplingParams(),
        SamplingParams(temperature=0.8),
        SamplingParams(temperature=1.5),
        SamplingParams(temperature=1.0, top_k=3),
        SamplingParams(temperature=1.0, top_p=0.7),
        SamplingParams(temperature=1.2, top_k=8, top_p=0.9, min_p=0.1),
    ]
)


@settings(deadline=None, max_examples=40)
@given(samplings, st.integers(0, 2**63 - 1), st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=4), st.randoms())
def test_random_trees_leave_the_plain_text(sampling: SamplingParams, seed: int, prompt: list[int], random: object) -> None:
    def drafter(text: list[int], row: ChoiceRow) -> TokenTree:
        num_nodes = random.randrange(9)  # type: ignore[attr-defined]
        parents = [random.randrange(ROOT, node) for node in range(num_nodes)]  # type: ignore[attr-defined]
        token_ids = [random.randrange(VOCAB_SIZE) for _ in range(num_nodes)]  # type: ignore[attr-defined]
        return TokenTree(np.asarray(token_ids, np.int64), np.asarray(parents, np.int64))

    plain, _ = decode(prompt, 12, sampling, seed, None)
    speculative, _ = decode(prompt, 12, sampling, seed, drafter)
    assert speculative == plain


@settings(deadline=None, max_examples=30)
@given(samplings, st.integers(0, 2**63 - 1))
def test_a_drafter_with_the_same_noise_leaves_the_plain_text(sampling: SamplingParams, seed: int) -> None:
    plain, _ = decode([1, 2], 12, sampling, seed, None)
    speculative, num_steps = decode([1, 2], 12, sampling, seed, good_drafter)
    assert speculative == plain
    assert num_steps <= 12


def test_the_same_noise_makes_drafts_come_true() -> None:
    """Tokens per step of one drafter with the target's noise and with the noise of another seed."""

    def stranger(text: list[int], row: ChoiceRow) -> TokenTree:
        return good_drafter(text, ChoiceRow(row.sampling, row.seed + 1, row.position))

    sampling = SamplingParams(temperature=1.0)
    coupled, uncoupled = (sum(decode([5], 20, sampling, seed, one)[1] for seed in range(15)) for one in (good_drafter, stranger))
    assert coupled < 0.7 * uncoupled, (coupled, uncoupled)
