"""Commands that are imported when they are run, so that `hothead --help` and a typing error cost nothing."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from hothead.errors import nearest

_LAST_HEADING = "Options"


class Command(click.Command):
    """A command that also takes --debug, so that it may stand at the end of a line that failed."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params.append(debug_option())

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One section per heading of the options, in the order in which the headings first appear; 'Options' last."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is not None:
                sections.setdefault(getattr(parameter, "heading", _LAST_HEADING), []).append(row)
        for heading in sorted(sections, key=lambda name: name == _LAST_HEADING):
            with formatter.section(heading):
                formatter.write_dl(sections[heading])


class LazyGroup(click.Group):
    """A group whose commands are named by 'module:attribute', with the line that the group's help shows for each."""

    command_class = Command

    def __init__(self, *args: Any, lazy_commands: Mapping[str, tuple[str, str]] | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._lazy_commands = dict(lazy_commands or {})
        self.params.append(debug_option())

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._lazy_commands, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy_commands:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self._lazy_commands[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command), (cmd_name, command)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.list_commands(ctx) and not args[0].startswith("-"):
            ctx.fail(f"No such command '{args[0]}'. {nearest(args[0], self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, summary) for name, (_, summary) in self._lazy_commands.items()]
        for name in super().list_commands(ctx):
            command = self.commands[name]
            rows.append((name, command.get_short_help_str(limit=80)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def debug_option() -> click.Option:
    """--debug: remembered in the context's object, wherever in the line it stands."""

    def remember(ctx: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            ctx.ensure_object(dict)["debug"] = True

    return click.Option(["--debug"], is_flag=True, expose_value=False, is_eager=True, callback=remember, help="Show tracebacks of errors.")
