"""`hothead map convert`: a token map in the format of another program."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from hothead.cli import notes
from hothead.cli.lazy import Command
from hothead.cli.options import options, sources
from hothead.config.map_file import MapConvertConfig, MapReadConfig

CONFIGS = (MapConvertConfig, MapReadConfig)


@click.command(cls=Command, epilog="Example: hothead map convert map.safetensors --to sglang -o map.pt")
@click.argument("file", type=click.Path(path_type=Path))
@options(*CONFIGS)
@click.pass_context
def convert(ctx: click.Context, file: Path) -> None:
    """Write the token map FILE in another format.

    FILE may have any known format; it is recognised by its content. What the new format cannot hold is said.
    """
    given = sources(ctx, *CONFIGS)
    config, reading = given.fill(MapConvertConfig), given.fill(MapReadConfig)
    from hothead.vocab.formats.registry import losses, read_stored_map
    from hothead.vocab.token_map import TokenMap

    assert config.to is not None
    assert config.output is not None
    stored, found = read_stored_map(file, reading.vocab_size, reading.encoding)
    token_map = TokenMap.of_stored(stored, file.name)
    if config.size is not None:
        token_map = token_map.head(config.size)
    if config.to == "hothead" and found != "hothead":
        token_map = replace(token_map, provenance={"converted_from": f"{file.name} ({found})"})
    token_map.save(config.output, config.to)
    notes.line(f"{len(token_map):,} token ids, read as {found}, written as {config.to}")
    for note in stored.notes:
        notes.note(note)
    lost = losses(token_map.stored, config.to)
    if lost:
        notes.note(f"the format {config.to} does not keep: {', '.join(lost)}.")
    click.echo(config.output)
