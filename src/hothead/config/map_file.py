"""Options of `hothead map inspect` and `hothead map convert`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from hothead.config.option import Options, option
from hothead.errors import OptionError


@dataclass(frozen=True)
class MapReadConfig(Options):
    """What a map's file does not say."""

    heading: ClassVar[str] = "Reading"

    encoding: str | None = option(
        None,
        flags=("--encoding",),
        help="What the numbers are, where it cannot be told. offset: token id = position + number; mask: one entry for each token.",
        choices=("absolute", "offset", "mask"),
    )
    vocab_size: int | None = option(
        None, flags=("--vocab-size",), help="Token ids of the vocabulary, where the file does not say.", ge=1, le=2**24, metavar="V"
    )


@dataclass(frozen=True)
class MapInspectConfig(Options):
    """What is shown."""

    heading: ClassVar[str] = "Inspection"

    model_path: str | None = option(
        None,
        flags=("--model-path", "--model", "--tokenizer"),
        help="Show tokens as text, and what this model needs: a known name, a folder, a tokenizer.json, a .gguf file or a hub id.",
        metavar="MODEL",
    )
    tp_sizes: str = option("1,2,4,8", flags=("--tp",), help="Show the hot rows of each rank for these tp_sizes.", metavar="N,N,...")
    num_shown: int = option(10, flags=("--tokens",), help="Tokens to show at the top and at the border.", ge=0, le=1000, metavar="N")
    json: bool = option(False, flags=("--json",), help="Print one JSON object.")
    plot: Path | None = option(None, flags=("--plot",), help="Draw coverage against size, and rows per rank.", metavar="FILE.png")
    cache_dir: str | None = option(
        None, flags=("--cache-dir",), help="Folder for downloaded models. Left out: the user's cache folder.", metavar="FOLDER"
    )

    def check(self) -> None:
        if not all(part.strip().isdecimal() and 1 <= int(part) <= 4096 for part in self.tp_sizes.split(",")):
            raise OptionError(f"{self.said('tp_sizes')} is no list of tp_sizes.", advice="Give numbers from 1 to 4096: --tp 1,2,4.")

    @property
    def tp_size_list(self) -> list[int]:
        return [int(part) for part in self.tp_sizes.split(",")]


@dataclass(frozen=True)
class MapConvertConfig(Options):
    """What is written."""

    heading: ClassVar[str] = "Output"

    to: str | None = option(
        None,
        flags=("--to",),
        help="Format of the new file.",
        choices=("hothead", "sglang", "eagle3", "numpy", "gguf", "text"),
    )
    output: Path | None = option(None, flags=("--output", "-o"), help="The new file; for numpy a folder.", metavar="FILE")
    size: int | None = option(None, flags=("--size",), help="Write the first N token ids only.", ge=1, metavar="N")

    def check(self) -> None:
        for name in ("to", "output"):
            if getattr(self, name) is None:
                raise OptionError(f"{self.label(name) if self.origins else name} is missing.", advice="Give --to FORMAT and -o FILE.")
