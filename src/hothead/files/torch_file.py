"""How a list or 1-D tensor of integers that `torch.save` wrote is read without torch and without running anything from the file.

The file is a zip archive with a pickle (`*/data.pkl`) and one record of raw numbers per tensor (`*/data/<key>`), or before torch 1.6 a row
of pickles. A pickle is a program; here only the dozen instructions that build numbers, lists, dicts and tuples are carried out, and of all
functions that it can name only the rebuilding of a tensor from a record is known. Everything else is refused by name.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import zipfile
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from hothead.errors import HotMapError

T = TypeVar("T")

ZIP_MAGIC = b"PK\x03\x04"
PICKLE_MAGIC = b"\x80"

_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
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
_KNOWN_GLOBALS = {*_STORAGE_DTYPES, _REBUILD_TENSOR, "collections.OrderedDict"}


def read_torch_file(data: bytes) -> object:
    """What the file holds: numbers, strings, lists, tuples, dicts, and tensors as numpy arrays. Raises HotMapError for anything else."""
    if data.startswith(ZIP_MAGIC):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return _read_archive(archive, len(data))
    stream = io.BytesIO(data)
    magic = _run_pickle(stream, {}, "<")
    if magic != _LEGACY_MAGIC:
        raise HotMapError("this is a pickle, but not one that torch.save wrote.", advice="Save the list of token ids with torch.save.")
    for _ in ("protocol", "system"):
        _run_pickle(stream, {}, "<")
    return _run_pickle(stream, {}, "<")


def write_torch_list(values: list[int]) -> bytes:
    """The file that `torch.save(values)` would write: `torch.load(..., weights_only=True)` gives the list back."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in (("data.pkl", pickle.dumps(values, protocol=2)), ("byteorder", b"little"), ("version", b"3\n")):
            # A fixed date: equal maps give equal files.
            archive.writestr(zipfile.ZipInfo(f"archive/{name}", (1980, 1, 1, 0, 0, 0)), content)
    return buffer.getvalue()


def _read_archive(archive: zipfile.ZipFile, num_bytes: int) -> object:
    entries = archive.infolist()
    if sum(entry.file_size for entry in entries) > num_bytes:
        raise HotMapError(f"the archive's entries claim more than the {num_bytes} bytes that the file has.")
    for entry in entries:
        # torch never compresses; a compressed entry could unpack to any size, as could entries that share their bytes.
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > entry.compress_size:
            raise HotMapError(f"entry '{entry.filename}' of the archive is compressed, which torch.save never does.")
    programs = [name for name in archive.namelist() if name.endswith("/data.pkl") or name == "data.pkl"]
    if len(programs) != 1:
        raise HotMapError(f"the zip archive has {len(programs)} entries named data.pkl; a file from torch.save has one.")
    folder = programs[0].removesuffix("data.pkl")
    names = set(archive.namelist())
    order = ">" if f"{folder}byteorder" in names and archive.read(f"{folder}byteorder").strip() == b"big" else "<"
    records = {name.removeprefix(f"{folder}data/"): archive.read(name) for name in names if name.startswith(f"{folder}data/")}
    return _run_pickle(io.BytesIO(archive.read(programs[0])), records, order)


@dataclass(frozen=True)
class _Global:
    name: str


class _Mark:
    pass


def _run_pickle(stream: io.BytesIO, records: dict[str, bytes], byte_order: str) -> object:
    """Carry out one pickle and return its value; the stream is left behind it."""
    stack: list[object] = []
    memo: dict[int, object] = {}
    for opcode, argument, _ in pickletools.genops(stream):
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
            stack.append(_rebuild_tensor(arguments) if function.name == _REBUILD_TENSOR else _empty_dict(function, arguments))
        elif name == "STOP":
            return stack.pop()
        elif name not in ("PROTO", "FRAME"):
            raise HotMapError(f"the pickle uses {name}, which a list or tensor of token ids does not need.")
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
    if name not in _KNOWN_GLOBALS:
        raise HotMapError(
            f"the file asks for '{name[:80]}', which a list or tensor of token ids does not need; it was not run.",
            advice="Use a file from a source that you trust, or save the plain list of token ids with torch.save.",
        )
    return _Global(name)


def _empty_dict(function: _Global, arguments: tuple[object, ...]) -> dict[object, object]:
    if function.name != "collections.OrderedDict" or arguments:
        raise HotMapError(f"the pickle calls {function.name} with {len(arguments)} arguments.")
    return {}


def _storage(reference: object, records: dict[str, bytes], byte_order: str) -> npt.NDArray[np.generic]:
    """('storage', type, key, device, number of elements) -> the record's numbers."""
    kind, storage_type, key = (*_typed(reference, tuple), None, None, None)[:3]
    if _typed(kind, str) != "storage" or _typed(storage_type, _Global).name not in _STORAGE_DTYPES:
        raise HotMapError(f"the file holds a {_typed(storage_type, _Global).name}, not integers.")
    if _typed(key, str) not in records:
        raise HotMapError(
            f"the tensor's record '{key:.80}' is missing.", advice="Files from before torch 1.6 can hold a list, not a tensor."
        )
    return np.frombuffer(records[key], np.dtype(byte_order + _STORAGE_DTYPES[storage_type.name]))


def _rebuild_tensor(arguments: tuple[object, ...]) -> npt.NDArray[np.generic]:
    """(numbers, offset, shape, strides, ...) -> a 1-D view of the numbers."""
    numbers, offset, shape, strides = arguments[:4]
    shape = tuple(_typed(length, int) for length in _typed(shape, tuple))
    if len(shape) != 1:
        raise HotMapError(f"token ids must be a list (1-D), but they have the shape {list(shape)!s:.80}.")
    numbers, start = _typed(numbers, np.ndarray), _typed(offset, int)
    size, stride = shape[0], _typed(_typed(strides, tuple)[0], int)
    if start < 0 or size < 0 or stride < 1 or (size > 0 and start + (size - 1) * stride >= len(numbers)):
        raise HotMapError(f"the tensor reaches outside its record of {len(numbers)} numbers.")
    return numbers[start : start + size * stride : stride]
