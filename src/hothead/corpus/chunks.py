"""Counting text by its distinct pieces: words repeat, so each distinct piece is encoded once.

A tokenizer that cuts text into pre-tokens before it merges gives the same tokens for a text and for its parts, if the cuts between the
parts are places where it would have cut anyway, whatever stands around them. Two such places can be seen without knowing the tokenizer's
pattern:

- before a space that stands alone between two non-spaces, or that ends a run of white space and is followed by an ASCII letter. Patterns in
  use take a space only as the first character of a word, or leave the last space of a run to the word behind it (`\\s+(?!\\S)`); other
  characters than letters may begin a digit or an added token, before which a run stays whole;
- after a single line feed between two non-spaces ('/' excepted: some patterns let a run of punctuation go on over the line end to it).

`is_cuttable` tries whether that holds for a tokenizer; where it does not, texts are encoded whole.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tokenizers

_SPACE, _NOTHING, _LINE_FEED = "\x00", "\x01", "\x02"
"""In a text that is being cut: a space and a line feed where no cut is, and, as a piece's first character, that no space was before it."""
_RESERVED = (_SPACE, _NOTHING, _LINE_FEED)
_RESTORED = str.maketrans({_SPACE: " ", _LINE_FEED: "\n"})
_CUT = re.compile(r"(?<=\S)(?= \S)|(?<=\s)(?= [A-Za-z])|(?<=\S\n)(?=[^\s/])")
_RUN_BEFORE_OTHERS = re.compile("([\x00\n]) (?![A-Za-z])")

_UNCUT_LINE_FEEDS = (("", " "), ("", _SPACE), ("", "\t"), ("", "/"), (_SPACE, ""), (_LINE_FEED, ""), ("\r", ""), ("\t", ""))
"""What must not stand before and after a line feed that is followed by a cut."""

_ENCODED_AT_ONCE = 20_000
_NUM_PROBES = 3000


def cut(text: str) -> list[str]:
    """The pieces, by definition: what `PieceCounter` must count, and what it does where its faster way does not apply."""
    return [piece for piece in _CUT.split(text) if piece]


class PieceCounter:
    """Counts tokens of texts that are cut as above. Memory grows with the distinct pieces until `take`."""

    def __init__(self, backend: tokenizers.Tokenizer, vocab_size: int) -> None:
        self._backend = backend
        self._vocab_size = vocab_size
        self._pieces: Counter[str] = Counter()

    def __len__(self) -> int:
        """Distinct pieces that wait to be encoded."""
        return len(self._pieces)

    def add(self, text: str) -> None:
        marked = _marked(text)
        pieces = Counter(cut(text)) if marked is None else Counter(marked.split(" "))
        if marked is not None and any(map(_is_suspect, pieces)):
            marked, pieces = None, Counter(cut(text))
        if marked is not None:
            pieces = Counter({_restored(piece): count for piece, count in pieces.items()})
            del pieces[""]
        self._pieces.update(pieces)

    def take(self) -> npt.NDArray[np.int64]:
        """Counts [V] of everything since the last call."""
        pieces, self._pieces = self._pieces, Counter()
        counts = np.zeros(self._vocab_size, np.int64)
        texts = list(pieces)
        for start in range(0, len(texts), _ENCODED_AT_ONCE):
            some = texts[start : start + _ENCODED_AT_ONCE]
            token_ids = [encoding.ids for encoding in self._backend.encode_batch_fast(some, add_special_tokens=False)]
            weights = np.repeat([pieces[text] for text in some], [len(ids) for ids in token_ids])
            flat = np.fromiter((token_id for ids in token_ids for token_id in ids), np.int64, len(weights))
            # Weights are floats to bincount: exact below 2^53.
            counts += np.bincount(flat, weights, self._vocab_size).astype(np.int64)
        return counts


