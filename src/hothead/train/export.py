"""A trained head as the folder that `--draft` takes: model.safetensors (bfloat16), config.json, token_map.safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save

from hothead.files.whole import write_all_whole
from hothead.train.examples import FrozenTarget, Scales
from hothead.train.network import EagleHead
from hothead.vocab.formats import ours
from hothead.vocab.token_map import TokenMap


def export_head(
    folder: Path, network: EagleHead, scales: Scales, target: FrozenTarget, token_map: TokenMap, training: Mapping[str, object]
) -> None:
    """Write or replace the three files; none is replaced before all are written, so they belong together.

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
    write_all_whole(
        {
            folder / "model.safetensors": save({name: tensor.contiguous() for name, tensor in weights.items()}, {"format": "pt"}),
            folder / "token_map.safetensors": ours.encode(token_map.stored, token_map.token_ids),
            folder / "config.json": (json.dumps(config, indent=2) + "\n").encode(),
        }
    )
