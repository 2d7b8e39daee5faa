"""How what `torch.save` wrote (a list, a tensor, a checkpoint) is read without torch and without running anything.

The file is a zip archive with a pickle (`*/data.pkl`) and one record of raw numbers per tensor (`*/data/<key>`), or before torch 1.6 a row
of pickles. A pickle is a program; here only the dozen instructions that build numbers, lists, dicts and tuples are carried out, and of all
functions that it can name only those that make a tensor of a record are known. Everything else is refused by name. A tensor is only read
when its numbers are asked for, so two small ones of a large checkpoint cost no more than they have.
"""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from hothead.errors import HotMapError

T = TypeVar("T")

ZIP_MAGIC = b"PK\x03\x04"
PICKLE_MAGIC = b"\x80"

MAX_DIRECTORY_BYTES = 4 * 2**20
"""Of the archive's list of entries: about 100 bytes for each tensor of a checkpoint."""

MAX_PROGRAM_BYTES = 16 * 2**20
MAX_INSTRUCTIONS = 2**21
"""A list takes one instruction and up to five bytes for each number."""

MAX_RECORD_BYTES = 64 * 2**20
_LOCAL_HEADER_BYTES = 30

_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_STORAGE = re.compile(r"torch\.[A-Z][A-Za-z0-9]*Storage")
_STORAGE_DTYPES = {
    "torch.LongStorage": "i8",
    "torch.IntStorage": "i4",
    "torch.ShortStorage": "i2",
    "torch.CharStorage": "i1",
    "torch.ByteStorage": "u1",
    "torch.BoolStorage": "?",
    "torch.DoubleStorage": "f8",
    "torch.FloatStorage": "f4",
    "torch.HalfStorage": "f2",
}
_REBUILD_TENSOR = "torch._utils._rebuild_tensor_v2"
_REBUILD_PARAMETER = "torch._utils._rebuild_parameter"
_ORDERED_DICT = "collections.OrderedDict"


@dataclass(frozen=True)
class _Records:
    """Where the records of a file are. read: the bytes of one by its key. place: (first byte in the file, number of bytes)."""

    read: Callable[[str], bytes]
    place: Callable[[str], tuple[int, int]]


@dataclass(frozen=True)
class _Storage:
    """A record of raw numbers."""

    kind: str
    key: str
    records: _Records
    byte_order: str


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file that is open: which numbers of a record are its own."""

    storage: _Storage
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def numbers(self) -> npt.NDArray[np.generic]:
        """Its numbers, read now. Raises HotMapError for one that is not 1-D, of a type that numpy lacks, or outside its record."""
        if len(self.shape) != 1 or len(self.strides) != 1:
            raise HotMapError(f"token ids must be a list (1-D), but they have the shape {list(self.shape)!s:.80}.")
        if self.storage.kind not in _STORAGE_DTYPES:
            raise HotMapError(f"the file holds a {self.storage.kind}, not integers.")
        numbers = np.frombuffer(
            self.storage.records.read(self.storage.key), np.dtype(self.storage.byte_order + _STORAGE_DTYPES[self.storage.kind])
        )
        start, size, stride = self.start, self.shape[0], self.strides[0]
        if start < 0 or size < 0 or stride < 1 or (size > 0 and start + (size - 1) * stride >= len(numbers)):
            raise HotMapError(f"the tensor reaches outside its record of {len(numbers)} numbers.")
        return numbers[start : start + size * stride : stride]

    @property
    def kind(self) -> str:
        """Type of its numbers as torch calls it: "Float", "BFloat16", "Long", ..."""
        return self.storage.kind.removeprefix("torch.").removesuffix("Storage")

    def place(self, itemsize: int) -> tuple[int, int]:
        """Where its numbers lie, one after the other: (first byte in the file, number of bytes). Raises HotMapError for one that is a
        view with gaps, is stored in another byte order, or lies outside its record."""
        step, has_gaps = 1, len(self.shape) != len(self.strides)
        for length, stride in zip(self.shape[::-1], self.strides[::-1], strict=False):
            has_gaps |= length != 1 and stride != step
            step *= length
        if has_gaps or self.storage.byte_order != "<":
            raise HotMapError("a tensor's numbers do not lie one after the other in the file.", advice="Save it as .safetensors.")
        start, num_bytes = self.storage.records.place(self.storage.key)
        first, size = self.start * itemsize, step * itemsize
        if self.start < 0 or min(self.shape, default=1) < 0 or first + size > num_bytes:
            raise HotMapError(f"a tensor reaches outside its record of {num_bytes} bytes.", advice="Fetch the file again.")
        return start + first, size


@contextmanager
def open_torch_file(path: Path) -> Iterator[object]:
    """What the file holds: numbers, strings, lists, tuples, dicts, and StoredTensors that can be read until the file is left.

    Raises HotMapError for anything else.
    """
    with _BoundedReader(path.open("rb", buffering=0)) as file:
        is_archive = file.read(len(ZIP_MAGIC)) == ZIP_MAGIC
        if is_archive:
            with zipfile.ZipFile(file) as archive:
                file.limit = MAX_RECORD_BYTES
                yield _read_archive(archive, file)
        else:
            yield _read_pickles(file)


class _BoundedReader(io.BufferedReader):
    """A file of which nothing larger than `limit` bytes is read at once, whatever lengths it gives itself."""

    limit = MAX_DIRECTORY_BYTES

    @property
    def num_bytes(self) -> int:
        return os.fstat(self.fileno()).st_size

    def read(self, size: int | None = -1, /) -> bytes:
        rest = max(0, self.num_bytes - self.tell())
        wanted = rest if size is None or size < 0 else min(size, rest)
        if wanted > self.limit:
            raise HotMapError(f"a part of it has {wanted} bytes, and at most {self.limit} are read.")
        return super().read(wanted)


def write_torch_list(values: list[int]) -> bytes:
    """The file that `torch.save(values)` would write: `torch.load(..., weights_only=True)` gives the list back."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in (("data.pkl", pickle.dumps(values, protocol=2)), ("byteorder", b"little"), ("version", b"3\n")):
            # A fixed date: equal maps give equal files.
            archive.writestr(zipfile.ZipInfo(f"archive/{name}", (1980, 1, 1, 0, 0, 0)), content)
    return buffer.getvalue()


