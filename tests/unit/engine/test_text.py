from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hothead.engine.text import TextStream


class Letters:
    """Token id = code point; text comes one token late, as with incomplete characters."""

    def __init__(self) -> None:
        self.held = ""

    def push(self, token_id: int) -> str:
        text, self.held = self.held, chr(token_id)
        return text

    def finish(self) -> str:
        text, self.held = self.held, ""
        return text


def feed(text: str, stop: tuple[str, ...], sizes: list[int]) -> tuple[str, int, bool]:
    """Push a text in pieces of the given sizes -> what came out, tokens that counted, whether a stop string was met."""
    stream = TextStream(Letters(), stop)
    tokens = [ord(letter) for letter in text]
    released, num_kept = "", 0
    while tokens and not stream.is_stopped:
        size = sizes[0] if sizes else 1
        piece, tokens = tokens[:size], tokens[size:]
        sizes = sizes[1:]
        new, kept = stream.push(piece)
        released += new
        num_kept += kept
        assert not any(stop_text in released for stop_text in stop)
    was_stopped_early = stream.is_stopped
    released += stream.finish()
    return released, num_kept, was_stopped_early


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("one two three", ("two",), "one "),
        ("one two three", ("three", "two"), "one "),
        ("aaab", ("aab",), "a"),
        ("never", ("nev er",), "never"),
        ("ends with sto", ("stop",), "ends with sto"),
        ("xyz", ("z",), "xy"),
        ("", ("a",), ""),
    ],
)
def test_text_is_cut_before_the_first_stop_string(text: str, stop: tuple[str, ...], expected: str) -> None:
    for size in (1, 2, 3, 50):
        assert feed(text, stop, [size] * len(text))[0] == expected


def test_tokens_behind_the_stop_string_do_not_count() -> None:
    stream = TextStream(Letters(), ("bc",))
    # The text of "c" is known one token later: with "d" the stop string is complete.
    assert stream.push([ord(letter) for letter in "abcdef"]) == ("a", 4)
    assert stream.is_stopped
    assert stream.finish() == ""


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3), st.lists(st.integers(1, 7), max_size=10))
def test_any_split_gives_the_same_text(text: str, stop: list[str], sizes: list[int]) -> None:
    positions = [text.find(stop_text) for stop_text in stop if stop_text in text]
    # Of two stop strings the one that is complete first ends the request; its beginning cuts the text.
    ends = sorted((text.find(s) + len(s), text.find(s)) for s in stop if s in text)
    expected = text if not positions else text[: min(start for end, start in ends if end == ends[0][0])]
    assert feed(text, tuple(stop), sizes)[0] == expected
