"""Which files a corpus consists of, and their bytes in blocks that can be counted apart from each other.

A name is a file, a folder (every file in it that holds text), a pattern with wildcards, `-` for standard input, or `dataset:NAME`. What a
file is follows from its suffix (.jsonl, .ndjson, .json, .parquet, otherwise text) and its first bytes (gzip, zstd).
"""

from __future__ import annotations

import glob
import gzip
import io
import json
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, cast

from hothead.errors import DataError, OptionError, nearest

Kind = Literal["text", "jsonl", "json", "parquet", "dataset"]

STDIN = "-"
DATASET_PREFIX = "dataset:"
BLOCK_BYTES = 1 << 20
RECORDS_AT_ONCE = 500
MAX_RECORD_BYTES = 256 << 20

_SUFFIX_KINDS: dict[str, Kind] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".parquet": "parquet"}
_COMPRESSED_SUFFIXES = (".gz", ".zst", ".zstd")
_GZIP_MAGIC, _ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_SNIFFED_BYTES = 4096
_ZSTD_READ_BYTES = 4096
_TEXT_CUT = re.compile(rb"[!-~](?= [A-Za-z])")
"""A place where two blocks of one text meet: before a space that stands between a visible ASCII character and a letter."""


@dataclass(frozen=True)
class CorpusFile:
    """One input. num_bytes: as it lies there (0 if unknown); stamp: changes when its content does."""

    name: str
    kind: Kind
    num_bytes: int = 0
    stamp: int = 0


@dataclass(frozen=True)
class Block:
    """A part of a file that is counted at once.

    data: bytes of text or of whole JSON lines, or a list of records. first_line: number of its first line or record, from 1.
    next_position: where the block behind it begins; the file's end for the last one.
    """

    file: CorpusFile
    data: bytes | list[Any]
    first_line: int
    next_position: int


def find_files(names: Sequence[str], kind: Kind | None = None) -> list[CorpusFile]:
    """The files of a corpus, each once, in the order given (those of a folder by name). kind: of all of them, whatever their suffix.

    Raises DataError for a name that stands for nothing, with the nearest ones.
    """
    found: dict[str, CorpusFile] = {}
    for name in names:
        for file in _expand(name, kind):
            found.setdefault(file.name, file)
    return list(found.values())


def read_blocks(file: CorpusFile, position: int = 0, first_line: int = 1) -> Iterator[Block]:
    """The file's blocks from a position on that an earlier block gave as its next one.

    Raises DataError for a file that cannot be read, OptionError for one that needs an extra.
    """
    try:
        if file.kind == "dataset":
            yield from _record_blocks(file, _dataset_records(file.name.removeprefix(DATASET_PREFIX)), position)
        elif file.kind == "parquet":
            yield from _record_blocks(file, _parquet_records(file.name), position)
        elif file.kind == "json":
            with _open(file.name) as stream:
                yield from _json_blocks(file, stream, position)
        else:
            with _open(file.name) as stream:
                yield from _byte_blocks(file, stream, position, first_line)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"'{file.name}' cannot be read: {getattr(error, 'strerror', None) or error}.") from error


def _expand(name: str, kind: Kind | None) -> Iterator[CorpusFile]:
    if name == STDIN:
        yield CorpusFile(STDIN, kind or "text")
        return
    if name.startswith(DATASET_PREFIX):
        yield CorpusFile(name, "dataset")
        return
    path = Path(name).expanduser()
    if path.is_dir():
        paths = [one for one in sorted(path.rglob("*")) if one.is_file() and not _is_hidden(one, path) and _is_wanted(one)]
        if not paths:
            raise DataError(f"the folder '{name}' has no file with text.", advice="Give a folder with text, JSONL, JSON or Parquet files.")
    elif path.exists():
        paths = [path]
    elif glob.has_magic(name):
        paths = [Path(one) for one in sorted(glob.iglob(str(path), recursive=True)) if Path(one).is_file()]  # noqa: PTH207 (absolute patterns)
        if not paths:
            raise DataError(f"no file matches '{name}'.", advice="Quote the pattern, and write ** for any depth of folders.")
    else:
        there = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(
            f"there is no file or folder '{name}'.", advice=nearest(path.name, there) if len(there) < 200 else "Give a path that exists."
        )
    for one in paths:
        status = one.stat()
        yield CorpusFile(str(one), kind or _kind_of(one), status.st_size, status.st_mtime_ns)


