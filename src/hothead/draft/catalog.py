"""Every drafter by the name that users give it. A new one is a file and a line in `DRAFTERS`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hothead.config.check import check_tree_size, max_tree_nodes
from hothead.config.engine import NONE, EngineConfig
from hothead.draft.base import Drafter, NoDrafter, TreeShape
from hothead.draft.context import DraftContext
from hothead.draft.eagle3_loader import check_eagle3, load_eagle3
from hothead.draft.eagle_loader import check_eagle, load_eagle, read_eagle_config
from hothead.draft.ngram import NgramDrafter
from hothead.draft.standalone_loader import check_standalone, load_standalone
from hothead.errors import OptionError
from hothead.models.config import ModelConfig
from hothead.models.config_files import load_config
from hothead.models.eagle3_config import is_eagle3, read_eagle3_config
from hothead.vocab.token_map import SpellingTokenizer

DEFAULT_SHAPES = {
    "EAGLE": TreeShape(6, 4, 14),
    "EAGLE3": TreeShape(6, 4, 14),
    "STANDALONE": TreeShape(4, 1, 5),
    "NGRAM": TreeShape(8, 1, 9),
    "NONE": TreeShape(0, 1, 1),
}
"""What is drafted when nothing is said: measured best on a CPU with one request at a time."""

DRAFTERS: dict[str, Callable[[DraftContext], Drafter]] = {
    "EAGLE": load_eagle,
    "EAGLE3": load_eagle3,
    "STANDALONE": load_standalone,
    "NGRAM": lambda context: NgramDrafter(context.plan.shape),
    "NONE": lambda context: NoDrafter(),
}


_CHECKS = {"EAGLE": check_eagle, "EAGLE3": check_eagle3, "STANDALONE": check_standalone}


def check_draft(algorithm: str, path: Path | None, target: ModelConfig, tokenizer: SpellingTokenizer, num_token_ids: int) -> None:
    """Refuse a draft that does not fit, before a weight is read. Raises DraftError, CheckpointError."""
    _CHECKS[algorithm](path, target, tokenizer, num_token_ids)


def network_config(algorithm: str, path: Path) -> ModelConfig:
    """Of the layers that an algorithm runs itself. path: of its draft head or model."""
    if algorithm == "EAGLE3":
        return read_eagle3_config(path).layer
    return load_config(path) if algorithm == "STANDALONE" else read_eagle_config(path)


def head_algorithm(folder: Path) -> str:
    """The algorithm that a draft head was made for, as far as its configuration tells."""
    return "EAGLE3" if is_eagle3(folder) else "EAGLE"


def resolve_algorithm(config: EngineConfig, has_draft_head: bool) -> str:
    """What "auto" means here. has_draft_head: one was given, or ships with hothead for this target."""
    if config.is_plain:
        return "NONE"
    if config.speculative_algorithm != "auto":
        return config.speculative_algorithm
    if has_draft_head:
        return "EAGLE"
    for name in ("speculative_token_map", "hot_size", "hot_coverage", "hot_placement", "hot_head_dtype"):
        if getattr(config, name) not in (None, NONE, "auto"):
            raise OptionError(
                f"{config.said(name)} has no head to cut: no draft head ships with hothead for {config.model_path}.",
                "So NGRAM drafts, from the text itself.",
                advice="Give a draft head with --draft, or drop the option.",
            )
    return "NGRAM"


def resolve_shape(config: EngineConfig, algorithm: str) -> TreeShape:
    """The tree's shape from what was said; the rest follows from it, or is the algorithm's default. Raises OptionError for more tokens
    than the tree holds."""
    default = DEFAULT_SHAPES[algorithm]
    if algorithm == "NONE":
        return default
    topk = config.speculative_eagle_topk or default.topk
    num_tokens = config.speculative_num_draft_tokens
    if topk == 1:
        if config.speculative_num_steps and num_tokens and num_tokens != config.speculative_num_steps + 1:
            raise OptionError(
                f"{config.said('speculative_num_draft_tokens')} is not one more than {config.said('speculative_num_steps')}.",
                f"{algorithm} drafts a chain unless more branches are asked for.",
                advice="Drop one of the two, or give --speculative-eagle-topk.",
            )
        num_steps = config.speculative_num_steps or (num_tokens - 1 if num_tokens else default.num_steps)
        return TreeShape(num_steps, 1, num_steps + 1)
    num_steps = config.speculative_num_steps or default.num_steps
    if num_tokens is not None:
        check_tree_size(config, algorithm, num_steps, topk, num_tokens)
        return TreeShape(num_steps, topk, num_tokens)
    return TreeShape(num_steps, topk, min(default.num_draft_tokens, max_tree_nodes(num_steps, topk, algorithm) + 1))
