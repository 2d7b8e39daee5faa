"""What there is to say of a token map: its sizes, its tokens, its rows on every rank, and what looks wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hothead.errors import HotMapError
from hothead.models.required import required_token_ids
from hothead.models.tokenizer import Tokenizer
from hothead.parallel.partition import PLACEMENTS, hot_indices_of_rank
from hothead.vocab.coverage import usual_sizes
from hothead.vocab.token_map import TokenMap

_IMBALANCE = 1.25
"""Most rows on a rank against the mean, from which keeping rows with their owners is warned about."""
_MAX_LISTED = 20


def describe_map(
    token_map: TokenMap,
    format_name: str,
    notes: Sequence[str],
    tokenizer: Tokenizer | None,
    tp_sizes: Sequence[int],
    num_shown: int,
) -> dict[str, Any]:
    """Ready for JSON. tokenizer: None where tokens are not to be shown; notes: what the file's reader said."""
    token_ids = token_map.token_ids
    vocab_size = token_map.vocab_size or (None if tokenizer is None else tokenizer.vocab_size)
    rows = [] if vocab_size is None else _rows(token_map, vocab_size, tp_sizes)
    special = {} if tokenizer is None else _special(token_map, tokenizer)
    return {
        "format": format_name,
        "size": len(token_map),
        "vocab_size": vocab_size,
        "first_token_ids": token_ids[:8].tolist(),
        "lowest_token_id": int(token_ids.min()),
        "highest_token_id": int(token_ids.max()),
        "num_fillers": token_map.num_fillers,
        "num_counted": None if token_map.counts is None else sum(token_map.counts.tolist()),
        "fingerprint": token_map.fingerprint,
        "tokenizer_fingerprint": token_map.tokenizer_fingerprint or None,
        "provenance": dict(token_map.provenance),
        **special,
        "coverage": _coverage(token_map),
        "rows_per_rank": rows,
        "tokens": {} if tokenizer is None else _tokens(token_map, tokenizer, num_shown),
        "warnings": [*(notes or _order_warnings(token_map)), *_warnings(token_map, tokenizer, rows, special)],
    }


def _coverage(token_map: TokenMap) -> dict[int, float]:
    if token_map.counts is None or not token_map.counts.any():
        return {}
    covered = np.cumsum(token_map.counts, dtype=np.float64)
    return {size: float(covered[size - 1] / covered[-1]) for size in usual_sizes(len(token_map))}


def _rows(token_map: TokenMap, vocab_size: int, tp_sizes: Sequence[int]) -> list[dict[str, Any]]:
    num_rows = max(vocab_size, int(token_map.token_ids.max()) + 1)
    entries = []
    for tp_size in tp_sizes:
        for placement in PLACEMENTS:
            of_ranks = (hot_indices_of_rank(token_map.token_ids, placement, rank, tp_size, num_rows) for rank in range(tp_size))
            entries.append({"tp_size": tp_size, "placement": placement, "rows": [len(one) for one in of_ranks]})
    return entries


def _special(token_map: TokenMap, tokenizer: Tokenizer) -> dict[str, Any]:
    """Added tokens in and out, and of those out the ones that the model's chats need."""
    added = sorted(tokenizer.backend.get_added_tokens_decoder())
    is_hot = dict(zip(added, token_map.is_hot(added).tolist(), strict=True))
    missing = [token_id for token_id in required_token_ids(tokenizer) if not bool(token_map.is_hot([token_id])[0])]
    return {
        "special_tokens_in": _texts((token_id for token_id in added if is_hot[token_id]), tokenizer),
        "special_tokens_out": _texts((token_id for token_id in added if not is_hot[token_id]), tokenizer),
        "required_tokens_out": _texts(missing, tokenizer),
    }


def _texts(token_ids: Iterable[int], tokenizer: Tokenizer) -> list[str]:
    texts = [tokenizer.token_text(token_id) for token_id in token_ids]
    return texts if len(texts) <= _MAX_LISTED else [*texts[:_MAX_LISTED], f"and {len(texts) - _MAX_LISTED} more"]


def _tokens(token_map: TokenMap, tokenizer: Tokenizer, num_shown: int) -> dict[str, list[dict[str, Any]]]:
    """Top: the hottest; border: the last ones that were seen; missing: the lowest ids that are out."""
    num_seen = len(token_map) - token_map.num_fillers
    missing = np.flatnonzero(~token_map.is_hot(np.arange(tokenizer.vocab_size)))[:num_shown]
    chosen = {
        "top": token_map.token_ids[:num_shown],
        "border": token_map.token_ids[max(0, num_seen - num_shown) : num_seen],
        "missing": missing,
    }
    return {
        name: [{"token_id": int(token_id), "text": tokenizer.token_text(int(token_id))} for token_id in token_ids]
        for name, token_ids in chosen.items()
    }


def _order_warnings(token_map: TokenMap) -> list[str]:
    """For a list that was a mask or a pair once; where the file is one, its reader has said so."""
    is_ascending = token_map.counts is None and len(token_map) > 1 and bool((np.diff(token_map.token_ids) > 0).all())
    return ["its ids are in ascending order, not in order of frequency, so a smaller hot size is no use."] if is_ascending else []


def _warnings(token_map: TokenMap, tokenizer: Tokenizer | None, rows: Sequence[dict[str, Any]], special: dict[str, Any]) -> list[str]:
    found = []
    if token_map.num_fillers:
        found.append(f"{token_map.num_fillers:,} of {len(token_map):,} token ids were never seen and only fill up the size.")
    if token_map.counts is None:
        found.append("it has no counts: --hot-coverage and predictions need a map from hothead map build.")
    if tokenizer is not None:
        try:
            token_map.check_tokenizer(tokenizer, "it")
        except HotMapError as error:
            found.append(" ".join(part for part in (error.what, *error.details) if part))
    if tokenizer is not None and (num_past := int((token_map.token_ids >= tokenizer.vocab_size).sum())):
        found.append(f"{num_past} of its token ids are past the {tokenizer.vocab_size} tokens of {tokenizer.source}.")
    if special.get("required_tokens_out"):
        found.append(f"tokens that end or shape a turn are not in it: {' '.join(special['required_tokens_out'])}.")
    worst = max(
        (entry for entry in rows if entry["placement"] == "owner" and len(entry["rows"]) > 1),
        key=lambda entry: max(entry["rows"]) * len(entry["rows"]),
        default=None,
    )
    if worst is not None and (ratio := max(worst["rows"]) * worst["tp_size"] / len(token_map)) > _IMBALANCE:
        found.append(
            f"kept with their owners, {max(worst['rows']):,} of its {len(token_map):,} rows lie on one of {worst['tp_size']} ranks "
            f"({ratio:.1f} times the mean); the placement 'balanced' spreads them."
        )
    return found
