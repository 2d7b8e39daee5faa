"""From an EAGLE-3 checkpoint to a drafter: every mismatch is refused before a weight is read (`check_eagle3`)."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from hothead.draft.context import DraftContext
from hothead.draft.eagle import EagleDrafter
from hothead.draft.hot import build_hot_head, load_hot_head
from hothead.draft.own_head import own_head_map
from hothead.errors import DraftError
from hothead.models.config import ModelConfig
from hothead.models.eagle3 import HEAD, Eagle3Names, Eagle3Network, eagle3_shapes
from hothead.models.eagle3_config import Eagle3Config, default_feature_layers, read_eagle3_config
from hothead.models.weights import open_weights
from hothead.models.weights.accounting import account
from hothead.models.weights.base import WeightSource
from hothead.parallel.full_head import VocabEmbedding
from hothead.parallel.groups import SingleRank
from hothead.parallel.hot_head import HotHead
from hothead.parallel.partition import VocabShards
from hothead.vocab.formats.stored import PAIR, find_table
from hothead.vocab.token_map import SpellingTokenizer, TokenMap

_OF_THE_TARGET = ("verifier_norm.weight", "verifier_lm_head.weight")
"""Copies of the target's weights that speculators keeps for training."""


def check_eagle3(path: Path | None, target: ModelConfig, tokenizer: SpellingTokenizer, num_token_ids: int) -> None:
    """Raise DraftError, CheckpointError or HotMapError unless a head fits the target, as far as configuration and headers tell."""
    if path is None:
        raise DraftError(
            f"EAGLE3 needs a draft head, and none ships with hothead for {target.source}.",
            advice="Give one with --draft FOLDER, make one with hothead train eagle3, or use --algorithm NGRAM.",
        )
    config = read_eagle3_config(path)
    feature_layers(path, target)
    if config.target_hidden_size != target.hidden_size:
        raise _unfit(path, target, f"It reads hidden states of {config.target_hidden_size} numbers, the target's have {target.hidden_size}")
    own = own_head_map(path, target)
    source = open_weights(path)
    try:
        names = source.names()
        has_own_head = _has_own_head(config, own, names)
        has_own_embedding = Eagle3Names.of(names).embedding in names
        num_rows = _num_head_rows(config, own) if has_own_head else None
        tables = [name for name in (find_table(names, table) for table in PAIR) if name is not None]
        account(source, eagle3_shapes(config, names, num_rows), unused=[*tables, *_OF_THE_TARGET])
    finally:
        source.close()
    if config.layer.hidden_size != target.hidden_size and not (has_own_head and has_own_embedding):
        lacks = "head" if has_own_embedding else "embedding"
        raise _unfit(
            path, target, f"It has no {lacks} of its own, and the target's is {target.hidden_size} wide, not {config.layer.hidden_size}"
        )
    if has_own_embedding and config.layer.vocab_size < num_token_ids:
        raise _unfit(path, target, f"Its embedding has {config.layer.vocab_size} rows, the target's tokenizer {num_token_ids} tokens")
    if config.says_tied and has_own_head:
        warnings.warn(
            f"config.json of the draft head {path} says tie_word_embeddings, but it has a head of {num_rows} rows, which is used.",
            stacklevel=2,
        )


def load_eagle3(context: DraftContext) -> EagleDrafter:
    """The drafter of a head that `check_eagle3` has let pass."""
    target, path = context.decoder, context.plan.path
    assert path is not None
    config = read_eagle3_config(path)
    max_context = min(context.context_length, config.layer.context_length)
    source = open_weights(path)
    try:
        num_positions = max_context + context.plan.shape.num_steps
        network = Eagle3Network.load(config, source, target.dtype, target.device, num_positions)
        hot_head = _hot_head(context, source, config, own_head_map(path, target.config))
        embedding = _own_embedding(source, config, target.dtype, target.device)
    finally:
        source.close()
    return EagleDrafter(
        network,
        target.embedding if embedding is None else embedding,
        hot_head,
        context.num_slots,
        max_context,
        context.plan.shape,
        target.device,
        target.dtype,
        context.hot_token_ids,
    )


def feature_layers(path: Path, target: ModelConfig) -> tuple[int, ...]:
    """Layers of the target whose inputs the head reads. Raises DraftError for one that the target does not have."""
    named = read_eagle3_config(path).feature_layers
    layers = default_feature_layers(target.num_layers) if named is None else named
    outside = [layer for layer in layers if layer > target.num_layers]
    if outside:
        raise _unfit(path, target, f"It reads the states before layer {outside[0]}, and the target has {target.num_layers} layers")
    return layers


def _has_own_head(config: Eagle3Config, own: TokenMap | None, names: frozenset[str]) -> bool:
    """Whether rows of its own are read: a checkpoint without a head and without a reduced vocabulary uses the target's."""
    is_reduced = own is not None or config.draft_vocab_size not in (None, config.layer.vocab_size)
    return HEAD in names or is_reduced


def _num_head_rows(config: Eagle3Config, own: TokenMap | None) -> int:
    return len(own) if own is not None else config.draft_vocab_size or config.layer.vocab_size


def _hot_head(context: DraftContext, source: WeightSource, config: Eagle3Config, own: TokenMap | None) -> HotHead:
    target = context.decoder.config
    if not _has_own_head(config, own, source.names()):
        return load_hot_head(context, context.source, target)
    return build_hot_head(context, source, HEAD, target.vocab_size, (lambda token_ids: token_ids) if own is None else own.hot_index)


def _own_embedding(source: WeightSource, config: Eagle3Config, dtype: torch.dtype, device: torch.device) -> VocabEmbedding | None:
    name = Eagle3Names.of(source.names()).embedding
    if name not in source.names():
        return None
    # Whole on every rank, as the network is: no collective per draft step.
    return VocabEmbedding(source.read(name, dtype=dtype).to(device), VocabShards(config.layer.vocab_size), SingleRank())


def _unfit(path: Path, target: ModelConfig, why: str) -> DraftError:
    return DraftError(
        f"The draft head {path} does not fit {target.source}.",
        f"{why}.",
        advice="Give a head that was trained for this target, or make one with hothead train eagle3.",
    )
