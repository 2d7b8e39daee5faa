from __future__ import annotations

from typing import Any

import pytest

from hothead.config.check import max_tree_nodes
from hothead.config.engine import EngineConfig
from hothead.config.option import COMMAND_LINE
from hothead.config.sampling import SamplingParams
from hothead.errors import OptionError


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"speculative_algorithm": "eagle", "hot_size": 8192},
        {"speculative_draft_model_path": "none"},
        {"speculative_draft_model_path": "none", "speculative_token_map": "none"},
        {"speculative_algorithm": "NGRAM", "speculative_num_steps": 4},
        {"speculative_num_steps": 4, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 5},
        {"speculative_num_steps": 3, "speculative_eagle_topk": 4, "speculative_num_draft_tokens": 16},
        {"speculative_num_steps": 2, "speculative_eagle_topk": 2, "speculative_num_draft_tokens": 7},
        {"device": "cuda:1"},
        {"dtype": "bfloat16"},
    ],
)
def test_what_fits_together_is_accepted(values: dict[str, Any]) -> None:
    EngineConfig(**values)


@pytest.mark.parametrize(
    ("values", "what", "advice"),
    [
        ({"hot_size": 9, "hot_coverage": 0.9}, "hot_size=9 and hot_coverage=0.9 both set the size", "Give one of the two"),
        ({"speculative_token_map": "m", "speculative_draft_model_path": "none"}, "has no head to cut", "EAGLE"),
        ({"speculative_token_map": "m", "speculative_algorithm": "NGRAM"}, "has no head to cut", "EAGLE"),
        ({"speculative_token_map": "m", "speculative_algorithm": "NONE"}, "has no head to cut", "EAGLE"),
        ({"hot_size": 9, "speculative_algorithm": "NONE"}, "hot_size=9 has no head to cut", "EAGLE"),
        ({"hot_coverage": 0.9, "speculative_algorithm": "NGRAM"}, "hot_coverage=0.9 has no head to cut", "EAGLE"),
        ({"hot_placement": "owner", "speculative_algorithm": "NGRAM"}, "hot_placement='owner' has no head to cut", "EAGLE"),
        ({"hot_size": 9, "speculative_token_map": "none"}, "hot_size=9 has no effect", "Drop one"),
        ({"speculative_draft_model_path": "d", "speculative_algorithm": "NGRAM"}, "would not be used", "EAGLE"),
        ({"speculative_draft_model_path": "d", "speculative_algorithm": "NONE"}, "would not be used", "EAGLE"),
        ({"speculative_draft_model_path": "none", "speculative_algorithm": "EAGLE"}, "is plain decoding", "Drop one"),
        ({"speculative_num_steps": 3, "speculative_algorithm": "NONE"}, "speculative_num_steps=3 has no effect", "Drop it"),
        ({"verification": "rejection", "speculative_algorithm": "NONE"}, "verification='rejection' has no effect", "Drop it"),
        (
            {"speculative_num_steps": 4, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4},
            "A chain of 4 draft steps has 5 tokens to verify, not 4.",
            "Set speculative_num_draft_tokens to 5, speculative_num_steps to 3",
        ),
        (
            {"speculative_num_steps": 2, "speculative_eagle_topk": 2, "speculative_num_draft_tokens": 8},
            "at most 7 tokens to verify, not 8",
            "at most 7",
        ),
        ({"device": "gpu"}, "device='gpu' is not a device", "auto, cpu, cuda"),
        ({"device": "cuda:0", "tp_size": 2}, "one device for 2 ranks", "cuda"),
        ({"max_total_tokens": 8}, "less than one KV block of 16 tokens", "at least 16"),
        ({"tp_size": 0}, "tp_size=0 is out of range", "at least 1"),
        ({"speculative_num_draft_tokens": 1}, "out of range", "at least 2"),
        ({"dtype": "int8"}, "dtype='int8' is not one of auto, bf16, float32", ""),
    ],
)
def test_a_contradiction_is_refused_with_the_numbers_and_the_way_out(values: dict[str, Any], what: str, advice: str) -> None:
    with pytest.raises(OptionError) as caught:
        EngineConfig(**values)
    assert what in caught.value.what
    assert advice in caught.value.advice


def test_flags_are_named_as_flags() -> None:
    values: dict[str, Any] = {"speculative_num_steps": 4, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4}
    with pytest.raises(OptionError, match=r"--speculative-eagle-topk 1, .*\n  Set --speculative-num-draft-tokens to 5"):
        EngineConfig(**values, origins=dict.fromkeys(values, COMMAND_LINE))


def test_tree_capacity() -> None:
    assert max_tree_nodes(1, 4) == 4
    assert max_tree_nodes(3, 1) == 3
    assert max_tree_nodes(2, 3) == 12


def test_plain_is_asked_for_in_two_ways() -> None:
    assert EngineConfig(speculative_algorithm="none").is_plain
    assert EngineConfig(speculative_draft_model_path="none").is_plain
    assert not EngineConfig().is_plain


def test_sampling_options_without_effect_are_known() -> None:
    assert SamplingParams(top_k=5, seed=1).options_without_effect() == ("top_k", "seed")
    assert SamplingParams(top_k=5, seed=1, temperature=0.5).options_without_effect() == ()
    assert SamplingParams().is_greedy


@pytest.mark.parametrize(
    "values", [{"stop": ("a", "")}, {"max_tokens": 0}, {"temperature": -0.1}, {"top_p": 0.0}, {"min_p": 1.1}, {"seed": -1}, {"seed": 2**63}]
)
def test_bad_sampling_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        SamplingParams(**values)
