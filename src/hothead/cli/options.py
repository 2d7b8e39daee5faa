"""Option definitions as click options, and click's values as configuration records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from hothead.config.option import Option, Options, options_of
from hothead.config.source import Sources

F = TypeVar("F", bound=Callable[..., Any])

_GIVEN = "hothead.given"
_CONFIG_FILE = "hothead.config_file"


class ConfigOption(click.Option):
    """A flag whose value, if it was given, waits in the context for `sources`; the command's function does not get it as an argument."""

    def __init__(self, *args: Any, record: type[Options] | None = None, meta_key: str = _GIVEN, **settings: Any) -> None:
        super().__init__(*args, expose_value=False, **settings)
        self.record = record
        self.heading = record.heading if record is not None else "Options"
        self._meta_key = meta_key

    def handle_parse_result(self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]) -> tuple[Any, list[str]]:
        value, rest = super().handle_parse_result(ctx, opts, args)
        if self.name is not None and ctx.get_parameter_source(self.name) == ParameterSource.COMMANDLINE:
            ctx.meta.setdefault(self._meta_key, {})[self.name] = value
        return value, rest


def options(*classes: type[Options]) -> Callable[[F], F]:
    """Decorator: a flag for every option of the classes, in their order, and --config FILE."""

    def decorate(function: F) -> F:
        parameters: list[click.Parameter] = [click_option(item, cls) for cls in classes for item in options_of(cls)]
        parameters.append(
            ConfigOption(
                ["--config"],
                meta_key=_CONFIG_FILE,
                type=click.Path(path_type=Path),
                metavar="FILE.yaml",
                help="Read options from a file: a key is an option's name in the reference. A flag wins over the file.",
            )
        )
        # click keeps a function's parameters here, last one first.
        function.__click_params__ = getattr(function, "__click_params__", []) + parameters[::-1]  # type: ignore[attr-defined]
        return function

    return decorate


def sources(ctx: click.Context, *classes: type[Options]) -> Sources:
    """What the command line and its --config file say, and nothing else: defaults stay with the records."""
    return Sources(classes, ctx.meta.get(_GIVEN, {}), ctx.meta.get(_CONFIG_FILE, {}).get("config"))


def click_option(item: Option, record: type[Options]) -> ConfigOption:
    """The flag of one option. Ranges and choices are left to the option's own check, which is the same for files and for Python."""
    names = [*item.flags, item.name]
    text = help_text(item)
    if item.kind is bool:
        return ConfigOption(names, is_flag=True, record=record, default=item.default, help=text, show_default=False)
    kinds: dict[type, click.ParamType[Any]] = {int: click.INT, float: click.FLOAT}
    kind = kinds.get(item.kind, click.STRING)
    return ConfigOption(names, type=kind, record=record, metavar=metavar(item), multiple=item.is_repeatable, help=text, show_default=False)


def metavar(item: Option) -> str:
    """What stands for the value in help pages."""
    if item.choices:
        return "|".join(item.choices)
    return item.metavar or {int: "N", float: "X", Path: "PATH"}.get(item.kind, "TEXT")


def type_text(item: Option) -> str:
    """The type of a value in words, for the reference."""
    if item.choices:
        return " or ".join(f"`{choice}`" for choice in item.choices)
    word = {str: "text", int: "integer", float: "number", bool: "true or false", Path: "path"}[item.kind]
    return f"list of {word}" if item.is_repeatable else word


def help_text(item: Option) -> str:
    """The help line, with range and default."""
    notes = []
    if item.kind is not bool and not item.choices and item.range_text:
        notes.append(item.range_text)
    if item.kind is not bool and item.default not in (None, ()):
        notes.append(f"default {item.default}")
    return f"{item.help} [{'; '.join(notes)}]" if notes else item.help
