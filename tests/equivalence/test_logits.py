"""Hidden states and logits equal transformers' for every family, rope variant and layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.ranks import run_on_ranks
from tests.support.tiny import make_model
from transformers import AutoModelForCausalLM

from hothead.models.config_files import load_config
from hothead.models.decoder import Decoder
from hothead.models.weights import open_weights
from hothead.parallel.groups import RankGroup, SingleRank

TOLERANCE = 2e-4
"""Of logits with a spread of about 5, float32."""

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama wide heads": ("llama", {"head_dim": 16}),
    "llama one KV head": ("llama", {"num_key_value_heads": 1}),
    "llama linear rope": ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    "llama-3 rope": ("llama", {"rope_scaling": LLAMA3}),
    "llama yarn rope": ("llama", {"rope_scaling": YARN}),
    "mistral sliding window": ("mistral", {}),
    "mistral full attention": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen2 sliding window in the upper layer": ("qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "qwen3": ("qwen3", {}),
    "qwen3 tied": ("qwen3", {"tie_word_embeddings": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case: str, tmp_path: Path) -> None:
    family, changes = CASES[case]
    folder = make_model(tmp_path, family, **changes)
    sequences = token_sequences()
    ours = local_logits(SingleRank(), str(folder), sequences)
    expected = reference_logits(folder, sequences)
    assert (ours - expected).abs().max() < TOLERANCE
    assert expected.std() > 0.5  # a comparison of zeros would pass too


@pytest.mark.parametrize("tp_size", [2, 3, 4])
@pytest.mark.parametrize("case", ["llama tied", "llama biases", "qwen3", "mistral sliding window"])
def test_ranks_give_the_same_logits(case: str, tp_size: int, tmp_path: Path) -> None:
    family, changes = CASES[case]
    folder = make_model(tmp_path, family, num_shards=3, **changes)
    sequences = token_sequences()
    alone = local_logits(SingleRank(), str(folder), sequences)
    for together in run_on_ranks(local_logits, tp_size, str(folder), sequences):
        assert (together - alone).abs().max() < TOLERANCE


def test_bf16_stays_close_to_transformers_in_bf16(tmp_path: Path) -> None:
    folder = make_model(tmp_path, dtype=torch.bfloat16, torch_dtype="bfloat16")
    sequences = token_sequences()
    ours = local_logits(SingleRank(), str(folder), sequences, torch.bfloat16).float()
    expected = reference_logits(folder, sequences, torch.bfloat16).float()
    exact = reference_logits(folder, sequences, torch.float32)
    # Both are roundings of the same numbers: ours may not be further from the truth than theirs, within a quarter.
    assert (ours - exact).abs().mean() < 1.25 * (expected - exact).abs().mean()


def local_logits(group: RankGroup, folder: str, sequences: list[list[int]], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    path = Path(folder)
    decoder = Decoder.load(load_config(path), open_weights(path), group, dtype, torch.device("cpu"))
    with torch.inference_mode():
        return decoder.head.logits(decoder.hidden_states(sequences)).gather().clone()


def reference_logits(folder: Path, sequences: list[list[int]], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    with torch.inference_mode():
        return torch.cat([model(torch.tensor([sequence])).logits[0] for sequence in sequences])


def token_sequences() -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(3, 300, (length,), generator=generator).tolist() for length in (1, 17, 40)]