class WholeCounter:
    """The plain way, with the same methods: every text is encoded as it stands."""

    def __init__(self, backend: tokenizers.Tokenizer, vocab_size: int) -> None:
        self._backend = backend
        self._vocab_size = vocab_size
        self._counts = np.zeros(vocab_size, np.int64)

    def __len__(self) -> int:
        return 0

    def add(self, text: str) -> None:
        token_ids = self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        self._counts += np.bincount(token_ids, minlength=self._vocab_size)

    def take(self) -> npt.NDArray[np.int64]:
        counts, self._counts = self._counts, np.zeros(self._vocab_size, np.int64)
        return counts


def is_cuttable(backend: tokenizers.Tokenizer) -> bool:
    """Whether thousands of random texts, made of what tokenizers treat differently, have the same tokens whole and in pieces."""
    generator = random.Random(0)
    added = [token.content for token in backend.get_added_tokens_decoder().values()]
    awkward = [text for text in added if text[:1].isalpha() or " " in text or "\n" in text]
    parts = [*_PROBE_PARTS, *added[:30], *awkward[:200]]
    texts = ["".join(generator.choices(parts, k=generator.randint(2, 12))) for _ in range(_NUM_PROBES)]
    pieces = [cut(text) for text in texts]
    whole = _encode(backend, texts)
    flat = iter(_encode(backend, [piece for of_one in pieces for piece in of_one]))
    return all(token_ids == [token_id for _ in of_one for token_id in next(flat)] for token_ids, of_one in zip(whole, pieces, strict=True))


_PROBE_PARTS = (
    *(" ", " ", " ", "  ", "   ", "\n", "\n", "\n\n", "\t", "\r\n", "\r", "\u00a0", "\u3000", "\x1c"),
    *("a", "the", "Word", "WORD", "don't", "'s", "'LL", "'", "1", "23", "4567", "\u00b2", "\u0663"),
    *("/", "//", ".", "...", "(", ");", "-", "_", "#", "<", ">", "\u2019", "\u2026", "\u2581", "\ufeff"),
    *("\u00e9", "e\u0301", "\u0301", "\u00df", "\u6f22\u5b57", "\u304b", "\u0939\u093f", "\u0e44\u0e17\u0e22", "\U0001f600"),
)


def _encode(backend: tokenizers.Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    return [encoding.ids for encoding in backend.encode_batch_fast(list(texts), add_special_tokens=False)]


def _marked(text: str) -> str | None:
    """The text with a bare space at every cut and nowhere else, for str.split, which is six times faster than a pattern.

    None where it holds one of the marks itself. White space other than space and line feed is not looked for here: see `_is_suspect`.
    """
    if any(mark in text for mark in _RESERVED):
        return None
    # Spaces: only the last of a run is a cut, if a letter follows; one alone is none before a line feed or at the end.
    while "  " in text:
        text = text.replace("  ", _SPACE + " ").replace(" " + _SPACE, _SPACE * 2)
    text = text.replace(" \n", _SPACE + "\n")
    text = _RUN_BEFORE_OTHERS.sub("\\1" + _SPACE, text)
    if text.endswith(" "):
        text = text[:-1] + _SPACE
    if "\n" in text:
        # Line feeds: only a single one between non-spaces is followed by a cut.
        while "\n\n" in text:
            text = text.replace("\n\n", _LINE_FEED + "\n").replace("\n" + _LINE_FEED, _LINE_FEED * 2)
        for before, after in _UNCUT_LINE_FEEDS:
            text = text.replace(f"{before}\n{after}", f"{before}{_LINE_FEED}{after}")
        text = text.replace("\n", f"\n {_NOTHING}")
    return _NOTHING + text


def _restored(piece: str) -> str:
    """As it stood in the text; without the first mark it had the space before it that the split took away."""
    piece = piece[1:] if piece[:1] == _NOTHING else " " + piece
    return piece.translate(_RESTORED) if _SPACE in piece or _LINE_FEED in piece else piece


def _is_suspect(piece: str) -> bool:
    """Whether other white space stands where it decides on a cut: at an end of a piece, or before a line feed that is cut behind."""
    inner = piece.removeprefix(_NOTHING)
    if inner.endswith("\n"):
        inner = inner[:-1]
        if not inner:
            return True
    return inner[:1].isspace() or inner[-1:].isspace()
