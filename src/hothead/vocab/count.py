"""How often each token id occurs in a corpus."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from hothead.errors import DataError

_BUFFER_TOKENS = 1 << 18


class TokenCounts:
    """counts: [V] int64 for token ids 0..vocab_size-1. Two of the same vocabulary add up with `+`."""

    def __init__(self, vocab_size: int, counts: npt.NDArray[np.int64] | None = None) -> None:
        self.counts = np.zeros(vocab_size, np.int64) if counts is None else np.array(counts, np.int64)
        if self.counts.shape != (vocab_size,):
            raise DataError(f"counts of the shape {list(self.counts.shape)} do not fit a vocabulary of {vocab_size} token ids.")

    @property
    def vocab_size(self) -> int:
        return len(self.counts)

    @property
    def num_tokens(self) -> int:
        """How many tokens were counted."""
        return int(self.counts.sum())

    @property
    def num_distinct(self) -> int:
        """How many token ids occurred at all."""
        return int(np.count_nonzero(self.counts))

    def update(self, sequences: Iterable[Sequence[int] | npt.NDArray[np.integer]]) -> TokenCounts:
        """Count every token of every sequence; memory does not grow with the corpus. Returns itself.

        Raises DataError for an id outside the vocabulary, which means that the sequences come from another tokenizer.
        """
        buffer: list[npt.NDArray[np.int64]] = []
        num_buffered = 0
        for sequence in sequences:
            buffer.append(np.asarray(sequence, np.int64))
            num_buffered += len(buffer[-1])
            if num_buffered >= _BUFFER_TOKENS:
                self._count(np.concatenate(buffer))
                buffer, num_buffered = [], 0
        if num_buffered:
            self._count(np.concatenate(buffer))
        return self

    def __add__(self, other: TokenCounts) -> TokenCounts:
        if self.vocab_size != other.vocab_size:
            raise DataError(f"counts over {self.vocab_size} and over {other.vocab_size} token ids cannot be added: the tokenizers differ.")
        return TokenCounts(self.vocab_size, self.counts + other.counts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenCounts) and np.array_equal(self.counts, other.counts)

    __hash__ = None  # type: ignore[assignment]

    def _count(self, token_ids: npt.NDArray[np.int64]) -> None:
        lowest, highest = int(token_ids.min()), int(token_ids.max())
        if lowest < 0 or highest >= self.vocab_size:
            raise DataError(
                f"token id {lowest if lowest < 0 else highest} is outside the vocabulary of {self.vocab_size} token ids.",
                advice="Count with the tokenizer of the model that the map is for.",
            )
        self.counts += np.bincount(token_ids, minlength=self.vocab_size)
