"""The tensor `d2t` of a GGUF file: absolute token ids, as llama.cpp keeps them in its EAGLE-3 draft models."""

from __future__ import annotations

import tempfile
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from hothead.errors import CheckpointError, HotMapError
from hothead.files.gguf_header import read_gguf_header
from hothead.vocab.formats.encodings import read_pair
from hothead.vocab.formats.stored import MAX_FILE_BYTES, StoredMap

MAGIC = b"GGUF"
_DTYPES = {"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1"}


def read(path: Path, vocab_size: int | None, encoding: str | None) -> StoredMap:
    """Only the header and the one tensor are read. encoding: None is absolute, which is what the format says. Raises HotMapError."""
    try:
        header = read_gguf_header(path)
    except CheckpointError as error:
        raise HotMapError(error.what, *error.details, advice=error.advice) from error
    tensor = header.tensors.get("d2t")
    if tensor is None:
        raise HotMapError(
            f"it is a GGUF file without a tensor d2t ({len(header.tensors)} tensors).",
            advice="Only draft models with a reduced head have one.",
        )
    if tensor.format not in _DTYPES:
        raise HotMapError(f"its d2t must hold integers, but it holds {tensor.format}.")
    if tensor.num_bytes > MAX_FILE_BYTES:
        raise HotMapError(f"its d2t has {tensor.num_bytes} bytes, and at most {MAX_FILE_BYTES} are read.")
    with path.open("rb") as file:
        file.seek(tensor.offset)
        values = np.frombuffer(file.read(tensor.num_bytes), _DTYPES[tensor.format]).reshape(tensor.shape)
    if vocab_size is None and isinstance(tokens := header.fields.get("tokenizer.ggml.tokens"), list):
        vocab_size = len(tokens)
    token_ids, vocab_size, notes = read_pair(values, None, vocab_size, encoding or "absolute")
    return StoredMap(token_ids, vocab_size=vocab_size, notes=notes)


def encode(token_ids: npt.NDArray[np.int64]) -> bytes:
    """A GGUF file with nothing but `d2t`, written by the library that defines the format."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "map.gguf"
        writer = gguf.GGUFWriter(path, "eagle3")
        writer.add_tensor("d2t", token_ids.astype(np.int64))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()
