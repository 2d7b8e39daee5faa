"""Arguments as the engines parse them: argparse for SGLang and vLLM, llama.cpp's own loop; with each option's place, to write it again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hothead.preflight.foreign.options import Option, close_names

_NEGATIVE_NUMBER = re.compile(r"^-(?:\d+(?:_\d+)*(?:\.\d+(?:_\d+)*)?|\.\d+(?:_\d+)*)$")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)")
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "": 1}


@dataclass(frozen=True)
class Used:
    """One option as it stands in the command. start, stop: its words. typed: the name as it was written."""

    option: Option
    typed: str
    values: tuple[str, ...]
    start: int
    stop: int


@dataclass
class Parsed:
    """used: in order, the last one wins. positionals: (place, word). unknown: (name, nearest names, place).

    errors: what the engine would say before it leaves; repairs: by error, arguments that have it no more. warnings: what it would say and
    go on.
    """

    argv: tuple[str, ...]
    used: list[Used] = field(default_factory=list)
    positionals: list[tuple[int, str]] = field(default_factory=list)
    unknown: list[tuple[str, list[str], int]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    repairs: dict[str, list[str]] = field(default_factory=dict)

    def refuse(self, what: str, at: int, num_words: int, *instead: str) -> None:
        """An error that goes away with other words in place of these."""
        self.errors.append(what)
        self.repairs[what] = [*self.argv[:at], *instead, *self.argv[at + num_words :]]

    def last(self, dest: str) -> Used | None:
        return next((one for one in reversed(self.used) if one.option.dest == dest), None)


def parse_like_argparse(argv: Sequence[str], known: Mapping[str, Option], *, num_positionals: int = 0) -> Parsed:
    """As argparse does (Python 3.11): exact names, `name=value`, unambiguous beginnings, negative numbers as values.

    num_positionals: words without an option that are taken; the rest is unrecognised, as there.
    """
    parsed = Parsed(tuple(argv))
    kinds = _classify(argv, known, parsed)
    at = 0
    while at < len(argv):
        kind = kinds[at]
        if kind == "-":
            at += 1
        elif kind == "A":
            parsed.positionals.append((at, argv[at]))
            at += 1
        elif isinstance(kind, tuple):
            at = _take(argv, kinds, at, kind, parsed)
        else:
            name = argv[at].partition("=")[0]
            if kind != "ambiguous":
                parsed.unknown.append((name, close_names(name, known), at))
            at += 1
            # The words after it are nobody's values: argparse lists them among the unrecognised arguments too.
            while at < len(argv) and kinds[at] == "A":
                at += 1
    for place, word in parsed.positionals[num_positionals:]:
        parsed.refuse(f"unrecognized argument {word!r} (word {place + 1} after the program)", place, 1)
    parsed.positionals = parsed.positionals[:num_positionals]
    _convert(parsed)
    return parsed


def _classify(argv: Sequence[str], known: Mapping[str, Option], parsed: Parsed) -> list[Any]:
    """Per word: "A" value, "-" the double dash, (option, name, attached value or None), "unknown", "ambiguous"."""
    kinds: list[Any] = []
    for index, word in enumerate(argv):
        if word == "--":
            kinds.append("-")
            kinds += ["A"] * (len(argv) - index - 1)
            break
        kinds.append(_classify_one(word, index, known, parsed))
    return kinds


def _classify_one(word: str, index: int, known: Mapping[str, Option], parsed: Parsed) -> Any:
    if not word.startswith("-") or len(word) == 1:
        return "A"
    if word in known:
        return known[word], word, None
    name, equals, attached = word.partition("=")
    if equals and name in known:
        return known[name], name, attached
    matches = _beginnings(word, known)
    if len(matches) > 1:
        candidates = sorted((one for one, _ in matches), key=lambda one: (len(one), one))
        full = candidates[0] + equals + attached
        parsed.refuse(f"ambiguous option: {name} could match {', '.join(candidates[:6])}", index, 1, full)
        return "ambiguous"
    if matches:
        (full, value) = matches[0]
        return known[full], full, value
    if _NEGATIVE_NUMBER.match(word) or " " in word:
        return "A"
    return "unknown"


def _beginnings(word: str, known: Mapping[str, Option]) -> list[tuple[str, str | None]]:
    name, equals, attached = word.partition("=")
    value = attached if equals else None
    if word.startswith("--"):
        return [(one, value) for one in known if one.startswith(name)]
    found: list[tuple[str, str | None]] = []
    for one in known:
        if one == word[:2]:
            found.append((one, word[2:]))
        elif one.startswith(name):
            found.append((one, value))
    return found


def _take(argv: Sequence[str], kinds: list[Any], at: int, kind: tuple[Option, str, str | None], parsed: Parsed) -> int:
    option, name, attached = kind
    start, at = at, at + 1
    if attached is not None:
        if option.nargs == 0:
            parsed.refuse(f"argument {'/'.join(option.names)}: ignored explicit argument {attached!r}", start, 1, name)
            return at
        parsed.used.append(Used(option, name, (attached,), start, at))
        return at
    limit = option.nargs if isinstance(option.nargs, int) else 1 if option.nargs in (None, "?") else len(argv)
    values: list[str] = []
    while at < len(argv) and len(values) < limit and kinds[at] == "A":
        values.append(argv[at])
        at += 1
    if option.nargs is None and not values:
        parsed.errors.append(f"argument {'/'.join(option.names)}: expected one argument")
    elif option.nargs == "+" and not values:
        parsed.errors.append(f"argument {'/'.join(option.names)}: expected at least one argument")
    else:
        parsed.used.append(Used(option, name, tuple(values), start, at))
    return at


def _convert(parsed: Parsed) -> None:
    """Values by dest, of the last use each; what does not convert is an error as the engine says it."""
    for used in parsed.used:
        option = used.option
        if option.nargs == 0:
            parsed.values[option.dest] = used.typed not in option.negative
            continue
        converted = []
        for value in used.values:
            try:
                converted.append(convert(option, value))
            except (ValueError, RecursionError):
                parsed.errors.append(f"argument {used.typed}: invalid {option.kind} value: {value[:80]!r}")
                converted.append(None)
                continue
            if option.choices and str(converted[-1]) not in option.choices:
                hint = close_names(value, option.choices)
                choices = ", ".join(hint or option.choices[:12])
                parsed.errors.append(
                    f"argument {used.typed}: invalid choice: {value[:80]!r} ({'nearest' if hint else 'choices'}: {choices})"
                )
        if not converted and option.nargs is None:
            continue  # the value is missing, which is an error already
        is_list = option.nargs in ("+", "*") or (isinstance(option.nargs, int) and option.nargs > 1)
        parsed.values[option.dest] = converted if is_list else (converted[0] if converted else True)


def convert(option: Option, value: str) -> Any:
    """The value as the engine's type makes it. Raises ValueError."""
    if option.kind == "int":
        return int(value)
    if option.kind == "float":
        return float(value)
    if option.kind == "json":
        import json

        return json.loads(value)
    if option.kind == "size":
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            if value.strip().lower() in ("-1", "auto"):
                return -1
            raise ValueError(value)
        number, unit = match.groups()
        if "." in number and (unit in "KMGT" or not unit):
            raise ValueError(value)
        return int(float(number) * _UNITS[unit]) if "." in number else int(number) * _UNITS[unit]
    return value


