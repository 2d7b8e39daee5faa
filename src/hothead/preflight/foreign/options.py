"""Which options an engine has: tables of names, read from the engines' sources and kept as data beside this file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, slots=True)
class Option:
    """One option. nargs: as in argparse (None is one value). kind: "str", "int", "float", "size", "json".

    negative: the names that say no. since, until: versions between which it is known, "" for open. removed: what an engine that still
    recognises the name says instead of obeying. now: the key that took its place. programs: those that have it, () for all.
    """

    names: tuple[str, ...]
    dest: str
    nargs: int | str | None = None
    kind: str = "str"
    choices: tuple[str, ...] = ()
    default: Any = None
    negative: tuple[str, ...] = ()
    since: str = ""
    until: str = ""
    names_since: Mapping[str, str] = field(default_factory=dict)
    env: str = ""
    removed: str = ""
    now: str = ""
    programs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()


@dataclass(frozen=True)
class OptionTable:
    """engine: its name. version: the newest one in the table. options: all, of every version."""

    engine: str
    version: str
    options: tuple[Option, ...]

    def known(self, version: str, program: str = "") -> dict[str, Option]:
        """Every name that a version, and one of the engine's programs, has -> its option."""
        at = version_key(version)
        found: dict[str, Option] = {}
        for option in self.options:
            if option.programs and program and program not in option.programs:
                continue
            if program in option.excludes:
                continue
            if (option.since and at < version_key(option.since)) or (option.until and at > version_key(option.until)):
                continue
            for name in option.names:
                if at >= version_key(option.names_since.get(name, "")):
                    found.setdefault(name, option)
        return found

    def elsewhere(self, name: str) -> Option | None:
        """The option that some other version or program has under this name."""
        return next((option for option in self.options if name in option.names), None)


def version_key(version: str) -> tuple[int, ...]:
    """'0.5.10.post1' -> (0, 5, 10, 1): comparable; parts that are no numbers count as nothing."""
    digits = "".join(letter if letter.isdigit() else " " for letter in version.split("+")[0])
    return tuple(int(part[:9]) for part in digits.split()[:6])


@cache
def load_table(engine: str) -> OptionTable:
    """The table of "sglang", "vllm" or "llama.cpp"."""
    content = _read(f"{engine.replace('.', '_')}.json")
    return OptionTable(engine, content["versions"][-1], tuple(_option(row) for row in content["options"]))


@cache
def load_families() -> dict[str, str]:
    """Architecture in config.json -> the family in the tables of `parallel.layout`, as SGLang's model files have it."""
    found: dict[str, str] = _read("sglang_families.json")
    return found


def _read(name: str) -> Any:
    return json.loads((files(__package__) / "data" / name).read_text(encoding="utf-8"))


def _option(row: Mapping[str, Any]) -> Option:
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items() if key != "type"}
    return Option(kind=row.get("type", "str"), **values)


def close_names(name: str, known: Iterable[str]) -> list[str]:
    """At most three names that a mistyped one may mean, nearest first."""
    import difflib

    names = sorted(known)
    # A name that lost or gained a word (--draft-model, --model-draft) has the same words in another order.
    words = set(name.strip("-").replace("_", "-").split("-"))
    same_words = [one for one in names if set(one.strip("-").split("-")) == words]
    return (same_words + [one for one in difflib.get_close_matches(name, names, n=3, cutoff=0.6) if one not in same_words])[:3]
