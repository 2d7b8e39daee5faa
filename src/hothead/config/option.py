"""How an option is defined: one dataclass field gives flag, help text, YAML key, type and range check, and documentation row.

    @dataclass(frozen=True)
    class ServeConfig(Options):
        port: int = option(8000, flags=("--port",), help="Port to listen on.", ge=1, le=65535)

The annotation gives the type: str, int, float, bool (a flag without value), Path, `X | None` (may be left out), `tuple[X, ...]` (may be
repeated). The field's name is the YAML key. A field without `option()` is no option.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from hothead.errors import OptionError, nearest

T = TypeVar("T")

_KNOWN: dict[type, dict[str, Option]] = {}

COMMAND_LINE = "command line"
"""Origin of a value that was given as a flag; every other origin is the path of a configuration file."""

_METADATA_KEY = "hothead.option"
_KIND_NAMES = {str: "text", int: "an integer", float: "a number", bool: "true or false", Path: "a path"}


@dataclass(frozen=True, slots=True)
class Option:
    """One option, as read from its field. `kind` is the type of one value: str, int, float, bool or Path."""

    name: str
    flags: tuple[str, ...]
    help: str
    kind: type
    default: Any
    is_optional: bool = False
    is_repeatable: bool = False
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    choices: tuple[str, ...] | None = None
    synonyms: Mapping[str, str] = field(default_factory=dict)
    metavar: str | None = None

    @property
    def range_text(self) -> str:
        """'at least 1, at most 65535', 'one of a, b', or '' where every value of the type is fine."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        bounds = (("at least", self.ge), ("more than", self.gt), ("at most", self.le))
        return ", ".join(f"{word} {_number_text(bound)}" for word, bound in bounds if bound is not None)


def option(
    default: T,
    *,
    flags: tuple[str, ...],
    help: str,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    choices: tuple[str, ...] | None = None,
    synonyms: Mapping[str, str] | None = None,
    metavar: str | None = None,
) -> T:
    """A dataclass field that is an option.

    flags: the full name first, then aliases. ge, gt, le: bounds of a number (of each one if it may be repeated).
    choices: compared without regard to case. synonyms: other spellings of choices, such as {"bfloat16": "bf16"}.
    """
    given = {
        "flags": flags,
        "help": help,
        "ge": ge,
        "gt": gt,
        "le": le,
        "choices": choices,
        "synonyms": dict(synonyms or {}),
        "metavar": metavar,
    }
    return field(default=default, metadata={_METADATA_KEY: given})


@dataclass(frozen=True)
class Options:
    """Base of configuration records: values are converted and checked when the record is made, and it is known where each came from.

    origins: field name -> COMMAND_LINE or a file's path; a field that was set in Python or left at its default is not in it.
    """

    heading: ClassVar[str] = "Options"
    """Over these options in help pages and in the reference."""

    origins: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        for item in options_of(type(self)):
            value = _converted(item, getattr(self, item.name), self.origins)
            object.__setattr__(self, item.name, value)
        validate(self)
        self.check()

    def check(self) -> None:
        """Override to refuse values that are fine one by one and contradict each other. Raises OptionError."""

    def said(self, name: str) -> str:
        """A value as the user wrote it: '--tp-size 3', 'tp_size: 3 (run.yaml)' or 'tp_size=3'."""
        return _said(_by_name(type(self))[name], getattr(self, name), self.origins)

    def label(self, name: str) -> str:
        """An option's name as the user knows it: its flag where any flag was given, else the field's name."""
        is_flag = self.origins.get(name, COMMAND_LINE) == COMMAND_LINE and COMMAND_LINE in self.origins.values()
        return _by_name(type(self))[name].flags[0] if is_flag else name


def options_of(cls: type) -> tuple[Option, ...]:
    """The options of a dataclass, in the order of its fields."""
    return tuple(_by_name(cls).values())


def validate(instance: Any) -> None:
    """Check type, range and choices of every option. Raises OptionError with the value, where it came from and the bounds."""
    origins = getattr(instance, "origins", {})
    for item in options_of(type(instance)):
        value = getattr(instance, item.name)
        if value is None and item.is_optional:
            continue
        for one in value if item.is_repeatable and isinstance(value, tuple) else (value,):
            _check_one(item, one, origins)


def from_mapping(cls: type[T], values: Mapping[str, Any], origin: str = "") -> T:
    """A configuration dataclass from field names and values, as a YAML file has them. Raises OptionError for an unknown key."""
    check_keys(values, (cls,), origin)
    origins = dict.fromkeys(values, origin) if origin else {}
    converted = {name: _converted(_by_name(cls)[name], value, origins) for name, value in values.items()}
    if issubclass(cls, Options):
        return cls(**converted, origins=origins)
    instance = cls(**converted)
    validate(instance)
    return instance


