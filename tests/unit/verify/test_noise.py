"""The noise: its bits, its range, and that nothing but (seed, position, token id) changes it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from hothead.config.sampling import SamplingParams
from hothead.verify.noise import _write_gumbel, distinct_gumbel, gumbel, key_words, resolve_seed

UINT32 = 0xFFFFFFFF


def slow_bits(seed: int, position: int, token_id: int) -> int:
    """The hash in plain Python integers."""

    def fold(value: int, shift: int) -> int:
        return value ^ (value >> shift)

    value = fold(token_id, 16) * 0x7FEB352D & UINT32
    value = fold(value, 15) * 0x846CA68B & UINT32
    first, second = key_words(seed, position)
    value = (fold(value, 16) + first) & UINT32
    value = fold(value, 17) * 0xED5AD4BB & UINT32
    value = fold(value, 11) * 0xAC4C1B51 & UINT32
    value = fold(value ^ second, 15) * 0x31848BAB & UINT32
    return fold(value, 14)


def slow_gumbel(bits: int) -> float:
    return -math.log(-math.log1p(-(bits + 0.5) / 2.0**32))


def test_equals_plain_integers() -> None:
    seeds, positions, token_ids = [0, 7, 2**63 - 1, -1], [0, 5, 131071, 3], [0, 1, 2, 255, 49151, 248076, 2**31, UINT32]
    noise = gumbel(seeds, positions, torch.tensor(token_ids))
    expected = [[slow_gumbel(slow_bits(s, p, t)) for t in token_ids] for s, p in zip(seeds, positions, strict=True)]
    np.testing.assert_allclose(noise.numpy(), expected, rtol=0, atol=2e-5)


def test_values_never_change_between_versions() -> None:
    # A seed that a user wrote down must give the same text next year.
    assert key_words(0, 0) == (1210155558, 4282176703)
    np.testing.assert_allclose(gumbel([1234], [56], torch.arange(4)).numpy()[0], [3.8260, -0.5549, 0.5232, -0.1713], rtol=0, atol=1e-4)


def test_any_part_order_and_type_of_token_ids_gives_the_same_bits() -> None:
    token_ids = torch.arange(5003)
    full = gumbel([3, 4], [10, 11], token_ids)
    order = torch.randperm(5003, generator=torch.Generator().manual_seed(0))
    assert torch.equal(gumbel([3, 4], [10, 11], order), full[:, order])
    assert torch.equal(gumbel([3, 4], [10, 11], token_ids.to(torch.int32)), full)
    assert torch.equal(gumbel([3, 4], [10, 11], token_ids[1::3]), full[:, 1::3])
    for start, stop in [(0, 1), (1, 18), (17, 50), (4999, 5003), (100, 4097), (5, 5)]:
        assert torch.equal(gumbel([3, 4], [10, 11], token_ids[start:stop]), full[:, start:stop])


def test_any_batch_gives_the_same_bits() -> None:
    token_ids = torch.arange(70001)  # one row is more than a block
    seeds, positions = [1, 2, 1, 2], [5, 5, 6, 5]
    together = gumbel(seeds, positions, token_ids)
    for row, (seed, position) in enumerate(zip(seeds, positions, strict=True)):
        assert torch.equal(gumbel([seed], [position], token_ids)[0], together[row])
    assert torch.equal(gumbel(torch.tensor(seeds), torch.tensor(positions), token_ids), together)
    small = gumbel(list(range(100)), [7] * 100, torch.arange(1000))  # many rows in one block
    assert torch.equal(gumbel([57], [7], torch.arange(1000))[0], small[57])


def test_number_of_threads_does_not_change_bits() -> None:
    threads = torch.get_num_threads()
    try:
        results = []
        for num_threads in (1, 2, 3):
            torch.set_num_threads(num_threads)
            results.append(gumbel([5], [6], torch.arange(100_003)))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_equal_rows_are_computed_once() -> None:
    noise, row_of = distinct_gumbel([8, 8, 9, 8], [1, 2, 1, 1], torch.arange(10))
    assert noise.shape == (3, 10)
    assert row_of == [0, 1, 2, 0]
    assert gumbel([8, 8, 9, 8], [1, 2, 1, 1], torch.arange(10)).shape == (4, 10)


def test_no_rows_and_no_token_ids() -> None:
    assert gumbel([], [], torch.arange(3)).shape == (0, 3)
    assert gumbel([1], [1], torch.arange(0)).shape == (1, 0)


def test_seed_and_position_must_be_pairs() -> None:
    with pytest.raises(ValueError, match="zip"):
        gumbel([1, 2], [1], torch.arange(3))


@pytest.mark.parametrize("bits", [0, 1, 2, 1000, 2**24 - 1, 2**31 - 1, 2**31, UINT32 - 2**12, UINT32 - 1, UINT32])
def test_bits_to_noise_is_precise_where_it_decides(bits: int) -> None:
    noise = torch.empty(1)
    _write_gumbel(noise, torch.tensor([bits - 2**32 if bits >= 2**31 else bits], dtype=torch.int32))
    assert math.isfinite(noise.item())
    if bits < 2**31:  # the upper half of the values: full precision
        assert noise.item() == pytest.approx(slow_gumbel(bits), abs=2e-6)
    assert -2.9 < noise.item() < 22.9


def test_follows_the_gumbel_law() -> None:
    # 200,000 values, Kolmogorov-Smirnov; a correct generator fails once in 10^6 choices of the seed.
    noise = gumbel([2024] * 8, range(8), torch.arange(25_000)).numpy().ravel()
    assert stats.kstest(noise, stats.gumbel_r.cdf).pvalue > 1e-6
    # The largest values, where the law is thin: 2,000 expected among the top 1 %, within five standard deviations.
    assert abs((noise > -math.log(-math.log1p(-0.01))).sum() - 2000) < 5 * math.sqrt(2000)


def test_token_ids_past_the_hash_word_are_not_folded() -> None:
    words = {slow_bits(1, 2, token_id) for token_id in range(100_000)}
    assert len(words) == 100_000  # a bijection of the token id, for every key


def test_key_words_differ() -> None:
    keys = {key_words(seed, position) for seed in range(200) for position in range(200)}
    assert len(keys) == 40_000
    assert key_words(-1, 0) == key_words(2**64 - 1, 0)


def test_resolve_seed() -> None:
    assert resolve_seed(SamplingParams(temperature=1.0, seed=17), "a") == 17
    assert resolve_seed(SamplingParams(temperature=1.0, seed=0), "a") == 0
    drawn = [resolve_seed(SamplingParams(temperature=1.0), "a") for _ in range(100)]
    assert len(set(drawn)) == 100
    assert all(0 <= seed < 2**63 for seed in drawn)
