"""The default model with the draft head and the map that ship: what random weights do not show."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.decode import Decoded, decode, decode_on_rank, make_core
from tests.support.ranks import run_on_ranks
from tests.support.reference import reference_model

from hothead.config.sampling import SamplingParams
from hothead.models.catalog import shipped_draft
from hothead.models.tokenizer import Tokenizer

pytestmark = [pytest.mark.real_model, pytest.mark.slow]

GREEDY = SamplingParams(max_tokens=32, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=32, ignore_eos=True, temperature=0.8, top_p=0.95, seed=3)
SAMPLINGS = {"greedy": GREEDY, "sampled": SAMPLED}
QUESTIONS = [
    "Explain gravity in two sentences.",
    "Write a Python function that adds two numbers.",
    "Which animals live in the sea? Name five of them.",
    "Natalia has 48 apples and gives half of them to her friend. How many apples are left?",
]


def head() -> Path:
    path = shipped_draft("smollm2-135m-instruct")
    assert path is not None, "the package lacks its draft head"
    return path


def options(name: str) -> dict[str, Any]:
    """Engine options by the name of a way to draft."""
    eagle: dict[str, Any] = {"speculative_algorithm": "EAGLE", "speculative_draft_model_path": str(head())}
    chosen: dict[str, dict[str, Any]] = {
        "plain": {"speculative_algorithm": "NONE"},
        "NGRAM": {"speculative_algorithm": "NGRAM"},
        "EAGLE": eagle,
        "EAGLE, chain": {**eagle, "speculative_num_steps": 4, "speculative_eagle_topk": 1},
        "EAGLE, full vocabulary": {**eagle, "speculative_token_map": "none"},
        "EAGLE, small map": {**eagle, "hot_size": 1000},
    }
    common = {"dtype": "float32", "max_total_tokens": 2048, "num_token_ids": 49152}
    return {**common, **chosen[name]}


@functools.cache
def prompts(model: Path) -> list[list[int]]:
    tokenizer = Tokenizer.load(model)
    return [tokenizer.apply_chat_template([{"role": "user", "content": question}]) for question in QUESTIONS]


@functools.cache
def plain(model: Path, sampling: str) -> Decoded:
    return decode(make_core(model, **options("plain")), prompts(model), SAMPLINGS[sampling])


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", ["NGRAM", "EAGLE", "EAGLE, chain", "EAGLE, full vocabulary", "EAGLE, small map"])
def test_drafters_do_not_change_a_token(name: str, sampling: str, default_model: Path) -> None:
    decoded = decode(make_core(default_model, **options(name)), prompts(default_model), SAMPLINGS[sampling])
    assert decoded.token_ids == plain(default_model, sampling).token_ids
    if name.startswith("EAGLE") and sampling == "greedy":
        assert decoded.tokens_per_step > 1.5


@pytest.mark.parametrize("tp_size", [2, 3, 4])
def test_ranks_do_not_change_a_token(tp_size: int, default_model: Path) -> None:
    """9 query heads and 3 KV heads: 2 and 4 divide neither."""
    few = prompts(default_model)[:2]
    calls = [(SamplingParams(max_tokens=12, ignore_eos=True), options("EAGLE"))]
    if tp_size == 2:
        calls.append((SamplingParams(max_tokens=12, ignore_eos=True, temperature=0.8, top_p=0.95, seed=3), options("EAGLE")))
    names = ("greedy", "sampled")
    for per_rank in run_on_ranks(decode_on_rank, tp_size, str(default_model), few, calls, timeout_s=240.0):
        for name, decoded in zip(names, per_rank, strict=False):
            assert decoded.token_ids == [tokens[:12] for tokens in plain(default_model, name).token_ids[:2]]


def test_a_batch_is_its_requests_one_by_one(default_model: Path) -> None:
    core = make_core(default_model, **options("EAGLE"))
    alone = [decode(core, [prompt], GREEDY).token_ids[0] for prompt in prompts(default_model)]
    assert alone == plain(default_model, "greedy").token_ids


def test_greedy_tokens_are_those_of_transformers(default_model: Path) -> None:
    model = reference_model(default_model, torch.float32)
    for prompt, tokens in zip(prompts(default_model), plain(default_model, "greedy").token_ids, strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == tokens


def test_a_map_raises_what_it_promises(default_model: Path) -> None:
    """The shipped map covers nearly all of what the model writes, and a smaller one less: hit rate and acceptance say so."""
    large = decode(make_core(default_model, **options("EAGLE")), prompts(default_model), GREEDY)
    small = decode(make_core(default_model, **options("EAGLE, small map")), prompts(default_model), GREEDY)
    full = decode(make_core(default_model, **options("EAGLE, full vocabulary")), prompts(default_model), GREEDY)
    assert small.tokens_per_step < large.tokens_per_step
    assert large.tokens_per_step > 0.9 * full.tokens_per_step
