"""A quantized checkpoint decodes as its dequantized twin does, and a hot head cut from it equals the twin's, on one rank and on two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.decode import NUM_TOKEN_IDS, decode_on_rank
from tests.support.quantized import CASES, DATA, expected_head, head_name, quantize_model
from tests.support.ranks import run_on_ranks
from tests.support.tiny import make_eagle, make_model

from hothead.config.sampling import SamplingParams
from hothead.models.weights import open_weights
from hothead.parallel.groups import RankGroup
from hothead.parallel.hot_head import HotHead
from hothead.parallel.partition import PLACEMENTS
from hothead.vocab.token_map import TokenMap

PROMPTS = [[5, 9, 40, 41, 17], [100, 3, 250]]
SAMPLING = SamplingParams(max_tokens=12, temperature=0.8, seed=3)


def same_head(group: RankGroup, case: str, placement: str) -> list[int]:
    """Compare the head cut out of a quantized checkpoint with the one cut out of the dequantized matrix -> this rank's token ids."""
    source, name = open_weights(DATA / case), head_name(case)
    expected = expected_head(case).float()
    hot_token_ids = np.random.default_rng(0).permutation(len(expected))[:67]
    asked: list[int] = []

    def read_rows(token_ids: np.ndarray) -> torch.Tensor:
        asked.extend(token_ids.tolist())
        rows = source.read(name, rows=token_ids, dtype=torch.float32)
        assert torch.equal(rows, expected[torch.from_numpy(token_ids)])
        return rows

    head = HotHead.build(read_rows, hot_token_ids, group, placement, len(expected))
    dense = HotHead.build(lambda ids: expected[torch.from_numpy(ids)], hot_token_ids, group, placement, len(expected))
    assert sorted(asked) == sorted(head.token_ids.tolist())  # no rank reads another one's rows
    hidden = torch.randn(5, expected.shape[1], generator=torch.Generator().manual_seed(0))
    found, wanted = head.candidates(hidden, 7), dense.candidates(hidden, 7)
    assert torch.equal(found.token_ids, wanted.token_ids)
    assert torch.equal(found.log_probs, wanted.log_probs)
    return asked


@pytest.mark.case(19)
@pytest.mark.parametrize("case", CASES)
def test_a_hot_head_is_cut_out_of_a_quantized_one(case: str) -> None:
    (token_ids,) = run_on_ranks(same_head, 1, case, "balanced")
    assert len(set(token_ids)) == 67


@pytest.mark.case(19)
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("case", ["awq", "gptq-int4-order", "nvfp4", "int4-groups-asymmetric", "fp8-blocks"])
def test_and_dealt_out_to_two_ranks(case: str, placement: str) -> None:
    ranks = run_on_ranks(same_head, 2, case, placement)
    assert len(set(ranks[0] + ranks[1])) == 67
    assert (len(ranks[0]) + len(ranks[1]) == 67) == (placement != "replicated")


@pytest.mark.parametrize(
    ("method", "is_tied"), [("compressed-tensors", False), ("compressed-tensors", True), ("gptq", False), ("fp8", False), ("fp8", True)]
)
def test_a_quantized_model_decodes_as_its_dequantized_twin(method: str, is_tied: bool, tmp_path: Path) -> None:
    """EAGLE, and the model as its own draft model, with a map: all linear layers, head and hot head, at one rank and at two."""
    model = make_model(tmp_path / "model", tie_word_embeddings=is_tied)
    quantized, plain = quantize_model(model, tmp_path, method)
    draft = make_eagle(tmp_path / "draft", plain)
    token_map = tmp_path / "map.safetensors"
    TokenMap(np.random.default_rng(1).permutation(NUM_TOKEN_IDS)[:201].astype(np.int64)).save(token_map)

    def decoded(folder: Path, size: int) -> list[Any]:
        both = {"dtype": "float32", "speculative_token_map": str(token_map)}
        calls = [
            (SAMPLING, {**both, "speculative_algorithm": "EAGLE", "speculative_draft_model_path": str(draft)}),
            (SAMPLING, {**both, "speculative_algorithm": "STANDALONE", "speculative_draft_model_path": str(folder)}),
        ]
        return run_on_ranks(decode_on_rank, size, str(folder), PROMPTS, calls)

    (expected,) = decoded(plain, 1)
    assert expected[1].num_accepted > 0
    for size in (1, 2):
        for found in decoded(quantized, size):
            assert [result.token_ids for result in found] == [result.token_ids for result in expected]
            assert [result.num_accepted for result in found] == [result.num_accepted for result in expected]
