from __future__ import annotations

import numpy as np

from hothead.config.sampling import SamplingParams
from hothead.draft.base import TreeShape
from hothead.draft.ngram import NgramDrafter, NgramIndex, merge
from hothead.records import BatchRow


def ids(text: str) -> np.ndarray:
    return np.asarray([ord(letter) for letter in text], np.int64)


def letters(token_ids: list[int]) -> str:
    return "".join(map(chr, token_ids))


def found(text: str, num_places: int = 1, num_tokens: int = 4) -> list[str]:
    index = NgramIndex()
    index.extend(ids(text))
    return [letters(tokens) for tokens in index.continuations(ids(text), num_places, num_tokens)]


def test_what_followed_the_longest_match() -> None:
    assert found("abcdXY.bcdZW.abcd") == ["XY.b"]


def test_the_newest_place_comes_first_then_older_and_shorter_ones() -> None:
    assert found("abcd1.abcd2.cd3.abcd", num_places=4) == ["2.cd", "1.ab", "3.ab"]


def test_no_match_no_draft() -> None:
    assert found("abcdef") == []
    assert found("a") == []


def test_an_index_that_grows_is_the_index_of_the_whole() -> None:
    text = "to be or not to be or to do "
    grown = NgramIndex()
    for length in range(1, len(text) + 1):
        grown.extend(ids(text[:length]))
        whole = NgramIndex()
        whole.extend(ids(text[:length]))
        assert grown.continuations(ids(text[:length]), 3, 5) == whole.continuations(ids(text[:length]), 3, 5)


def test_equal_beginnings_share_nodes() -> None:
    tree = merge([[1, 2, 3], [1, 2, 4], [5]], 10)
    assert tree.token_ids.tolist() == [1, 2, 3, 4, 5]
    assert tree.parents.tolist() == [-1, 0, 1, 1, -1]
    assert merge([[1, 2, 3], [1, 2, 4]], 3).token_ids.tolist() == [1, 2, 3]


def test_the_drafter_keeps_to_what_may_be_drafted() -> None:
    drafter = NgramDrafter(TreeShape(5, 1, 6))
    text = "hello world, hello"
    for most in (0, 2, 9):
        row = BatchRow("a", ids(text), len(text) - 1, 1, np.arange(40, dtype=np.int64), most, SamplingParams(), 0)
        (tree,) = drafter.propose((row,))
        assert letters(tree.token_ids.tolist()) == " worl"[: min(most, 5)]
    drafter.forget("a")
    assert drafter._indexes == {}
