"""EAGLE's head as the training loop sees it: cross-entropy and feature regression over unrolled draft steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hothead.train.config import TrainEagleConfig
from hothead.train.evaluation import evaluate
from hothead.train.examples import EagleExample, ExampleSource
from hothead.train.losses import distillation_loss
from hothead.train.network import EagleHead, NextEmbeddings, RotaryTables
from hothead.train.trainee import Evaluation, StepLoss, Trainee


def eagle_trainee(
    config: TrainEagleConfig, network: EagleHead, training: ExampleSource, held_out: ExampleSource, rotary: RotaryTables
) -> Trainee[EagleExample]:
    """rotary: tables for every position that is trained."""
    return Trainee(
        network,
        training,
        held_out,
        lambda example: unrolled_loss(config, network, example, training, rotary),
        lambda: evaluate_eagle(network, held_out, rotary),
        {"feature_weight": config.feature_weight},
    )


def evaluate_eagle(network: EagleHead, source: ExampleSource, rotary: RotaryTables) -> Evaluation:
    """Of the network as it stands."""
    weights = network.compute_weights(source.dtype)

    def unroll(example: EagleExample, next_embeddings: NextEmbeddings | None = None) -> Sequence[torch.Tensor]:
        return network.unroll(weights, example.inputs, rotary, source.num_steps, next_embeddings)

    return evaluate(source, unroll, source.hot_rows)


def unrolled_loss(
    config: TrainEagleConfig, network: EagleHead, example: EagleExample, source: ExampleSource, rotary: RotaryTables
) -> StepLoss:
    """Loss over all draft steps, weighted by depth."""
    num_rows = example.batch.num_response_rows
    predicted = network.unroll(network.compute_weights(source.dtype), example.inputs, rotary, source.num_steps)
    depth_weights = [config.depth_decay**step for step in range(source.num_steps)]
    total = sum(depth_weights)
    losses, sums = [], []
    for step, features in enumerate(predicted):
        ahead = slice(step + 1, num_rows + step + 1)
        is_counted = (example.num_after > step).float()
        scale = depth_weights[step] / total / is_counted.sum().clamp(min=1)
        hot_indices = example.hot_indices[ahead]
        # The target's distribution over hot tokens says little where its choice lies outside: such rows carry no cross-entropy.
        token_weights = is_counted * (hot_indices >= 0) * scale
        expected = example.expected_rows[ahead]
        if config.hard_label_share > 0:
            chosen_rows = source.hot_rows[hot_indices.clamp(min=0)].float()
            expected = expected * (1 - config.hard_label_share) + chosen_rows * config.hard_label_share
        loss, parts = distillation_loss(
            features, source.hot_rows, expected, example.inputs.features[ahead], token_weights, is_counted * scale * config.feature_weight
        )
        losses.append(loss)
        sums.append(parts)
    cross_entropy, feature_loss = torch.stack(sums).sum(0).tolist()
    return StepLoss(torch.stack(losses).sum(), cross_entropy, feature_loss)