def _read_pickles(file: _BoundedReader) -> object:
    """The format before torch 1.6. Its tensors' numbers lie behind the pickles and are not read."""
    file.limit = MAX_PROGRAM_BYTES
    file.seek(0)
    stream = io.BytesIO(file.read())
    magic = _run_pickle(stream, _NO_RECORDS, "<")
    if magic != _LEGACY_MAGIC:
        raise HotMapError("this is a pickle, but not one that torch.save wrote.", advice="Save the list of token ids with torch.save.")
    for _ in ("protocol", "system"):
        _run_pickle(stream, _NO_RECORDS, "<")
    return _run_pickle(stream, _NO_RECORDS, "<")


def _no_record(key: str) -> Any:
    raise HotMapError(f"the tensor's record '{key:.80}' is missing.", advice="Files from before torch 1.6 can hold a list, not a tensor.")


_NO_RECORDS = _Records(_no_record, _no_record)


def _read_archive(archive: zipfile.ZipFile, file: _BoundedReader) -> object:
    num_bytes = file.num_bytes
    entries = {entry.filename: entry for entry in archive.infolist()}
    if sum(entry.file_size for entry in archive.infolist()) > num_bytes:
        raise HotMapError(f"the archive's entries claim more than the {num_bytes} bytes that the file has.")
    for entry in entries.values():
        # torch never compresses; a compressed entry could unpack to any size, as could entries that share their bytes.
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > entry.compress_size:
            raise HotMapError(f"entry '{entry.filename}' of the archive is compressed, which torch.save never does.")
    programs = [name for name in archive.namelist() if name.endswith("/data.pkl") or name == "data.pkl"]
    if len(programs) != 1:
        raise HotMapError(f"the zip archive has {len(programs)} entries named data.pkl; a file from torch.save has one.")
    folder = programs[0].removesuffix("data.pkl")

    def read(name: str, limit: int) -> bytes:
        if (size := entries[name].file_size) > limit:
            raise HotMapError(f"entry '{name:.80}' of the archive has {size} bytes, and at most {limit} are read.")
        return archive.read(entries[name])

    def read_record(key: str) -> bytes:
        name = f"{folder}data/{key}"
        return read(name, MAX_RECORD_BYTES) if name in entries else _no_record(key)

    def place(key: str) -> tuple[int, int]:
        entry = entries.get(f"{folder}data/{key}") or _no_record(key)
        file.seek(entry.header_offset)
        header = file.read(_LOCAL_HEADER_BYTES)
        # The local header's own lengths: torch pads its extra field, so that records are aligned.
        name_bytes, extra_bytes = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
        start = entry.header_offset + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes
        if not header.startswith(ZIP_MAGIC) or start + entry.file_size > num_bytes:
            raise HotMapError(f"entry '{entry.filename:.80}' of the archive lies outside the file.", advice="Fetch the file again.")
        return start, entry.file_size

    order = f"{folder}byteorder"
    byte_order = ">" if order in entries and read(order, 16).strip() == b"big" else "<"
    return _run_pickle(io.BytesIO(read(programs[0], MAX_PROGRAM_BYTES)), _Records(read_record, place), byte_order)


@dataclass(frozen=True)
class _Global:
    name: str


class _Mark:
    pass


