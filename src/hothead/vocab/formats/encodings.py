"""What the numbers of a map from draft ids to target ids mean. Trained draft heads come with one of these:

- absolute: entry i is the token id of draft id i (llama.cpp's `d2t`, SGLang's lists);
- offset: the token id of draft id i is i + entry i (`d2t` of EAGLE-3 and of speculators);
- mask: `t2d`, one boolean per token id; the hot ones in ascending order.

Nothing in a file says which. A mask beside the numbers decides; otherwise a reading is taken only if the other one is impossible.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hothead.errors import HotMapError
from hothead.vocab.formats.stored import StoredMap

ENCODINGS = ("absolute", "offset", "mask")
_NUM_SHOWN = 6
_NO_ORDER = "A mask (t2d) has no order of frequency: ids stand in ascending order, so a smaller hot size is no use."
_FETCH = "Fetch it again, or give the right --vocab-size."

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Reading:
    """One way to read the numbers. fault: why it cannot be, "" if it can."""

    encoding: str
    token_ids: IntArray
    fault: str

    @property
    def shown(self) -> str:
        return f"token ids {_shown(self.token_ids)}"

    def __str__(self) -> str:
        return f"{self.encoding}: {self.shown}" + (f" ({self.fault})" if self.fault else "")


def read_pair(
    d2t: npt.NDArray[np.generic] | None, t2d: npt.NDArray[np.generic] | None, vocab_size: int | None, encoding: str | None
) -> tuple[IntArray, int | None, tuple[str, ...]]:
    """d2t [H], t2d [V] or one of the two -> token ids [H], V if it is known, notes.

    Raises HotMapError where the two disagree, where both readings are possible, or where the table was never filled.
    """
    hot_ids = None if t2d is None else _hot_ids(t2d)
    if t2d is not None:
        if vocab_size is not None and vocab_size != len(t2d):
            raise HotMapError(f"its mask t2d is over {len(t2d)} token ids, and the vocabulary has {vocab_size}.")
        vocab_size = len(t2d)
    if d2t is None or encoding == "mask":
        if hot_ids is None:
            raise HotMapError("it has no mask t2d.", advice="Use --encoding absolute or offset.")
        return hot_ids, vocab_size, (_NO_ORDER,)
    values = check_numbers(d2t, "d2t")
    is_marked = encoding is None and hot_ids is not None and np.array_equal(hot_ids, np.arange(len(values)))
    if encoding != "offset" and len(values) > 1 and vocab_size != len(values) and not values.any() and not is_marked:
        raise _never_filled(len(values), hot_ids)
    readings = _readings(values, vocab_size)
    if encoding is not None:
        chosen = next(reading for reading in readings if reading.encoding == encoding)
    elif hot_ids is not None:
        chosen = _by_mask(readings, hot_ids)
    else:
        chosen = _by_exclusion(readings)
    if chosen.fault:
        other = next((reading.encoding for reading in readings if not reading.fault), "")
        raise HotMapError(
            f"its d2t cannot be read as {chosen.encoding} ids: {chosen.fault}.",
            *map(str, readings),
            advice=f"Say --encoding {other} if that is what the numbers are." if other else _FETCH,
        )
    if hot_ids is not None and not np.array_equal(np.sort(chosen.token_ids), hot_ids):
        raise HotMapError(f"its d2t, read as {chosen.encoding} ids, and its t2d name different tokens.")
    is_sorted = bool((np.diff(chosen.token_ids) > 0).all())
    note = "Its ids are in ascending order, not in order of frequency, so a smaller hot size is no use." if is_sorted else ""
    return chosen.token_ids, vocab_size, (note,) if note and len(values) > 1 else ()


def read_list(values: npt.ArrayLike, encoding: str | None) -> StoredMap:
    """A list that is not called d2t: absolute ids, unless `encoding` says otherwise. What cannot be is left to the map's own checks."""
    if encoding == "mask":
        mask = np.asarray(values)
        return StoredMap(_hot_ids(mask), vocab_size=mask.size, notes=(_NO_ORDER,))
    if encoding == "offset":
        return StoredMap(_readings(check_numbers(np.asarray(values), "the list"), None)[1].token_ids)
    return StoredMap(values, hint=_hint(values) if encoding is None else "")


def _hint(values: npt.ArrayLike) -> str:
    """What to say of a list that holds no token ids and would hold some in another reading."""
    try:
        numbers = np.asarray(values)
        if numbers.dtype == np.bool_:
            return "If it is a mask over the vocabulary (t2d), say --encoding mask."
        absolute, offset = _readings(check_numbers(numbers, "the list"), None)
    except (HotMapError, ValueError, OverflowError, TypeError):
        return ""
    return f"Read as offsets (--encoding offset) it has the {offset.shown}." if absolute.fault and not offset.fault else ""


def as_offsets(token_ids: IntArray) -> IntArray:
    """d2t of EAGLE-3: [H] int64, what to add to a draft id."""
    return token_ids - np.arange(len(token_ids), dtype=np.int64)


