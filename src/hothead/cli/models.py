"""`hothead models`: which models there are by name, fetch one, describe one."""

from __future__ import annotations

import json

import click

from hothead.cli.lazy import Command, LazyGroup
from hothead.cli.text import as_text

_cache_dir = click.option("--cache-dir", metavar="FOLDER", help="Folder for downloaded models. Left out: the user's cache folder.")


@click.group(cls=LazyGroup)
def models() -> None:
    """List, fetch and describe models."""


@models.command("list", cls=Command)
@_cache_dir
def list_models(cache_dir: str | None) -> None:
    """Print the models that have a name here: size of the file, licence, whether it was fetched, whether a draft head ships for it."""
    from hothead.models.catalog import CATALOG, is_present, shipped_draft

    rows = [
        {
            "title": entry.title,
            "file": f"{entry.file.file_bytes / 1e6:.0f} MB",
            "license": entry.license,
            "fetched": is_present(name, cache_dir),
            "draft head": shipped_draft(name) is not None,
        }
        for name, entry in sorted(CATALOG.items())
    ]
    click.echo(as_text(dict(zip(sorted(CATALOG), rows, strict=True))))


@models.command(cls=Command)
@click.argument("name")
@_cache_dir
def pull(name: str, cache_dir: str | None) -> None:
    """Fetch the model NAME into the cache folder, check its hash, and print where it lies."""
    from hothead.models.catalog import resolve_model

    click.echo(resolve_model(name, cache_dir).path)


@models.command(cls=Command)
@click.argument("model")
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object.")
@_cache_dir
def show(model: str, is_json: bool, cache_dir: str | None) -> None:
    """Describe MODEL (a known name, a folder, a .gguf file or a hub id).

    Family, sizes, vocabulary (real tokens, head rows, padding), type of the weights, and how the head is cut at each tp_size. A known name
    or a hub id that is not here yet is fetched.
    """
    from hothead.models.catalog import describe_model, resolve_model

    description = describe_model(resolve_model(model, cache_dir))
    click.echo(json.dumps(description, indent=2, default=str) if is_json else as_text(description))
