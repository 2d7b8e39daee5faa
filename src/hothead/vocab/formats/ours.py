"""Our own file: safetensors with `token_ids` [H] and optionally `counts` [H], both int64; docs/reference/map-format.md has every byte."""

from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load

from hothead.errors import HotMapError
from hothead.files.safetensors_bytes import encode_safetensors
from hothead.vocab.formats.stored import StoredMap, ids_fingerprint

FORMAT = "hothead-token-map"
FORMAT_VERSION = 1


def encode(stored: StoredMap, token_ids: npt.NDArray[np.int64]) -> bytes:
    """The file's bytes."""
    tensors = {"token_ids": token_ids}
    metadata = {
        "format": FORMAT,
        "format_version": str(FORMAT_VERSION),
        "num_fillers": str(stored.num_fillers),
        "tokenizer_fingerprint": stored.tokenizer_fingerprint,
        "token_ids_sha256": ids_fingerprint(token_ids),
        "provenance": json.dumps(dict(stored.provenance), sort_keys=True, ensure_ascii=False),
    }
    if stored.vocab_size is not None:
        metadata["vocab_size"] = str(stored.vocab_size)
    if stored.sample:
        metadata["token_sample"] = json.dumps({str(token_id): token for token_id, token in stored.sample.items()}, ensure_ascii=False)
    if stored.counts is not None:
        tensors["counts"] = np.asarray(stored.counts, np.int64)
        metadata["counts_sha256"] = ids_fingerprint(stored.counts)
    return encode_safetensors(tensors, metadata)


def decode(data: bytes, header: dict[str, object]) -> StoredMap:
    """header: the file's JSON header. Raises HotMapError, and whatever a damaged file provokes."""
    tensors = load(data)
    metadata = header["__metadata__"]
    assert isinstance(metadata, dict), metadata
    version = int(metadata.get("format_version", -1))
    if not 1 <= version <= FORMAT_VERSION:
        raise HotMapError(f"its format version is {version}; this hothead reads 1 to {FORMAT_VERSION}.", advice="Upgrade hothead.")
    provenance = json.loads(metadata.get("provenance", "{}"))
    if not isinstance(provenance, dict):
        raise HotMapError("its provenance is not a JSON object.")
    for name in ("token_ids", "counts"):
        # The hash is over integers; another dtype is left to the constructor, which names it.
        is_integer = name in tensors and tensors[name].dtype.kind in "iu" and tensors[name].dtype != np.uint64
        if is_integer and metadata.get(f"{name}_sha256") != ids_fingerprint(tensors[name]):
            raise HotMapError(f"its {name} are not the ones it was written with: their sha256 differs.", advice="Fetch or build it again.")
    return StoredMap(
        tensors["token_ids"],
        tensors.get("counts"),
        int(metadata["vocab_size"]) if "vocab_size" in metadata else None,
        int(metadata.get("num_fillers", 0)),
        {str(key): str(value) for key, value in provenance.items()},
        metadata.get("tokenizer_fingerprint", ""),
        {int(token_id): str(token) for token_id, token in json.loads(metadata.get("token_sample", "{}")).items()},
    )