def _run_pickle(stream: io.BytesIO, records: _Records, byte_order: str) -> object:
    """Carry out one pickle and return its value; the stream is left behind it."""
    stack: list[object] = []
    memo: dict[int, object] = {}
    for number, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
        if number >= MAX_INSTRUCTIONS:
            raise HotMapError(f"the pickle has more than {MAX_INSTRUCTIONS} instructions, and no map needs so many.")
        name = opcode.name
        if name in _PUSH_ARGUMENT:
            stack.append(argument)
        elif name in _PUSH_CONSTANT:
            stack.append(_PUSH_CONSTANT[name])
        elif name in _PUSH_NEW:
            stack.append(_PUSH_NEW[name]())
        elif name in ("APPEND", "APPENDS"):
            values = [stack.pop()] if name == "APPEND" else _pop_mark(stack)
            _typed(stack[-1], list).extend(values)
        elif name in ("SETITEM", "SETITEMS"):
            values = [stack.pop(), stack.pop()][::-1] if name == "SETITEM" else _pop_mark(stack)
            keys = [_typed(key, str) for key in values[::2]]
            _typed(stack[-1], dict).update(zip(keys, values[1::2], strict=True))
        elif name == "TUPLE":
            stack.append(tuple(_pop_mark(stack)))
        elif name in _TUPLE_SIZES:
            stack[-_TUPLE_SIZES[name] :] = [tuple(stack[-_TUPLE_SIZES[name] :])]
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[_typed(argument, int)] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[_typed(argument, int)])
        elif name == "GLOBAL":
            stack.append(_known_global(str(argument).replace(" ", ".")))
        elif name == "STACK_GLOBAL":
            attribute, module = _typed(stack.pop(), str), _typed(stack.pop(), str)
            stack.append(_known_global(f"{module}.{attribute}"))
        elif name == "BINPERSID":
            stack.append(_storage(stack.pop(), records, byte_order))
        elif name == "REDUCE":
            arguments, function = _typed(stack.pop(), tuple), _typed(stack.pop(), _Global)
            stack.append(_call(function, arguments))
        elif name == "BUILD":
            stack.pop()  # attributes of a state_dict (its modules' versions), which is a plain dict here
            _typed(stack[-1], dict)
        elif name == "STOP":
            return stack.pop()
        elif name not in ("PROTO", "FRAME"):
            raise HotMapError(f"the pickle uses {name}, which lists and tensors do not need.")
    raise HotMapError("the pickle ends in the middle.")


_PUSH_ARGUMENT = {
    "BININT",
    "BININT1",
    "BININT2",
    "LONG1",
    "LONG4",
    "INT",
    "LONG",
    "BINFLOAT",
    "BINUNICODE",
    "SHORT_BINUNICODE",
    "BINUNICODE8",
}
_PUSH_CONSTANT: dict[str, object] = {"NEWTRUE": True, "NEWFALSE": False, "NONE": None, "EMPTY_TUPLE": ()}
_PUSH_NEW: dict[str, type] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "MARK": _Mark}
_TUPLE_SIZES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def _pop_mark(stack: list[object]) -> list[object]:
    """Everything above the last mark."""
    values: list[object] = []
    while not isinstance(top := stack.pop(), _Mark):
        values.append(top)
    return values[::-1]


def _typed(value: object, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise HotMapError(f"the pickle treats a {type(value).__name__} as a {kind.__name__.strip('_').lower()}.")
    return value


def _known_global(name: str) -> _Global:
    if name not in (_REBUILD_TENSOR, _REBUILD_PARAMETER, _ORDERED_DICT) and not _STORAGE.fullmatch(name):
        raise HotMapError(
            f"the file asks for '{name[:80]}', which lists and tensors do not need; it was not run.",
            advice="Use a file from a source that you trust, or save the plain list of token ids with torch.save.",
        )
    return _Global(name)


def _call(function: _Global, arguments: tuple[object, ...]) -> object:
    if function.name == _REBUILD_TENSOR:
        return _tensor(arguments)
    if function.name == _REBUILD_PARAMETER:  # (tensor, requires_grad, hooks)
        return _typed(arguments[0], StoredTensor)
    if function.name != _ORDERED_DICT or arguments:
        raise HotMapError(f"the pickle calls {function.name} with {len(arguments)} arguments.")
    return {}


def _storage(reference: object, records: _Records, byte_order: str) -> _Storage:
    """('storage', type, key, device, number of elements) -> the record."""
    kind, storage_type, key = (*_typed(reference, tuple), None, None, None)[:3]
    if _typed(kind, str) != "storage" or not _STORAGE.fullmatch(_typed(storage_type, _Global).name):
        raise HotMapError(f"the file holds a {_typed(storage_type, _Global).name}, not integers.")
    return _Storage(_typed(storage_type, _Global).name, _typed(key, str), records, byte_order)


def _tensor(arguments: tuple[object, ...]) -> StoredTensor:
    """(record, offset, shape, strides, ...) -> the tensor, not read yet."""
    storage, start, shape, strides = arguments[:4]
    lengths, steps = (tuple(_typed(one, int) for one in _typed(values, tuple)) for values in (shape, strides))
    return StoredTensor(_typed(storage, _Storage), _typed(start, int), lengths, steps)