def check_keys(values: Mapping[str, Any], classes: tuple[type, ...], origin: str = "") -> None:
    """Refuse a key that is no option of any of the classes, and name the nearest one."""
    known = {item.name for cls in classes for item in options_of(cls)}
    for key in values:
        if key not in known:
            where = f" in {origin}" if origin else ""
            by_flag = {flag: item.name for cls in classes for item in options_of(cls) for flag in item.flags}
            flag = "--" + str(key).replace("_", "-").lstrip("-")
            advice = f"The key of {flag} is {by_flag[flag]}." if flag in by_flag else nearest(str(key), known)
            raise OptionError(f"Unknown option '{key}'{where}.", advice=advice)


def replace(instance: T, **changes: Any) -> T:
    """`dataclasses.replace` for configuration records; changed values lose their origin."""
    if isinstance(instance, Options):
        changes.setdefault("origins", {name: origin for name, origin in instance.origins.items() if name not in changes})
    return dataclasses.replace(instance, **changes)  # type: ignore[type-var]


def _by_name(cls: type) -> dict[str, Option]:
    if cls not in _KNOWN:
        _KNOWN[cls] = {item.name: item for item in _read_fields(cls, typing.get_type_hints(cls))}
    return _KNOWN[cls]


def _read_fields(cls: type, hints: Mapping[str, Any]) -> Iterator[Option]:
    for one in dataclasses.fields(cls):
        given = one.metadata.get(_METADATA_KEY)
        if given is None:
            continue
        assert one.default is not MISSING, one.name
        hint, is_optional, is_repeatable = hints[one.name], False, False
        if typing.get_origin(hint) in (typing.Union, types.UnionType):
            alternatives = [part for part in typing.get_args(hint) if part is not type(None)]
            assert len(alternatives) == 1, (cls.__name__, one.name, hint)
            hint, is_optional = alternatives[0], True
        if typing.get_origin(hint) is tuple:
            hint, is_repeatable = typing.get_args(hint)[0], True
        assert hint in _KIND_NAMES, (cls.__name__, one.name, hint)
        yield Option(one.name, kind=hint, default=one.default, is_optional=is_optional, is_repeatable=is_repeatable, **given)


def _converted(item: Option, value: Any, origins: Mapping[str, str]) -> Any:
    """The value in the field's type: list -> tuple, 1 -> 1.0, text -> Path. What does not fit stays, for `validate`."""
    if value is None and item.is_optional:
        return None
    if item.is_repeatable:
        if not isinstance(value, (list, tuple)):
            raise OptionError(f"{_said(item, value, origins)} is not a list.", advice=f"Give a list of {_KIND_NAMES[item.kind]} values.")
        return tuple(_converted_one(item, one) for one in value)
    return _converted_one(item, value)


def _converted_one(item: Option, value: Any) -> Any:
    if isinstance(value, str) and item.choices:
        lowered = {choice.lower(): choice for choice in item.choices} | {other.lower(): choice for other, choice in item.synonyms.items()}
        return lowered.get(value.lower(), value)
    if item.kind is Path and isinstance(value, str):
        return Path(value)
    if item.kind is str and isinstance(value, Path):
        return str(value)
    if item.kind is float and _is_number(value):
        return float(value)
    if item.kind is int and isinstance(value, Integral) and _is_number(value):
        return int(value)
    return value


def _check_one(item: Option, value: Any, origins: Mapping[str, str]) -> None:
    fits = _is_number(value) if item.kind is float else isinstance(value, item.kind) and not (item.kind is int and isinstance(value, bool))
    if not fits:
        what = f"{_said(item, value, origins)} is not {_KIND_NAMES[item.kind]}."
        raise OptionError(what, advice=f"Give {_KIND_NAMES[item.kind]}{f', {item.range_text}' if item.range_text else ''}.")
    if item.choices is not None and value not in item.choices:
        raise OptionError(f"{_said(item, value, origins)} is not {item.range_text}.", advice=nearest(str(value), item.choices))
    if item.kind not in (int, float):
        return
    is_inside = (
        math.isfinite(value)
        and (item.ge is None or value >= item.ge)
        and (item.gt is None or value > item.gt)
        and (item.le is None or value <= item.le)
    )
    if not is_inside:
        raise OptionError(f"{_said(item, value, origins)} is out of range.", advice=f"It must be {item.range_text or 'finite'}.")


def _number_text(bound: float) -> str:
    return "2^63 - 1" if bound == 2**63 - 1 else f"{bound:g}" if isinstance(bound, float) else str(bound)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _said(item: Option, value: Any, origins: Mapping[str, str]) -> str:
    origin = origins.get(item.name)
    if origin is None:
        return f"{item.name}={value!r}"
    if origin != COMMAND_LINE:
        return f"{item.name}: {value} (in {origin})"
    flag = item.flags[0]
    if item.kind is bool:
        yes, _, no = flag.partition("/")
        return yes if value else no or flag
    return " ".join(f"{flag} {one}" for one in value) if isinstance(value, tuple) else f"{flag} {value}"
