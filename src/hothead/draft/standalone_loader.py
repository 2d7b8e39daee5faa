"""From a small model's files and a token map to a drafter: every mismatch is refused before a weight is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hothead.draft.context import DraftContext
from hothead.draft.eagle_loader import choose_map
from hothead.draft.standalone import StandaloneDrafter
from hothead.errors import DraftError
from hothead.models.config_files import load_config
from hothead.models.decoder import Decoder
from hothead.models.tokenizer import Tokenizer
from hothead.models.weights import open_weights
from hothead.models.weights.accounting import account
from hothead.parallel.groups import RankGroup, SingleRank
from hothead.parallel.hot_head import HotHead


def load_standalone(context: DraftContext) -> StandaloneDrafter:
    """Raises DraftError, CheckpointError or HotMapError with the numbers that do not fit."""
    target = context.decoder
    if context.draft_path is None:
        raise DraftError(
            "STANDALONE needs a draft model.",
            advice="Give a small model with the target's tokenizer: --draft MODEL, or use --algorithm NGRAM.",
        )
    config = load_config(context.draft_path)
    if config.vocab_size < context.num_token_ids:
        raise DraftError(
            f"The draft model {config.source} does not fit {target.config.source}.",
            f"Its head has {config.vocab_size} rows, the target's tokenizer {context.num_token_ids} tokens.",
            advice="Give a draft model with the target's tokenizer.",
        )
    token_map = choose_map(context)
    # A model with fewer heads than ranks runs whole on each of them; its hot head is dealt out all the same.
    group: RankGroup = target.group if target.group.size <= config.num_heads else SingleRank()
    max_context = min(context.context_length, config.context_length)
    source = open_weights(context.draft_path)
    try:
        account(source, config.tensor_shapes(), has_tied_head=config.tie_word_embeddings)
        decoder = Decoder.load(config, source, group, target.dtype, target.device, max_context + context.shape.num_steps)
        name = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"

        def read_rows(token_ids: NDArray[np.int64]) -> torch.Tensor:
            return source.read(name, rows=token_ids, dtype=target.dtype).to(target.device)

        placement = context.config.hot_placement
        hot_head = HotHead.build(
            read_rows,
            np.arange(context.num_token_ids, dtype=np.int64) if token_map is None else token_map.token_ids,
            target.group,
            "balanced" if placement == "auto" else placement,
            config.vocab_size,
            context.config.hot_head_dtype,
        )
    finally:
        source.close()
    hot_token_ids = None if token_map is None else token_map.token_ids
    return StandaloneDrafter(decoder, hot_head, context.num_slots, max_context, context.shape, hot_token_ids)


def check_same_tokenizer(target: Tokenizer, draft_path: Path) -> None:
    """Raise DraftError, with the first token that differs, unless a draft model has the target's tokens. Padding rows do not matter."""
    draft = Tokenizer.load(draft_path)
    if draft.fingerprint == target.fingerprint:
        return
    num_shared = min(draft.vocab_size, target.vocab_size)
    first = next((token_id for token_id in range(num_shared) if draft.token(token_id) != target.token(token_id)), num_shared)
    raise DraftError(
        f"The draft model {draft.source} has another tokenizer than {target.source}.",
        f"It has {draft.vocab_size} tokens, the target {target.vocab_size}.",
        f"The first difference: token id {first} is {draft.token(first)!r} in the draft model and {target.token(first)!r} in the target.",
        advice="Give a draft model of the same family, or use --algorithm NGRAM.",
    )
