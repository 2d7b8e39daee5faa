"""What a corpus is and how its tokens are counted: options that `map build` and `map coverage` share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hothead.config.option import Options, option


@dataclass(frozen=True)
class CorpusConfig(Options):
    """Which texts are read and which of their tokens count."""

    heading: ClassVar[str] = "Corpus"

    model_path: str = option(
        "smollm2-135m-instruct",
        flags=("--model-path", "--model", "--tokenizer"),
        help="Whose tokenizer counts: a known name, a folder, a tokenizer.json, a .gguf file or a hub id.",
        metavar="MODEL",
    )
    corpus: tuple[str, ...] = option(
        (),
        flags=("--corpus",),
        help="A file, a folder, a pattern in quotes, - for standard input, or dataset:ORG/NAME[@SPLIT]. May be repeated.",
        metavar="NAME",
    )
    corpus_format: str = option(
        "auto",
        flags=("--format",),
        help="What the files are. auto: by suffix (.jsonl, .json, .parquet, otherwise text; .gz and .zst are unpacked).",
        choices=("auto", "text", "jsonl", "json", "parquet"),
    )
    field: str | None = option(
        None,
        flags=("--field",),
        help="Key of JSON records that holds the text, messages or token ids (a.b for nested ones). Left out: known shapes are recognised.",
        metavar="KEY",
    )
    counted: str = option(
        "responses",
        flags=("--count",),
        help="Of chats, count what the assistant writes, or all of the prompt format. Plain text always counts.",
        choices=("responses", "all"),
    )
    num_workers: int | None = option(
        None, flags=("--num-workers",), help="Counting processes; 0 counts in this one. Left out: one per core.", ge=0, le=256
    )
    counts: tuple[Path, ...] = option(
        (), flags=("--counts",), help="Counts that were written before (--counts-output). May be repeated.", metavar="FILE"
    )
    cache_dir: str | None = option(
        None, flags=("--cache-dir",), help="Folder for downloaded models. Left out: the user's cache folder.", metavar="FOLDER"
    )
