"""What lies on disk of a model that a command names: configuration and headers, never weights; unknown stays unknown.

Only facts are read, nothing is refused: another engine may well run what this package cannot, so `models.config` is not asked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hothead.errors import HotheadError, nearest
from hothead.files.json_table import read_json_table
from hothead.preflight.foreign.paths import located

_MAX_HEADER_BYTES = 64 * 2**20
_MAX_CONFIG_BYTES = 16 * 2**20
_MAX_NUMBER = 2**40
_MAX_FILES = 512
_DOWNLOADED = ("config.json", "generation_config.json", "tokenizer*", "*.model", "vocab.json", "merges.txt", "special_tokens_map.json")


@dataclass(frozen=True)
class Tensor:
    """One entry of a safetensors header; start: of its bytes in the file."""

    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    num_bytes: int


@dataclass
class ModelFacts:
    """name: as the command has it. path: where it lies here, or None. problem: why nothing is known of it, "" otherwise.

    config: config.json, or the fields of a GGUF file. tensors: by name with what the headers say, None where they were not read.
    """

    name: str
    path: Path | None = None
    problem: str = ""
    is_missing_path: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    tensor_names: frozenset[str] | None = None
    tensors: dict[str, Tensor] = field(default_factory=dict)
    is_gguf: bool = False

    @property
    def is_known(self) -> bool:
        return bool(self.config)

    @property
    def text(self) -> Mapping[str, Any]:
        """The configuration of the language model inside a multimodal one."""
        inner = self.config.get("text_config")
        return {**self.config, **inner} if isinstance(inner, dict) else self.config

    @property
    def architecture(self) -> str | None:
        found = self.config.get("architectures")
        return found[0] if isinstance(found, list) and found and isinstance(found[0], str) else None

    @property
    def is_tied(self) -> bool | None:
        """None where nothing says so; a head among the tensors contradicts the configuration, as it does for the engines."""
        if not self.is_known:
            return None
        return self.text.get("tie_word_embeddings") is True

    @property
    def quantization(self) -> str | None:
        table = self.config.get("quantization_config") or self.config.get("compression_config")
        if isinstance(table, dict):
            return str(table.get("quant_method", table.get("format", "unnamed")))[:40]
        return None

    def number(self, *keys: str) -> int | None:
        """The first of these keys that holds a whole number above 0."""
        for key in keys:
            value = self.text.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MAX_NUMBER:
                return value
        return None

    @property
    def context_length(self) -> int | None:
        return self.number("max_position_embeddings", "max_sequence_length", "seq_length", "model_max_length", "max_seq_len", "n_positions")

    def find_tensor(self, ending: str) -> str | None:
        """The name of the only or shortest tensor that is called so, or ends so after a dot."""
        names = [name for name in self.tensor_names or () if name == ending or name.endswith(f".{ending}")]
        return min(names, key=len, default=None)


def find_model(name: str, folder: Path, *, allow_download: bool = False) -> ModelFacts:
    """A folder, a .gguf file, or a hub id in the local cache. folder: what relative paths are relative to. Never raises."""
    try:
        path = located(name, folder) if name else folder
        if path.is_dir():
            return _read_folder(name, path)
        if path.is_file():
            return _read_gguf(name, path) if path.suffix == ".gguf" else _unknown(name, f"{name} is a file and no .gguf", path)
        if _looks_local(name):
            parent = path.parent
            hint = nearest(path.name, [entry.name for entry in list(parent.iterdir())[:1000]]) if parent.is_dir() else ""
            missing = f"the folder {parent} does not exist" if not parent.is_dir() else f"{parent} has no {path.name}"
            return ModelFacts(name, None, f"{missing}. {hint if hint.startswith('Did') else ''}".strip(), is_missing_path=True)
        cached = cached_snapshot(name)
        if cached is None and allow_download:
            cached = _download(name)
        if cached is None:
            return ModelFacts(name, None, f"{name} is not here: its files are neither in this folder nor in the local Hugging Face cache")
        return _read_folder(name, cached)
    except (OSError, ValueError, RecursionError, HotheadError) as error:
        return ModelFacts(name, None, f"{name} cannot be read: {str(error).splitlines()[0][:200]}")


def cached_snapshot(name: str) -> Path | None:
    """The folder of a hub id in the local cache: the commit that `main` points to, or the only one."""
    if name.count("/") != 1 or not all(part and part.strip(".") for part in name.split("/")):
        return None
    cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = os.environ.get("HF_HOME") or f"{cache}/huggingface"
    repo = Path(os.environ.get("HF_HUB_CACHE") or located(f"{home}/hub", Path())) / f"models--{name.replace('/', '--')}"
    reference = repo / "refs" / "main"
    if reference.is_file():
        snapshot = repo / "snapshots" / reference.read_text(encoding="utf-8").strip()[:64]
        if snapshot.is_dir():
            return snapshot
    found = sorted(entry for entry in (repo / "snapshots").iterdir() if entry.is_dir()) if (repo / "snapshots").is_dir() else []
    return found[0] if len(found) == 1 else None


def _download(name: str) -> Path | None:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(_DOWNLOADED)))
    except Exception as error:  # whatever a network does: the answer is that nothing came, with its reason
        raise ValueError(f"it could not be fetched ({type(error).__name__})") from error


def _looks_local(name: str) -> bool:
    return name.startswith(("/", "./", "../", "~")) or name.count("/") > 1 or name.endswith((".gguf", ".pt", ".bin", ".safetensors"))


def _unknown(name: str, problem: str, path: Path | None = None) -> ModelFacts:
    return ModelFacts(name, path, problem)


def _read_folder(name: str, path: Path) -> ModelFacts:
    if not (path / "config.json").is_file():
        ggufs = sorted(path.glob("*.gguf"))
        return _read_gguf(name, ggufs[0]) if len(ggufs) == 1 else _unknown(name, f"{path} has no config.json", path)
    if (path / "config.json").stat().st_size > _MAX_CONFIG_BYTES:
        return _unknown(name, f"config.json of {path} is too large to be one", path)
    facts = ModelFacts(name, path, config=read_json_table(path / "config.json", HotheadError))
    index = path / "model.safetensors.index.json"
    if index.is_file() and index.stat().st_size < _MAX_HEADER_BYTES:
        weight_map = read_json_table(index, HotheadError).get("weight_map")
        if isinstance(weight_map, dict):
            facts.tensor_names = frozenset(map(str, weight_map))
            wanted = {file for tensor, file in weight_map.items() if _is_looked_at(str(tensor))}
            for part in sorted(str(one) for one in wanted)[:_MAX_FILES]:
                if "/" not in part and (path / part).is_file():
                    facts.tensors |= read_header(path / part)
        return facts
    files = sorted(path.glob("*.safetensors"))[:_MAX_FILES]
    if files:
        for file in files:
            facts.tensors |= read_header(file)
        facts.tensor_names = frozenset(facts.tensors)
    return facts


def _is_looked_at(tensor: str) -> bool:
    return "lm_head" in tensor or tensor.split(".")[-1] in ("d2t", "t2d") or tensor.startswith("embed_tokens")


def read_header(file: Path) -> dict[str, Tensor]:
    """Entries of a safetensors file that are well formed; a damaged file has none."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 0 < length < _MAX_HEADER_BYTES or length > file.stat().st_size:
            return {}
        try:
            header = json.loads(stream.read(length))
        except (ValueError, RecursionError):
            return {}
    found: dict[str, Tensor] = {}
    for name, entry in header.items() if isinstance(header, dict) else ():
        if not isinstance(entry, dict) or name == "__metadata__":
            continue
        shape, offsets = entry.get("shape"), entry.get("data_offsets")
        is_shape = isinstance(shape, list) and all(isinstance(size, int) and 0 <= size < _MAX_NUMBER for size in shape)
        is_place = isinstance(offsets, list) and len(offsets) == 2 and all(isinstance(one, int) and 0 <= one < 2**50 for one in offsets)
        if isinstance(shape, list) and isinstance(offsets, list) and is_shape and is_place:
            found[name] = Tensor(str(entry.get("dtype"))[:16], tuple(shape), file, 8 + length + offsets[0], max(0, offsets[1] - offsets[0]))
    return found


def _read_gguf(name: str, path: Path) -> ModelFacts:
    from hothead.files.gguf_header import read_gguf_header

    header = read_gguf_header(path)
    return ModelFacts(name, path, config=header.fields, tensor_names=frozenset(header.tensors), is_gguf=True)
