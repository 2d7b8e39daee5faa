"""Which token the target itself takes: argmax(log p + noise), the coupled rule (after Daliri, Musco, Suresh, arXiv 2408.07978).

p is the distribution after temperature and filters, and the noise depends on (seed, position, token id) only. The choice is thus a draw
from p that is the same whatever was drafted: accepting exactly the draft tokens that equal it makes speculative output the plain output.
Greedy is the same rule without noise. A drafter that perturbs its own scores with the same noise guesses the choice most often.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hothead.config.sampling import SamplingParams
from hothead.parallel.full_head import NO_TOKEN_ID, ShardedLogits
from hothead.parallel.hot_head import best_candidates, sort_candidates
from hothead.verify.filters import MIN_TEMPERATURE, cut_below_share, filter_logits, is_filtered, scale_logits
from hothead.verify.noise import distinct_gumbel


@dataclass(frozen=True, slots=True)
class ChoiceRow:
    """How one row of logits becomes a token.

    seed: the request's resolved seed. position: the index in the request's sequence, prompt included, of the token that is chosen: logits
    at index i choose the token at i + 1, and the nodes of a tree at equal depth share it. Greedy rows use neither.
    """

    sampling: SamplingParams
    seed: int
    position: int


def choose_tokens(logits: ShardedLogits, rows: Sequence[ChoiceRow]) -> Tensor:
    """The target's own choice for every row of logits.

    logits.local: [M, R], shard of V; one ChoiceRow per row -> [M] int64, same on every rank. Of equal scores the lower token id wins. One
    merge of a (score, token id) pair per rank and row; only rows with top-p, or a top-k of near the whole vocabulary, are gathered before.
    """
    assert logits.local.shape[0] == len(rows), (logits.local.shape, len(rows))
    if all(row.sampling.is_greedy for row in rows):
        return logits.argmax()
    scores = filtered_scores(logits, [row.sampling for row in rows])
    _add_noise(scores, rows, local_token_ids(logits))
    return ShardedLogits(scores, logits.shards, logits.group).argmax()


def draft_noise(rows: Sequence[ChoiceRow]) -> Callable[[Tensor], Tensor] | None:
    """The noise that a drafter adds to its own scores to guess the target's choices; None where all rows are greedy.

    rows: one per draft row, with the position of the token that is drafted. The callable takes token_ids [R] and gives [N, R] float32,
    0 for greedy rows.
    """
    if all(row.sampling.is_greedy for row in rows):
        return None

    def noise(token_ids: Tensor) -> Tensor:
        values = torch.zeros(len(rows), token_ids.numel(), dtype=torch.float32, device=token_ids.device)
        _add_noise(values, rows, token_ids)
        return values

    return noise


def inverse_temperatures(rows: Sequence[ChoiceRow], device: torch.device | None = None) -> Tensor | None:
    """What a drafter's logits are multiplied by: [N] float32, 1 for greedy rows; None where it is 1 for all."""
    values = [1.0 if row.sampling.is_greedy else 1.0 / max(row.sampling.temperature, MIN_TEMPERATURE) for row in rows]
    if all(value == 1.0 for value in values):
        return None
    return torch.tensor(values, dtype=torch.float32, device=device)


def filtered_scores(logits: ShardedLogits, samplings: Sequence[SamplingParams]) -> Tensor:
    """Local logits [M, R] after temperature and filters: float32, a new tensor.

    Over ranks, top-k and min-p exchange k scores a row; top-p sums a row in one order, the same whatever the number of ranks, and so needs
    it whole.
    """
    filtered_rows = [row for row, sampling in enumerate(samplings) if is_filtered(sampling)]
    bordered_rows = [row for row in filtered_rows if logits.group.size > 1 and _has_border(samplings[row], logits)]
    whole_rows = [row for row in filtered_rows if row not in bordered_rows]
    # Only the shard goes on: the choice itself is merged over ranks like any other, so that ranks cannot decide apart.
    shard = slice(logits.first_token_id, logits.first_token_id + logits.local.shape[1])
    if len(whole_rows) == len(samplings):
        return filter_logits(logits.gather(), samplings)[:, shard]
    scores = scale_logits(logits.local, samplings)
    if scores is logits.local:
        scores = scores.clone()
    if bordered_rows:
        _cut_at_borders(scores, bordered_rows, logits, samplings)
    if whole_rows:
        index = torch.tensor(whole_rows, dtype=torch.int64, device=scores.device)
        full = filter_logits(logits.select(index).gather(), [samplings[row] for row in whole_rows])  # [F, V], same on every rank
        scores.index_copy_(0, index, full[:, shard])
    return scores


def _has_border(sampling: SamplingParams, logits: ShardedLogits) -> bool:
    """Whether a row is cut at one place of the order (score descending, token id ascending) that ranks can agree on with few scores."""
    return sampling.top_p >= 1.0 and sampling.top_k * logits.group.size < logits.shards.num_rows


def _cut_at_borders(scores: Tensor, rows: Sequence[int], logits: ShardedLogits, samplings: Sequence[SamplingParams]) -> None:
    """Top-k and min-p of some rows of this rank's scores [M, R], in place. One all-gather of k (score, token id) pairs for each row."""
    num_wanted = max(1, *(samplings[row].top_k for row in rows))
    some = scores[list(rows)]
    token_ids = local_token_ids(logits)
    num_local = min(num_wanted, some.shape[1])
    packed = torch.full((len(rows), num_wanted, 2), NO_TOKEN_ID, dtype=torch.int32, device=scores.device)  # [F, k, (score bits, token id)]
    packed[..., 0].view(torch.float32).fill_(-math.inf)
    if num_local:
        best, best_ids = best_candidates(some, token_ids, num_local)
        packed[:, :num_local, 0] = best.view(torch.int32)
        packed[:, :num_local, 1] = best_ids.int()
    gathered = logits.group.all_gather(packed).transpose(0, 1).flatten(1, 2)  # [F, P * k, 2]
    ordered, ordered_ids = sort_candidates(gathered[..., 0].contiguous().view(torch.float32), gathered[..., 1].long())
    for place, row in enumerate(rows):
        cut = scores[row]
        if samplings[row].top_k > 0:
            border, border_id = ordered[place, samplings[row].top_k - 1], ordered_ids[place, samplings[row].top_k - 1]
            cut.masked_fill_((cut < border) | ((cut == border) & (token_ids > border_id)), -math.inf)
        if samplings[row].min_p > 0.0:
            cut_below_share(cut, ordered[place, 0], samplings[row].min_p)


def _add_noise(scores: Tensor, rows: Sequence[ChoiceRow], token_ids: Tensor) -> None:
    """Add each sampled row's noise to scores [N, R], in place; token_ids: [R]."""
    sampled_rows = [index for index, row in enumerate(rows) if not row.sampling.is_greedy]
    seeds = [rows[index].seed for index in sampled_rows]
    positions = [rows[index].position for index in sampled_rows]
    noise, noise_row_of = distinct_gumbel(seeds, positions, token_ids)
    for index, noise_row in zip(sampled_rows, noise_row_of, strict=True):
        scores[index].add_(noise[noise_row])


def local_token_ids(logits: ShardedLogits) -> Tensor:
    first = logits.first_token_id
    return torch.arange(first, first + logits.local.shape[1], dtype=torch.int64, device=logits.local.device)
