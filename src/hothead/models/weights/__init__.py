"""Weights of a checkpoint by tensor name, read row by row: `open_weights(path)`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hothead.errors import CheckpointError

if TYPE_CHECKING:  # the GGUF header is read without waiting for torch
    from hothead.models.weights.base import WeightSource


def open_weights(path: str | Path) -> WeightSource:
    """A Hugging Face folder, a `.safetensors`, `.bin` or `.gguf` file. Reads headers only; raises CheckpointError.

    A folder's `pytorch_model.bin` is read where it has no safetensors; nothing in it is run. Where its config.json says that weights are
    quantized, they have their logical names and are decoded as they are read (`quantized/source.py`).
    """
    from hothead.files.json_table import read_json_table
    from hothead.models.quantization import read_quantization
    from hothead.models.weights.gguf import GgufWeights
    from hothead.models.weights.quantized.source import QuantizedWeights
    from hothead.models.weights.safetensors import INDEX_NAME, SINGLE_NAME, SafetensorsWeights
    from hothead.models.weights.torch_bin import BIN_NAME, TorchWeights

    path = Path(path)
    if not path.exists():
        raise CheckpointError(f"There are no weights at {path}: no such file or folder.")
    if path.suffix == ".gguf":
        return GgufWeights.open(path)
    if path.suffix == ".bin" and path.is_file():
        return TorchWeights.open(path)
    if path.is_file() and path.suffix != ".safetensors":
        raise CheckpointError(f"{path} is not a file of weights that can be read.", "Read: .safetensors, .bin, .gguf, and folders.")
    if not any((path / name).is_file() for name in (INDEX_NAME, SINGLE_NAME)) and (path / BIN_NAME).is_file():
        return TorchWeights.open(path / BIN_NAME)
    stored = SafetensorsWeights.open(path)
    config = path / "config.json"
    if not config.is_file():
        return stored
    quantization = read_quantization(read_json_table(config, CheckpointError), path.name, CheckpointError)
    return stored if quantization is None else QuantizedWeights(stored, quantization)
