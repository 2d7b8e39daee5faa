"""`hothead map merge`: counts of several corpora as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hothead.cli import notes
from hothead.cli.lazy import Command
from hothead.errors import OptionError


class _Numbers(click.Option):
    """An option that takes every number behind it: --weights 2 1."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        super().add_to_parser(parser, ctx)
        own = next(parser._long_opt[name] for name in self.opts if name in parser._long_opt)
        process = own.process

        def process_all(value: str, state: Any) -> None:
            process(value, state)
            while state.rargs and _is_number(state.rargs[0]):
                process(state.rargs.pop(0), state)

        own.process = process_all


@click.command(cls=Command, epilog="Example: hothead map merge chats.counts wiki.counts --weights 2 1 -o both.counts")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), required=True)
@click.option("--weights", cls=_Numbers, type=float, multiple=True, metavar="X...", help="One weight for each file. [default 1 each]")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, metavar="FILE", help="File for the sum.")
def merge(files: tuple[Path, ...], weights: tuple[float, ...], output: Path) -> None:
    """Add up the counts in FILES (from map build --counts-output), each times its weight.

    `hothead map build --counts FILE` makes a map of the sum.
    """
    from hothead.vocab.count import TokenCounts

    if weights and len(weights) != len(files):
        raise OptionError(
            f"--weights has {len(weights)} numbers for {len(files)} files.", advice="Give one weight for each file, or none for 1 each."
        )
    total, *others = [TokenCounts.load(path).weighted(weight) for path, weight in zip(files, weights or (1.0,) * len(files), strict=True)]
    for counts in others:
        total = total + counts
    total.provenance["merged_from"] = ", ".join(
        f"{path.name} x {weight:g}" for path, weight in zip(files, weights or (1.0,) * len(files), strict=True)
    )
    total.save(output)
    notes.line(f"{total.num_tokens:,} tokens, {total.num_distinct:,} different ones, of {len(files)} files")
    click.echo(output)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
