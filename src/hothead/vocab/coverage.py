"""How much of a text a hot vocabulary covers, and what it misses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hothead.errors import HotMapError
from hothead.vocab.token_map import TokenMap

FIRST_SIZE = 1024


def hit_rates(token_map: TokenMap, counts: npt.NDArray[np.int64], sizes: Sequence[int]) -> list[float]:
    """Share of counted tokens among the map's first `size` ids, for each size; NaN where nothing was counted. counts: [V]."""
    for size in sizes:
        if not 1 <= size <= len(token_map):
            raise HotMapError(f"a size of {size} was asked for, but the token map has {len(token_map)} token ids.")
    known = token_map.token_ids < len(counts)
    covered = np.cumsum(np.where(known, counts[np.where(known, token_map.token_ids, 0)], 0))
    total = int(counts.sum())
    return [float(covered[size - 1]) / total if total else float("nan") for size in sizes]


def frequent_misses(token_map: TokenMap, counts: npt.NDArray[np.int64], limit: int) -> list[tuple[int, int]]:
    """(token id, count) of the most frequent tokens that are not in the map, most frequent first, equal ones by id. counts: [V]."""
    missed = counts.copy()
    missed[token_map.token_ids[token_map.token_ids < len(counts)]] = 0
    order = np.argsort(-missed, kind="stable")[:limit]
    return [(int(token_id), int(missed[token_id])) for token_id in order if missed[token_id] > 0]


def usual_sizes(size: int) -> list[int]:
    """Powers of two from FIRST_SIZE up to a map's size, and the size itself."""
    powers = [FIRST_SIZE << step for step in range(20) if FIRST_SIZE << step < size]
    return [*powers, size]
