"""Which rows of a draft head of its own are used: EAGLE-3 heads come with a reduced vocabulary, and a map may cut it further."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from hothead.config.engine import NONE, EngineConfig
from hothead.draft.hot import choose_map, cut_map
from hothead.errors import HotMapError
from hothead.models.config import ModelConfig
from hothead.models.weights import open_weights
from hothead.vocab.formats.draft_folder import MAP_FILE, TABLE_NAMES, declared_sizes
from hothead.vocab.formats.numpy_map import PAIR_FILES
from hothead.vocab.formats.registry import read_stored_map
from hothead.vocab.formats.stored import PAIR, find_table
from hothead.vocab.token_map import SpellingTokenizer, TokenMap


def own_head_map(folder: Path, target: ModelConfig) -> TokenMap | None:
    """The token id of each row of the head, in the rows' order; None for a head over the whole vocabulary without a table.

    Raises HotMapError for a reduced head whose table is missing, was never filled, or fits neither the head nor the target.
    """
    if not declared_sizes(folder).is_cut and not _has_table(folder):
        return None
    stored, _ = read_stored_map(folder, names=TABLE_NAMES)
    token_map = TokenMap.of_stored(stored, folder.name)
    token_map.validate_for(target.vocab_size, target.source, "the draft head's table")
    return token_map


def _has_table(folder: Path) -> bool:
    source = open_weights(folder)
    try:
        return any(find_table(source.names(), table) for table in PAIR) or any((folder / name).is_file() for name in PAIR_FILES)
    finally:
        source.close()


def choose_map_of_own_head(
    config: EngineConfig, folder: Path, target: ModelConfig, num_token_ids: int, tokenizer: SpellingTokenizer, topk: int
) -> TokenMap | None:
    """The head's own vocabulary, cut by the map that was given and to the size that was asked for; None for a head that has a row for
    every token and is not cut.

    Tokens of the map for which the head has no row are left out, and their number is said. Raises HotMapError and OptionError as
    `choose_map` does, and for a size where no order of frequency is known.
    """
    own = own_head_map(folder, target)
    if own is None:
        return choose_map(config, folder, target, num_token_ids, tokenizer, topk)
    given = config.speculative_token_map
    if given not in (None, NONE):
        return cut_map(config, _cut_by(TokenMap.load(str(given)), own, folder, target, num_token_ids, tokenizer), topk)
    if (folder / MAP_FILE).is_file():
        return cut_map(config, _ranked(folder, own, tokenizer), topk)
    for name in ("hot_size", "hot_coverage"):
        if getattr(config, name) is not None:
            raise HotMapError(
                f"{config.said(name)} has no order of frequency to cut by: {folder} has a head of {len(own)} rows and no {MAP_FILE}.",
                "The table of a checkpoint says which tokens its rows are, not which are frequent.",
                advice="Give a token map, whose order counts: --map FILE (hothead map build).",
            )
    return cut_map(config, own, topk)


def _cut_by(
    token_map: TokenMap, own: TokenMap, folder: Path, target: ModelConfig, num_token_ids: int, tokenizer: SpellingTokenizer
) -> TokenMap:
    token_map.validate_for(num_token_ids, target.source)
    token_map.check_tokenizer(tokenizer)
    lost = token_map.token_ids[~own.is_hot(token_map.token_ids)]
    if len(lost) == len(token_map):
        raise HotMapError(
            f"None of the token map's {len(token_map)} tokens has a row in the draft head {folder}, which has {len(own)}.",
            advice="Give a map for this head and its target, or leave --map out.",
        )
    if len(lost):
        warnings.warn(
            f"{len(lost)} of {len(token_map)} tokens of the map have no row in the draft head of {len(own)} rows and are never drafted "
            f"(first: id {lost[0]}).",
            stacklevel=2,
        )
    return token_map.among(own.token_ids)


def _ranked(folder: Path, own: TokenMap, tokenizer: SpellingTokenizer) -> TokenMap:
    """The map beside the head: the same tokens, in order of frequency."""
    ranked = TokenMap.load(folder / MAP_FILE)
    ranked.check_tokenizer(tokenizer)
    if not np.array_equal(np.sort(ranked.token_ids), np.sort(own.token_ids)):
        raise HotMapError(
            f"{folder / MAP_FILE} is not of the head beside it.",
            f"It has {len(ranked)} tokens, the head {len(own)}, and {int(ranked.is_hot(own.token_ids).sum())} are in both.",
            advice="Fetch the folder again, or remove the map.",
        )
    return ranked
