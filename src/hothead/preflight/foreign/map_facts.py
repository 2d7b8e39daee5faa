"""What a token map that a command names holds: its ids, how they lie in the target's head, and what d2t tensors say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hothead.errors import HotheadError
from hothead.preflight.foreign.model_facts import ModelFacts
from hothead.preflight.foreign.paths import located
from hothead.vocab.formats.registry import read_stored_map

_MAX_TABLE_BYTES = 8 * 2**20


@dataclass(frozen=True)
class MapFacts:
    """path: where it was looked for. token_ids: [H] int64 or None, then problem says why. format: its name in `hothead map convert`."""

    name: str
    path: Path
    token_ids: npt.NDArray[np.int64] | None = None
    format: str = ""
    problem: str = ""
    is_missing: bool = False

    @property
    def is_torch(self) -> bool:
        """Whether torch.load reads it, which is all that SGLang does."""
        return self.format == "sglang"


def find_map(name: str, folder: Path, vocab_size: int | None) -> MapFacts:
    """Never raises. folder: what relative paths are relative to."""
    path = located(name, folder)
    try:
        if not path.exists():
            return MapFacts(name, path, problem="it does not exist", is_missing=True)
        stored, format_name = read_stored_map(path, vocab_size)
        array = np.asarray(stored.token_ids)
        if array.ndim != 1 or array.dtype.kind not in "iu" or not len(array):
            return MapFacts(
                name, path, format=format_name, problem=f"it holds {array.dtype} of shape {array.shape} instead of a list of ids"
            )
        return MapFacts(name, path, array.astype(np.int64), _torch_format(path, format_name))
    except HotheadError as error:
        return MapFacts(name, path, problem=error.what)
    except (OSError, ValueError, OverflowError, RecursionError, TypeError) as error:
        return MapFacts(name, path, problem=f"{type(error).__name__}: {error!s:.120}")


def _torch_format(path: Path, format_name: str) -> str:
    """Files that torch.load opens are SGLang's whatever the reader calls the list in them."""
    if path.is_dir():
        return format_name
    with path.open("rb") as file:
        start = file.read(4)
    return "sglang" if start[:2] in (b"PK", b"\x80\x02", b"\x80\x04") else format_name


def draft_offsets(draft: ModelFacts) -> npt.NDArray[np.int64] | None:
    """The d2t tensor of a draft's checkpoint, [draft_vocab_size] int64, or None where the headers do not have it or it is no such list."""
    name = draft.find_tensor("d2t")
    tensor = draft.tensors.get(name) if name else None
    if tensor is None or tensor.dtype not in ("I64", "I32") or len(tensor.shape) != 1 or not 0 < tensor.num_bytes <= _MAX_TABLE_BYTES:
        return None
    try:
        with tensor.file.open("rb") as file:
            file.seek(tensor.start)
            content = file.read(tensor.num_bytes)
        values = np.frombuffer(content, "<i8" if tensor.dtype == "I64" else "<i4").astype(np.int64)
    except (OSError, ValueError):
        return None
    return values if len(values) == tensor.shape[0] else None
