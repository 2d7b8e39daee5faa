"""Weights of a checkpoint by tensor name, read row by row: `open_weights(path)`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hothead.errors import CheckpointError
from hothead.files.json_table import read_json_table

if TYPE_CHECKING:  # the GGUF header is read without waiting for torch
    from hothead.models.weights.base import WeightSource

CONFIG_NAME = "config.json"


def open_weights(path: str | Path) -> WeightSource:
    """A Hugging Face folder, a `.safetensors` file or a `.gguf` file. Reads headers only; raises CheckpointError.

    Quantized tensors of a folder have their logical names, as its config.json describes them (`quantized/source.py`).
    """
    from hothead.models.quantization import read_quantization
    from hothead.models.weights.gguf import GgufWeights
    from hothead.models.weights.quantized.source import QuantizedWeights
    from hothead.models.weights.safetensors import SafetensorsWeights

    path = Path(path)
    if not path.exists():
        raise CheckpointError(f"There are no weights at {path}: no such file or folder.")
    if path.suffix == ".gguf":
        return GgufWeights.open(path)
    if path.is_file() and path.suffix != ".safetensors":
        raise CheckpointError(f"{path} is not a file of weights that can be read.", "Read: .safetensors, .gguf, and folders.")
    stored = SafetensorsWeights.open(path)
    if not (path / CONFIG_NAME).is_file():
        return stored
    quantization = read_quantization(read_json_table(path / CONFIG_NAME, CheckpointError), path.name, CheckpointError)
    return stored if quantization is None else QuantizedWeights(stored, quantization)
