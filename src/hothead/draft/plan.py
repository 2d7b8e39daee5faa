"""What will draft, decided and checked before a rank is started or a weight is read: options, draft model, token map."""

from __future__ import annotations

from pathlib import Path

from hothead.config.engine import EngineConfig
from hothead.draft.catalog import check_draft, resolve_algorithm, resolve_shape
from hothead.draft.context import DraftPlan
from hothead.draft.hot import choose_map
from hothead.models.config import ModelConfig
from hothead.vocab.token_map import SpellingTokenizer


def plan_draft(
    config: EngineConfig, target: ModelConfig, tokenizer: SpellingTokenizer, num_token_ids: int, draft_path: Path | None
) -> DraftPlan:
    """num_token_ids: real vocabulary. draft_path: given or shipped. Reads headers only.

    Raises OptionError, DraftError, CheckpointError or HotMapError with the numbers that do not fit.
    """
    algorithm = resolve_algorithm(config, draft_path is not None)
    shape = resolve_shape(config, algorithm)
    if algorithm in ("NONE", "NGRAM"):
        return DraftPlan(algorithm, shape)
    check_draft(algorithm, draft_path, target, tokenizer, num_token_ids)
    return DraftPlan(algorithm, shape, draft_path, choose_map(config, draft_path, target, num_token_ids, tokenizer, shape.topk))
