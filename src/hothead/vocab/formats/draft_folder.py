"""Which file of a folder holds the map: hothead's own, the two arrays of speculators, or the checkpoint of a draft model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hothead.errors import HotMapError
from hothead.files.json_table import read_json_table
from hothead.vocab.formats.numpy_map import PAIR_FILES
from hothead.vocab.formats.stored import PAIR, find_table

MAP_FILE = "token_map.safetensors"
"""A token map of this name beside a draft head is its own and is used unless another one is given."""

MAX_JSON_BYTES = 16 * 2**20
_INDEX = "model.safetensors.index.json"
_CHECKPOINTS = ("model.safetensors", _INDEX, "pytorch_model.bin")
NAMES = (MAP_FILE, *PAIR_FILES, *_CHECKPOINTS)
TABLE_NAMES = (*_CHECKPOINTS, *PAIR_FILES)
"""Where the rows of a draft head of its own are told, a map beside it left aside."""


@dataclass(frozen=True)
class DeclaredSizes:
    """What config.json says of the head: its rows and the target's vocabulary, None where it does not."""

    draft_vocab_size: int | None = None
    vocab_size: int | None = None

    def __str__(self) -> str:
        return f"config.json says that the head has {self.draft_vocab_size} of {self.vocab_size} tokens." if self.is_cut else ""

    @property
    def is_cut(self) -> bool:
        return self.draft_vocab_size is not None and self.vocab_size is not None and self.draft_vocab_size < self.vocab_size

    def check(self, num_token_ids: int) -> None:
        """Raise HotMapError for a table of another size than the head."""
        if self.draft_vocab_size is not None and num_token_ids != self.draft_vocab_size:
            raise HotMapError(
                f"its table names {num_token_ids} tokens, and config.json says draft_vocab_size {self.draft_vocab_size}.",
                advice="One of the two is of another checkpoint: fetch both again.",
            )


def find_map_file(folder: Path, names: Sequence[str] = NAMES) -> Path:
    """The file with the map; the folder itself for the two arrays of speculators. names: in the order in which they are looked for. Raises
    HotMapError where there is none."""
    found = next((name for name in names if (folder / name).is_file()), None)
    if found is None:
        raise HotMapError(f"the folder has none of {', '.join(names)}.", advice="Give the file itself.")
    if found in PAIR_FILES:
        return folder
    return _shard(folder / _INDEX) if found == _INDEX else folder / found


def declared_sizes(folder: Path) -> DeclaredSizes:
    """Of the folder's config.json: EAGLE-3's, or that of speculators, where the target's sizes lie one level below."""
    file = folder / "config.json"
    if not file.is_file():
        return DeclaredSizes()
    config = _read_json(file)
    below = config.get("transformer_layer_config")
    layers = below if isinstance(below, dict) else {}
    return DeclaredSizes(_size(config.get("draft_vocab_size")), _size(config.get("vocab_size")) or _size(layers.get("vocab_size")))


def _size(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _shard(index: Path) -> Path:
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise HotMapError(f"{index.name} has no usable weight_map.", advice="Fetch the checkpoint again.")
    table = next((name for name in (find_table(weight_map, one) for one in PAIR) if name is not None), None)
    if table is None:
        raise HotMapError(f"none of the {len(weight_map)} tensors of {index.name} is d2t or t2d.", str(declared_sizes(index.parent)))
    shard = weight_map[table]
    if not isinstance(shard, str) or Path(shard).name != shard or not (index.parent / shard).is_file():
        raise HotMapError(f"{table} lies in {shard!s:.80}, which is not in the folder.", advice="Fetch the missing file.")
    return index.parent / shard


def _read_json(file: Path) -> dict[str, Any]:
    if (size := file.stat().st_size) > MAX_JSON_BYTES:
        raise HotMapError(f"{file.name} has {size} bytes, and at most {MAX_JSON_BYTES} are read.")
    return read_json_table(file, HotMapError)
