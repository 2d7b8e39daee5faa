"""`hothead map inspect`: what a token map holds, and what is odd about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from hothead.cli.lazy import Command
from hothead.cli.options import options, sources
from hothead.cli.text import as_columns, as_text
from hothead.config.map_file import MapInspectConfig, MapReadConfig

CONFIGS = (MapInspectConfig, MapReadConfig)


@click.command(cls=Command, epilog="Example: hothead map inspect map.safetensors --model smollm2-135m-instruct --tp 1,2,4")
@click.argument("file", type=click.Path(path_type=Path))
@options(*CONFIGS)
@click.pass_context
def inspect(ctx: click.Context, file: Path) -> None:
    """Say what the token map FILE holds: sizes, coverage, tokens as text, hot rows of each rank, fingerprints, warnings.

    FILE may have any known format; it is recognised by its content.
    """
    given = sources(ctx, *CONFIGS)
    config, reading = given.fill(MapInspectConfig), given.fill(MapReadConfig)
    from hothead.vocab.formats.registry import read_stored_map
    from hothead.vocab.token_map import TokenMap

    stored, format_name = read_stored_map(file, reading.vocab_size, reading.encoding)
    token_map = TokenMap.of_stored(stored, file.name)
    tokenizer = None
    if config.model_path is not None:
        from hothead.models.catalog import resolve_tokenizer
        from hothead.models.tokenizer import Tokenizer

        tokenizer = Tokenizer.load(resolve_tokenizer(config.model_path, config.cache_dir))
    from hothead.corpus.inspection import describe_map

    description = describe_map(token_map, format_name, stored.notes, tokenizer, config.tp_size_list, config.num_shown)
    if config.plot is not None:
        from hothead.bench.map_plots import plot_map

        plot_map(config.plot, file.name, description)
    click.echo(json.dumps(description, ensure_ascii=False, indent=2) if config.json else _as_text(description))


def _as_text(description: dict[str, Any]) -> str:
    plain = {key: value for key, value in description.items() if key not in ("coverage", "rows_per_rank", "tokens", "warnings")}
    parts = [as_text(plain)]
    if description["coverage"]:
        row = [f"{size:,}: {100 * share:.2f} %" for size, share in description["coverage"].items()]
        parts.append("share of its own counts by hot size:\n  " + ", ".join(row))
    if description["rows_per_rank"]:
        table = [["tp_size", "placement", "rows per rank", "most / mean"]]
        for entry in description["rows_per_rank"]:
            rows = entry["rows"]
            shown = " ".join(map(str, rows)) if len(rows) <= 8 else f"{min(rows)} to {max(rows)}"
            table.append([str(entry["tp_size"]), entry["placement"], shown, f"{max(rows) * len(rows) / sum(rows):.2f}"])
        parts.append(as_columns(table))
    for name, tokens in description["tokens"].items():
        if tokens:
            parts.append(f"{name}:\n  " + "  ".join(f"{token['token_id']} {token['text']!r}" for token in tokens))
    parts += [f"warning: {text}" for text in description["warnings"]]
    return "\n\n".join(parts)