def _kind_of(path: Path) -> Kind:
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in _COMPRESSED_SUFFIXES]
    return _SUFFIX_KINDS.get(suffixes[-1], "text") if suffixes else "text"


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _is_wanted(path: Path) -> bool:
    """A file of a folder that is not text (pictures, archives) is passed over; one that is named by itself never is."""
    if _kind_of(path) != "text" or path.suffix.lower() in _COMPRESSED_SUFFIXES:
        return True
    with path.open("rb") as file:
        start = file.read(_SNIFFED_BYTES)
    return b"\0" not in start


@contextmanager
def _open(name: str) -> Iterator[IO[bytes]]:
    """The file's bytes, uncompressed."""
    with ExitStack() as closing:
        stream = sys.stdin.buffer if name == STDIN else closing.enter_context(Path(name).open("rb"))
        assert isinstance(stream, io.BufferedReader), type(stream)
        start = stream.peek(4)[:4]
        if start.startswith(_GZIP_MAGIC):
            yield cast(IO[bytes], closing.enter_context(gzip.GzipFile(fileobj=stream)))
        elif start.startswith(_ZSTD_MAGIC):
            yield closing.enter_context(io.BufferedReader(_ZstdStream(stream, name), 1 << 18))
        else:
            yield stream


class _ZstdStream(io.RawIOBase):
    """Frames of zstd one after the other. Unlike the library's own reader it tells the end of a file from one that was cut off."""

    def __init__(self, stream: IO[bytes], name: str) -> None:
        try:
            import zstandard
        except ImportError as error:
            raise OptionError(
                f"'{name}' is compressed with zstd, which needs the package zstandard.", advice='Install it: pip install "hothead[corpus]".'
            ) from error
        self._stream = stream
        self._new_frame = zstandard.ZstdDecompressor().decompressobj
        self._error = zstandard.ZstdError
        self._frame: Any = None
        self._packed, self._unpacked = b"", b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._unpacked:
            # Few bytes at a time: each can stand for thousands.
            packed = self._packed or self._stream.read(_ZSTD_READ_BYTES)
            if not packed:
                if self._frame is not None:
                    raise EOFError("the compressed file ended before its end mark")
                return 0
            self._frame = self._frame or self._new_frame()
            try:
                self._unpacked = self._frame.decompress(packed)
            except self._error as error:
                raise OSError(f"it is not what zstd wrote: {error}") from error
            self._packed = b""
            if self._frame.eof:
                self._packed, self._frame = self._frame.unused_data, None
        size = min(len(buffer), len(self._unpacked))
        buffer[:size], self._unpacked = self._unpacked[:size], self._unpacked[size:]
        return size


def _byte_blocks(file: CorpusFile, stream: IO[bytes], position: int, first_line: int) -> Iterator[Block]:
    """Blocks of about BLOCK_BYTES: whole lines of JSON, or text that ends where a cut changes no token."""
    _skip(stream, position)
    rest, wanted = b"", BLOCK_BYTES
    while True:
        # A block depends on where it begins only: a run that starts there cuts the same ones.
        rest += stream.read(wanted - len(rest))
        is_last = len(rest) < wanted
        end = len(rest) if is_last else _block_end(rest, file.kind == "jsonl")
        if end == 0 and len(rest) > MAX_RECORD_BYTES:
            raise DataError(
                f"'{file.name}': {'line' if file.kind == 'jsonl' else 'the text from line'} {first_line} goes on for more than "
                f"{MAX_RECORD_BYTES >> 20} MiB without a place to cut it.",
                advice="Is it a file of this kind?",
            )
        wanted = BLOCK_BYTES if end else wanted + BLOCK_BYTES
        if end:
            block, rest = rest[:end], rest[end:]
            position += len(block)
            yield Block(file, block, first_line, position)
            first_line += block.count(b"\n")
        if is_last:
            return


def _block_end(data: bytes, is_lines: bool) -> int:
    """Length of the longest beginning that may be a block; 0 if there is none."""
    if is_lines:
        return data.rfind(b"\n") + 1
    for window in (1 << 12, len(data)):
        cuts = [match.end() for match in _TEXT_CUT.finditer(data, max(0, len(data) - window))]
        if cuts:
            return cuts[-1]
    # No such place in all of it (text without spaces): a line end is the next best.
    return data.rfind(b"\n") + 1


