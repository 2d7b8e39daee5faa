"""The hot head at one rank: which rows it reads, which candidates it gives, what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hothead.errors import CheckpointError, HotMapError, OptionError
from hothead.parallel.groups import SingleRank
from hothead.parallel.hot_head import HotHead, best_candidates
from hothead.parallel.partition import hot_indices_of_rank

VOCAB_SIZE, HIDDEN_SIZE = 1010, 16
WEIGHT = torch.randint(-3, 4, (VOCAB_SIZE, HIDDEN_SIZE), generator=torch.Generator().manual_seed(0)).float()


def read_rows(token_ids: np.ndarray) -> torch.Tensor:
    return WEIGHT[torch.from_numpy(token_ids)]


def hot_ids(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(VOCAB_SIZE)[:size]


def build(token_ids: np.ndarray, placement: str = "balanced") -> HotHead:
    return HotHead.build(read_rows, token_ids, SingleRank(), placement, VOCAB_SIZE)


def obvious(scores: torch.Tensor, token_ids: torch.Tensor, num_candidates: int) -> list[list[int]]:
    """Sorted by (-score, token id), one row after the other."""
    ids = token_ids.tolist()
    return [[token_id for _, token_id in sorted(zip((-row).tolist(), ids, strict=True))[:num_candidates]] for row in scores]


def test_candidates_are_the_best_hot_tokens_with_their_share_of_the_hot_vocabulary() -> None:
    head, hidden = build(hot_ids(700)), torch.randn(5, HIDDEN_SIZE).round()
    log_probs = (hidden @ read_rows(hot_ids(700)).T).log_softmax(1)
    found = head.candidates(hidden, 6)
    assert found.token_ids.tolist() == obvious(hidden @ read_rows(hot_ids(700)).T, torch.from_numpy(hot_ids(700)), 6)
    torch.testing.assert_close(found.log_probs, log_probs.topk(6).values)


def test_the_full_map_gives_what_the_full_head_gives() -> None:
    hidden = torch.randn(4, HIDDEN_SIZE)
    found = build(hot_ids(VOCAB_SIZE)).candidates(hidden, 3)
    plain = (hidden @ WEIGHT.T).log_softmax(1).topk(3)
    assert torch.equal(found.token_ids, plain.indices)
    torch.testing.assert_close(found.log_probs, plain.values)


def test_temperature_and_noise_change_the_scores_before_the_choice() -> None:
    token_ids, hidden = hot_ids(300), torch.randn(3, HIDDEN_SIZE)
    inverse_temperature = torch.tensor([0.5, 1.0, 2.0])
    found = build(token_ids).candidates(
        hidden, 4, inverse_temperature=inverse_temperature, noise=lambda ids: (ids * 37 % 101 / 50.0).expand(3, -1)
    )
    scores = (hidden @ read_rows(token_ids).T) * inverse_temperature[:, None] + torch.from_numpy(token_ids * 37 % 101 / 50.0).float()
    assert found.token_ids.tolist() == obvious(scores, torch.from_numpy(token_ids), 4)
    torch.testing.assert_close(found.log_probs, scores.log_softmax(1).topk(4).values)


@pytest.mark.parametrize("num_columns", [1, 5, 63, 4096, 5000, 9001])
@pytest.mark.parametrize("num_candidates", [1, 4, 10])
@pytest.mark.parametrize("levels", [2, 40, 10**6])
def test_equal_scores_go_to_the_lower_token_id(num_columns: int, num_candidates: int, levels: int) -> None:
    generator = torch.Generator().manual_seed(num_columns + levels)
    scores = torch.randint(-levels, levels, (3, num_columns), generator=generator).float() / 8
    token_ids = torch.randperm(2 * num_columns, generator=generator)[:num_columns]
    scores[0, ::2] *= -0.0  # -0.0 equals 0.0
    best, best_ids = best_candidates(scores, token_ids, num_candidates)
    num_real = min(num_candidates, num_columns)
    assert best_ids[:, :num_real].tolist() == obvious(scores, token_ids, num_candidates)
    assert torch.equal(best[:, :num_real], scores.topk(num_real).values)
    assert (best[:, num_real:] == float("-inf")).all()


def test_not_a_number_does_not_crash_the_choice() -> None:
    scores = torch.zeros(2, 100)
    scores[0, 50:] = float("nan")
    _, token_ids = best_candidates(scores, torch.arange(100), 4)
    assert token_ids[1].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_smaller_size_is_a_prefix_of_the_map(dtype: torch.dtype) -> None:
    def read(token_ids: np.ndarray) -> torch.Tensor:
        return read_rows(token_ids).to(dtype)

    token_ids, hidden = hot_ids(700), torch.randn(3, HIDDEN_SIZE).round().to(dtype)
    head = HotHead.build(read, token_ids, SingleRank(), "balanced", VOCAB_SIZE)
    small, direct = head.with_size(64), HotHead.build(read, token_ids[:64], SingleRank(), "balanced", VOCAB_SIZE)
    assert (small.num_hot, small.num_local_rows) == (64, 64)
    assert torch.equal(small.candidates(hidden, 8).token_ids, direct.candidates(hidden, 8).token_ids)
    for size in (0, 701):
        with pytest.raises(HotMapError, match=rf"700 rows cannot be cut to {size}"):
            head.with_size(size)


def test_only_the_rows_of_the_map_are_read_by_token_id() -> None:
    asked: list[int] = []

    def record(token_ids: np.ndarray) -> torch.Tensor:
        asked.extend(token_ids.tolist())
        return read_rows(token_ids)

    HotHead.build(record, hot_ids(9), SingleRank(), "balanced", VOCAB_SIZE)
    assert asked == hot_ids(9).tolist()


@pytest.mark.case(4)
def test_rows_that_cluster_on_one_shard_are_dealt_evenly() -> None:
    # like a published map: 97 % of 47,149 ids in the lower half of the vocabulary
    token_ids = np.concatenate([np.arange(45734), np.arange(64128, 64128 + 47149 - 45734)])
    rows = {
        placement: [len(hot_indices_of_rank(token_ids, placement, rank, 2, 128256)) for rank in (0, 1)]
        for placement in ("owner", "balanced", "replicated")
    }
    assert rows == {"owner": [45734, 1415], "balanced": [23575, 23574], "replicated": [47149, 47149]}


def test_a_row_that_nobody_filled_cannot_pass() -> None:
    def forget(token_ids: np.ndarray) -> torch.Tensor:
        rows = read_rows(token_ids)
        rows[3] = float("nan")
        return rows

    token_ids = hot_ids(9)
    with pytest.raises(CheckpointError, match=rf"1 of 9 rows of the output head are not numbers(.|\n)*token id {token_ids[3]}\."):
        HotHead.build(forget, token_ids, SingleRank(), "balanced", VOCAB_SIZE)
    with pytest.raises(CheckpointError, match="9 rows of the output head were asked for, 5 came"):
        HotHead.build(lambda ids: read_rows(ids)[:5], token_ids, SingleRank(), "balanced", VOCAB_SIZE)


def test_ids_that_the_head_does_not_have_are_refused_before_a_row_is_read() -> None:
    def never(token_ids: np.ndarray) -> torch.Tensor:
        raise AssertionError("read")

    for bad, message in (
        ([3, 1010, 5, 2000], r"2 of 4 token ids are at or past the vocabulary size 1010 \(first: id 1010 at hot index 1\)"),
        ([3, -1], r"negative \(first: -1 at hot index 1\)"),
        ([3, 5, 3], "token id 3 occurs twice, at hot indices 0 and 2"),
    ):
        with pytest.raises(HotMapError, match=message):
            HotHead.build(never, np.array(bad), SingleRank(), "balanced", VOCAB_SIZE)
    with pytest.raises(OptionError, match=r"unknown placement 'even'(.|\n)*balanced, replicated, owner"):
        HotHead.build(never, np.array([1]), SingleRank(), "even", VOCAB_SIZE)


def test_more_candidates_than_hot_tokens_are_refused() -> None:
    head = build(hot_ids(4))
    assert head.candidates(torch.ones(2, HIDDEN_SIZE), 4).token_ids.shape == (2, 4)
    for wrong in (0, 5):
        with pytest.raises(HotMapError, match=rf"{wrong} candidates cannot be drafted from a hot vocabulary of 4 tokens"):
            head.candidates(torch.ones(2, HIDDEN_SIZE), wrong)
