"""Which hot vocabulary a drafter has, and its head's rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hothead.config.engine import NONE, EngineConfig
from hothead.draft.context import DraftContext
from hothead.errors import HotMapError, OptionError
from hothead.models.config import ModelConfig
from hothead.models.weights.base import WeightSource
from hothead.parallel.hot_head import HotHead
from hothead.vocab.formats.draft_folder import MAP_FILE
from hothead.vocab.token_map import SpellingTokenizer, TokenMap

RowOfToken = Callable[[NDArray[np.int64]], NDArray[np.int64]]
"""Token ids [n] -> rows [n] of the tensor that holds the head."""


def choose_map(
    config: EngineConfig, draft_path: Path | None, target: ModelConfig, num_token_ids: int, tokenizer: SpellingTokenizer, topk: int
) -> TokenMap | None:
    """The map that was given, else the one beside the draft head, cut to the size asked for; None keeps the full vocabulary.

    Raises HotMapError for a map that does not fit the target, OptionError for one with fewer tokens than a level drafts.
    """
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
    token_map.validate_for(num_token_ids, target.source)
    token_map.check_tokenizer(tokenizer)
    return cut_map(config, token_map, topk)


def cut_map(config: EngineConfig, token_map: TokenMap, topk: int) -> TokenMap:
    """The map cut to the size asked for. Raises HotMapError if it has not so many, OptionError for fewer tokens than a level drafts."""
    if config.hot_size is not None:
        token_map = token_map.head(config.hot_size)
    elif config.hot_coverage is not None:
        token_map = token_map.for_coverage(config.hot_coverage)
    if len(token_map) < topk:
        raise OptionError(
            f"A hot vocabulary of {len(token_map)} tokens cannot give the {topk} candidates of a draft level.",
            advice=f"Use a hot size of at least {topk}, or --speculative-eagle-topk {len(token_map)}.",
        )
    return token_map


def load_hot_head(context: DraftContext, source: WeightSource, owner: ModelConfig) -> HotHead:
    """The hot rows of a model's head, read from its checkpoint by token id; of all real tokens without a map. owner: whose head it is."""
    name = "model.embed_tokens.weight" if owner.tie_word_embeddings else "lm_head.weight"
    return build_hot_head(context, source, name, owner.vocab_size, lambda token_ids: token_ids)


def build_hot_head(context: DraftContext, source: WeightSource, name: str, vocab_size: int, row_of: RowOfToken) -> HotHead:
    """The hot rows of the tensor `name`. vocab_size: token ids that it could have rows for."""
    target, token_map, config = context.decoder, context.plan.token_map, context.config

    def read_rows(token_ids: NDArray[np.int64]) -> torch.Tensor:
        return source.read(name, rows=row_of(token_ids), dtype=target.dtype).to(target.device)

    return HotHead.build(
        read_rows,
        np.arange(context.num_token_ids, dtype=np.int64) if token_map is None else token_map.token_ids,
        target.group,
        "balanced" if config.hot_placement == "auto" else config.hot_placement,
        vocab_size,
        config.hot_head_dtype,
    )
