"""A model's configuration from where it lies: a Hugging Face folder or a GGUF file."""

from __future__ import annotations

from pathlib import Path

from hothead.errors import ModelConfigError, ModelNotFoundError
from hothead.files.gguf_header import read_gguf_header
from hothead.files.json_table import read_json_table
from hothead.models.config import ModelConfig, from_hugging_face
from hothead.models.gguf_config import from_gguf


def load_config(path: str | Path) -> ModelConfig:
    """The configuration of a Hugging Face folder (config.json, generation_config.json) or of a `.gguf` file."""
    path = Path(path)
    if path.suffix == ".gguf":
        return from_gguf(read_gguf_header(path))
    if not (path / "config.json").is_file():
        raise ModelNotFoundError(
            f"{path} is not a model: it has no config.json.",
            advice="Give a folder with config.json, tokenizer.json and .safetensors files, or a .gguf file.",
        )
    generation = path / "generation_config.json"
    return from_hugging_face(
        read_json_table(path / "config.json", ModelConfigError),
        read_json_table(generation, ModelConfigError) if generation.is_file() else None,
        path.name or str(path),
    )