def parse_like_llama_cpp(argv: Sequence[str], known: Mapping[str, Option], env: Mapping[str, str]) -> Parsed:
    """llama.cpp's loop: names exactly, underscores as dashes after `--`, no `name=value`, the first unknown word ends it.

    Environment assignments (LLAMA_ARG_...) come first and are overwritten by the command.
    """
    parsed = Parsed(tuple(argv))
    for option in {id(option): option for option in known.values()}.values():
        if option.env and option.env in env:
            value = env[option.env]
            name = option.names[0]
            values: tuple[str, ...] = () if option.nargs == 0 else (value,)
            if option.nargs == 0 and value.lower() in ("off", "disabled", "false", "0"):
                name = option.negative[0] if option.negative else ""
            if name:
                parsed.used.append(Used(option, name, values, -1, -1))
    at, seen = 0, set()
    while at < len(argv):
        name = argv[at].replace("_", "-") if argv[at].startswith("--") else argv[at]
        if name not in known:
            bare = name.partition("=")[0]
            if "=" in name and bare in known:
                what = f"invalid argument: {argv[at]} (values follow after a space, {bare} VALUE)"
                parsed.refuse(what, at, 1, bare, argv[at].partition("=")[2])
            elif not name.startswith("-"):
                parsed.refuse(f"invalid argument: {argv[at]!r}", at, 1)
            else:
                parsed.unknown.append((bare, close_names(bare, known), at))
                # Take what looks like its value along, so that one mistyped name is one finding.
                if at + 1 < len(argv) and not argv[at + 1].startswith("-"):
                    at += 1
            at += 1
            continue
        if name in seen and name != "--spec-type":
            parsed.warnings.append(f"{name} is given more than once; the last value is used")
        seen.add(name)
        option = known[name]
        count = option.nargs if isinstance(option.nargs, int) else 1
        following = tuple(argv[at + 1 : at + 1 + count])
        if len(following) < count:
            parsed.errors.append(f"expected value for argument {name}")
        if option.removed:
            parsed.refuse(f"the argument {name} has been removed: {option.removed}", at, 1 + count)
        parsed.used.append(Used(option, name, following, at, at + 1 + count))
        at += 1 + count
    _convert(parsed)
    return parsed
