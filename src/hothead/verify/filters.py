"""What the target's distribution is: temperature, then top-k, then top-p, then min-p, as users of transformers expect it.

Each filter only ever removes the end of one order, (score descending, token id ascending), so a cut is "the first n tokens of it". That
makes ties exact: of equal scores the lower token ids stay, on every device and whatever a sort does with equal values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from hothead.config.sampling import SamplingParams

MIN_TEMPERATURE = 1e-30
"""Smaller temperatures count as this one: the division cannot overflow float32, and the result is greedy all the same."""

_TOP_P_WIDTH = 255
"""Highest scores looked at first: top-p nearly always ends among them."""


def is_filtered(sampling: SamplingParams) -> bool:
    """Whether any token is cut, so that a choice needs the whole row and not only one rank's shard."""
    return not sampling.is_greedy and (sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0.0)


def filter_logits(logits: Tensor, samplings: Sequence[SamplingParams]) -> Tensor:
    """Logits divided by the temperature, with -inf where a filter cuts.

    logits: [M, V], full rows, same on every rank; one SamplingParams per row -> [M, V] float32. Greedy rows come back as they are.
    top_k: exactly the k first tokens. top_p: the shortest beginning of what top-k left whose mass, counted after renormalising, reaches
    top_p; the token that crosses stays. min_p: tokens at least min_p times as probable as the best. The best token always stays.
    The input is not written to; when there is nothing to do it may be returned itself.
    """
    assert logits.shape[:-1] == (len(samplings),), (logits.shape, len(samplings))
    scaled = scale_logits(logits, samplings)
    filtered_rows = [row for row, sampling in enumerate(samplings) if is_filtered(sampling)]
    return _on_rows(scaled, samplings, filtered_rows, _cut) if filtered_rows else scaled


def scale_logits(logits: Tensor, samplings: Sequence[SamplingParams]) -> Tensor:
    """logits: [M, C], any columns -> [M, C] float32, divided by each row's temperature; greedy rows are not scaled."""
    divisors = [1.0 if sampling.is_greedy else max(sampling.temperature, MIN_TEMPERATURE) for sampling in samplings]
    scaled = logits.float()
    if all(divisor == 1.0 for divisor in divisors):
        return scaled
    divisor_column = torch.tensor(divisors, dtype=torch.float32, device=logits.device).unsqueeze(1)
    return scaled / divisor_column if scaled is logits else scaled.div_(divisor_column)


def probabilities(logits: Tensor, samplings: Sequence[SamplingParams]) -> Tensor:
    """The distribution that a choice follows.

    logits: [M, V] -> [M, V] float32; a greedy row is 1 at its highest logit, of equal ones at the lowest token id.
    """
    filtered = filter_logits(logits, samplings).softmax(dim=-1)
    for row, sampling in enumerate(samplings):
        if sampling.is_greedy:
            best = int((logits[row] == logits[row].max()).nonzero()[0, 0])
            filtered[row] = 0.0
            filtered[row, best] = 1.0
    return filtered


def _cut(scores: Tensor, samplings: Sequence[SamplingParams]) -> Tensor:
    """scores: [F, V] float32 -> [F, V] with -inf where a filter cuts, a new tensor."""
    vocab_size = scores.shape[1]
    ordered_rows = [row for row, sampling in enumerate(samplings) if _num_left(sampling, vocab_size) < vocab_size or sampling.top_p < 1.0]
    if ordered_rows:
        cut = _on_rows(scores, samplings, ordered_rows, lambda part, of_part: _cut_by_order(part, of_part, _TOP_P_WIDTH))
    else:
        cut = scores.clone()
    for row, sampling in enumerate(samplings):
        if sampling.min_p > 0.0:
            cut_below_share(cut[row], scores[row].amax(), sampling.min_p)
    return cut


def cut_below_share(scores: Tensor, highest: Tensor, min_p: float) -> None:
    """Min-p of one row [C], in place: tokens less than min_p times as probable as the one with the score `highest` become -inf."""
    # With one number as limit this is many times faster than a mask. What is above the number before the floor stays.
    floor = highest + math.log(min_p)
    below_floor = torch.nextafter(floor, torch.full_like(floor, -math.inf))
    functional.threshold(scores, float(below_floor), -math.inf, inplace=True)


