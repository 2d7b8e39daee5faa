"""Ranking token ids: exact size, always-in ids in every prefix, fillers last."""

from __future__ import annotations

import numpy as np
import pytest

from hothead.errors import HotMapError
from hothead.vocab.token_map import TokenMap

COUNTS = np.array([0, 5, 9, 5, 0, 0, 1, 0])


def test_order_is_always_in_then_count_then_id_then_fillers() -> None:
    ranked = TokenMap.ranked(COUNTS, [7, 6], 7, 8, tokenizer_fingerprint="9f", provenance={"corpus": "x"})
    assert ranked.token_ids.tolist() == [6, 7, 2, 1, 3, 0, 4]
    assert ranked.counts is not None
    assert ranked.counts.tolist() == [1, 0, 9, 5, 5, 0, 0]
    assert (ranked.num_fillers, ranked.vocab_size, ranked.tokenizer_fingerprint) == (2, 8, "9f")
    assert ranked.provenance == {"corpus": "x"}


def test_without_a_size_there_are_no_fillers() -> None:
    ranked = TokenMap.ranked(COUNTS, [7], None, 8)
    assert (ranked.token_ids.tolist(), ranked.num_fillers) == ([7, 2, 1, 3, 6], 0)


def test_always_in_ids_survive_every_prefix_that_can_hold_them() -> None:
    ranked = TokenMap.ranked(COUNTS, [5, 0, 7], 8, 8)
    for size in range(3, 9):
        assert ranked.head(size).is_hot([0, 5, 7]).all()


@pytest.mark.case(14)
def test_a_corpus_with_few_distinct_tokens_is_filled_to_the_exact_size() -> None:
    ranked = TokenMap.ranked(np.bincount([3, 3, 9], minlength=100), [9], 50, 100)
    assert (len(ranked), ranked.num_fillers) == (50, 48)
    assert ranked.token_ids.tolist() == [9, 3, 0, 1, 2, *range(4, 9), *range(10, 50)]


@pytest.mark.case(11)
def test_padded_rows_of_the_head_never_get_in() -> None:
    ranked = TokenMap.ranked(np.array([1, 2, 0, 0]), [0], 3, 3)  # four head rows, three token ids
    assert ranked.token_ids.tolist() == [0, 1, 2]
    with pytest.raises(HotMapError, match="token id 3 was counted 5 times, but the tokenizer has only 3"):
        TokenMap.ranked(np.array([1, 2, 0, 5]), [], None, 3)


@pytest.mark.parametrize(
    ("always_in", "size", "message"),
    [
        ([8], None, "token id 8 must be in the map, but the tokenizer has only the ids 0 to 7"),
        ([-1], None, "token id -1 must be in the map"),
        ([1, 2], 1, r"a map of 1 token ids cannot be built(.|\n)*2 of them are always in(.|\n)*2 to 8"),
        ([], 9, r"a map of 9 token ids cannot be built(.|\n)*8 token ids(.|\n)*1 to 8"),
        ([], 0, "a map of 0 token ids"),
    ],
)
def test_what_cannot_be_built_is_refused_with_numbers(always_in: list[int], size: int | None, message: str) -> None:
    with pytest.raises(HotMapError, match=message):
        TokenMap.ranked(COUNTS, always_in, size, 8)


def test_nothing_to_rank_is_refused() -> None:
    with pytest.raises(HotMapError, match="nothing to rank"):
        TokenMap.ranked(np.zeros(8, np.int64), [], None, 8)
