"""`hothead train eagle` from prompts or responses to a draft head that `--draft` takes: read this file first.

1. responses: the target answers the prompts (`responses.py`), or they are given. 2. features: the target's hidden states of every
response, once (`features.py`). 3. hot vocabulary: counted on the training responses. 4. expected head rows: the target's distribution
over it (`losses.py`). 5. training (`loop.py`), with an exported head in the output folder after every evaluation. All five go on where they
stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from hothead.engine.responses import WriteResponses, collect_responses
from hothead.errors import OptionError
from hothead.train.checkpoint import Progress
from hothead.train.config import TrainEagleConfig
from hothead.train.dataset import Document, fingerprint, read_documents, read_prompts, split_held_out
from hothead.train.examples import ExampleSource, FrozenTarget, Scales
from hothead.train.export import export_head
from hothead.train.features import FeatureCache, FeatureSubset
from hothead.train.loop import StepReport, keep_freed_memory, train
from hothead.train.network import EagleHead
from hothead.vocab.count import TokenCounts
from hothead.vocab.token_map import TokenMap


@dataclass(frozen=True)
class Callbacks:
    """What a caller sees and supplies.

    on_stage(stage, done, in all): "responses", "features" and "distributions". on_step: every optimiser step. write_responses: needed
    with --prompts. measure(folder of the head as it stands) -> further figures for each evaluation, such as tokens per step of the real
    engine.
    """

    on_stage: Callable[[str, int, int], None]
    on_step: Callable[[StepReport], None]
    write_responses: WriteResponses | None = None
    measure: Callable[[Path], dict[str, object]] | None = None


def train_eagle(config: TrainEagleConfig, target: FrozenTarget, callbacks: Callbacks, always_in: Sequence[int] | None = None) -> Progress:
    """Train a head; it and its token map lie in config.output afterwards. always_in: tokens of every map (None: the target's end tokens).

    Raises OptionError, DataError, OutputError, CheckpointError, HotMapError.
    """
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    keep_freed_memory()
    dtype = resolve_dtype(config.dtype)
    work = config.output / "work"
    documents = read_documents(_responses(config, callbacks), target.vocab_size, config.max_length)
    features = FeatureCache(documents, work, f"{target.weights_fingerprint} {target.embedding.dtype}")
    features.write(target.hidden_states, lambda done, total: callbacks.on_stage("features", done, total))
    training_indices, held_out_indices = split_held_out(documents, config.num_held_out)
    training, held_out = ([documents[index] for index in indices] for indices in (training_indices, held_out_indices))
    token_map = _token_map(config, target, training, target.eos_token_ids if always_in is None else always_in)
    scales = Scales.measure(target, features, documents)

    def source(indices: Sequence[int], chosen: Sequence[Document], num_steps: int) -> ExampleSource:
        rows = FeatureSubset(features, indices)
        made = ExampleSource(chosen, rows, target, token_map.token_ids, scales, num_steps, config.batch_tokens, dtype)
        made.prepare(work, lambda done, total: callbacks.on_stage("distributions", done, total))
        return made

    training_source = source(training_indices, training, config.num_unrolled)
    held_out_source = source(held_out_indices, held_out, config.num_unrolled)
    network = EagleHead(target.shape)
    network.initialise(config.seed)
    about_data = {
        "algorithm": "EAGLE",
        "training_data_fingerprint": fingerprint(training),
        "held_out_data_fingerprint": fingerprint(held_out),
        "num_training_responses": len(training),
        "num_training_tokens": sum(document.num_response_rows for document in training),
        "num_unrolled": config.num_unrolled,
        "hot_size": len(token_map),
    }

    def on_evaluation(progress: Progress) -> dict[str, object]:
        figures = progress.evaluations[-1]
        export_head(config.output, network, scales, target, token_map, about_data | {"evaluation": figures})
        if callbacks.measure is None:
            return {}
        measured = callbacks.measure(config.output)
        export_head(config.output, network, scales, target, token_map, about_data | {"evaluation": figures | measured})
        return measured

    rotary = target.rotary(config.max_length + config.num_unrolled, dtype)
    return train(
        config, network, training_source, held_out_source, rotary, work / "checkpoint.safetensors", callbacks.on_step, on_evaluation
    )


def resolve_dtype(name: str) -> torch.dtype:
    """auto: bfloat16 where matrix products have kernels for it."""
    if name == "auto":
        has_kernels = torch.cuda.is_available() or (
            torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        )
        return torch.bfloat16 if has_kernels else torch.float32
    return {"bf16": torch.bfloat16, "float32": torch.float32}[name]


def _responses(config: TrainEagleConfig, callbacks: Callbacks) -> Path:
    if config.responses is not None:
        return config.responses
    if config.prompts is None:
        raise OptionError(
            "There is nothing to train on.",
            advice="Give the target's own responses (--responses FILE) or prompts that it answers (--prompts FILE).",
        )
    assert callbacks.write_responses is not None, "prompts need write_responses"
    path = config.output / "responses.jsonl"
    collect_responses(
        read_prompts(config.prompts), path, callbacks.write_responses, lambda done, total: callbacks.on_stage("responses", done, total)
    )
    return path


def _token_map(config: TrainEagleConfig, target: FrozenTarget, training: Sequence[Document], always_in: Sequence[int]) -> TokenMap:
    """The map that was given, else one counted on the training responses."""
    if config.token_map is not None:
        token_map = TokenMap.load(config.token_map)
        token_map.validate_for(target.vocab_size, target.name)
        return token_map.head(config.hot_size) if config.hot_size < len(token_map) else token_map
    counts = TokenCounts(target.vocab_size).update(document.response_token_ids for document in training)
    return TokenMap.ranked(
        counts.counts,
        always_in,
        min(config.hot_size, target.vocab_size),
        target.vocab_size,
        tokenizer_fingerprint=target.tokenizer_fingerprint,
        provenance={"corpus": "responses of the target", "corpus_fingerprint": fingerprint(training), "made_by": "hothead train eagle"},
    )
