"""What training starts from, whatever the kind of head: responses, the held-out split, and the hot vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from hothead.engine.responses import WriteResponses, collect_responses
from hothead.errors import OptionError
from hothead.train.config import TrainConfig
from hothead.train.dataset import Document, fingerprint, read_documents, read_prompts, split_held_out
from hothead.train.examples import FrozenTarget
from hothead.train.loop import StepReport
from hothead.vocab.count import TokenCounts
from hothead.vocab.token_map import TokenMap


@dataclass(frozen=True)
class Callbacks:
    """What a caller sees and supplies.

    on_stage(stage, done, in all): "responses", "features" and "distributions". on_step: every optimiser step. write_responses: needed
    with --prompts. measure(folder of the head as it stands) -> further figures for each evaluation, such as tokens per step of the real
    engine. version: of hothead, for the record of the run.
    """

    on_stage: Callable[[str, int, int], None]
    on_step: Callable[[StepReport], None]
    write_responses: WriteResponses | None = None
    measure: Callable[[Path], dict[str, object]] | None = None
    version: str = "unknown"

    def after_export(self, folder: Path, export: Callable[[dict[str, object]], None]) -> dict[str, object]:
        """Export the head as it stands, measure it, and export it again with the figures -> the figures."""
        export({})
        if self.measure is None:
            return {}
        measured = self.measure(folder)
        export(measured)
        return measured


@dataclass(frozen=True)
class Data:
    """documents: all of them; training, held_out: indices into them. about: fingerprints and sizes, for the record of the run."""

    documents: list[Document]
    training: list[int]
    held_out: list[int]
    token_map: TokenMap
    about: dict[str, object]

    def chosen(self, indices: Sequence[int]) -> list[Document]:
        """The documents with these indices."""
        return [self.documents[index] for index in indices]


def prepare(config: TrainConfig, target: FrozenTarget, callbacks: Callbacks, always_in: Sequence[int] | None, algorithm: str) -> Data:
    """Read or write responses, split them, count the hot vocabulary on those of training or take the map that was given.

    always_in: tokens of every counted map (None: the target's end tokens).
    """
    documents = read_documents(_responses(config, callbacks), target.vocab_size, config.max_length)
    training_indices, held_out_indices = split_held_out(documents, config.num_held_out)
    training, held_out = ([documents[index] for index in indices] for indices in (training_indices, held_out_indices))
    always_in = target.eos_token_ids if always_in is None else always_in
    token_map = _token_map(config, target, training, always_in, f"hothead train {algorithm.lower()}")
    about: dict[str, object] = {
        "algorithm": algorithm,
        "training_data_fingerprint": fingerprint(training),
        "held_out_data_fingerprint": fingerprint(held_out),
        "num_training_responses": len(training),
        "num_training_tokens": sum(document.num_response_rows for document in training),
        "num_unrolled": config.num_unrolled,
        "hot_size": len(token_map),
    }
    return Data(documents, training_indices, held_out_indices, token_map, about)


def resolve_dtype(name: str) -> torch.dtype:
    """auto: bfloat16 where matrix products have kernels for it."""
    if name == "auto":
        has_kernels = torch.cuda.is_available() or (
            torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        )
        return torch.bfloat16 if has_kernels else torch.float32
    return {"bf16": torch.bfloat16, "float32": torch.float32}[name]


def _responses(config: TrainConfig, callbacks: Callbacks) -> Path:
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


def _token_map(config: TrainConfig, target: FrozenTarget, training: Sequence[Document], always_in: Sequence[int], made_by: str) -> TokenMap:
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
        provenance={"corpus": "responses of the target", "corpus_fingerprint": fingerprint(training), "made_by": made_by},
    )
