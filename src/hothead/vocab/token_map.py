"""What a token map is: the token ids of a hot vocabulary in order of frequency, with their counts and where they come from."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hothead.errors import HotMapError
from hothead.vocab.count import TokenCounts
from hothead.vocab.formats.registry import read_stored_map, write_stored_map
from hothead.vocab.formats.stored import StoredMap, ids_fingerprint
from hothead.vocab.select import rank_tokens

IntArray = npt.NDArray[np.int64]
TokenIds = npt.ArrayLike | Iterable[int]

SAMPLE_SIZE = 256
"""Hottest tokens whose text `map build` keeps in the map."""

MAX_TOKEN_ID = 2**31 - 2
"""Ids travel between ranks as 32-bit integers, of which the largest means 'none'."""


class CountingTokenizer(Protocol):
    """What counting needs of a tokenizer."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def end_token_ids(self) -> tuple[int, ...]: ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...


class SpellingTokenizer(Protocol):
    """What comparing needs of a tokenizer. token: of an id, "" where it has none."""

    source: str

    @property
    def fingerprint(self) -> str: ...

    def token(self, token_id: int) -> str: ...


@dataclass(frozen=True, eq=False)
class TokenMap:
    """A hot vocabulary: hot index -> token id, most frequent first. Equal when its content is equal, provenance aside.

    token_ids: [H] int64, all different. counts: [H] int64, how often each was seen, or None where a format has none. vocab_size: token ids
    of the tokenizer it was counted with, or None if unknown. num_fillers: how many ids at the end were never seen and only fill up the
    size. provenance: free text by key (corpus, date, command). tokenizer_fingerprint: "" if unknown. sample: some ids with their tokens, to
    tell how another tokenizer differs. Arrays are read-only. Raises
    HotMapError for anything but a non-empty 1-D list of different non-negative integers.
    """

    token_ids: IntArray
    counts: IntArray | None = None
    vocab_size: int | None = None
    num_fillers: int = 0
    provenance: Mapping[str, str] = field(default_factory=dict)
    tokenizer_fingerprint: str = ""
    sample: Mapping[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        token_ids = check_token_ids(self.token_ids)
        counts = None if self.counts is None else _check_counts(self.counts, len(token_ids))
        if not 0 <= self.num_fillers <= len(token_ids):
            raise HotMapError(f"a token map of {len(token_ids)} token ids cannot have {self.num_fillers} fillers.")
        if self.vocab_size is not None:
            check_token_ids_fit(token_ids, self.vocab_size)
        # Frozen: normalised values can only be stored this way, and only here.
        object.__setattr__(self, "token_ids", _read_only(token_ids))
        object.__setattr__(self, "counts", None if counts is None else _read_only(counts))
        object.__setattr__(self, "provenance", MappingProxyType({str(key): str(value) for key, value in self.provenance.items()}))
        object.__setattr__(self, "sample", MappingProxyType({int(key): str(value) for key, value in self.sample.items()}))

    @staticmethod
    def load(path: str | Path, *, vocab_size: int | None = None, encoding: str | None = None) -> TokenMap:
        """Read a token map in any known format (docs/reference/map-format.md); never runs code from the file.

        vocab_size: V where the file does not say it. encoding: "absolute", "offset" or "mask" where numbers can be read in two ways. Raises
        HotMapError; what a reader should know of the file (that it has no order, say) comes as a UserWarning.
        """
        path = Path(path)
        stored, _ = read_stored_map(path, vocab_size, encoding)
        for note in stored.notes:
            warnings.warn(f"token map '{path.name}': {note}", stacklevel=2)
        return TokenMap.of_stored(stored, path.name)

    @staticmethod
    def of_stored(stored: StoredMap, name: str) -> TokenMap:
        """Checked. name: of the file, in messages. Raises HotMapError."""
        try:
            return TokenMap(
                check_token_ids(stored.token_ids),
                None if stored.counts is None else _as_integers(stored.counts, "counts"),
                stored.vocab_size,
                stored.num_fillers,
                stored.provenance,
                stored.tokenizer_fingerprint,
                stored.sample,
            )
        except HotMapError as error:
            raise HotMapError(f"token map '{name}': {error.what}", *error.details, advice=stored.hint or error.advice) from error

    @staticmethod
    def build(
        corpus: Iterable[str | Sequence[int]],
        tokenizer: CountingTokenizer,
        size: int | None = None,
        *,
        always_in: Iterable[int] | None = None,
        provenance: Mapping[str, str] | None = None,
    ) -> TokenMap:
        """A map counted on texts, or on token ids as they are; `hothead map build` does the same for files, with all cores.

        size: exactly so many ids, or every id that was seen (None). always_in: None is the tokenizer's end tokens. Raises HotMapError for a
        size that cannot be, DataError for ids of another tokenizer.
        """
        encoded = (tokenizer.encode(part, add_special_tokens=False) if isinstance(part, str) else part for part in corpus)
        counts = TokenCounts(tokenizer.vocab_size).update(encoded)
        return TokenMap.ranked(
            counts.counts,
            tokenizer.end_token_ids if always_in is None else always_in,
            size,
            tokenizer.vocab_size,
            tokenizer_fingerprint=tokenizer.fingerprint,
            provenance=provenance,
        )

    @staticmethod
    def ranked(
        counts: npt.NDArray[np.int64],
        always_in: Iterable[int],
        size: int | None,
        vocab_size: int,
        *,
        tokenizer_fingerprint: str = "",
        provenance: Mapping[str, str] | None = None,
    ) -> TokenMap:
        """The map of counts [V]: what `rank_tokens` takes and in its order. Raises HotMapError for a size that cannot be."""
        token_ids, own_counts, num_fillers = rank_tokens(counts, always_in, size, vocab_size)
        return TokenMap(token_ids, own_counts, vocab_size, num_fillers, provenance or {}, tokenizer_fingerprint)

    def save(self, path: str | Path, format_name: str | None = None) -> None:
        """Write a file that appears whole or not at all.

        format_name: as in `hothead map convert --to`; None writes our format, or for the suffix `.pt` the list that SGLang reads, which
        keeps ids and order only. Raises OutputError, HotMapError.
        """
        write_stored_map(self.stored, Path(path), format_name)

    @property
    def stored(self) -> StoredMap:
        """The fields as files have them."""
        return StoredMap(
            self.token_ids, self.counts, self.vocab_size, self.num_fillers, self.provenance, self.tokenizer_fingerprint, self.sample
        )

    def __len__(self) -> int:
        return len(self.token_ids)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenMap):
            return NotImplemented
        return (
            np.array_equal(self.token_ids, other.token_ids)
            and (self.counts is None) == (other.counts is None)
            and (self.counts is None or other.counts is None or np.array_equal(self.counts, other.counts))
            and (self.vocab_size, self.num_fillers, self.tokenizer_fingerprint)
            == (other.vocab_size, other.num_fillers, other.tokenizer_fingerprint)
        )

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __reduce__(self) -> tuple[Any, ...]:
        # Read-only views cannot be pickled, and a map is sent to every rank.
        numbers = (self.token_ids, self.counts, self.vocab_size, self.num_fillers)
        return (TokenMap, (*numbers, dict(self.provenance), self.tokenizer_fingerprint, dict(self.sample)))

    @property
    def fingerprint(self) -> str:
        """sha256 of the ranked ids: two maps with one fingerprint give one hot vocabulary."""
        return ids_fingerprint(self.token_ids)

    def head(self, size: int) -> TokenMap:
        """The map's first `size` ids."""
        if not 1 <= size <= len(self):
            raise HotMapError(
                f"a hot vocabulary of {size} token ids was asked for, but the token map has {len(self)}.",
                advice=f"Use a size from 1 to {len(self)}, or a larger token map.",
            )
        return TokenMap(
            self.token_ids[:size],
            None if self.counts is None else self.counts[:size],
            self.vocab_size,
            max(0, self.num_fillers - (len(self) - size)),
            self.provenance,
            self.tokenizer_fingerprint,
            self.sample,
        )

    def among(self, token_ids: IntArray) -> TokenMap:
        """The map's ids that are among these, in the map's order. Raises HotMapError if there is none."""
        is_kept = np.isin(self.token_ids, token_ids)
        num_kept = int(is_kept.sum())
        if num_kept == len(self):
            return self
        return dataclasses.replace(
            self,
            token_ids=self.token_ids[is_kept],
            counts=None if self.counts is None else self.counts[is_kept],
            num_fillers=int(is_kept[len(self) - self.num_fillers :].sum()),
        )

    def with_vocab_size(self, vocab_size: int) -> TokenMap:
        """The same map with a vocabulary size. Raises HotMapError if an id is past it."""
        return dataclasses.replace(self, vocab_size=vocab_size)

    def with_sample(self, sample: Mapping[int, str]) -> TokenMap:
        """The same map with tokens of some of its ids."""
        return dataclasses.replace(self, sample=sample)

    def for_coverage(self, share: float) -> TokenMap:
        """The shortest prefix that holds `share` (above 0, at most 1) of the map's own counts."""
        if not 0 < share <= 1:
            raise HotMapError(f"a coverage of {share} was asked for.", advice="Use --hot-coverage above 0 and at most 1, for example 0.95.")
        if self.counts is None:
            raise HotMapError(
                f"a coverage of {share} was asked for, but the token map has no counts.",
                advice="Use --hot-size, or build a map with counts: hothead map build.",
            )
        covered = np.cumsum(self.counts, dtype=np.float64)
        if covered[-1] == 0:
            raise HotMapError("the counts of the token map are all zero, so no coverage can be reached.", advice="Use --hot-size.")
        return self.head(int(np.searchsorted(covered, share * covered[-1] * (1 - 1e-12))) + 1)

    def hot_index(self, token_ids: TokenIds) -> IntArray:
        """Position of each id in the map, -1 where it is not hot."""
        wanted = _as_ids(token_ids)
        order = np.argsort(self.token_ids)
        found = np.minimum(np.searchsorted(self.token_ids, wanted, sorter=order), len(self) - 1)
        hot_indices = order[found]
        return np.where(self.token_ids[hot_indices] == wanted, hot_indices, -1)

    def is_hot(self, token_ids: TokenIds) -> npt.NDArray[np.bool_]:
        """Whether each id is in the map."""
        return self.hot_index(token_ids) >= 0

    def hit_rate(self, token_ids: TokenIds) -> float:
        """Share of these tokens that are hot; NaN for none."""
        is_hot = self.is_hot(token_ids)
        return float(is_hot.mean()) if is_hot.size else float("nan")

    def coverage(self, counts: npt.ArrayLike) -> float:
        """Share of counted tokens that are hot. counts: [V], how often each token id occurs; NaN if nothing was counted."""
        counts = _as_integers(counts, "counts")
        total = int(counts.sum())
        return float(counts[self.token_ids[self.token_ids < len(counts)]].sum()) / total if total else float("nan")

    def validate_for(self, num_token_ids: int, model_name: str, map_name: str = "token map") -> None:
        """Raise HotMapError unless every id is one of a model's token ids 0..num_token_ids-1."""
        bad = np.flatnonzero(self.token_ids >= num_token_ids)
        if len(bad):
            built_for = f" (tokenizer {self.tokenizer_fingerprint[:6]})" if self.tokenizer_fingerprint else ""
            raise HotMapError(
                f"{map_name} does not fit target '{model_name}'.",
                _past_the_end(self.token_ids, bad, num_token_ids),
                advice=f"Rebuild it: hothead map build --model {model_name}, or load the target that it was built for{built_for}.",
            )

    def check_tokenizer(self, tokenizer: SpellingTokenizer, name: str = "token map") -> None:
        """Raise HotMapError if the map is of another tokenizer, with the first token that differs as far as the map knows tokens."""
        if self.tokenizer_fingerprint in ("", tokenizer.fingerprint):
            return
        for token_id, token in self.sample.items():
            if token != tokenizer.token(token_id):
                first = (
                    f"The first difference: token id {token_id} is {token!r} in the map's and {tokenizer.token(token_id)!r} in this one."
                )
                break
        else:
            first = f"The {len(self.sample)} tokens that the map knows are the same in both." if self.sample else ""
        raise HotMapError(
            f"{name} was counted with another tokenizer than {tokenizer.source} has.",
            f"The map's has the fingerprint {self.tokenizer_fingerprint[:12]}, this one {tokenizer.fingerprint[:12]}.",
            first,
            advice="Give the model that the map was built for, or build one for this model: hothead map build.",
        )


