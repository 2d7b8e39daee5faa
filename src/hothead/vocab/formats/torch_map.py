"""What torch.save wrote: the list or tensor of token ids that SGLang reads, or a dict with `d2t` and `t2d`."""

from __future__ import annotations

import numpy as np

from hothead.errors import HotMapError
from hothead.files.torch_file import read_torch_file
from hothead.vocab.formats.encodings import read_list, read_pair
from hothead.vocab.formats.stored import StoredMap


def decode(data: bytes, vocab_size: int | None, encoding: str | None) -> StoredMap:
    """Nothing from the file is run. Raises HotMapError."""
    content = read_torch_file(data)
    if isinstance(content, dict) and ("d2t" in content or "t2d" in content):
        d2t, t2d = (None if content.get(name) is None else np.asarray(content[name]) for name in ("d2t", "t2d"))
        token_ids, vocab_size, notes = read_pair(d2t, t2d, vocab_size, encoding)
        return StoredMap(token_ids, vocab_size=vocab_size, notes=notes)
    if not isinstance(content, list | tuple | np.ndarray):
        keys = f" with the keys {', '.join(map(str, list(content)[:5]))!s:.200}" if isinstance(content, dict) else ""
        raise HotMapError(f"it holds a {type(content).__name__}{keys}, not a list or tensor of token ids.")
    return StoredMap(read_list(content, encoding))
