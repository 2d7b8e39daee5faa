"""The default model in transformers, with the weights that our reader gives (which its own test compares with the gguf library's)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from hothead.models.config_files import load_config
from hothead.models.weights import open_weights


def reference_model(path: Path, dtype: torch.dtype) -> Any:
    """A llama model of transformers from a GGUF file; transformers' own GGUF loader needs a further package."""
    config = load_config(path)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            rms_norm_eps=config.rms_norm_eps,
            max_position_embeddings=config.context_length,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope.theta},
            tie_word_embeddings=config.tie_word_embeddings,
        )
    ).to(dtype)
    source = open_weights(path)
    weights = {name: source.read(name, dtype=dtype) for name in config.tensor_shapes()}
    source.close()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    return model.eval()
