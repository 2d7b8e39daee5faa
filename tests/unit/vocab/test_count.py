"""Counting token ids."""

from __future__ import annotations

import numpy as np
import pytest

from hothead.errors import DataError
from hothead.vocab import count
from hothead.vocab.count import TokenCounts


def test_counts_of_sequences_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    sequences = [[1, 2, 2], np.array([0, 4], np.int32), [], [4]]
    once = TokenCounts(6).update(sequences)
    assert once.counts.tolist() == [1, 1, 2, 0, 2, 0]
    assert (once.num_tokens, once.num_distinct, once.vocab_size) == (6, 4, 6)
    assert (once + TokenCounts(6).update([[5]])).counts.tolist() == [1, 1, 2, 0, 2, 1]
    monkeypatch.setattr(count, "_BUFFER_TOKENS", 2)
    assert TokenCounts(6).update(iter(sequences)) == once
    assert TokenCounts(6).update([]).num_tokens == 0


@pytest.mark.parametrize("token_id", [6, -1])
def test_a_token_id_of_another_tokenizer_is_refused(token_id: int) -> None:
    with pytest.raises(DataError, match=rf"token id {token_id} is outside the vocabulary of 6"):
        TokenCounts(6).update([[0], [3, token_id]])


def test_counts_of_other_vocabularies_do_not_add() -> None:
    with pytest.raises(DataError, match=r"6 token ids .*the other 7"):
        TokenCounts(6) + TokenCounts(7)
    with pytest.raises(DataError, match=r"shape \[2\] do not fit a vocabulary of 3"):
        TokenCounts(3, np.array([1, 2]))