def _on_rows(
    scores: Tensor,
    samplings: Sequence[SamplingParams],
    rows: Sequence[int],
    cut: Callable[[Tensor, Sequence[SamplingParams]], Tensor],
) -> Tensor:
    """A copy of the scores with `cut` done on some rows."""
    if len(rows) == len(samplings):
        return cut(scores, samplings)
    index = torch.tensor(rows, dtype=torch.int64, device=scores.device)
    return scores.index_copy(0, index, cut(scores.index_select(0, index), [samplings[row] for row in rows]))


def _cut_by_order(scores: Tensor, samplings: Sequence[SamplingParams], width: int) -> Tensor:
    """Top-k and top-p of rows that have at least one of them.  scores: [F, V] -> [F, V].

    width: how many of the highest scores to look at where top-k does not say it. Rows whose top-p goes further are done again with more.
    """
    vocab_size = scores.shape[1]
    num_left = [_num_left(sampling, vocab_size) for sampling in samplings]
    width = min(vocab_size, max([width, *(number for number in num_left if number < vocab_size)]))
    # One score more than needed shows whether a tie crosses the border.
    ordered, columns = scores.topk(min(width + 1, vocab_size))  # [F, W] each
    num_kept = _num_kept(scores, ordered, samplings, torch.tensor(num_left, device=scores.device).unsqueeze(1))  # [F, 1]
    kept = ordered.masked_fill(torch.arange(ordered.shape[1], device=scores.device) >= num_kept, -math.inf)
    cut = torch.full_like(scores, -math.inf).scatter_(1, columns, kept)
    last = ordered.gather(1, (num_kept - 1).clamp(max=ordered.shape[1] - 1))
    following = ordered.gather(1, num_kept.clamp(max=ordered.shape[1] - 1))
    is_decided = (num_kept <= width).flatten()
    is_tied = (following == last).flatten() & is_decided & (num_kept < vocab_size).flatten()
    for row in is_tied.nonzero().flatten().tolist():
        cut[row] = scores[row].masked_fill(~_is_among_first(scores[row], last[row], num_kept[row]), -math.inf)
    undecided_rows = (~is_decided).nonzero().flatten()
    if undecided_rows.numel():
        of_undecided = [samplings[row] for row in undecided_rows.tolist()]
        cut.index_copy_(0, undecided_rows, _cut_by_order(scores.index_select(0, undecided_rows), of_undecided, 16 * width))
    return cut


def _num_left(sampling: SamplingParams, vocab_size: int) -> int:
    """Tokens that top-k leaves."""
    return min(sampling.top_k, vocab_size) if sampling.top_k > 0 else vocab_size


def _num_kept(scores: Tensor, ordered: Tensor, samplings: Sequence[SamplingParams], num_left: Tensor) -> Tensor:
    """Tokens that top-k and top-p keep, as far as the order shows: a number past its end means "at least so many".

    scores: [F, V], ordered: [F, W] highest scores, descending, num_left: [F, 1] -> [F, 1] int64.
    """
    if all(sampling.top_p >= 1.0 for sampling in samplings):
        return num_left
    is_left = torch.arange(ordered.shape[1], device=scores.device) < num_left
    log_total = ordered.masked_fill(~is_left, -math.inf).logsumexp(1, keepdim=True)
    is_whole = num_left == scores.shape[1]
    if ordered.shape[1] < scores.shape[1] and bool(is_whole.any()):
        log_total = torch.where(is_whole, scores.logsumexp(1, keepdim=True), log_total)
    # Summed in float64: a flat row adds up 100,000 small terms.
    mass = (ordered - log_total).exp().cumsum(dim=1, dtype=torch.float64)
    top_p = [sampling.top_p if sampling.top_p < 1.0 else math.inf for sampling in samplings]
    num_below = (mass < torch.tensor(top_p, dtype=torch.float64, device=scores.device).unsqueeze(1)).sum(1, keepdim=True)
    return torch.minimum(num_below + 1, num_left)


def _is_among_first(scores: Tensor, last_score: Tensor, num_kept: Tensor) -> Tensor:
    """Mask of the first num_kept tokens in the order, given the score of the last of them.  scores: [V] -> [V] bool."""
    above = scores > last_score
    level = scores == last_score
    return above | (level & (level.cumsum(dim=0) <= num_kept - above.sum()))