def _skip(stream: IO[bytes], num_bytes: int) -> None:
    if num_bytes and stream.seekable() and isinstance(stream, io.BufferedReader) and not isinstance(stream.raw, _ZstdStream):
        stream.seek(num_bytes)
        return
    while num_bytes > 0:
        read = len(stream.read(min(num_bytes, 1 << 22)))
        if not read:
            return
        num_bytes -= read


def _record_blocks(file: CorpusFile, records: Iterator[Any], position: int) -> Iterator[Block]:
    """Blocks of records; a position is the number of records before it."""
    batch: list[Any] = []
    number = 0
    for record in records:
        number += 1
        if number <= position:
            continue
        batch.append(record)
        if len(batch) == RECORDS_AT_ONCE:
            yield Block(file, batch, number - len(batch) + 1, number)
            batch = []
    if batch:
        yield Block(file, batch, number - len(batch) + 1, number)


def _json_blocks(file: CorpusFile, stream: IO[bytes], position: int) -> Iterator[Block]:
    """A `.json` file: one array of records, one record, or in truth JSON lines. An array is read piece by piece."""
    text = io.TextIOWrapper(stream, encoding="utf-8-sig")
    try:
        yield from _record_blocks(file, _json_records(file.name, text), position)
    except UnicodeDecodeError as error:
        raise DataError(f"'{file.name}' is not UTF-8 text ({error.reason}).") from error
    finally:
        text.detach()


def _json_records(name: str, text: io.TextIOWrapper) -> Iterator[Any]:
    decoder = json.JSONDecoder()
    buffer = text.read(1 << 16).lstrip()
    is_array = buffer.startswith("[")
    buffer = buffer[1:] if is_array else buffer
    number = 0
    while True:
        buffer = buffer.lstrip(" \t\r\n,")
        if is_array and buffer.startswith("]"):
            return
        try:
            record, end = decoder.raw_decode(buffer)
            # A number at the very end may go on in what was not read yet.
            is_whole = end < len(buffer) or isinstance(record, dict | list)
        except (ValueError, RecursionError) as error:
            is_whole, reason = False, error
        else:
            reason = ValueError("it ends too early")
        if is_whole:
            number += 1
            yield record
            buffer = buffer[end:]
            continue
        # Twice as much each time: a record of any length is parsed a few times only.
        more = text.read(max(1 << 16, len(buffer)))
        if not more:
            if not buffer and not is_array:
                return
            raise DataError(f"'{name}' is not JSON: record {number + 1}: {reason!s:.200}.")
        if len(buffer) > MAX_RECORD_BYTES:
            raise DataError(f"'{name}': record {number + 1} has more than {MAX_RECORD_BYTES >> 20} MiB, or is not JSON: {reason!s:.200}.")
        buffer += more


def _parquet_records(name: str) -> Iterator[Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise OptionError(
            f"'{name}' is a Parquet file, which needs the package pyarrow.", advice='Install it: pip install "hothead[corpus]".'
        ) from error
    try:
        with pyarrow.parquet.ParquetFile(name) as file:
            for batch in file.iter_batches(RECORDS_AT_ONCE):
                yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise DataError(f"'{name}' cannot be read as Parquet: {error!s:.200}.") from error


def _dataset_records(name: str) -> Iterator[Any]:
    """NAME, NAME@SPLIT or NAME/CONFIG@SPLIT with two slashes; read as a stream, so that nothing is kept on disk."""
    try:
        import datasets
    except ImportError as error:
        raise OptionError(
            f"'{DATASET_PREFIX}{name}' needs the package datasets.", advice='Install it: pip install "hothead[datasets]".'
        ) from error
    path, _, split = name.partition("@")
    parts = path.split("/")
    config = parts[2] if len(parts) == 3 and not Path(path).exists() else None
    try:
        yield from datasets.load_dataset("/".join(parts[:2]) if config else path, config, split=split or "train", streaming=True)
    except Exception as error:  # the library raises what its readers raise
        raise DataError(
            f"the dataset '{name}' cannot be read: {type(error).__name__}: {error!s:.200}.",
            advice="Write dataset:ORG/NAME, dataset:ORG/NAME@SPLIT or dataset:ORG/NAME/CONFIG@SPLIT.",
        ) from error