def as_mask(token_ids: IntArray, vocab_size: int) -> npt.NDArray[np.bool_]:
    """t2d: [V] bool."""
    mask = np.zeros(vocab_size, np.bool_)
    mask[token_ids] = True
    return mask


def check_numbers(values: npt.NDArray[np.generic], name: str) -> IntArray:
    """[H] int64. Raises HotMapError for what is no list of integers."""
    if values.ndim != 1 or values.size == 0:
        raise HotMapError(f"{name} must be a list (1-D) that is not empty, but it has the shape {list(values.shape)}.")
    if values.dtype.kind not in "iu" or (values.dtype == np.uint64 and (values > np.uint64(2**62)).any()):
        raise HotMapError(f"{name} must hold integers, but it holds {values.dtype}.")
    numbers = values.astype(np.int64)
    if (np.abs(numbers) > 2**62).any():
        raise HotMapError(f"{name} holds numbers that no vocabulary has (first: {numbers[np.abs(numbers) > 2**62][0]}).")
    return numbers


def _hot_ids(mask: npt.NDArray[np.generic]) -> IntArray:
    if mask.ndim != 1 or mask.size == 0:
        raise HotMapError(f"its mask t2d must be a list (1-D) that is not empty, but it has the shape {list(mask.shape)}.")
    if mask.dtype != np.bool_ and not (mask.dtype.kind in "iu" and bool(np.isin(mask, (0, 1)).all())):
        raise HotMapError(f"its mask t2d must hold booleans, but it holds {mask.dtype}.")
    hot_ids = np.flatnonzero(mask).astype(np.int64)
    if not len(hot_ids):
        raise HotMapError("its mask t2d marks no token.", advice="It was never filled: fetch the checkpoint again.")
    return hot_ids


def _readings(values: IntArray, vocab_size: int | None) -> tuple[Reading, Reading]:
    return tuple(  # type: ignore[return-value]
        Reading(encoding, token_ids, _fault(token_ids, vocab_size))
        for encoding, token_ids in (("absolute", values), ("offset", values + np.arange(len(values), dtype=np.int64)))
    )


def _fault(token_ids: IntArray, vocab_size: int | None) -> str:
    if (num_negative := int((token_ids < 0).sum())) > 0:
        return f"{num_negative} of {len(token_ids)} are negative"
    if (num_repeated := len(token_ids) - len(np.unique(token_ids))) > 0:
        return f"{num_repeated} of {len(token_ids)} repeat another"
    if vocab_size is not None and (num_large := int((token_ids >= vocab_size).sum())) > 0:
        return f"{num_large} of {len(token_ids)} are at or past the vocabulary size {vocab_size}"
    return ""


def _by_mask(readings: tuple[Reading, Reading], hot_ids: IntArray) -> Reading:
    fitting = [reading for reading in readings if np.array_equal(np.sort(reading.token_ids), hot_ids)]
    if not fitting:
        raise HotMapError(
            f"its d2t ({len(readings[0].token_ids)} entries) and its t2d ({len(hot_ids)} tokens) name different tokens in every reading.",
            *map(str, readings),
            f"t2d: token ids {_shown(hot_ids)}",
            advice="One of the two is of another checkpoint: fetch both again.",
        )
    return fitting[0]


def _by_exclusion(readings: tuple[Reading, Reading]) -> Reading:
    possible = [reading for reading in readings if not reading.fault]
    if len(possible) == 1:
        return possible[0]
    what = "can be read in two ways" if possible else "cannot be read in either way"
    raise HotMapError(
        f"its d2t {what}.",
        *map(str, readings),
        advice="Say which: --encoding absolute (llama.cpp) or --encoding offset (EAGLE-3, speculators)." if possible else _FETCH,
    )


def _never_filled(size: int, hot_ids: IntArray | None) -> HotMapError:
    """For a d2t of zeros over fewer ids than the vocabulary has. hot_ids: of its mask, None without one."""
    what = f"its d2t holds {size} zeros: a table that was never filled, or the first {size} token ids as offsets"
    first_ids = "Fetch the checkpoint again; if the first ids are meant, say --encoding offset."
    if hot_ids is None or np.array_equal(hot_ids, np.arange(size)):
        return HotMapError(f"{what}.", advice=first_ids)
    return HotMapError(
        f"its d2t holds {size} zeros: a table that was never filled.",
        f"Its t2d marks {len(hot_ids)} other tokens: {_shown(hot_ids)}.",
        advice="If the rows of the head are the tokens of t2d in ascending order, say --encoding mask."
        if len(hot_ids) == size
        else "Fetch the checkpoint again.",
    )


def _shown(token_ids: IntArray) -> str:
    return ", ".join(map(str, token_ids[:_NUM_SHOWN])) + (", ..." if len(token_ids) > _NUM_SHOWN else "")
