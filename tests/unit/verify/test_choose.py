"""The target's own choice: greedy, sampled, filtered and mixed, at one rank and at several."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from hothead.config.sampling import SamplingParams
from hothead.parallel.full_head import ShardedLogits
from hothead.parallel.groups import SingleRank
from hothead.parallel.partition import VocabShards
from hothead.verify.choose import ChoiceRow, choose_tokens, draft_noise, inverse_temperatures
from hothead.verify.filters import filter_logits
from hothead.verify.noise import gumbel

GREEDY = SamplingParams()
PLAIN = SamplingParams(temperature=0.8)
TOP_K = SamplingParams(temperature=0.9, top_k=5)
TOP_P = SamplingParams(temperature=1.2, top_p=0.7)
MIN_P = SamplingParams(temperature=1.0, min_p=0.1)
MIXED = (
    SamplingParams(temperature=1.1, top_k=7, min_p=0.05),
    SamplingParams(temperature=1.1, top_k=100),
    SamplingParams(temperature=1.1, top_k=30, top_p=0.9),
    SamplingParams(temperature=3.0, top_k=1),
)


class ThreadRank:
    """One rank of a group whose ranks are threads of this process."""

    def __init__(self, rank: int, size: int, slots: list[Tensor | None], barrier: threading.Barrier) -> None:
        self.rank, self.size = rank, size
        self.num_collectives = self.num_bytes = 0
        self._slots, self._barrier = slots, barrier

    def all_gather(self, tensor: Tensor) -> Tensor:
        self._slots[self.rank] = tensor
        self._barrier.wait(timeout=20)
        gathered = torch.stack([slot for slot in self._slots if slot is not None])
        self._barrier.wait(timeout=20)
        self.num_collectives += 1
        self.num_bytes += gathered.nbytes
        return gathered

    def all_reduce(self, tensor: Tensor) -> Tensor:
        return tensor.copy_(self.all_gather(tensor.clone()).sum(0))

    def broadcast(self, tensor: Tensor, source: int = 0) -> Tensor:
        return tensor.copy_(self.all_gather(tensor.clone())[source])

    def barrier(self) -> None:
        self._barrier.wait(timeout=20)


def on_ranks(size: int, job: Callable[[ThreadRank], Tensor]) -> list[tuple[Tensor, ThreadRank]]:
    """What each rank's job returns."""
    slots: list[Tensor | None] = [None] * size
    barrier = threading.Barrier(size)
    ranks = [ThreadRank(rank, size, slots, barrier) for rank in range(size)]
    results: dict[int, Tensor] = {}

    def run(rank: ThreadRank) -> None:
        results[rank.rank] = job(rank)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [(results[rank.rank], rank) for rank in ranks]


def choose(logits: Tensor, rows: list[ChoiceRow]) -> list[int]:
    return choose_tokens(ShardedLogits(logits, VocabShards(logits.shape[1]), SingleRank()), rows).tolist()


def choose_on(size: int, logits: Tensor, rows: list[ChoiceRow]) -> list[tuple[Tensor, ThreadRank]]:
    shards = VocabShards(logits.shape[1], num_shards=size)

    def job(rank: ThreadRank) -> Tensor:
        start, stop = shards.range(rank.rank)
        return choose_tokens(ShardedLogits(logits[:, start:stop].contiguous(), shards, rank), rows)

    return on_ranks(size, job)


def random_logits(num_rows: int, vocab_size: int, seed: int = 0) -> Tensor:
    return 2.0 * torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed))


def test_greedy_takes_the_highest_logit_and_of_equal_ones_the_lowest_token_id() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [-5.0, -7.0, -4.0, -4.0]])
    assert choose(logits, [ChoiceRow(GREEDY, 1, 0), ChoiceRow(GREEDY, 2, 0)]) == [1, 2]
    assert choose(logits.bfloat16(), [ChoiceRow(GREEDY, 1, 0), ChoiceRow(GREEDY, 2, 0)]) == [1, 2]


