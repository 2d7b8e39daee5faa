"""How a token map lies in a file: which format it is, reading it whole or not at all, writing it so that it appears whole or not at all.

Known formats, recognised by content and never by name:
- ours: safetensors with `token_ids` [H] and optionally `counts` [H], both int64, and the metadata keys below;
- the list of token ids, or 1-D tensor, that SGLang reads with torch.load (`.pt`).
Nothing larger than MAX_FILE_BYTES is read.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load, save

from hothead.errors import HotMapError, OutputError, nearest
from hothead.vocab.torch_file import PICKLE_MAGIC, ZIP_MAGIC, read_torch_file, write_torch_list

MAX_FILE_BYTES = 64 * 2**20
FORMAT = "hothead-token-map"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class StoredMap:
    """The fields of a token map as a file gives them; ids and counts are not checked yet."""

    token_ids: npt.ArrayLike
    counts: npt.ArrayLike | None = None
    vocab_size: int | None = None
    num_fillers: int = 0
    provenance: Mapping[str, str] = field(default_factory=dict)
    tokenizer_fingerprint: str = ""


def read_stored_map(path: Path) -> StoredMap:
    """Raises HotMapError for a file that is missing, too large, damaged or of no known format."""
    data = _read_bytes(path)
    try:
        return _decode(data)
    except HotMapError as error:
        raise HotMapError(f"token map '{path.name}' cannot be read: {error.what}", *error.details, advice=error.advice) from error
    except Exception as error:
        # The bytes may be anything: whatever a parser trips over is a damaged file, and only that.
        raise HotMapError(
            f"token map '{path.name}' cannot be read: the file is damaged.",
            f"{len(data)} bytes; {type(error).__name__}: {error!s:.200}",
            advice="Fetch or build it again.",
        ) from error


def write_stored_map(stored: StoredMap, path: Path) -> None:
    """Our format, or with the suffix `.pt` the list that SGLang reads, which keeps the ids and their order only. Raises OutputError."""
    token_ids = np.asarray(stored.token_ids, np.int64)
    write_whole(path, write_torch_list(token_ids.tolist()) if path.suffix == ".pt" else _encode(stored, token_ids))


def write_whole(path: Path, data: bytes) -> None:
    """Write to a temporary name in the same folder, then rename: nobody ever sees half a file. Raises OutputError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(data)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"'{path}' cannot be written: {error.strerror or error}.", f"{len(data)} bytes were to be written.") from error


def check_writable(path: Path) -> None:
    """Raise OutputError now, and not after an hour of work, if a file cannot be written there. Makes its folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"'{path}' cannot be written: {error.strerror or error}.") from error
    if path.is_dir():
        raise OutputError(f"'{path}' cannot be written: it is a folder.", advice="Give the name of a file.")
    if not os.access(path.parent, os.W_OK):
        raise OutputError(f"'{path}' cannot be written: the folder '{path.parent}' is read-only.")


def ids_fingerprint(token_ids: npt.ArrayLike) -> str:
    """sha256 of the ids in order, as little-endian 64-bit integers."""
    return hashlib.sha256(np.ascontiguousarray(token_ids, dtype="<i8").tobytes()).hexdigest()


def _read_bytes(path: Path) -> bytes:
    try:
        if not path.exists():
            raise _missing(path)
        if not stat.S_ISREG(path.stat().st_mode):
            raise HotMapError(f"'{path}' is not a file, so it cannot be a token map.")
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise HotMapError(f"token map '{path}' cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    if len(data) > MAX_FILE_BYTES:
        raise HotMapError(
            f"token map '{path.name}' is too large: {path.stat().st_size} bytes, and at most {MAX_FILE_BYTES} are read.",
            "A map of 262144 token ids with counts has 4 MiB.",
        )
    return data


def _missing(path: Path) -> HotMapError:
    if not path.parent.is_dir():
        return HotMapError(f"no token map at '{path}'.", advice=f"The folder '{path.parent}' does not exist.")
    names = [entry.name for entry in path.parent.iterdir() if not entry.name.startswith(".")]
    hint = nearest(path.name, names)
    if hint.startswith("Known:"):
        maps = sorted(name for name in names if Path(name).suffix in (".safetensors", ".pt"))
        hint = (
            f"The folder has {', '.join(maps[:5])}."
            if maps
            else "The folder has no .safetensors or .pt file. Build one: hothead map build."
        )
    return HotMapError(f"no token map at '{path}'.", advice=hint)


def _decode(data: bytes) -> StoredMap:
    # First: the length that opens a safetensors file can look like the magic number of a pickle.
    header_bytes = int.from_bytes(data[:8], "little")
    if data[8:9] == b"{" and header_bytes <= len(data) - 8:
        return _decode_ours(data, data[8 : 8 + header_bytes])
    if data.startswith((ZIP_MAGIC, PICKLE_MAGIC)):
        content = read_torch_file(data)
        if not isinstance(content, list | tuple | np.ndarray):
            keys = f" with the keys {', '.join(map(str, list(content)[:5]))!s:.200}" if isinstance(content, dict) else ""
            raise HotMapError(f"it holds a {type(content).__name__}{keys}, not a list or tensor of token ids.")
        return StoredMap(content, provenance={"format": "pt"})
    if data[8:9] == b"{":
        raise HotMapError(
            f"it is a safetensors file whose end is missing: its header alone has {header_bytes} bytes, the file {len(data)}."
        )
    if data.startswith(b"version https://git-lfs"):
        raise HotMapError("it is a Git LFS pointer, not the file itself.", advice="Fetch the content: git lfs pull.")
    raise HotMapError(
        f"its format is not known ({len(data)} bytes, starting with {data[:8].hex(' ') or 'nothing'}).",
        advice="Known: hothead's .safetensors, and a list or 1-D tensor of token ids from torch.save (.pt).",
    )


def _encode(stored: StoredMap, token_ids: npt.NDArray[np.int64]) -> bytes:
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
    if stored.counts is not None:
        tensors["counts"] = np.asarray(stored.counts, np.int64)
        metadata["counts_sha256"] = ids_fingerprint(stored.counts)
    return save(tensors, metadata)


def _decode_ours(data: bytes, header: bytes) -> StoredMap:
    tensors = load(data)
    metadata = json.loads(header).get("__metadata__") or {}
    if metadata.get("format") != FORMAT:
        raise HotMapError(
            f"it is a safetensors file without hothead's token map (tensors: {', '.join(sorted(tensors)[:5])!s:.200}).",
            advice=f"A token map has the metadata entry format = {FORMAT} and a tensor token_ids.",
        )
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
    )
