"""What will draft, decided and checked before a rank is started or a weight is read: options, draft model, token map."""

from __future__ import annotations

from pathlib import Path

from hothead.config.engine import EngineConfig
from hothead.draft.catalog import check_draft, head_algorithm, resolve_algorithm, resolve_shape
from hothead.draft.context import DraftPlan
from hothead.draft.eagle3_loader import feature_layers
from hothead.draft.hot import choose_map
from hothead.draft.own_head import choose_map_of_own_head
from hothead.models.config import ModelConfig
from hothead.vocab.token_map import SpellingTokenizer


def plan_draft(
    config: EngineConfig, target: ModelConfig, tokenizer: SpellingTokenizer, num_token_ids: int, draft_path: Path | None
) -> DraftPlan:
    """num_token_ids: real vocabulary. draft_path: given or shipped. Reads headers only.

    Raises OptionError, DraftError, CheckpointError or HotMapError with the numbers that do not fit.
    """
    algorithm = resolve_algorithm(config, draft_path is not None)
    if algorithm == "EAGLE" and config.speculative_algorithm == "auto" and draft_path is not None:
        algorithm = head_algorithm(draft_path)
    shape = resolve_shape(config, algorithm)
    if algorithm in ("NONE", "NGRAM"):
        return DraftPlan(algorithm, shape)
    check_draft(algorithm, draft_path, target, tokenizer, num_token_ids)
    if algorithm == "EAGLE3":
        assert draft_path is not None
        token_map = choose_map_of_own_head(config, draft_path, target, num_token_ids, tokenizer, shape.topk)
        return DraftPlan(algorithm, shape, draft_path, token_map, feature_layers(draft_path, target))
    return DraftPlan(algorithm, shape, draft_path, choose_map(config, draft_path, target, num_token_ids, tokenizer, shape.topk))
