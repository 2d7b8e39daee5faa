"""Which format a token map's file has, reading it whole or not at all, and writing it so that it appears whole or not at all.

Formats are recognised by content and never by name. Nothing larger than MAX_FILE_BYTES is read into memory, and nothing in a file is run.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hothead.errors import HotMapError, OutputError, nearest
from hothead.files.torch_file import PICKLE_MAGIC, ZIP_MAGIC, write_torch_list
from hothead.files.whole import write_all_whole
from hothead.vocab.formats import draft_folder, gguf_map, numpy_map, ours, safetensors_pair, text_map, torch_map
from hothead.vocab.formats.stored import MAX_FILE_BYTES, PAIR, StoredMap, find_table

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Format:
    """A format that can be written. keeps: what of a map it holds besides the set of its ids, of KEPT. needs_vocab_size: V must be known.

    write: map, path -> files by path.
    """

    name: str
    title: str
    keeps: frozenset[str]
    needs_vocab_size: bool
    write: Callable[[StoredMap, Path], Mapping[Path, bytes]]


_SUFFIXES = (".safetensors", ".pt", ".bin", ".npy", ".gguf", ".txt")

KEPT = ("order of frequency", "counts", "vocabulary size", "provenance and fingerprints", "number of fillers")


def _ids(stored: StoredMap) -> IntArray:
    return np.asarray(stored.token_ids, np.int64)


def _size(stored: StoredMap) -> int:
    assert stored.vocab_size is not None
    return stored.vocab_size


def _about(stored: StoredMap) -> str:
    size = "" if stored.vocab_size is None else f" of a vocabulary of {stored.vocab_size}"
    return f"token map: {len(_ids(stored))} token ids{size}, most frequent first"


FORMATS: dict[str, Format] = {
    one.name: one
    for one in (
        Format(
            "hothead",
            "ours, safetensors",
            frozenset(KEPT),
            False,
            lambda stored, path: {path: ours.encode(stored, _ids(stored))},
        ),
        Format(
            "sglang",
            "the list that SGLang and FR-Spec read with torch.load (.pt)",
            frozenset(KEPT[:1]),
            False,
            lambda stored, path: {path: write_torch_list(_ids(stored).tolist())},
        ),
        Format(
            "eagle3",
            "d2t (offsets) and t2d (mask) in one safetensors file, as in EAGLE-3 checkpoints",
            frozenset(KEPT[2:3]),
            True,
            lambda stored, path: {path: safetensors_pair.encode(_ids(stored), _size(stored))},
        ),
        Format(
            "numpy",
            "a folder with d2t.npy (offsets) and t2d.npy (mask), as speculators writes them",
            frozenset(KEPT[2:3]),
            True,
            lambda stored, path: {path / name: data for name, data in numpy_map.encode_pair(_ids(stored), _size(stored)).items()},
        ),
        Format(
            "gguf",
            "a GGUF file with the tensor d2t (absolute ids), as in llama.cpp's EAGLE-3 models",
            frozenset(KEPT[:1]),
            False,
            lambda stored, path: {path: gguf_map.encode(_ids(stored))},
        ),
        Format(
            "text",
            "one token id a line",
            frozenset(KEPT[:1]),
            False,
            lambda stored, path: {path: text_map.encode(_ids(stored), _about(stored))},
        ),
    )
}


def read_stored_map(
    path: Path, vocab_size: int | None = None, encoding: str | None = None, names: Sequence[str] = draft_folder.NAMES
) -> tuple[StoredMap, str]:
    """The map and the name of its format. vocab_size, encoding: what the file does not say and the caller knows. names: files of a folder
    that may hold the map, in the order in which they are looked for.

    Raises HotMapError for a file that is missing, too large, damaged, of no known format, or can be read in two ways.
    """
    try:
        size = _check_file(path)
        try:
            if path.is_dir():
                stored, format_name = _read_folder(path, vocab_size, encoding, names)
            else:
                stored, format_name = _read(path, size, vocab_size, encoding)
            if vocab_size is not None and stored.vocab_size not in (None, vocab_size):
                raise HotMapError(f"its vocabulary has {stored.vocab_size} token ids, not {vocab_size}.")
            return replace(stored, vocab_size=stored.vocab_size or vocab_size), format_name
        except HotMapError as error:
            raise HotMapError(f"token map '{path.name}' cannot be read: {error.what}", *error.details, advice=error.advice) from error
        except OSError:
            raise
        except Exception as error:
            # The bytes may be anything: whatever a parser trips over is a damaged file, and only that.
            raise HotMapError(
                f"token map '{path.name}' cannot be read: the file is damaged.",
                f"{size} bytes; {type(error).__name__}: {error!s:.200}",
                advice="Fetch or build it again.",
            ) from error
    except (OSError, ValueError) as error:
        raise HotMapError(f"token map '{path}' cannot be read: {getattr(error, 'strerror', None) or error}.") from error


def write_stored_map(stored: StoredMap, path: Path, format_name: str | None = None) -> None:
    """format_name: one of FORMATS; None is ours, or SGLang's list for the suffix `.pt`. Raises OutputError, HotMapError."""
    chosen = FORMATS[format_name or ("sglang" if path.suffix == ".pt" else "hothead")]
    if chosen.needs_vocab_size and stored.vocab_size is None:
        raise HotMapError(
            f"the format {chosen.name} has one entry for every token of the vocabulary, and the map does not say how many there are.",
            advice="Say it: --vocab-size V (the number of rows of the target's head).",
        )
    if chosen.needs_vocab_size and _size(stored) > MAX_FILE_BYTES:
        raise HotMapError(
            f"the format {chosen.name} has one entry for each of the {_size(stored)} tokens of the map's vocabulary, and at most "
            f"{MAX_FILE_BYTES} are written.",
            advice="Build the map again: no tokenizer has so many tokens.",
        )
    if chosen.name == "numpy" and path.suffix == ".npy":
        raise OutputError(f"the format numpy is two files, and '{path.name}' is the name of one.", advice="Give the name of a folder.")
    write_all_whole(chosen.write(stored, path))


