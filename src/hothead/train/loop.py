"""The training run: batches, learning rate, optimiser steps, evaluation, checkpoints; goes on where it stopped."""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from hothead.train import checkpoint
from hothead.train.checkpoint import Progress
from hothead.train.config import TrainEagleConfig
from hothead.train.dataset import epoch_batches, fingerprint
from hothead.train.evaluation import Evaluation, evaluate
from hothead.train.examples import Example, ExampleSource
from hothead.train.interrupt import InterruptBetweenSteps
from hothead.train.losses import distillation_loss
from hothead.train.network import EagleHead, RotaryTables


@dataclass(frozen=True)
class StepReport:
    """What a callback sees after a step. share_done: of the budget. evaluation: at checkpoints only."""

    num_steps: int
    epoch: int
    elapsed_s: float
    share_done: float
    cross_entropy: float
    feature_loss: float
    gradient_norm: float
    learning_rate: float
    tokens_per_s: float
    evaluation: Evaluation | None = None


def train(
    config: TrainEagleConfig,
    network: EagleHead,
    training: ExampleSource,
    held_out: ExampleSource,
    rotary: RotaryTables,
    checkpoint_path: Path,
    on_step: Callable[[StepReport], None],
    on_evaluation: Callable[[Progress], dict[str, object]] | None = None,
) -> Progress:
    """Train until the budget is used up, from the checkpoint if there is one.

    on_evaluation: called with each evaluation (the last of `progress.evaluations`) before its checkpoint; what it returns is added to its
    figures. Ctrl-C finishes the step, saves and raises KeyboardInterrupt; a second one raises at once.
    """
    keep_freed_memory()
    optimizer = make_optimizer(config, network)
    run_key = _run_key(config, training, held_out)
    progress = Progress()
    if checkpoint_path.exists():
        progress = checkpoint.load(checkpoint_path, network, optimizer, run_key)
    batches = _batches(config, training, progress)
    saved_s = progress.elapsed_s
    with InterruptBetweenSteps() as interrupt:
        while _share_done(config, progress) < 1:
            started_s = time.monotonic()
            example = training.load(batches[progress.batch_index])
            rate = _learning_rate(config, progress)
            parts, gradient_norm = optimiser_step(config, network, optimizer, example, training, rotary, rate)
            step_s = time.monotonic() - started_s
            num_tokens = int((example.num_after > 0).sum())
            progress.count_step(num_tokens, step_s, is_end_of_epoch=progress.batch_index + 1 == len(batches))
            if progress.batch_index == 0:
                batches = _batches(config, training, progress)
            evaluation = None
            if _share_done(config, progress) >= 1 or progress.elapsed_s - saved_s >= config.checkpoint_minutes * 60:
                evaluation = _evaluate(network, held_out, rotary, progress, on_evaluation)
                checkpoint.save(checkpoint_path, network, optimizer, progress, run_key)
                saved_s = progress.elapsed_s
            on_step(_report(config, progress, parts, gradient_norm, rate, num_tokens / step_s, evaluation))
            if interrupt.is_interrupted:
                if evaluation is None:
                    checkpoint.save(checkpoint_path, network, optimizer, progress, run_key)
                raise KeyboardInterrupt
    return progress


def make_optimizer(config: TrainEagleConfig, network: EagleHead) -> torch.optim.AdamW:
    matrices = [parameter for parameter in network.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in network.parameters() if parameter.dim() == 1]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.95), eps=1e-8, fused=True)


def optimiser_step(
    config: TrainEagleConfig,
    network: EagleHead,
    optimizer: torch.optim.Optimizer,
    example: Example,
    source: ExampleSource,
    rotary: RotaryTables,
    learning_rate: float,
) -> tuple[torch.Tensor, float]:
    """One step. -> ([2] mean cross-entropy and feature loss over depths, gradient norm before clipping)."""
    loss, parts = unrolled_loss(config, network, example, source, rotary)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(network.parameters(), config.max_gradient_norm)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.step()
    return parts, float(norm)


def unrolled_loss(
    config: TrainEagleConfig, network: EagleHead, example: Example, source: ExampleSource, rotary: RotaryTables
) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss over all draft steps, weighted by depth -> (loss, [2] its weighted mean cross-entropy and feature loss)."""
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
    return torch.stack(losses).sum(), torch.stack(sums).sum(0)


def keep_freed_memory() -> None:
    """Tell glibc to reuse large blocks instead of returning them to the system.

    The page faults of every step's tensors would cost as much as its arithmetic.
    """
    try:
        library = ctypes.CDLL(None)
        m_trim_threshold, m_mmap_max = -1, -4
        library.mallopt(m_mmap_max, 0)
        library.mallopt(m_trim_threshold, 2**31 - 1)
    except (OSError, AttributeError):
        return  # another C library: slower, nothing else


def _evaluate(
    network: EagleHead,
    held_out: ExampleSource,
    rotary: RotaryTables,
    progress: Progress,
    on_evaluation: Callable[[Progress], dict[str, object]] | None,
) -> Evaluation:
    evaluation = evaluate(network, held_out, rotary)
    figures = {"num_steps": progress.num_steps, "elapsed_s": progress.elapsed_s, "num_tokens": progress.num_tokens, **asdict(evaluation)}
    progress.evaluations.append(figures)
    if on_evaluation is not None:
        figures |= on_evaluation(progress)
    return evaluation


def _report(
    config: TrainEagleConfig,
    progress: Progress,
    parts: torch.Tensor,
    gradient_norm: float,
    learning_rate: float,
    tokens_per_s: float,
    evaluation: Evaluation | None,
) -> StepReport:
    share_done = min(_share_done(config, progress), 1.0)
    cross_entropy, feature_loss = parts.tolist()
    return StepReport(
        progress.num_steps,
        progress.epoch,
        progress.elapsed_s,
        share_done,
        cross_entropy,
        feature_loss,
        gradient_norm,
        learning_rate,
        tokens_per_s,
        evaluation,
    )


def _batches(config: TrainEagleConfig, training: ExampleSource, progress: Progress) -> list[tuple[int, ...]]:
    """The batches of the epoch that the run is in."""
    return epoch_batches(training.documents, config.batch_tokens, training.num_steps, config.seed, progress.epoch)


def _share_done(config: TrainEagleConfig, progress: Progress) -> float:
    if config.num_steps is not None:
        return progress.num_steps / config.num_steps
    return progress.elapsed_s / config.budget_s


def _learning_rate(config: TrainEagleConfig, progress: Progress) -> float:
    """Linear warm-up by steps, then half a cosine to zero over the budget."""
    warm = min(1.0, (progress.num_steps + 1) / (config.warmup_steps + 1))
    return config.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * min(_share_done(config, progress), 1.0)))


def _run_key(config: TrainEagleConfig, training: ExampleSource, held_out: ExampleSource) -> str:
    """What must stay the same when a run goes on. Budget and intervals may change."""
    fixed = (
        *("num_unrolled", "batch_tokens", "seed", "hard_label_share", "feature_weight", "depth_decay"),
        *("learning_rate", "warmup_steps", "weight_decay", "max_gradient_norm", "dtype"),
    )
    content = {name: getattr(config, name) for name in fixed}
    content["target"] = training.target_fingerprint
    content["training"] = fingerprint(training.documents)
    content["held_out"] = fingerprint(held_out.documents)
    content["hot"] = hashlib.sha256(training.hot_token_ids.numpy().astype("<i8").tobytes()).hexdigest()
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
