"""The hand-written gradients against autograd's."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F

from hothead.train.config import TrainEagleConfig
from hothead.train.eagle_trainee import unrolled_loss
from hothead.train.losses import distillation_loss, expected_head_rows
from hothead.train.network import RotaryTables

from .tiny import SHAPE, make_documents, make_network, make_source


def test_loss_and_gradient_equal_autograd() -> None:
    generator = torch.Generator().manual_seed(0)
    hot_rows = torch.randn(30, 12, generator=generator)
    target_features = torch.randn(2100, 12, generator=generator)  # more than two chunks
    predicted = (target_features + torch.randn(2100, 12, generator=generator)).requires_grad_()
    token_weights, feature_weights = torch.rand(2, 2100, generator=generator)
    expected = expected_head_rows(target_features, hot_rows)
    loss, parts = distillation_loss(predicted, hot_rows, expected, target_features, token_weights, feature_weights)
    (gradient,) = torch.autograd.grad(loss * 3, predicted)

    teacher = torch.softmax(target_features @ hot_rows.T, -1)
    cross_entropy = (F.cross_entropy(predicted @ hot_rows.T, teacher, reduction="none") * token_weights).sum()
    regression = (F.smooth_l1_loss(predicted, target_features, reduction="none").mean(-1) * feature_weights).sum()
    (wanted,) = torch.autograd.grad((cross_entropy + regression) * 3, predicted)
    torch.testing.assert_close(parts, torch.stack([cross_entropy, regression]).detach(), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-5)


def test_gradient_of_the_whole_unrolled_loss(tmp_path: Path) -> None:
    """Attention, key padding, and loss have gradients of their own: compare with differences of the loss itself, in random directions."""
    torch.manual_seed(0)
    source = make_source(make_documents(4), tmp_path)
    network = make_network(has_fusion_bias=True)
    config = TrainEagleConfig(num_steps=1, num_unrolled=3, feature_weight=0.5, hard_label_share=0.3)
    rotary = RotaryTables.plain(64, SHAPE.head_dim, 10000.0, torch.float32)
    example = source.load([0, 1, 3])
    loss = unrolled_loss(config, network, example, source, rotary).total
    loss.backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        direction = parameter.grad / parameter.grad.norm()
        step = 2e-2
        with torch.no_grad():
            parameter += direction * step
            above = unrolled_loss(config, network, example, source, rotary).total
            parameter -= 2 * direction * step
            below = unrolled_loss(config, network, example, source, rotary).total
            parameter += direction * step
        slope = float(above - below) / (2 * step)
        assert abs(slope - float(parameter.grad.norm())) < 0.03 * abs(slope) + 1e-4, (name, slope, float(parameter.grad.norm()))
