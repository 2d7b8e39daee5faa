"""`hothead train eagle` from prompts or responses to a draft head that `--draft` takes: read this file first, then `eagle3.py`.

1. responses: the target answers the prompts, or they are given; and the hot vocabulary, counted on them (`prepare.py`). 2. features: the
target's hidden states of every response, once (`features.py`). 3. expected head rows: the target's distribution over the hot vocabulary
(`losses.py`). 4. training (`loop.py`), with an exported head in the output folder after every evaluation. All go on where they stopped.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hothead.train.checkpoint import Progress
from hothead.train.config import TrainEagleConfig
from hothead.train.eagle_trainee import eagle_trainee
from hothead.train.examples import ExampleSource, FrozenTarget, Scales
from hothead.train.export import export_head
from hothead.train.features import FeatureCache, FeatureSubset
from hothead.train.loop import keep_freed_memory, train
from hothead.train.network import EagleHead
from hothead.train.prepare import Callbacks, prepare, resolve_dtype
from hothead.train.record import write_record


def train_eagle(config: TrainEagleConfig, target: FrozenTarget, callbacks: Callbacks, always_in: Sequence[int] | None = None) -> Progress:
    """Train a head; it and its token map lie in config.output afterwards. always_in: tokens of every map (None: the target's end tokens).

    Raises OptionError, DataError, OutputError, CheckpointError, HotMapError.
    """
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    keep_freed_memory()
    dtype = resolve_dtype(config.dtype)
    work = config.output / "work"
    data = prepare(config, target, callbacks, always_in, "EAGLE")
    features = FeatureCache(data.documents, work, f"{target.weights_fingerprint} {target.embedding.dtype}")
    features.write(target.hidden_states, lambda done, total: callbacks.on_stage("features", done, total))
    scales = Scales.measure(target, features, data.documents)

    def source(indices: Sequence[int]) -> ExampleSource:
        rows, chosen = FeatureSubset(features, indices), data.chosen(indices)
        made = ExampleSource(chosen, rows, target, data.token_map.token_ids, scales, config.num_unrolled, config.batch_tokens, dtype)
        made.prepare(work, lambda done, total: callbacks.on_stage("distributions", done, total))
        return made

    network = EagleHead(target.shape)
    network.initialise(config.seed)

    def on_evaluation(progress: Progress) -> dict[str, object]:
        figures = progress.evaluations[-1]

        def export(measured: dict[str, object]) -> None:
            export_head(config.output, network, scales, target, data.token_map, data.about | {"evaluation": figures | measured})

        measured = callbacks.after_export(config.output, export)
        figures.update(measured)
        write_record(config.output, config, data.about, progress, callbacks.version)
        return measured

    rotary = target.rotary(config.max_length + config.num_unrolled, dtype)
    trainee = eagle_trainee(config, network, source(data.training), source(data.held_out), rotary)
    return train(config, trainee, work / "checkpoint.safetensors", callbacks.on_step, on_evaluation)
