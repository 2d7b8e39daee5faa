"""`hothead map inspect`: what a token map holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from hothead.cli.lazy import Command
from hothead.cli.text import as_text


@click.command(cls=Command)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object.")
def inspect(file: Path, is_json: bool) -> None:
    """Say what the token map FILE holds: size, ids, counts, where it comes from, fingerprints."""
    from hothead.vocab.token_map import TokenMap

    token_map = TokenMap.load(file)
    token_ids = token_map.token_ids
    description: dict[str, Any] = {
        "size": len(token_map),
        "vocab_size": token_map.vocab_size,
        "first_token_ids": token_ids[:8].tolist(),
        "lowest_token_id": int(token_ids.min()),
        "highest_token_id": int(token_ids.max()),
        "num_fillers": token_map.num_fillers,
        "num_counted": None if token_map.counts is None else int(token_map.counts.sum()),
        "fingerprint": token_map.fingerprint,
        "tokenizer_fingerprint": token_map.tokenizer_fingerprint or None,
        "provenance": dict(token_map.provenance),
    }
    click.echo(json.dumps(description, ensure_ascii=False, indent=2) if is_json else as_text(description))
