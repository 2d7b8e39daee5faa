"""`hothead train eagle3` from prompts or responses to a draft head that `--draft` takes.

Responses and hot vocabulary as for EAGLE (`prepare.py`). The target's states are computed in every step, or once with --cache-dir; all
unrolled steps share them, and the distributions that come of them. Nothing is as wide as the full vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch

from hothead.train.checkpoint import Progress
from hothead.train.config import TrainEagle3Config
from hothead.train.eagle3_examples import Eagle3Example, Eagle3Source, measure_scales
from hothead.train.eagle3_losses import LossRows, head_loss, hot_distribution
from hothead.train.eagle3_network import Eagle3Head
from hothead.train.evaluation import evaluate
from hothead.train.examples import FrozenTarget
from hothead.train.export import export_eagle3
from hothead.train.features import FeatureCache, FeatureRows, FeatureSubset, OnlineFeatures
from hothead.train.loop import keep_freed_memory, train
from hothead.train.network import NextEmbeddings, RotaryTables
from hothead.train.prepare import Callbacks, Data, prepare, resolve_dtype
from hothead.train.record import write_record
from hothead.train.trainee import Evaluation, StepLoss, Trainee

FIGURE_ROWS = 512
"""Positions of each unrolled step from which the loss and the accuracy that are shown are taken."""


def train_eagle3(config: TrainEagle3Config, target: FrozenTarget, callbacks: Callbacks, always_in: Sequence[int] | None = None) -> Progress:
    """Train a head; it and its token map lie in config.output afterwards. target: loaded for EAGLE-3. always_in: tokens of every map (None:
    the target's end tokens).

    Raises OptionError, DataError, OutputError, CheckpointError, HotMapError.
    """
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    keep_freed_memory()
    dtype = resolve_dtype(config.dtype)
    data = prepare(config, target, callbacks, always_in, "EAGLE3")
    features = _features(config, target, data, callbacks)
    scales = measure_scales(target, features, min(16, len(data.documents)))

    def source(indices: Sequence[int], later_share: float) -> Eagle3Source:
        chosen, rows = data.chosen(indices), FeatureSubset(features, indices)
        ids, num_steps = data.token_map.token_ids, config.num_unrolled
        return Eagle3Source(chosen, rows, target, ids, scales, num_steps, config.batch_tokens, dtype, later_share)

    training, held_out = source(data.training, config.later_share), source(data.held_out, 1.0)
    network = Eagle3Head(target.shape, len(data.token_map), len(target.feature_layers))
    network.initialise(config.seed, target.head[training.hot_token_ids].float(), target.final_norm.float())
    about = data.about | {"later_share": config.later_share, "feature_layers": list(target.feature_layers)}

    def on_evaluation(progress: Progress) -> dict[str, object]:
        figures = progress.evaluations[-1]

        def export(measured: dict[str, object]) -> None:
            export_eagle3(config.output, network, scales, target, data.token_map, about | {"evaluation": figures | measured})

        measured = callbacks.after_export(config.output, export)
        figures.update(measured)
        write_record(config.output, config, about, progress, callbacks.version)
        return measured

    rotary = target.rotary(config.max_length + config.num_unrolled, dtype)
    trainee = eagle3_trainee(config, network, training, held_out, rotary)
    return train(config, trainee, config.output / "work" / "checkpoint.safetensors", callbacks.on_step, on_evaluation)


def eagle3_trainee(
    config: TrainEagle3Config, network: Eagle3Head, training: Eagle3Source, held_out: Eagle3Source, rotary: RotaryTables
) -> Trainee[Eagle3Example]:
    """rotary: tables for every position that is trained."""
    return Trainee(
        network,
        training,
        held_out,
        lambda example: eagle3_loss(config, network, example, training, rotary, FIGURE_ROWS),
        lambda: evaluate_eagle3(network, held_out, rotary),
        {"later_share": config.later_share},
    )


def evaluate_eagle3(network: Eagle3Head, source: Eagle3Source, rotary: RotaryTables) -> Evaluation:
    """Of the network as it stands, over all positions."""
    weights = network.compute_weights(source.dtype)

    def unroll(example: Eagle3Example, next_embeddings: NextEmbeddings | None = None) -> Sequence[torch.Tensor]:
        return network.unroll(weights, example.inputs, rotary, source.num_steps, next_embeddings)

    return evaluate(source, unroll, weights.head)


def eagle3_loss(
    config: TrainEagle3Config,
    network: Eagle3Head,
    example: Eagle3Example,
    source: Eagle3Source,
    rotary: RotaryTables,
    num_figure_rows: int | None = None,
) -> StepLoss:
    """Cross-entropy of every unrolled step against the target's distribution over the hot vocabulary, weighted by depth. num_figure_rows:
    see `head_loss`."""
    num_rows = example.batch.num_response_rows
    weights = network.compute_weights(source.dtype)
    read = network.unroll(weights, example.inputs, rotary, source.num_steps)
    # Row n's distribution is over row n's own next token: what step s predicts from row n - s - 1.
    targets = hot_distribution(example.final_states, source.hot_rows, example.hot_indices[:num_rows], config.hard_label_share)
    depth_weights = [config.depth_decay**step for step in range(source.num_steps)]
    target_rows, labels, row_weights, hot_shares = [], [], [], []
    for step in range(source.num_steps):
        rows = torch.arange(num_rows) if step == 0 or example.inputs.roots is None else example.inputs.roots
        is_counted = example.num_after[rows] > step
        num_counted = is_counted.sum().clamp(min=1)
        labels.append(torch.where(is_counted, example.hot_indices[rows + step + 1], -1))
        is_hot = labels[-1] >= 0
        row_weights.append(is_hot.float() * (depth_weights[step] / sum(depth_weights) / num_counted))
        target_rows.append((rows + step + 1).clamp(max=num_rows - 1))
        hot_shares.append(float(is_hot.sum() / num_counted))
    starts = tuple(accumulate((len(rows) for rows in labels[:-1]), initial=0))
    compared = LossRows(torch.cat(target_rows), torch.cat(labels), torch.cat(row_weights), starts)
    loss, figures = head_loss(torch.cat(read), weights.head, targets, compared, num_figure_rows)
    # A token outside the hot vocabulary is a miss.
    accuracy = tuple(share * hot for share, hot in zip(figures[:, 1].tolist(), hot_shares, strict=True))
    return StepLoss(loss, float(loss.detach()), accuracy=accuracy)


def _features(config: TrainEagle3Config, target: FrozenTarget, data: Data, callbacks: Callbacks) -> FeatureRows:
    if config.cache_dir is None:
        return OnlineFeatures(data.documents, target.hidden_states)
    layers = ",".join(map(str, target.feature_layers))
    cache = FeatureCache(data.documents, config.cache_dir, f"{target.weights_fingerprint} {target.embedding.dtype} layers {layers}")
    cache.write(target.hidden_states, lambda done, total: callbacks.on_stage("features", done, total))
    return cache
