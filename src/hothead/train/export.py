"""A trained head as the folder that `--draft` takes: model.safetensors (bfloat16), config.json, token_map.safetensors.

EAGLE-3 heads are written in their authors' form, which SGLang reads too: rows of the head in ascending order of token id, with d2t and t2d.
The map beside them has the same tokens in order of frequency, so that a head can be cut further.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save

from hothead.files.whole import write_all_whole
from hothead.models.eagle3_config import LAYER_IDS
from hothead.train.eagle3_network import Eagle3Head
from hothead.train.examples import FrozenTarget, Scales
from hothead.train.network import EagleHead
from hothead.vocab.formats import ours
from hothead.vocab.formats.encodings import as_mask, as_offsets
from hothead.vocab.token_map import TokenMap


def export_head(
    folder: Path, network: EagleHead, scales: Scales, target: FrozenTarget, token_map: TokenMap, training: Mapping[str, object]
) -> None:
    """Write or replace the three files; none is replaced before all are written, so they belong together.

    training: how the head was trained; goes into config.json under "hothead", with the target's name and its tokenizer's fingerprint.
    """
    state = network.export_state(scales.embedding, scales.feature)
    _write(folder, state, dict(target.config) | {"bias": "fc.bias" in state}, {}, target, token_map, training)


def export_eagle3(
    folder: Path,
    network: Eagle3Head,
    feature_scales: Sequence[float],
    target: FrozenTarget,
    token_map: TokenMap,
    training: Mapping[str, object],
) -> None:
    """The same for an EAGLE-3 head. token_map: its rows in training."""
    state = network.export_state(feature_scales)
    order = np.argsort(token_map.token_ids)
    state["lm_head.weight"] = state["lm_head.weight"][torch.from_numpy(order)]
    in_order = token_map.token_ids[order]
    tables = {"d2t": torch.from_numpy(as_offsets(in_order)), "t2d": torch.from_numpy(as_mask(in_order, target.vocab_size))}
    config = dict(target.config) | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": len(token_map),
        "tie_word_embeddings": False,
        # This table names layers by the output that is read, we by the input.
        "eagle_config": {LAYER_IDS: [layer - 1 for layer in target.feature_layers], "use_aux_hidden_state": True},
    }
    _write(folder, state, config, tables, target, token_map, training)


def _write(
    folder: Path,
    state: Mapping[str, torch.Tensor],
    config: Mapping[str, object],
    tables: Mapping[str, torch.Tensor],
    target: FrozenTarget,
    token_map: TokenMap,
    training: Mapping[str, object],
) -> None:
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in state.items()} | dict(tables)
    config = dict(config) | {
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