def test_sampled_is_argmax_of_scaled_logits_and_noise() -> None:
    logits = random_logits(3, 500)
    rows = [ChoiceRow(PLAIN, 11, 40), ChoiceRow(PLAIN, 11, 41), ChoiceRow(PLAIN, 12, 40)]
    scores = logits / 0.8 + gumbel([11, 11, 12], [40, 41, 40], torch.arange(500))
    assert choose(logits, rows) == scores.argmax(1).tolist()


def test_filtered_is_argmax_of_filtered_logits_and_noise() -> None:
    samplings = [TOP_K, TOP_P, MIN_P, SamplingParams(temperature=0.5, top_k=20, top_p=0.8, min_p=0.05)] * 10
    logits = random_logits(40, 300)
    scores = filter_logits(logits, samplings) + gumbel([5] * 40, range(40), torch.arange(300))
    assert choose(logits, [ChoiceRow(sampling, 5, row) for row, sampling in enumerate(samplings)]) == scores.argmax(1).tolist()


def test_a_row_does_not_depend_on_the_rest_of_the_batch() -> None:
    logits = random_logits(50, 700)
    samplings = [GREEDY, PLAIN, TOP_K, TOP_P, MIN_P] * 10
    rows = [ChoiceRow(sampling, 100 + index % 7, index % 3) for index, sampling in enumerate(samplings)]
    alone = [choose(logits[index : index + 1], [row])[0] for index, row in enumerate(rows)]
    assert choose(logits, rows) == alone
    order = np.random.default_rng(0).permutation(50).tolist()
    assert choose(logits[order], [rows[index] for index in order]) == [alone[index] for index in order]


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("vocab_size", [130, 512, 1009])
def test_every_rank_decides_like_one_rank(size: int, vocab_size: int) -> None:
    logits = random_logits(18, vocab_size).mul(4).round().div(4)  # coarse: many equal scores
    rows = [ChoiceRow(sampling, 3, index) for index, sampling in enumerate([GREEDY, PLAIN, TOP_K, TOP_P, MIN_P, *MIXED] * 2)]
    alone = choose(logits, rows)
    for tokens, _ in choose_on(size, logits, rows):
        assert tokens.tolist() == alone
        assert tokens.dtype == torch.int64


def test_best_token_of_each_shard_loses_to_the_best_of_all() -> None:
    # The failure elsewhere: every rank took the argmax of its own shard.
    logits = torch.full((4, 256), -9.0)
    for row, token_id in enumerate([200, 3, 130, 255]):
        logits[row, token_id] = -1.0
    rows = [ChoiceRow(GREEDY, 0, 0)] * 4
    for size in (2, 3, 4):
        for tokens, _ in choose_on(size, logits, rows):
            assert tokens.tolist() == [200, 3, 130, 255]


def test_all_negative_scores_do_not_lose_to_padding() -> None:
    logits = torch.full((2, 65), -50.0)
    logits[:, 64] = -40.0
    rows = [ChoiceRow(GREEDY, 0, 0), ChoiceRow(SamplingParams(temperature=0.01, top_k=3), 0, 0)]
    for size in (1, 2, 4):
        for tokens, _ in choose_on(size, logits, rows):
            assert tokens.tolist() == [64, 64]


def test_equal_scores_over_ranks_go_to_the_lowest_token_id() -> None:
    logits = torch.zeros(1, 256, dtype=torch.bfloat16)
    for tokens, _ in choose_on(4, logits, [ChoiceRow(GREEDY, 0, 0)]):
        assert tokens.tolist() == [0]
    # Four equal tokens on four ranks under top-k 2: the two lowest stay.
    logits = torch.full((64, 256), -9.0)
    logits[:, [10, 70, 150, 250]] = 5.0
    rows = [ChoiceRow(SamplingParams(temperature=1.0, top_k=2), 7, position) for position in range(64)]
    for tokens, _ in choose_on(4, logits, rows):
        assert set(tokens.tolist()) == {10, 70}


