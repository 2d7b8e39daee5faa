"""Filters: by hand, against the plain definition, and against transformers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hothead.config.sampling import SamplingParams
from hothead.verify.filters import filter_logits, is_filtered, probabilities, scale_logits

INF = math.inf


def kept(logits: list[float], **options: float) -> list[int]:
    """Token ids that survive, for one row."""
    sampling = SamplingParams(**{"temperature": 1.0, **options})  # type: ignore[arg-type]
    row = filter_logits(torch.tensor([logits]), [sampling])[0]
    return torch.isfinite(row).nonzero().flatten().tolist()


def slow_filter(logits: np.ndarray, sampling: SamplingParams) -> np.ndarray:
    """The definition, token by token, in float64."""
    scores = logits.astype(np.float64) / sampling.temperature
    order = sorted(range(len(scores)), key=lambda token_id: (-scores[token_id], token_id))
    if sampling.top_k > 0:
        order = order[: sampling.top_k]
    if sampling.top_p < 1.0:
        weights = [math.exp(scores[token_id] - scores[order[0]]) for token_id in order]
        mass, num_kept = 0.0, 0
        while num_kept < len(order) and (num_kept == 0 or mass / sum(weights) < sampling.top_p):
            mass += weights[num_kept]
            num_kept += 1
        order = order[:num_kept]
    if sampling.min_p > 0.0:
        order = [token_id for token_id in order if math.exp(scores[token_id] - scores[order[0]]) >= sampling.min_p]
    filtered = np.full(len(scores), -INF)
    filtered[order] = scores[order]
    return filtered


def test_top_k_by_hand() -> None:
    assert kept([1.0, 4.0, 3.0, 2.0], top_k=1) == [1]
    assert kept([1.0, 4.0, 3.0, 2.0], top_k=3) == [1, 2, 3]
    assert kept([1.0, 4.0, 3.0, 2.0], top_k=4) == [0, 1, 2, 3]
    assert kept([1.0, 4.0, 3.0, 2.0], top_k=100) == [0, 1, 2, 3]


def test_top_k_keeps_exactly_k_and_of_equal_scores_the_lower_token_ids() -> None:
    assert kept([2.0, 2.0, 5.0, 2.0, 2.0], top_k=3) == [0, 1, 2]
    assert kept([0.0] * 10, top_k=4) == [0, 1, 2, 3]
    # Wide rows take other sort algorithms; the cut must not notice.
    row = torch.full((1, 5000), 1.0)
    row[0, 4000] = 2.0
    filtered = filter_logits(row, [SamplingParams(temperature=1.0, top_k=1000)])
    assert torch.isfinite(filtered[0]).nonzero().flatten().tolist() == [*range(999), 4000]


def test_top_p_keeps_the_token_that_crosses() -> None:
    logits = np.log([0.5, 0.3, 0.15, 0.05]).tolist()
    assert kept(logits, top_p=0.01) == [0]
    assert kept(logits, top_p=0.49) == [0]
    assert kept(logits, top_p=0.51) == [0, 1]
    assert kept(logits, top_p=0.79) == [0, 1]
    assert kept(logits, top_p=0.81) == [0, 1, 2]
    assert kept(logits, top_p=0.96) == [0, 1, 2, 3]


def test_top_p_of_equal_scores_keeps_the_lower_token_ids() -> None:
    assert kept([0.0] * 10, top_p=0.35) == [0, 1, 2, 3]
    assert kept([0.0, 9.0, 0.0], top_p=0.99999) == [0, 1, 2]


def test_top_p_counts_what_top_k_left() -> None:
    logits = np.log([0.4, 0.3, 0.2, 0.1]).tolist()
    assert kept(logits, top_p=0.55) == [0, 1]
    assert kept(logits, top_k=2, top_p=0.55) == [0]  # 0.4 / 0.7 = 0.57 reaches it alone


def test_min_p_by_hand() -> None:
    logits = np.log([0.5, 0.26, 0.2, 0.04]).tolist()
    assert kept(logits, min_p=0.5) == [0, 1]
    assert kept(logits, min_p=0.39) == [0, 1, 2]
    assert kept(logits, min_p=1.0) == [0]
    assert kept([3.0, 3.0, 1.0], min_p=1.0) == [0, 1]


def test_temperature_comes_first() -> None:
    logits = np.log([0.5, 0.3, 0.2]).tolist()
    assert kept(logits, temperature=1.0, top_p=0.55) == [0, 1]
    assert kept(logits, temperature=0.25, top_p=0.55) == [0]
    torch.testing.assert_close(scale_logits(torch.tensor([[2.0, 4.0]]), [SamplingParams(temperature=0.5)]), torch.tensor([[4.0, 8.0]]))


def test_top_p_over_a_flat_wide_row_needs_the_full_sort() -> None:
    row = torch.zeros(1, 3000)
    filtered = filter_logits(row, [SamplingParams(temperature=1.0, top_p=0.5)])
    num_kept = int(torch.isfinite(filtered).sum())
    assert abs(num_kept - 1500) <= 1  # float32 cannot say on which side of 0.5 the 1500th token ends
    assert torch.isfinite(filtered[0, :num_kept]).all()


def test_rows_have_their_own_parameters_and_others_are_untouched() -> None:
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(1))
    before = logits.clone()
    samplings = [
        SamplingParams(),
        SamplingParams(temperature=0.5, top_k=3),
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=2.0, top_p=0.5),
        SamplingParams(temperature=1.0, min_p=0.2),
    ]
    filtered = filter_logits(logits, samplings)
    assert torch.equal(logits, before)
    assert torch.equal(filtered[0], logits[0])
    assert torch.equal(filtered[2], logits[2])
    for row, sampling in enumerate(samplings):
        assert torch.equal(filter_logits(logits[row : row + 1], [sampling])[0], filtered[row])
    assert [is_filtered(sampling) for sampling in samplings] == [False, True, False, True, True]


def test_nothing_to_do_returns_the_logits_themselves() -> None:
    logits = torch.randn(2, 7)
    assert filter_logits(logits, [SamplingParams(), SamplingParams(temperature=1.0)]) is logits
    # At temperature 0 nothing is cut, whatever else is set.
    assert filter_logits(logits, [SamplingParams(top_k=1), SamplingParams(top_p=0.1)]) is logits


def test_low_precision_logits_become_float32() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.bfloat16)
    assert filter_logits(logits, [SamplingParams()]).dtype == torch.float32
    assert filter_logits(logits, [SamplingParams(temperature=0.7, top_k=2)]).dtype == torch.float32


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-300, 5e-324])
def test_tiny_temperatures_are_greedy_and_finite(temperature: float) -> None:
    logits = torch.tensor([[40.0, 50.0, -50.0, 49.0]])
    for options in ({}, {"top_p": 0.9}, {"top_k": 2}, {"min_p": 0.5}):
        shares = probabilities(logits, [SamplingParams(temperature=temperature, **options)])  # type: ignore[arg-type]
        assert shares.tolist() == [[0.0, 1.0, 0.0, 0.0]]


def test_probabilities() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0], [0.0, 0.0, math.log(2.0)], [math.log(3.0), 0.0, -5.0]])
    shares = probabilities(logits, [SamplingParams(), SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, top_k=2)])
    torch.testing.assert_close(shares, torch.tensor([[0.0, 1.0, 0.0], [0.25, 0.25, 0.5], [0.75, 0.25, 0.0]]))


def test_cut_tokens_may_already_be_masked() -> None:
    logits = [-INF, 1.0, 2.0, -INF]
    assert kept(logits) == [1, 2]
    assert kept(logits, top_k=3) == [1, 2]
    assert kept(logits, top_p=0.999) == [1, 2]
    assert kept(logits, min_p=0.01) == [1, 2]


sampling_options = st.builds(
    lambda temperature, top_k, top_p, min_p: SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p),
    st.sampled_from([0.3, 0.7, 1.0, 1.5]),
    st.sampled_from([0, 1, 2, 3, 5, 8, 1000]),
    st.sampled_from([1.0, 0.9123, 0.5217, 0.1031]),
    st.sampled_from([0.0, 0.0213, 0.2511, 0.9017]),
)
rows_with_ties = st.lists(st.sampled_from([-3.1, -1.0, 0.0, 0.3, 0.7, 2.0]), min_size=9, max_size=9)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(rows_with_ties, sampling_options), min_size=1, max_size=4))
def test_equals_the_definition_with_many_ties(rows: list[tuple[list[float], SamplingParams]]) -> None:
    logits = np.asarray([row for row, _ in rows], np.float32)
    filtered = filter_logits(torch.from_numpy(logits), [sampling for _, sampling in rows]).numpy()
    for row, (_, sampling) in enumerate(rows):
        np.testing.assert_allclose(filtered[row], slow_filter(logits[row], sampling), rtol=1e-6, err_msg=str(sampling))


def by_transformers(logits: Tensor, sampling: SamplingParams) -> Tensor:
    warpers = pytest.importorskip("transformers.generation.logits_process")
    no_ids = torch.zeros(logits.shape[0], 1, dtype=torch.int64)
    scores = warpers.TemperatureLogitsWarper(sampling.temperature)(no_ids, logits)
    if sampling.top_k > 0:
        scores = warpers.TopKLogitsWarper(sampling.top_k)(no_ids, scores)
    if sampling.top_p < 1.0:
        scores = warpers.TopPLogitsWarper(sampling.top_p)(no_ids, scores)
    if sampling.min_p > 0.0:
        scores = warpers.MinPLogitsWarper(sampling.min_p)(no_ids, scores)
    return scores


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 7},
        {"top_k": 5000},
        {"top_p": 0.9},
        {"top_p": 0.3},
        {"top_p": 0.999},
        {"min_p": 0.05},
        {"top_k": 50, "top_p": 0.8},
        {"top_k": 40, "top_p": 0.95, "min_p": 0.1},
    ],
)
@pytest.mark.parametrize("temperature", [0.6, 1.0, 2.5])
def test_equals_transformers(options: dict[str, float], temperature: float) -> None:
    logits = 3.0 * torch.randn(4, 3001, generator=torch.Generator().manual_seed(7))
    sampling = SamplingParams(temperature=temperature, **options)  # type: ignore[arg-type]
    assert torch.equal(filter_logits(logits, [sampling] * 4), by_transformers(logits, sampling))
