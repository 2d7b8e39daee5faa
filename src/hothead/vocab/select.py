"""Which token ids a hot vocabulary takes, and in what order.

1. The always-in ids (end tokens, what the chat template emits), by count descending, then id ascending. They come first so that every
prefix that is at least as long as their number keeps them all: a map is cut with --hot-size long after it was built. 2. All other ids that
were seen, by count descending, then id ascending. 3. Fillers, if an exact size asks for more: ids that were never seen, lowest first.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from hothead.errors import HotMapError


def rank_tokens(
    counts: npt.NDArray[np.int64], always_in: Iterable[int], size: int | None, vocab_size: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
    """Exactly `size` ids, or every id that was seen or is always in (None) -> ids [H] in order, their counts [H], number of fillers.

    counts: [V] int64. vocab_size: ids that the tokenizer has; no other id gets in, whatever rows the head has beyond it. Raises HotMapError
    for a size that cannot be.
    """
    if len(counts) > vocab_size and counts[vocab_size:].any():
        first = vocab_size + int(np.flatnonzero(counts[vocab_size:])[0])
        raise HotMapError(f"token id {first} was counted {counts[first]} times, but the tokenizer has only {vocab_size} token ids.")
    padded = np.zeros(vocab_size, np.int64)
    padded[: min(len(counts), vocab_size)] = counts[:vocab_size]
    required = np.unique(np.fromiter(always_in, np.int64))
    if len(required) and not (required[0] >= 0 and required[-1] < vocab_size):
        bad = required[(required < 0) | (required >= vocab_size)]
        raise HotMapError(f"token id {bad[0]} must be in the map, but the tokenizer has only the ids 0 to {vocab_size - 1}.")

    is_required = np.zeros(vocab_size, bool)
    is_required[required] = True
    # Stable, and the ids are ascending: equal counts stay in order of id, and so do the fillers, whose count is 0.
    by_count = np.argsort(-padded, kind="stable")
    ranked = np.concatenate([by_count[is_required[by_count]], by_count[~is_required[by_count]]])
    num_wanted = int((is_required | (padded > 0)).sum())  # without fillers
    if size is None:
        size = num_wanted
        if size == 0:
            raise HotMapError("no token was counted and none is always in, so there is nothing to rank.", advice="Give a corpus with text.")
    if not max(1, len(required)) <= size <= vocab_size:
        raise HotMapError(
            f"a map of {size} token ids cannot be built.",
            f"The tokenizer has {vocab_size} token ids, and {len(required)} of them are always in.",
            advice=f"Use a size from {max(1, len(required))} to {vocab_size}.",
        )
    return ranked[:size], padded[ranked[:size]], max(0, size - num_wanted)
