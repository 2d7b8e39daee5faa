"""From a small model's files to a drafter: every mismatch is refused before a weight is read (`check_standalone`)."""

from __future__ import annotations

from pathlib import Path

from hothead.draft.context import DraftContext
from hothead.draft.hot import load_hot_head
from hothead.draft.standalone import StandaloneDrafter
from hothead.errors import DraftError
from hothead.models.config import ModelConfig
from hothead.models.config_files import load_config
from hothead.models.decoder import Decoder
from hothead.models.tokenizer import Tokenizer
from hothead.models.weights import open_weights
from hothead.models.weights.accounting import account
from hothead.parallel.groups import RankGroup, SingleRank
from hothead.vocab.token_map import SpellingTokenizer


def check_standalone(path: Path | None, target: ModelConfig, tokenizer: SpellingTokenizer, num_token_ids: int) -> None:
    """Raise DraftError or CheckpointError unless a model can draft for the target, as far as configuration, headers and tokenizers tell."""
    if path is None:
        raise DraftError(
            "STANDALONE needs a draft model.",
            advice="Give a small model with the target's tokenizer: --draft MODEL, or use --algorithm NGRAM.",
        )
    config = load_config(path)
    check_same_tokenizer(tokenizer, path)
    if config.vocab_size < num_token_ids:
        raise DraftError(
            f"The draft model {config.source} does not fit {target.source}.",
            f"Its head has {config.vocab_size} rows, the target's tokenizer {num_token_ids} tokens.",
            advice="Give a draft model with the target's tokenizer.",
        )
    source = open_weights(path)
    try:
        account(source, config.tensor_shapes(), has_tied_head=config.tie_word_embeddings)
    finally:
        source.close()


def load_standalone(context: DraftContext) -> StandaloneDrafter:
    """The drafter of a model that `check_standalone` has let pass."""
    target, path = context.decoder, context.plan.path
    assert path is not None
    config = load_config(path)
    # A model with fewer heads than ranks runs whole on each of them; its hot head is dealt out all the same.
    group: RankGroup = target.group if target.group.size <= config.num_heads else SingleRank()
    max_context = min(context.context_length, config.context_length)
    source = open_weights(path)
    try:
        decoder = Decoder.load(config, source, group, target.dtype, target.device, max_context + context.plan.shape.num_steps)
        hot_head = load_hot_head(context, source, config)
    finally:
        source.close()
    return StandaloneDrafter(decoder, hot_head, context.num_slots, max_context, context.plan.shape, context.hot_token_ids)


def check_same_tokenizer(target: SpellingTokenizer, draft_path: Path) -> None:
    """Raise DraftError, with the first token that differs, unless a draft model has the target's tokens. Padding rows do not matter."""
    draft = Tokenizer.load(draft_path)
    if draft.fingerprint == target.fingerprint:
        return
    first = next(token_id for token_id in range(draft.vocab_size + 1) if draft.token(token_id) != target.token(token_id))
    raise DraftError(
        f"The draft model {draft.source} has another tokenizer than {target.source}.",
        f"The first difference: token id {first} is {draft.token(first)!r} in the draft model and {target.token(first)!r} in the target.",
        advice="Give a draft model of the same family, or use --algorithm NGRAM.",
    )
