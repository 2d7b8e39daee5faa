"""A trained head as the folder that `--draft` takes: model.safetensors (bfloat16), config.json, token_map.safetensors."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch

from hothead.errors import OutputError
from hothead.train.checkpoint import write_safetensors
from hothead.train.examples import FrozenTarget, Scales
from hothead.train.network import EagleHead
from hothead.vocab.token_map import TokenMap


def export_head(
    folder: Path, network: EagleHead, scales: Scales, target: FrozenTarget, token_map: TokenMap, training: Mapping[str, object]
) -> None:
    """Write or replace the three files, each under a temporary name first.

    training: how the head was trained; goes into config.json under "hothead", with the target's name and its tokenizer's fingerprint.
    """
    state = network.export_state(scales.embedding, scales.feature)
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in state.items()}
    config = dict(target.config) | {
        "bias": "fc.bias" in state,
        "hothead": {
            "target": target.name,
            "tokenizer_fingerprint": target.tokenizer_fingerprint,
            "token_map_fingerprint": token_map.fingerprint,
            "training": dict(training),
        },
    }
    write_safetensors(folder / "model.safetensors", weights, {"format": "pt"})
    token_map.save(folder / "token_map.safetensors")
    write_text(folder / "config.json", json.dumps(config, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a small file under a temporary name, then rename it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise OutputError(
            f"'{path}' cannot be written: {error.strerror or error}.", advice="Free disk space or give another --output."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