def check_token_ids(values: npt.ArrayLike) -> IntArray:
    """[H] int64: different non-negative integers; HotMapError says what else was found and where."""
    token_ids = _as_integers(values, "token ids")
    if token_ids.size == 0:
        raise HotMapError("a token map has no token ids.", advice="A hot vocabulary needs at least one token.")
    if (negative := np.flatnonzero(token_ids < 0)).size:
        raise HotMapError(
            f"{len(negative)} of {len(token_ids)} token ids are negative (first: {token_ids[negative[0]]} at hot index {negative[0]}).",
            advice="Offsets (d2t) are not token ids: a token map holds absolute ids.",
        )
    if (large := np.flatnonzero(token_ids > MAX_TOKEN_ID)).size:
        raise HotMapError(f"token id {token_ids[large[0]]} at hot index {large[0]} is past the largest that is supported, {MAX_TOKEN_ID}.")
    order = np.argsort(token_ids, kind="stable")
    repeated = np.flatnonzero(np.diff(token_ids[order]) == 0)
    if repeated.size:
        second = int(order[repeated + 1].min())
        first = int(np.flatnonzero(token_ids == token_ids[second])[0])
        raise HotMapError(
            f"token id {token_ids[second]} occurs twice, at hot indices {first} and {second}.",
            f"{len(repeated)} of {len(token_ids)} token ids repeat an earlier one.",
            advice="Each token id may occur once: rebuild the map.",
        )
    return token_ids


