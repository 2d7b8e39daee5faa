"""From an EAGLE checkpoint and a token map to a drafter: every mismatch is refused before a weight is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hothead.config.engine import NONE
from hothead.draft.context import DraftContext
from hothead.draft.eagle import EagleDrafter
from hothead.errors import CheckpointError, DraftError, HotMapError
from hothead.files.json_table import read_json_table
from hothead.models.config import ModelConfig, from_hugging_face
from hothead.models.eagle import EagleNetwork
from hothead.models.weights import open_weights
from hothead.models.weights.accounting import account
from hothead.parallel.hot_head import HotHead
from hothead.vocab.formats.draft_folder import MAP_FILE
from hothead.vocab.token_map import TokenMap


def load_eagle(context: DraftContext) -> EagleDrafter:
    """Raises DraftError, CheckpointError or HotMapError with the numbers that do not fit."""
    if context.draft_path is None:
        raise DraftError(
            f"EAGLE needs a draft head, and none ships with hothead for {context.decoder.config.source}.",
            advice="Give one with --draft FOLDER, make one with hothead train eagle, or use --algorithm NGRAM.",
        )
    target = context.decoder
    draft_config = read_eagle_config(context.draft_path)
    _check_fit(draft_config, target.config, context.draft_path)
    token_map = choose_map(context)
    source = open_weights(context.draft_path)
    try:
        account(source, EagleNetwork.tensor_shapes(draft_config, "fc.bias" in source.names()))
        max_context = min(context.context_length, draft_config.context_length)
        num_positions = max_context + context.shape.num_steps
        network = EagleNetwork.load(draft_config, source, target.dtype, target.device, num_positions)
    finally:
        source.close()
    return EagleDrafter(
        network,
        target.embedding,
        load_hot_head(context, token_map),
        context.num_slots,
        max_context,
        context.shape,
        target.dtype,
        hot_token_ids=None if token_map is None else token_map.token_ids,
    )


def read_eagle_config(folder: Path) -> ModelConfig:
    """config.json of an EAGLE checkpoint: a llama configuration whose architecture is named after EAGLE, or not named at all."""
    file = folder / "config.json"
    if not file.is_file():
        raise DraftError(
            f"{folder} is not a draft head: it has no config.json.", advice="Give the folder that holds config.json and the weights."
        )
    values = read_json_table(file, CheckpointError)
    architectures = [str(name) for name in values.get("architectures") or ["LlamaForCausalLM"]]
    if architectures[0] not in ("LlamaForCausalLM", "LlamaForCausalLMEagle"):
        raise DraftError(
            f"{folder} is not an EAGLE draft head.",
            f"Its architecture is {architectures[0]}.",
            advice="EAGLE heads are LlamaForCausalLMEagle.",
        )
    # Published heads copy the target's tying; the head in use is the target's either way.
    return from_hugging_face({**values, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}, None, str(folder))


def choose_map(context: DraftContext) -> TokenMap | None:
    """The map that was given, else the one beside the draft head, cut to the size asked for; None keeps the full vocabulary."""
    config, draft_path = context.config, context.draft_path
    if config.speculative_token_map == NONE:
        return None
    if config.speculative_token_map is not None:
        token_map = TokenMap.load(config.speculative_token_map)
    elif draft_path is not None and (draft_path / MAP_FILE).is_file():
        token_map = TokenMap.load(draft_path / MAP_FILE)
    elif config.hot_size is not None or config.hot_coverage is not None:
        name = "hot_size" if config.hot_size is not None else "hot_coverage"
        raise HotMapError(
            f"{config.said(name)} has no map to cut: {draft_path} has no {MAP_FILE}.", advice="Give a token map with --map FILE."
        )
    else:
        return None
    token_map.validate_for(context.num_token_ids, context.decoder.config.source)
    if token_map.tokenizer_fingerprint and token_map.tokenizer_fingerprint != context.tokenizer_fingerprint:
        raise HotMapError(
            f"The token map was made for another tokenizer than {context.decoder.config.source}'s.",
            f"The map's tokenizer is {token_map.tokenizer_fingerprint[:16]}, the target's {context.tokenizer_fingerprint[:16]}.",
            advice="Give a map that was built for this target; hothead map inspect MAP --model TARGET shows where they differ.",
        )
    if config.hot_size is not None:
        return token_map.head(config.hot_size)
    if config.hot_coverage is not None:
        return token_map.for_coverage(config.hot_coverage)
    return token_map


def load_hot_head(context: DraftContext, token_map: TokenMap | None) -> HotHead:
    """The target's head rows of the hot tokens, read from the checkpoint by token id; of all real tokens without a map."""
    target, source = context.decoder, context.source
    name = "model.embed_tokens.weight" if target.config.tie_word_embeddings else "lm_head.weight"
    placement = context.config.hot_placement

    def read_rows(token_ids: NDArray[np.int64]) -> torch.Tensor:
        return source.read(name, rows=token_ids, dtype=target.dtype).to(target.device)

    return HotHead.build(
        read_rows,
        np.arange(context.num_token_ids, dtype=np.int64) if token_map is None else token_map.token_ids,
        target.group,
        "balanced" if placement == "auto" else placement,
        target.config.vocab_size,
        context.config.hot_head_dtype,
    )


def _check_fit(draft: ModelConfig, target: ModelConfig, folder: Path) -> None:
    if draft.hidden_size != target.hidden_size:
        raise DraftError(
            f"The draft head {folder} does not fit {target.source}.",
            f"Its hidden size is {draft.hidden_size}, the target's {target.hidden_size}: it was trained on another model's features.",
            advice="Give a head that was trained for this target, or make one with hothead train eagle.",
        )
