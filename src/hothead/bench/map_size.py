"""Which hot size is best: tokens per second over H, predicted from what a run and a corpus tell.

    tokens/s(H) = E(H) / (T + head(H))        E(H) = 1 + sum over d of A_d * (a(H) / a(H0)) ^ d

T is what a step takes besides the draft head, head(H) the head's time in a step, A_d the share of the run's steps in which at least d draft
tokens were kept, H0 the run's hot size. a(H) is the chance that one draft token is right: the sum over bands of rank of (share of the
corpus in the band) * (how often the run's drafter was right there), bands past H excluded. A band is an octave of rank in the map. Past
H0 nothing was tried; the last band's rate stands for those, which is more than they get, since a drafter is right less often the rarer the
token. A miss is taken to depend on nothing but its own token's rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hothead.bench.run_figures import RunFigures
from hothead.errors import OptionError
from hothead.vocab.token_map import TokenMap

_FIRST_BAND = 64
_MIN_TRIALS = 50
"""Tokens that a band needs for a rate of its own; else it takes its more frequent neighbour's."""


@dataclass(frozen=True)
class SizeRow:
    """What is predicted for one hot size. hit_rate: of the corpus; seconds are of one verify step."""

    size: int
    hit_rate: float
    head_s: float
    tokens_per_step: float
    tokens_per_s: float


@dataclass(frozen=True)
class Drafting:
    """A drafter's quality and what a step costs without its head. rates: chance to be right by band of rank; accepted: A_1, A_2, ...; at:
    H0."""

    rates: npt.NDArray[np.float64]
    accepted: tuple[float, ...]
    at: int
    other_s: float


def band_of(ranks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Band of each position in the map: 0 up to _FIRST_BAND, then one for each doubling."""
    return np.maximum(0, np.floor(np.log2(np.maximum(ranks, 1) / _FIRST_BAND)).astype(np.int64) + 1)


def drafting_of_run(run: RunFigures, token_map: TokenMap, hot_size: int, vocab_size: int) -> Drafting:
    """hot_size: of the run, vocab_size where it drafted over the full vocabulary."""
    ranks = ranks_of(token_map, vocab_size)[np.asarray(run.token_ids)]
    is_drafted = np.asarray(run.is_drafted)
    bands = band_of(ranks)
    num_bands = int(band_of(np.asarray([vocab_size]))[0]) + 1
    tried = np.bincount(bands[ranks < hot_size], minlength=num_bands)
    right = np.bincount(bands[is_drafted & (ranks < hot_size)], minlength=num_bands)
    rates = np.zeros(num_bands)
    last = float(is_drafted.mean())
    for band in range(num_bands):
        if tried[band] >= _MIN_TRIALS:
            last = float(right[band] / tried[band])
        rates[band] = last
    ends = np.flatnonzero(~is_drafted)
    lengths = np.diff(ends, prepend=-1) - 1  # draft tokens kept in each step
    accepted = tuple(float((lengths >= depth).mean()) for depth in range(1, int(lengths.max(initial=0)) + 1))
    return Drafting(rates, accepted, hot_size, run.draft_s + run.verify_s + run.other_s)


def drafting_by_assumption(
    tokens_per_step: float, num_steps: int, other_s: float, hit_rate: float, hot_size: int, vocab_size: int
) -> Drafting:
    """A drafter whose chance to be right is the same for every hot token and depth, and gives tokens_per_step with hot_size at hit_rate."""
    if not 1 < tokens_per_step < num_steps + 1:
        raise OptionError(
            f"{tokens_per_step:g} tokens per step cannot come from {num_steps} draft steps.",
            advice=f"Give more than 1 and less than {num_steps + 1}.",
        )
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**depth for depth in range(num_steps + 1)) < tokens_per_step else (low, middle)
    num_bands = int(band_of(np.asarray([vocab_size]))[0]) + 1
    accepted = tuple(low**depth for depth in range(1, num_steps + 1))
    return Drafting(np.full(num_bands, low / hit_rate), accepted, hot_size, other_s)


def ranks_of(token_map: TokenMap, vocab_size: int) -> npt.NDArray[np.int64]:
    """[V] position of every token id in the map; the ones that are not in it follow, by id."""
    ranks = np.full(vocab_size, -1, np.int64)
    ranks[token_map.token_ids] = np.arange(len(token_map))
    missing = np.flatnonzero(ranks < 0)
    ranks[missing] = len(token_map) + np.arange(len(missing))
    return ranks


def predict(drafting: Drafting, head_times: Mapping[int, float], token_map: TokenMap, counts: npt.NDArray[np.int64]) -> list[SizeRow]:
    """A row for every size of head_times. counts: [V], of a corpus."""
    vocab_size = len(counts)
    ranks = ranks_of(token_map, vocab_size)
    by_rank = np.zeros(vocab_size, np.float64)
    by_rank[ranks] = counts / max(1, int(counts.sum()))
    right_by_rank = by_rank * drafting.rates[band_of(np.arange(vocab_size))]
    shares, rights = np.cumsum(by_rank), np.cumsum(right_by_rank)
    at = rights[min(drafting.at, vocab_size) - 1]
    rows = []
    for size, head_s in sorted(head_times.items()):
        ratio = float(rights[size - 1] / at) if at else 0.0
        # A longer path is not kept more often than a shorter one.
        accepted = np.minimum.accumulate(
            np.minimum(1.0, [share * ratio**depth for depth, share in enumerate(drafting.accepted, start=1)] or [0.0])
        )
        tokens_per_step = 1 + float(accepted.sum())
        rows.append(SizeRow(size, float(shares[size - 1]), head_s, tokens_per_step, tokens_per_step / (drafting.other_s + head_s)))
    return rows


def best(rows: Sequence[SizeRow]) -> SizeRow:
    """The most tokens per second; of equals the smaller."""
    return max(rows, key=lambda row: (row.tokens_per_s, -row.size))
