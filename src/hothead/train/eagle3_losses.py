"""What an EAGLE-3 head learns: the target's distribution over the hot vocabulary, with head rows that are trained too.

The target's distribution is restricted to the hot vocabulary and renormalised, t. The rest is accounted for by the row's weight: the full
cross-entropy of what can be drafted, - sum over hot v of p_v log q_v, is the hot mass times the cross-entropy against t, and whether the
text's own token is hot estimates that mass (exactly in expectation where the text was sampled) without one product over the full
vocabulary. So a row whose own token cannot be drafted carries no loss, and still counts among those that the loss is a mean of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

_CHUNK_ROWS = 256


@torch.no_grad()
def hot_distribution(
    final_states: torch.Tensor, hot_rows: torch.Tensor, hot_indices: torch.Tensor, hard_label_share: float = 0.0
) -> torch.Tensor:
    """The target's distribution over the hot vocabulary, renormalised, [n, H] in the dtype of hot_rows.

    final_states: [n, D] after the target's final norm; hot_rows: [H, D] of its head; hot_indices: [n] of the tokens that the text has
    there, -1 outside. hard_label_share: share of the distribution that is moved to that token.
    """
    shares = torch.empty(len(final_states), len(hot_rows), dtype=hot_rows.dtype)
    for start in range(0, len(final_states), _CHUNK_ROWS):
        rows = slice(start, start + _CHUNK_ROWS)
        shares[rows] = torch.softmax(F.linear(final_states[rows], hot_rows), -1)
    if hard_label_share > 0:
        is_hot = hot_indices >= 0
        shares[is_hot] *= 1 - hard_label_share
        shares[is_hot.nonzero().squeeze(1), hot_indices[is_hot]] += hard_label_share
    return shares


@dataclass(frozen=True)
class LossRows:
    """What the rows of all unrolled steps are compared with, steps one after the other, n rows in all.

    target_rows: [n] int64, which target distribution is each row's; labels: [n] int64, -1 for none; weights: [n] float32; starts: the first
    row of each step.
    """

    target_rows: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor
    starts: tuple[int, ...]


def head_loss(
    features: torch.Tensor, head: torch.Tensor, targets: torch.Tensor, rows: LossRows, num_figure_rows: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum over rows of weight * cross-entropy against the row's target distribution; and [S, 2] float32 for the steps, no gradient: their
    parts of that sum, and the share of rows with a label whose label scores best.

    features: [n, D] and head: [H, D] receive gradients; targets: [T, H]. num_figure_rows: rows of each step that numbers (not gradients)
    are taken from, since they cost as much as the softmax itself; None is all, which makes the sum exact.
    """
    loss, figures = _HeadLoss.apply(features, head, targets, rows, num_figure_rows)  # type: ignore[no-untyped-call]
    return loss, figures


class _HeadLoss(torch.autograd.Function):
    """Both gradients are computed in the forward pass: what is kept is [n, D] and [H, D], never [n, H] in float32."""

    @staticmethod
    def forward(
        ctx: Any, features: torch.Tensor, head: torch.Tensor, targets: torch.Tensor, rows: LossRows, num_figure_rows: int | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        slopes = torch.empty(len(features), len(head), dtype=features.dtype)
        figures = []
        for start, stop in zip(rows.starts, (*rows.starts[1:], len(features)), strict=True):
            last = stop if num_figure_rows is None else min(start + num_figure_rows, stop)
            sums = torch.zeros(2)
            for first in range(start, stop, _CHUNK_ROWS):
                part = slice(first, min(first + _CHUNK_ROWS, stop))
                wanted = targets.index_select(0, rows.target_rows[part])  # [c, H]
                scores = F.linear(features[part], head)
                shares = torch.softmax(scores, -1)
                if first < last:
                    sums += _figures(scores, shares, wanted, rows, slice(first, min(part.stop, last)))
                torch.sub(shares, wanted, out=shares)
                torch.mul(shares, rows.weights[part, None].to(shares.dtype), out=slopes[part])
            seen, every = slice(start, last), slice(start, stop)
            sums[0] *= rows.weights[every].sum() / rows.weights[seen].sum().clamp(min=1e-30)
            sums[1] /= (rows.labels[seen] >= 0).sum().clamp(min=1)
            figures.append(sums)
        ctx.save_for_backward(torch.mm(slopes, head), torch.mm(slopes.t(), features))
        by_step = torch.stack(figures)
        ctx.mark_non_differentiable(by_step)
        return by_step[:, 0].sum(), by_step

    @staticmethod
    def backward(ctx: Any, above: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        feature_gradient, head_gradient = ctx.saved_tensors
        factor = above.to(feature_gradient.dtype)
        return feature_gradient * factor, head_gradient * factor, None, None, None


def _figures(scores: torch.Tensor, shares: torch.Tensor, wanted: torch.Tensor, rows: LossRows, part: slice) -> torch.Tensor:
    """[2]: sum of weight * cross-entropy, and number of labels that score best, over the first rows of a chunk."""
    count = part.stop - part.start
    scores, shares, wanted = scores[:count], shares[:count], wanted[:count]
    # Any column gives the same log-sum-exp: score - log(share). The best one's share does not underflow.
    best_score, best_share = scores.amax(-1), shares.amax(-1).float()
    cross_entropy = best_score.float() - best_share.log() - (wanted * scores).sum(-1, dtype=torch.float32)
    labels = rows.labels[part]
    is_best = scores.gather(1, labels[:, None].clamp(min=0)).squeeze(1) == best_score
    return torch.stack([(cross_entropy * rows.weights[part]).sum(), ((labels >= 0) & is_best).sum().float()])
