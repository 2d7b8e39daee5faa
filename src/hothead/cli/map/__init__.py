"""`hothead map`: make, look at, convert and measure token maps. One file a command."""

from __future__ import annotations

import click

from hothead.cli.lazy import LazyGroup

COMMANDS = {
    "build": ("hothead.cli.map.build:build", "Count a corpus and rank its tokens."),
    "inspect": ("hothead.cli.map.inspect:inspect", "Say what a token map holds."),
    "convert": ("hothead.cli.map.convert:convert", "Write a map in the format of another program."),
    "coverage": ("hothead.cli.map.coverage:coverage", "Measure how much of a corpus a map covers."),
    "merge": ("hothead.cli.map.merge:merge", "Add up counts of several corpora."),
    "size": ("hothead.cli.map.size:size", "Predict which hot size gives the most tokens per second."),
}


@click.group("map", cls=LazyGroup, lazy_commands=COMMANDS)
def map_group() -> None:
    """Work with token maps."""
