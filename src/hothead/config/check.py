"""Which options contradict each other. Every rule that needs more than one option is here, with the numbers and the way out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hothead.errors import OptionError

if TYPE_CHECKING:
    from hothead.config.engine import EngineConfig

_NONE = "none"
_TREE_OPTIONS = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")


def check_engine(config: EngineConfig) -> None:
    """Refuse an engine configuration that contradicts itself. Raises OptionError at the first contradiction."""
    _check_device(config)
    _check_drafter(config)
    _check_hot_vocabulary(config)
    _check_tree(config)
    _check_memory(config)


def max_tree_nodes(num_steps: int, topk: int, algorithm: str = "EAGLE") -> int:
    """Draft tokens that a tree can hold: topk on the first level, then topk for each of the topk best nodes of the level before.

    NGRAM merges topk continuations of num_steps tokens.
    """
    if algorithm == "NGRAM":
        return num_steps * topk
    return topk + (num_steps - 1) * topk * topk


def _check_device(config: EngineConfig) -> None:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", config.device):
        raise OptionError(f"{config.said('device')} is not a device.", advice="It must be auto, cpu, cuda or cuda:N.")
    if config.tp_size > 1 and ":" in config.device:
        raise OptionError(
            f"{config.said('device')} names one device for {config.tp_size} ranks ({config.said('tp_size')}).",
            advice="Say cuda: each rank takes its own device.",
        )


def _check_drafter(config: EngineConfig) -> None:
    draft, algorithm = config.speculative_draft_model_path, config.speculative_algorithm
    if draft is not None and draft != _NONE and algorithm in ("NGRAM", "NONE"):
        kind = "drafts from the text itself" if algorithm == "NGRAM" else "does not draft"
        raise OptionError(
            f"{config.said('speculative_draft_model_path')} would not be used: {config.said('speculative_algorithm')} {kind}.",
            advice="Drop one of the two; EAGLE and EAGLE3 are the algorithms that use a draft head.",
        )
    if draft == _NONE and algorithm not in ("auto", "NONE"):
        raise OptionError(
            f"{config.said('speculative_draft_model_path')} is plain decoding, and {config.said('speculative_algorithm')} drafts.",
            advice="Drop one of the two.",
        )
    if config.is_plain:
        for name in (*_TREE_OPTIONS, "verification"):
            if getattr(config, name) not in (None, "auto"):
                raise OptionError(
                    f"{config.said(name)} has no effect: {_why_no_head(config)}.", advice="Drop it, or choose an algorithm that drafts."
                )


def _check_hot_vocabulary(config: EngineConfig) -> None:
    if config.hot_size is not None and config.hot_coverage is not None:
        raise OptionError(
            f"{config.said('hot_size')} and {config.said('hot_coverage')} both set the size of the hot vocabulary.",
            advice="Give one of the two.",
        )
    asked = [name for name in ("hot_size", "hot_coverage") if getattr(config, name) is not None]
    asked += [name for name in ("hot_placement", "hot_head_dtype") if getattr(config, name) != "auto"]
    if config.speculative_token_map == _NONE and asked:
        raise OptionError(
            f"{config.said(asked[0])} has no effect: {config.said('speculative_token_map')} keeps the full vocabulary in the draft head.",
            advice="Drop one of the two.",
        )
    if config.speculative_token_map not in (None, _NONE):
        asked.insert(0, "speculative_token_map")
    if asked and (config.is_plain or config.speculative_algorithm == "NGRAM"):
        raise OptionError(
            f"{config.said(asked[0])} has no head to cut: {_why_no_head(config)}.",
            advice="Drop it, or use a drafter that has a head (EAGLE, EAGLE3).",
        )


def _why_no_head(config: EngineConfig) -> str:
    if config.speculative_algorithm == "NGRAM":
        return f"{config.said('speculative_algorithm')} drafts from the text itself"
    name = "speculative_algorithm" if config.speculative_algorithm == "NONE" else "speculative_draft_model_path"
    return f"{config.said(name)} is plain decoding"


def _check_tree(config: EngineConfig) -> None:
    steps, topk, tokens = (getattr(config, name) for name in _TREE_OPTIONS)
    if steps is None or topk is None or tokens is None:
        return
    said = ", ".join(config.said(name) for name in _TREE_OPTIONS)
    labels = [config.label(name) for name in _TREE_OPTIONS]
    if topk == 1 and tokens != steps + 1:
        raise OptionError(
            f"A chain of {steps} draft steps has {steps + 1} tokens to verify, not {tokens}.",
            said,
            advice=f"Set {labels[2]} to {steps + 1}, {labels[0]} to {tokens - 1}, or drop one of the two.",
        )
    check_tree_size(config, config.speculative_algorithm, steps, topk, tokens)


def check_tree_size(config: EngineConfig, algorithm: str, num_steps: int, topk: int, num_tokens: int) -> None:
    """Refuse more tokens to verify than a tree of this depth and width can hold, the root included."""
    most = max_tree_nodes(num_steps, topk, algorithm) + 1
    if num_tokens > most:
        labels = [config.label(name) for name in _TREE_OPTIONS]
        raise OptionError(
            f"A tree of {num_steps} draft steps and {topk} branches has at most {most} tokens to verify, not {num_tokens}.",
            advice=f"Set {labels[2]} to at most {most}, or raise {labels[0]} or {labels[1]}.",
        )


def _check_memory(config: EngineConfig) -> None:
    if config.max_total_tokens is not None and config.max_total_tokens < config.block_size:
        raise OptionError(
            f"{config.said('max_total_tokens')} is less than one KV block of {config.block_size} tokens ({config.said('block_size')}).",
            advice=f"Give at least {config.block_size}, or a smaller {config.label('block_size')}.",
        )
