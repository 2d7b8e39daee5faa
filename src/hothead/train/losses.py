"""What the head learns: the target's distribution over the hot vocabulary, and its features.

The cross-entropy against the target's distribution t is lse(z) - h . E_t, where z = W h are the student's hot logits and E_t = sum_v t_v
W_v is the *expected head row* under t; its gradient is E_softmax(z) - E_t. E_t has D numbers and does not change during training, so it
is computed once per token of data, and no step of training ever touches teacher logits.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

_CHUNK_ROWS = 1024


def expected_head_rows(features: torch.Tensor, hot_rows: torch.Tensor) -> torch.Tensor:
    """Head rows averaged under the target's distribution, which is renormalised over the hot vocabulary.

    features: [N, D], hot_rows: [H, D] -> [N, D] float32.
    """
    parts = []
    for chunk in features.split(_CHUNK_ROWS):
        shares = torch.softmax(F.linear(chunk, hot_rows), -1)  # [n, H]
        parts.append(torch.matmul(shares, hot_rows).float())
    return torch.cat(parts)


def distillation_loss(
    predicted: torch.Tensor,
    hot_rows: torch.Tensor,
    expected_rows: torch.Tensor,
    target_features: torch.Tensor,
    token_weights: torch.Tensor,
    feature_weights: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum over rows of token_weight * cross-entropy + feature_weight * smooth L1 (mean over D); and [2] its two parts, no gradient.

    predicted, expected_rows, target_features: [N, D]; hot_rows: [H, D]; token_weights, feature_weights: [N] float32. Only `predicted`
    receives a gradient.
    """
    inputs = (predicted, hot_rows, expected_rows, target_features, token_weights, feature_weights)
    loss, parts = _Distillation.apply(*inputs)  # type: ignore[no-untyped-call]
    return loss, parts


class _Distillation(torch.autograd.Function):
    """The gradient is computed in the forward pass, chunk by chunk, so that no [N, H] tensor outlives its chunk."""

    @staticmethod
    def forward(
        ctx: Any,
        predicted: torch.Tensor,
        hot_rows: torch.Tensor,
        expected_rows: torch.Tensor,
        target_features: torch.Tensor,
        token_weights: torch.Tensor,
        feature_weights: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        sums = torch.zeros(2, dtype=torch.float32, device=predicted.device)
        gradient = torch.empty_like(predicted)
        for start in range(0, len(predicted), _CHUNK_ROWS):
            rows = slice(start, start + _CHUNK_ROWS)
            features = predicted[rows]
            wide, wanted = features.float(), expected_rows[rows].float()
            scores = F.linear(features, hot_rows)  # [n, H]
            shares = torch.softmax(scores, -1)
            # Any column gives the same log-sum-exp: score - log(share). The most frequent token's share is the least likely to underflow.
            log_sum_exp = scores[:, 0].float() - shares[:, 0].float().clamp(min=1e-38).log()
            cross_entropy = log_sum_exp - (wide * wanted).sum(-1)
            difference = wide - target_features[rows].float()
            sums[0] += (cross_entropy * token_weights[rows]).sum()
            sums[1] += (F.smooth_l1_loss(wide, target_features[rows].float(), reduction="none").mean(-1) * feature_weights[rows]).sum()
            slope = (torch.matmul(shares, hot_rows).float() - wanted).mul_(token_weights[rows, None])
            slope += difference.clamp_(-1, 1).mul_(feature_weights[rows, None] / predicted.shape[1])
            gradient[rows] = slope.to(gradient.dtype)
        ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(sums)
        return sums.sum(), sums

    @staticmethod
    def backward(ctx: Any, above: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * above.to(gradient.dtype), None, None, None, None, None