def test_only_rows_with_top_p_are_gathered() -> None:
    vocab_size = 512
    logits = random_logits(6, vocab_size)
    merge_bytes = 2 * 6 * 8  # both ranks' (score, token id) for six rows
    border_bytes = 2 * 4 * 5 * 8  # both ranks' five best (score, token id) for four rows
    mixes = [
        ([GREEDY] * 6, 1, 0),
        ([GREEDY, PLAIN] * 3, 1, 0),
        ([PLAIN] * 5 + [TOP_P], 2, vocab_size * 4),
        ([TOP_K, GREEDY, MIN_P] * 2, 2, border_bytes),
        ([TOP_K, TOP_K, MIN_P, MIN_P, TOP_P, GREEDY], 3, border_bytes + vocab_size * 4),
    ]
    for samplings, num_collectives, num_more_bytes in mixes:
        rows = [ChoiceRow(sampling, 1, index) for index, sampling in enumerate(samplings)]
        for _, rank in choose_on(2, logits, rows):
            assert rank.num_collectives == num_collectives
            assert rank.num_bytes == merge_bytes + num_more_bytes


def test_logits_are_not_written_to() -> None:
    logits = random_logits(3, 100)
    before = logits.clone()
    unscaled = [SamplingParams(temperature=1.0), GREEDY, SamplingParams(temperature=1.0, top_k=3)]
    choose(logits, [ChoiceRow(sampling, 1, 1) for sampling in unscaled])
    assert torch.equal(logits, before)


def test_seed_and_position_change_the_choice_and_nothing_else_does() -> None:
    logits = torch.zeros(1, 1000)
    sampling = SamplingParams(temperature=1.0)
    first = choose(logits, [ChoiceRow(sampling, 1, 1)])
    assert choose(logits, [ChoiceRow(sampling, 1, 1)]) == first
    assert choose(logits, [ChoiceRow(sampling, 1, 2)]) != first
    assert choose(logits, [ChoiceRow(sampling, 2, 1)]) != first


@pytest.mark.parametrize("temperature", [1e-4, 1e-30, 5e-324])
def test_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = random_logits(8, 400)
    rows = [ChoiceRow(SamplingParams(temperature=temperature), 1, position) for position in range(8)]
    assert choose(logits, rows) == logits.argmax(1).tolist()


def test_filters_that_keep_everything_give_the_unfiltered_choice() -> None:
    logits = random_logits(20, 300)
    wide = SamplingParams(temperature=0.8, top_k=300, min_p=1e-30)
    assert choose(logits, [ChoiceRow(PLAIN, 4, row) for row in range(20)]) == choose(logits, [ChoiceRow(wide, 4, row) for row in range(20)])


def test_draft_noise_is_the_targets_noise() -> None:
    rows = [ChoiceRow(PLAIN, 6, 10), ChoiceRow(GREEDY, 6, 10), ChoiceRow(TOP_P, 7, 11), ChoiceRow(PLAIN, 6, 10)]
    noise = draft_noise(rows)
    assert noise is not None
    hot_token_ids = torch.tensor([400, 3, 77])
    values = noise(hot_token_ids)
    full = gumbel([6, 7], [10, 11], torch.arange(500))
    assert torch.equal(values[[0, 2, 3]], full[[0, 1, 0]][:, hot_token_ids])
    assert torch.equal(values[1], torch.zeros(3))
    assert draft_noise([ChoiceRow(GREEDY, 1, 1)]) is None


def test_inverse_temperatures() -> None:
    values = inverse_temperatures([ChoiceRow(PLAIN, 0, 0), ChoiceRow(GREEDY, 0, 0), ChoiceRow(SamplingParams(temperature=5e-324), 0, 0)])
    assert values is not None
    torch.testing.assert_close(values[:2], torch.tensor([1.25, 1.0]))
    assert math.isfinite(values[2].item())
    assert inverse_temperatures([ChoiceRow(GREEDY, 0, 0), ChoiceRow(SamplingParams(temperature=1.0), 0, 0)]) is None


def test_one_row_per_row_of_logits() -> None:
    with pytest.raises(AssertionError):
        choose(random_logits(2, 10), [ChoiceRow(GREEDY, 0, 0)])
