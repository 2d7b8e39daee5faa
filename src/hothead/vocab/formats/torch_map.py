"""What torch.save wrote: the list or tensor of token ids that SGLang reads, or a dict or checkpoint with `d2t` and `t2d`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from hothead.errors import HotMapError
from hothead.files.torch_file import StoredTensor, open_torch_file
from hothead.vocab.formats.encodings import read_list, read_pair
from hothead.vocab.formats.stored import PAIR, StoredMap, find_table


def read(path: Path, vocab_size: int | None, encoding: str | None) -> tuple[StoredMap, str]:
    """The map and the name of its format. Nothing from the file is run, and no tensor is read but the two. Raises HotMapError."""
    with open_torch_file(path) as content:
        if isinstance(content, dict):
            names = [find_table(content, table) for table in PAIR]
            if any(names):
                d2t, t2d = (None if name is None or content[name] is None else _array(content[name]) for name in names)
                token_ids, vocab_size, notes = read_pair(d2t, t2d, vocab_size, encoding)
                return StoredMap(token_ids, vocab_size=vocab_size, notes=notes), "eagle3"
        if isinstance(content, StoredTensor):
            return read_list(content.numbers(), encoding), "sglang"
        if not isinstance(content, list | tuple):
            keys = f" with the keys {', '.join(map(str, list(content)[:5]))!s:.200}" if isinstance(content, dict) else ""
            raise HotMapError(f"it holds a {type(content).__name__}{keys}, not a list or tensor of token ids.")
        return read_list(content, encoding), "sglang"


def _array(value: object) -> npt.NDArray[np.generic]:
    return value.numbers() if isinstance(value, StoredTensor) else np.asarray(value)