def losses(stored: StoredMap, format_name: str) -> list[str]:
    """What of a map a format cannot keep."""
    has = {
        KEPT[0]: bool((np.diff(_ids(stored)) < 0).any()),
        KEPT[1]: stored.counts is not None,
        KEPT[2]: stored.vocab_size is not None,
        KEPT[3]: bool(stored.provenance or stored.tokenizer_fingerprint or stored.sample),
        KEPT[4]: stored.num_fillers > 0,
    }
    return [what for what in KEPT if has[what] and what not in FORMATS[format_name].keeps]


def _check_file(path: Path) -> int:
    """Bytes of the file; a folder has the size of what is in it, which is not looked at here."""
    if not path.exists():
        raise _missing(path)
    status = path.stat()
    if not path.is_dir() and not stat.S_ISREG(status.st_mode):
        raise HotMapError(f"'{path}' is not a file, so it cannot be a token map.")
    return status.st_size


def _read_folder(folder: Path, vocab_size: int | None, encoding: str | None, names: Sequence[str]) -> tuple[StoredMap, str]:
    file = draft_folder.find_map_file(folder, names)
    if file.name == draft_folder.MAP_FILE:
        return _read(file, _check_file(file), vocab_size, encoding)
    declared = draft_folder.declared_sizes(folder)
    known_size = vocab_size or declared.vocab_size
    try:
        if file == folder:
            stored, format_name = numpy_map.read(folder, known_size, encoding), "numpy"
        else:
            stored, format_name = _read(file, _check_file(file), known_size, encoding)
        declared.check(len(np.asarray(stored.token_ids)))
    except HotMapError as error:
        raise HotMapError(f"{file.name}: {error.what}", *error.details, str(declared), advice=error.advice) from error
    return stored, format_name


def _read(path: Path, size: int, vocab_size: int | None, encoding: str | None) -> tuple[StoredMap, str]:
    with path.open("rb") as file:
        start = file.read(512)
    # First: the length that opens a safetensors file can look like the magic number of a pickle.
    if start[8:9] == b"{":
        return _read_safetensors(path, size, vocab_size, encoding)
    if start.startswith(gguf_map.MAGIC):
        return gguf_map.read(path, vocab_size, encoding), "gguf"
    if start.startswith(numpy_map.MAGIC):
        return numpy_map.read(path, vocab_size, encoding), "numpy"
    if start.startswith((ZIP_MAGIC, PICKLE_MAGIC)):
        return torch_map.read(path, vocab_size, encoding)
    if start.startswith(b"version https://git-lfs"):
        raise HotMapError("it is a Git LFS pointer, not the file itself.", advice="Fetch the content: git lfs pull.")
    if text_map.is_text(start):
        return text_map.decode(_read_all(path), encoding), "text"
    raise HotMapError(
        f"its format is not known ({size} bytes, starting with {start[:8].hex(' ') or 'nothing'}).",
        advice="Known: " + "; ".join(f"{one.name} ({one.title})" for one in FORMATS.values()) + ".",
    )


def _read_safetensors(path: Path, size: int, vocab_size: int | None, encoding: str | None) -> tuple[StoredMap, str]:
    header = safetensors_pair.read_header(path, size)
    metadata = header.get("__metadata__") or {}
    if isinstance(metadata, dict) and metadata.get("format") == ours.FORMAT:
        if encoding not in (None, "absolute"):
            raise HotMapError(f"its ids are absolute, not {encoding}: it is a file of hothead's own.", advice="Leave --encoding out.")
        return ours.decode(_read_all(path), header), "hothead"
    if any(find_table(header, table) for table in PAIR):
        return safetensors_pair.read(path, header, vocab_size, encoding), "eagle3"
    names = ", ".join(sorted(name for name in header if name != "__metadata__")[:5])
    raise HotMapError(
        f"it is a safetensors file without hothead's token map (tensors: {names!s:.200}).",
        advice=f"A token map has the metadata entry format = {ours.FORMAT} and a tensor token_ids, or tensors d2t and t2d.",
    )


def _read_all(path: Path) -> bytes:
    if (size := path.stat().st_size) > MAX_FILE_BYTES:
        raise HotMapError(
            f"it is too large: {size} bytes, and at most {MAX_FILE_BYTES} are read.", "A map of 262144 token ids with counts has 4 MiB."
        )
    with path.open("rb") as file:
        return file.read(size)


def _missing(path: Path) -> HotMapError:
    if not path.parent.is_dir():
        return HotMapError(f"no token map at '{path}'.", advice=f"The folder '{path.parent}' does not exist.")
    names = [entry.name for entry in path.parent.iterdir() if not entry.name.startswith(".")]
    hint = nearest(path.name, names)
    if hint.startswith("Known:"):
        maps = sorted(name for name in names if Path(name).suffix in _SUFFIXES)
        found = f"The folder has {', '.join(maps[:5])}." if maps else "The folder has no file that could be one."
        hint = f"{found} Build one: hothead map build."
    return HotMapError(f"no token map at '{path}'.", advice=hint)
