from __future__ import annotations

from typing import Any

import pytest

from hothead.config.engine import EngineConfig
from hothead.draft.base import TreeShape
from hothead.draft.catalog import DEFAULT_SHAPES, DRAFTERS, resolve_algorithm, resolve_shape
from hothead.errors import OptionError


@pytest.mark.parametrize(
    ("options", "has_head", "expected"),
    [
        ({}, True, "EAGLE"),
        ({}, False, "NGRAM"),
        ({"speculative_algorithm": "NGRAM"}, True, "NGRAM"),
        ({"speculative_algorithm": "EAGLE"}, False, "EAGLE"),
        ({"speculative_draft_model_path": "none"}, True, "NONE"),
        ({"speculative_algorithm": "NONE"}, True, "NONE"),
    ],
)
def test_what_auto_means(options: dict[str, Any], has_head: bool, expected: str) -> None:
    assert resolve_algorithm(EngineConfig(**options), has_head) == expected


@pytest.mark.parametrize("options", [{"speculative_token_map": "m.safetensors"}, {"hot_size": 5}, {"hot_coverage": 0.9}], ids=str)
def test_a_map_is_not_dropped_when_auto_becomes_ngram(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="no head to cut"):
        resolve_algorithm(EngineConfig(**options), has_draft_head=False)


@pytest.mark.parametrize(
    ("algorithm", "steps", "topk", "tokens", "expected"),
    [
        ("EAGLE", None, None, None, DEFAULT_SHAPES["EAGLE"]),
        ("EAGLE", 4, 1, None, TreeShape(4, 1, 5)),
        ("EAGLE3", None, None, None, DEFAULT_SHAPES["EAGLE3"]),
        ("EAGLE3", None, 1, None, TreeShape(6, 1, 7)),
        ("EAGLE", None, 1, 4, TreeShape(3, 1, 4)),
        ("EAGLE", 1, 3, None, TreeShape(1, 3, 4)),
        ("EAGLE", 3, 4, 20, TreeShape(3, 4, 20)),
        ("NGRAM", None, None, None, DEFAULT_SHAPES["NGRAM"]),
        ("NGRAM", 6, None, None, TreeShape(6, 1, 7)),
        ("NGRAM", 6, 2, 13, TreeShape(6, 2, 13)),
        ("NONE", None, None, None, TreeShape(0, 1, 1)),
    ],
)
def test_shapes(algorithm: str, steps: int | None, topk: int | None, tokens: int | None, expected: TreeShape) -> None:
    config = EngineConfig(
        speculative_algorithm=algorithm, speculative_num_steps=steps, speculative_eagle_topk=topk, speculative_num_draft_tokens=tokens
    )
    assert resolve_shape(config, algorithm) == expected


def test_more_tokens_than_the_tree_holds_are_refused_whoever_chose_the_rest() -> None:
    with pytest.raises(OptionError, match="at most 23 tokens to verify, not 40"):
        resolve_shape(
            EngineConfig(
                speculative_algorithm="EAGLE", speculative_eagle_topk=2, speculative_num_draft_tokens=40, speculative_num_steps=None
            ),
            "EAGLE",
        )


def test_every_drafter_has_a_default_shape() -> None:
    assert set(DRAFTERS) == set(DEFAULT_SHAPES)


def test_a_chain_and_more_tokens_than_it_has_contradict_each_other() -> None:
    with pytest.raises(OptionError, match="NGRAM drafts a chain unless more branches are asked for"):
        resolve_shape(EngineConfig(speculative_algorithm="NGRAM", speculative_num_steps=4, speculative_num_draft_tokens=9), "NGRAM")


@pytest.mark.parametrize("options", [{"hot_placement": "owner"}, {"hot_head_dtype": "int8"}])
def test_options_of_a_head_are_refused_where_there_is_none(options: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="has no head to cut"):
        resolve_algorithm(EngineConfig(**options), has_draft_head=False)