def check_token_ids_fit(token_ids: IntArray, num_token_ids: int) -> None:
    """HotMapError unless every id is below num_token_ids."""
    bad = np.flatnonzero(token_ids >= num_token_ids)
    if len(bad):
        raise HotMapError(
            "the token map does not fit the vocabulary.",
            _past_the_end(token_ids, bad, num_token_ids),
            advice="Use a map that was built for this model: hothead map build.",
        )


def _past_the_end(token_ids: IntArray, bad: npt.NDArray[np.intp], num_token_ids: int) -> str:
    return (
        f"{len(bad)} of {len(token_ids)} token ids {'is' if len(bad) == 1 else 'are'} at or past the vocabulary size {num_token_ids} "
        f"(first: id {token_ids[bad[0]]} at hot index {bad[0]})."
    )


def _check_counts(values: npt.ArrayLike, size: int) -> IntArray:
    counts = _as_integers(values, "counts")
    if len(counts) != size:
        raise HotMapError(f"a token map has {size} token ids but {len(counts)} counts.")
    if (negative := np.flatnonzero(counts < 0)).size:
        raise HotMapError(f"the count at hot index {negative[0]} is negative: {counts[negative[0]]}.")
    return counts


def _as_integers(values: npt.ArrayLike, what: str) -> IntArray:
    """A 1-D int64 copy of whole numbers that are stored as such."""
    if isinstance(values, list | tuple):
        for position, value in enumerate(values):
            # numpy would turn [1, 2.0] into floats and [1, True] into integers, and the culprit would be lost.
            if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
                raise HotMapError(f"{what} must be a list of integers (1-D), but the one at hot index {position} is {_describe(value)}.")
            if not -(2**63) <= value < 2**63:
                raise HotMapError(f"{what} must fit 64 bits, but the one at hot index {position} has {int(value).bit_length()}.")
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError, TypeError) as error:
        raise HotMapError(f"{what} must be a list of integers: {error}.") from error
    if array.ndim != 1:
        raise HotMapError(f"{what} must be a list (1-D), but they have the shape {list(array.shape)}.")
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.dtype == np.bool_:
        raise HotMapError(
            f"{what} must be integers, but they are booleans ({int(array.sum())} of {len(array)} true).",
            advice="A mask over the vocabulary (t2d) has no order of frequency: rebuild the map.",
        )
    if array.dtype.kind not in "iu":
        raise HotMapError(f"{what} must be integers, but they are {array.dtype} (first: {_describe(array.flat[0])} at hot index 0).")
    if array.dtype == np.uint64 and (array > np.uint64(2**63 - 1)).any():
        position = int(np.flatnonzero(array > np.uint64(2**63 - 1))[0])
        raise HotMapError(f"{what} must be below 2**63, but the one at hot index {position} is {array[position]}.")
    return array.astype(np.int64)


def _describe(value: object) -> str:
    # Only numbers are printed: the text of a nested value from a hostile file can be as long as it likes.
    return f"{value} ({type(value).__name__})" if isinstance(value, bool | float | np.generic) else f"of type {type(value).__name__}"


def _as_ids(token_ids: TokenIds) -> IntArray:
    if isinstance(token_ids, np.ndarray):
        return token_ids.astype(np.int64, copy=False)
    return np.asarray(list(token_ids), np.int64)  # type: ignore[arg-type]


def _read_only(array: IntArray) -> IntArray:
    array = array.copy() if array.flags.writeable is False else array
    array.flags.writeable = False
    return array
