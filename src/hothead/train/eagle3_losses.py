"""What an EAGLE-3 head learns: the target's distribution over the hot vocabulary, with head rows that are trained too.

The target's distribution is restricted to the hot vocabulary and renormalised, t. The rest is accounted for by the row's weight: the full
cross-entropy of what can be drafted, - sum over hot v of p_v log q_v, is the hot mass times the cross-entropy against t, and whether the
text's own token is hot estimates that mass (exactly in expectation where the text was sampled) without one product over the full
vocabulary. So a row whose own token cannot be drafted carries no loss, and still counts among those that the loss is a mean of.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

_CHUNK_ROWS = 512


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


def head_loss(
    features: torch.Tensor,
    head: torch.Tensor,
    targets: torch.Tensor,
    target_rows: torch.Tensor,
    labels: torch.Tensor,
    weights: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum over rows of weight * cross-entropy against the row's target distribution; and [2] float32: the same number and the number of
    labels that score best, no gradient.

    features: [n, D] and head: [H, D] receive gradients. targets: [T, H]; target_rows: [n] int64, which of them is each row's; labels: [n]
    int64, -1 for none; weights: [n] float32.
    """
    loss, figures = _HeadLoss.apply(features, head, targets, target_rows, labels, weights)  # type: ignore[no-untyped-call]
    return loss, figures


class _HeadLoss(torch.autograd.Function):
    """Both gradients are computed in the forward pass: what is kept is [n, D] and [H, D], never [n, H] in float32."""

    @staticmethod
    def forward(
        ctx: Any,
        features: torch.Tensor,
        head: torch.Tensor,
        targets: torch.Tensor,
        target_rows: torch.Tensor,
        labels: torch.Tensor,
        weights: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        figures = torch.zeros(2, dtype=torch.float32)
        slopes = torch.empty(len(features), len(head), dtype=features.dtype)
        for start in range(0, len(features), _CHUNK_ROWS):
            rows = slice(start, start + _CHUNK_ROWS)
            wanted = targets.index_select(0, target_rows[rows])  # [n, H]
            scores = F.linear(features[rows], head)
            shares = torch.softmax(scores, -1)
            # Any column gives the same log-sum-exp: score - log(share). The best one's share does not underflow.
            best_score, best_share = scores.amax(-1).float(), shares.amax(-1).float()
            expected = (wanted * scores).sum(-1, dtype=torch.float32)
            figures[0] += ((best_score - best_share.log() - expected) * weights[rows]).sum()
            is_label, own = labels[rows] >= 0, labels[rows, None].clamp(min=0)
            figures[1] += (is_label & (scores.gather(1, own).squeeze(1) == best_score)).sum()
            torch.sub(shares, wanted, out=shares)
            torch.mul(shares, weights[rows, None].to(shares.dtype), out=slopes[rows])
        ctx.save_for_backward(torch.mm(slopes, head), torch.mm(slopes.t(), features))
        ctx.mark_non_differentiable(figures)
        return figures[0].clone(), figures

    @staticmethod
    def backward(ctx: Any, above: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        feature_gradient, head_gradient = ctx.saved_tensors
        factor = above.to(feature_gradient.dtype)
        return feature_gradient * factor, head_gradient * factor, None, None, None, None
