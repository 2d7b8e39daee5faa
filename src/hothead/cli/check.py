"""`hothead check`: know before a launch. Other engines' commands so far; what hothead's own launches are refused for, it says itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from hothead.cli.lazy import Command
from hothead.errors import OptionError

if TYPE_CHECKING:
    from hothead.preflight.foreign import ForeignReport

EXIT_NO = 1


@click.command(
    cls=Command,
    context_settings={"ignore_unknown_options": False},
    epilog="Example: hothead check --engine sglang -- python -m sglang.launch_server --model-path MODEL --tp 2 ... "
    "Exit codes: 0 fine, 1 the answer is no, 2 bad usage.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--engine", metavar="sglang|vllm|llama.cpp", help="Whose launch it is.")
@click.option("--engine-version", metavar="VERSION", help="Of that engine. Left out: the newest whose options are known here.")
@click.option("--allow-download", is_flag=True, help="Fetch configuration and tokenizer of models that are not here; never weights.")
@click.option("--strict", is_flag=True, help="A warning is a no.")
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object: schema, verdict, launch, findings.")
@click.option(
    "--layout", "shows_layout", is_flag=True, help="Show the head's ranks: ids, rows, padding, and a map's rows under each placement."
)
@click.option("--list", "lists", is_flag=True, help="Print every check.")
@click.option("--explain", metavar="ID", help="Print the long story of a check, with its sources.")
@click.pass_context
def check(
    ctx: click.Context,
    command: tuple[str, ...],
    engine: str | None,
    engine_version: str | None,
    allow_download: bool,
    strict: bool,
    is_json: bool,
    shows_layout: bool,
    lists: bool,
    explain: str | None,
) -> None:
    """Judge the launch COMMAND of another engine before it is paid for.

    Reads the command as that engine would, and config.json, tokenizer and headers of what it names; no weights, nothing is
    fetched. Says what would fail or be ignored, with the numbers and a command that works. COMMAND may also be one quoted
    text, as it was pasted.
    """
    from hothead.preflight import report
    from hothead.preflight.foreign import FOREIGN_CHECKS, judge

    if lists or explain:
        click.echo(report.explain(explain, FOREIGN_CHECKS) if explain else report.list_checks(FOREIGN_CHECKS))
        return
    if engine is None or not command:
        raise OptionError(
            "There is no launch to judge." if engine else "It was not said whose launch this is.",
            advice="hothead check --engine sglang|vllm|llama.cpp -- COMMAND",
        )
    found = judge(engine, command, version=engine_version, allow_download=allow_download)
    if is_json:
        record = json.loads(report.as_json(found.findings, found.launch, is_strict=strict))
        if shows_layout:
            record["layout"] = _layout(found)[1]
        click.echo(json.dumps(record, ensure_ascii=False, indent=1))
    else:
        click.echo(report.as_text(found.findings, found.launch, is_strict=strict))
        if shows_layout:
            click.echo(f"\n{_layout(found)[0]}")
    if report.verdict(found.findings, is_strict=strict) == "no":
        ctx.exit(EXIT_NO)


def _layout(found: ForeignReport) -> tuple[str, list[dict[str, int]]]:
    """As text and as rows. Raises OptionError where the command does not tell."""
    from hothead.parallel.layout import head_layout
    from hothead.preflight.layout_view import layout_rows, layout_text
    from hothead.vocab.token_map import TokenMap

    launch = found.layout
    if launch is None:
        raise OptionError(
            "The head's layout is not known for this launch.",
            advice="It is where the engine is sglang and the model's config.json is here.",
        )
    layout = head_layout(launch.family, launch.parallel, launch.num_rows, is_tied=launch.is_tied)
    hot_token_ids = TokenMap.load(launch.map_path).token_ids if launch.map_path is not None and launch.map_path.exists() else None
    rows = layout_rows(layout, hot_token_ids)
    return layout_text(layout, rows), rows
