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
from hothead.train.config import TrainConfig
from hothead.train.dataset import epoch_batches, fingerprint
from hothead.train.interrupt import InterruptBetweenSteps
from hothead.train.trainee import E, Evaluation, StepLoss, Trainee


@dataclass(frozen=True)
class StepReport:
    """What a callback sees after a step. share_done: of the budget. evaluation: at checkpoints only. accuracy: as in `StepLoss`."""

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
    accuracy: tuple[float, ...] = ()

    @property
    def left_s(self) -> float:
        """Seconds until the budget is used up, as things go."""
        return self.elapsed_s * (1 - self.share_done) / self.share_done if self.share_done > 0 else math.inf


def train(
    config: TrainConfig,
    trainee: Trainee[E],
    checkpoint_path: Path,
    on_step: Callable[[StepReport], None],
    on_evaluation: Callable[[Progress], dict[str, object]] | None = None,
) -> Progress:
    """Train until the budget is used up, from the checkpoint if there is one.

    on_evaluation: called with each evaluation (the last of `progress.evaluations`) before its checkpoint; what it returns is added to its
    figures. Ctrl-C finishes the step, saves and raises KeyboardInterrupt; a second one raises at once.
    """
    keep_freed_memory()
    network = trainee.network
    optimizer = make_optimizer(config, network)
    run_key = _run_key(config, trainee)
    progress = Progress()
    if checkpoint_path.exists():
        progress = checkpoint.load(checkpoint_path, network, optimizer, run_key)
    batches = _batches(config, trainee, progress)
    saved_s = progress.elapsed_s
    with InterruptBetweenSteps() as interrupt:
        while _share_done(config, progress) < 1:
            started_s = time.monotonic()
            example = trainee.training.load(batches[progress.batch_index], (config.seed, progress.epoch, progress.batch_index))
            rate = _learning_rate(config, progress)
            loss, gradient_norm = optimiser_step(config, trainee, optimizer, example, rate)
            step_s = time.monotonic() - started_s
            num_tokens = int((example.num_after > 0).sum())
            progress.count_step(num_tokens, step_s, is_end_of_epoch=progress.batch_index + 1 == len(batches))
            if progress.batch_index == 0:
                batches = _batches(config, trainee, progress)
            evaluation = None
            if _share_done(config, progress) >= 1 or progress.elapsed_s - saved_s >= config.checkpoint_minutes * 60:
                evaluation = _evaluate(trainee, progress, on_evaluation)
                checkpoint.save(checkpoint_path, network, optimizer, progress, run_key)
                saved_s = progress.elapsed_s
            on_step(_report(config, progress, loss, gradient_norm, rate, num_tokens / step_s, evaluation))
            if interrupt.is_interrupted:
                if evaluation is None:
                    checkpoint.save(checkpoint_path, network, optimizer, progress, run_key)
                raise KeyboardInterrupt
    return progress


def make_optimizer(config: TrainConfig, network: torch.nn.Module) -> torch.optim.AdamW:
    matrices = [parameter for parameter in network.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in network.parameters() if parameter.dim() == 1]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.95), eps=1e-8, fused=True)


def optimiser_step(
    config: TrainConfig, trainee: Trainee[E], optimizer: torch.optim.Optimizer, example: E, learning_rate: float
) -> tuple[StepLoss, float]:
    """One step. -> (its loss, gradient norm before clipping)."""
    loss = trainee.loss(example)
    optimizer.zero_grad(set_to_none=True)
    loss.total.backward()
    norm = torch.nn.utils.clip_grad_norm_(trainee.network.parameters(), config.max_gradient_norm)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.step()
    return loss, float(norm)


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


def _evaluate(trainee: Trainee[E], progress: Progress, on_evaluation: Callable[[Progress], dict[str, object]] | None) -> Evaluation:
    evaluation = trainee.evaluate()
    figures = {"num_steps": progress.num_steps, "elapsed_s": progress.elapsed_s, "num_tokens": progress.num_tokens, **asdict(evaluation)}
    progress.evaluations.append(figures)
    if on_evaluation is not None:
        figures |= on_evaluation(progress)
    return evaluation


def _report(
    config: TrainConfig,
    progress: Progress,
    loss: StepLoss,
    gradient_norm: float,
    learning_rate: float,
    tokens_per_s: float,
    evaluation: Evaluation | None,
) -> StepReport:
    return StepReport(
        progress.num_steps,
        progress.epoch,
        progress.elapsed_s,
        min(_share_done(config, progress), 1.0),
        loss.cross_entropy,
        loss.feature_loss,
        gradient_norm,
        learning_rate,
        tokens_per_s,
        evaluation,
        loss.accuracy,
    )


def _batches(config: TrainConfig, trainee: Trainee[E], progress: Progress) -> list[tuple[int, ...]]:
    """The batches of the epoch that the run is in."""
    training = trainee.training
    return epoch_batches(training.documents, config.batch_tokens, training.num_steps, config.seed, progress.epoch)


def _share_done(config: TrainConfig, progress: Progress) -> float:
    if config.num_steps is not None:
        return progress.num_steps / config.num_steps
    return progress.elapsed_s / config.budget_s


def _learning_rate(config: TrainConfig, progress: Progress) -> float:
    """Linear warm-up by steps, then half a cosine to zero over the budget."""
    warm = min(1.0, (progress.num_steps + 1) / (config.warmup_steps + 1))
    return config.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * min(_share_done(config, progress), 1.0)))


def _run_key(config: TrainConfig, trainee: Trainee[E]) -> str:
    """What must stay the same when a run goes on. Budget and intervals may change."""
    fixed = (
        *("num_unrolled", "batch_tokens", "seed", "hard_label_share", "depth_decay"),
        *("learning_rate", "warmup_steps", "weight_decay", "max_gradient_norm", "dtype"),
    )
    content = {name: getattr(config, name) for name in fixed} | dict(trainee.fixed)
    content["target"] = trainee.training.target_fingerprint
    content["training"] = fingerprint(trainee.training.documents)
    content["held_out"] = fingerprint(trainee.held_out.documents)
    content["hot"] = hashlib.sha256(trainee.training.hot_token_ids.numpy().astype("<i8").tobytes()).hexdigest()
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
