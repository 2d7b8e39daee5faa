"""What a token map accepts, and what its cuts and look-ups give."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from hothead.errors import HotMapError
from hothead.vocab.token_map import TokenMap


def example() -> TokenMap:
    return TokenMap(np.array([7, 2, 9, 4, 0]), np.array([60, 25, 10, 5, 0]), 10, 1, {"corpus": "chats"}, "9f2c1a77")


@pytest.mark.parametrize(
    ("token_ids", "message"),
    [
        ([[1, 2], [3, 4]], r"must be a list of integers \(1-D\), but the one at hot index 0 is of type list"),
        (np.array([[1, 2], [3, 4]]), r"must be a list \(1-D\), but they have the shape \[2, 2\]"),
        (np.zeros((0, 3), np.int64), r"shape \[0, 3\]"),
        ([3, 2.5, 1], r"the one at hot index 1 is 2.5 \(float\)"),
        ([3, 2.0], r"the one at hot index 1 is 2.0 \(float\)"),
        (np.array([1.5]), r"they are float64 \(first: 1.5 \(float64\) at hot index 0\)"),
        ([3, True], r"the one at hot index 1 is True \(bool\)"),
        (np.array([True, False, True]), r"they are booleans \(2 of 3 true\)(.|\n)*t2d"),
        ([3, "4"], "the one at hot index 1 is of type str"),
        ([3, None], "the one at hot index 1 is of type NoneType"),
        ([3, [4]], "the one at hot index 1 is of type list"),
        ([3, -4, 5, -1], r"2 of 4 token ids are negative \(first: -4 at hot index 1\)"),
        ([3, 8, 5, 8, 5], r"token id 8 occurs twice, at hot indices 1 and 3\.\n  2 of 5 token ids repeat"),
        ([0, 2**31], "token id 2147483648 at hot index 1 is past the largest"),
        ([0, 10**40], "must fit 64 bits, but the one at hot index 1 has 133"),
        (np.array([0, 2**63], np.uint64), r"must be below 2\*\*63, but the one at hot index 1"),
        ([], "no token ids"),
        (5, r"shape \[\]"),
    ],
)
def test_what_is_not_a_list_of_different_token_ids_is_refused_naming_which_and_where(token_ids: Any, message: str) -> None:
    with pytest.raises(HotMapError, match=message):
        TokenMap(token_ids)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"counts": np.array([1, 2])}, "3 token ids but 2 counts"),
        ({"counts": np.array([1, -2, 3])}, "count at hot index 1 is negative: -2"),
        ({"counts": np.array([1.0, 2, 3])}, "counts must be integers, but they are float64"),
        ({"counts": [1, 2, True]}, r"counts must be a list of integers \(1-D\), but the one at hot index 2 is True"),
        ({"num_fillers": 4}, "3 token ids cannot have 4 fillers"),
        ({"vocab_size": 9}, r"1 of 3 token ids is at or past the vocabulary size 9 \(first: id 9 at hot index 2\)"),
    ],
)
def test_fields_that_contradict_the_ids_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(HotMapError, match=message):
        TokenMap(np.array([1, 2, 9]), **values)


def test_maps_are_equal_by_content_and_cannot_be_changed() -> None:
    given = np.array([7, 2, 9, 4, 0])
    token_map = TokenMap(given)
    given[0] = 1
    assert token_map.token_ids.tolist() == [7, 2, 9, 4, 0]
    with pytest.raises(ValueError, match="read-only"):
        token_map.token_ids[0] = 1
    with pytest.raises(TypeError):
        token_map.provenance["a"] = "b"  # type: ignore[index]
    assert example() == example()
    assert hash(example()) == hash(example())
    assert pickle.loads(pickle.dumps(example())) == example()
    assert pickle.loads(pickle.dumps(example())).provenance == {"corpus": "chats"}
    assert example() != TokenMap(example().token_ids)
    assert example().fingerprint == TokenMap([7, 2, 9, 4, 0]).fingerprint  # type: ignore[arg-type]
    assert example().fingerprint != TokenMap(np.array([2, 7, 9, 4, 0])).fingerprint  # the order counts


def test_head_is_a_prefix() -> None:
    cut = example().head(3)
    assert (cut.token_ids.tolist(), cut.num_fillers, cut.vocab_size) == ([7, 2, 9], 0, 10)
    assert cut.counts is not None
    assert cut.counts.tolist() == [60, 25, 10]
    assert cut.tokenizer_fingerprint == "9f2c1a77"
    assert example().head(5) == example()
    for size in (6, 0, -1):
        with pytest.raises(HotMapError, match=rf"{size} token ids was asked for, but the token map has 5\."):
            example().head(size)


@pytest.mark.parametrize(("share", "size"), [(0.01, 1), (0.6, 1), (0.61, 2), (0.85, 2), (0.95, 3), (1.0, 4)])
def test_coverage_takes_the_shortest_prefix_that_reaches_it(share: float, size: int) -> None:
    assert len(example().for_coverage(share)) == size


def test_coverage_needs_counts_and_a_share() -> None:
    for share in (0.0, 1.01, -1.0, float("nan")):
        with pytest.raises(HotMapError, match=rf"coverage of {share}"):
            example().for_coverage(share)
    with pytest.raises(HotMapError, match=r"has no counts(.|\n)*--hot-size"):
        TokenMap(np.array([1])).for_coverage(0.5)
    with pytest.raises(HotMapError, match="all zero"):
        TokenMap(np.array([1]), np.array([0])).for_coverage(0.5)


def test_look_ups() -> None:
    token_map = example()
    assert token_map.hot_index([9, 8, 7, 2**40, -1]).tolist() == [2, -1, 0, -1, -1]
    assert token_map.is_hot(np.array([0, 1])).tolist() == [True, False]
    assert token_map.hit_rate([7, 7, 1, 2]) == 0.75
    assert np.isnan(token_map.hit_rate([]))
    assert token_map.coverage(np.array([1, 1, 1, 1, 1, 5])) == 0.3  # ids 0, 2 and 4 of ten tokens
    assert np.isnan(token_map.coverage(np.zeros(10, np.int64)))


def test_a_map_for_another_vocabulary_is_refused_with_numbers_and_advice() -> None:
    example().validate_for(10, "tiny")
    with pytest.raises(HotMapError) as refused:
        example().validate_for(5, "tiny", "token map 'x.safetensors'")
    assert str(refused.value) == (
        "token map 'x.safetensors' does not fit target 'tiny'.\n"
        "  2 of 5 token ids are at or past the vocabulary size 5 (first: id 7 at hot index 0).\n"
        "  Rebuild it: hothead map build --model tiny, or load the target that it was built for (tokenizer 9f2c1a)."
    )
