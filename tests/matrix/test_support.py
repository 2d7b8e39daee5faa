"""What works with what: every kind of draft in every layout, with every kind of head and of sampling, through the whole engine.

The runs that pass here are what docs/reference/support.json holds, and the tables of what is supported are written from that file: a cell
is green because its runs passed, in this test. After a change that adds or takes away a cell:

    HOTHEAD_WRITE_SUPPORT=1 python -m pytest tests/matrix && python scripts/generate_docs.py

Ties, paddings and ranks are run with float32 heads, three and four ranks with a tied and padded and with an untied and unpadded one, and
every head format on one and two ranks: the full product would add hours and no pair.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.support import quantize
from tests.support.decode import Decoded, decode, make_core
from tests.support.ranks import run_on_ranks
from tests.support.tiny import make_eagle, make_eagle3, make_model, make_tokenizer

from hothead.config.sampling import SamplingParams
from hothead.models.config_files import load_config
from hothead.models.tokenizer import Tokenizer
from hothead.parallel.groups import RankGroup
from hothead.vocab.token_map import TokenMap

SUPPORT = Path(__file__).resolve().parents[2] / "docs" / "reference" / "support.json"
PROMPTS = [[5, 6, 7, 8], [40, 41, 42]]
NUM_TOKENS = 8
GREEDY = SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.9, seed=21, ignore_eos=True)
SAMPLINGS: dict[str, tuple[SamplingParams, dict[str, Any]]] = {
    "greedy": (GREEDY, {}),
    "coupled": (SAMPLED, {"verification": "coupled"}),
    "rejection": (SAMPLED, {"verification": "rejection"}),
}
TREE = {"speculative_num_steps": 3, "speculative_eagle_topk": 2, "speculative_num_draft_tokens": 6}
PLAIN = {"speculative_algorithm": "NONE"}
NUM_HOT = 101


def _eagle(folder: Path, target: Path) -> dict[str, Any]:
    return {"speculative_draft_model_path": str(make_eagle(folder / "eagle", target))}


def _eagle3(folder: Path, target: Path) -> dict[str, Any]:
    return {"speculative_draft_model_path": str(make_eagle3(folder / "eagle3", target, range(250)))}


def _standalone(folder: Path, target: Path) -> dict[str, Any]:
    """The tiny target's twin with other weights: drafts that are wrong, since right ones need no verification."""
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    sizes = {key: config[key] for key in ("tie_word_embeddings", "vocab_size", "hidden_size", "head_dim")}
    return {"speculative_draft_model_path": str(make_model(folder / "small", seed=5, num_hidden_layers=1, **sizes))}


# A kind of draft is a row: how its head or model is made for a tiny target, and whether it has a head that a map cuts.
DRAFTS: dict[str, tuple[Callable[[Path, Path], dict[str, Any]], bool]] = {
    "EAGLE": (_eagle, True),
    "EAGLE3": (_eagle3, True),
    "STANDALONE": (_standalone, True),
    "NGRAM": (lambda folder, target: {}, False),
}

# A format of the target's head is a row: what stands in its place.
FORMATS: dict[str, Callable[[torch.Tensor], quantize.Stored]] = {
    "bf16": lambda weight: ({"weight": weight.bfloat16()}, {}),
    "int8 (compressed-tensors)": quantize.int8_channel,
    "int4 packed (compressed-tensors)": quantize.int4_group,
    "nvfp4 (compressed-tensors)": quantize.nvfp4,
    "fp8 blocks": quantize.fp8_block,
    "AWQ": quantize.awq,
    "GPTQ": quantize.gptq,
}
GGUF = "GGUF (Q4_1, Q8_0)"


@dataclass(frozen=True)
class Setup:
    """One target. columns: the cells that its runs count for, besides those of sampling and ranks."""

    name: str
    columns: tuple[str, ...]
    tp_sizes: tuple[int, ...]
    is_tied: bool = False
    is_padded: bool = True
    format: str = "float32"


SETUPS = [
    *(
        Setup(
            f"{'tied' if tied else 'untied'}, {'padded' if padded else 'not padded'}",
            ("tied head" if tied else "untied head", "padding rows" if padded else "no padding rows", "float32"),
            (1, 2, 3, 4) if tied == padded else (1, 2),
            tied,
            padded,
        )
        for tied in (False, True)
        for padded in (False, True)
    ),
    *(Setup(name, (name,), (1, 2), format=name) for name in FORMATS),
    Setup("tied int4", ("int4 packed (compressed-tensors)", "tied head"), (1, 2), is_tied=True, format="int4 packed (compressed-tensors)"),
]

COLUMNS: dict[str, tuple[str, ...]] = {
    "text": tuple(SAMPLINGS),
    "ranks": ("tp 1", "tp 2", "tp 3", "tp 4"),
    "head": ("tied head", "untied head", "padding rows", "no padding rows"),
    "stored as": ("float32", *FORMATS, GGUF),
}


@dataclass
class Cells:
    """Runs that passed and runs that were made, by kind of draft and column."""

    counts: dict[str, dict[str, list[int]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(lambda: [0, 0])))
    setups: set[str] = field(default_factory=set)

    def add(self, kind: str, columns: Iterable[str], passed: bool) -> None:
        for column in columns:
            self.counts[kind][column][0] += passed
            self.counts[kind][column][1] += 1


CELLS = Cells()


def make_target(folder: Path, setup: Setup) -> Path:
    num_tokens = make_tokenizer().get_vocab_size()
    vocab_size = -(-num_tokens // 8) * 8 + 8 if setup.is_padded else num_tokens
    target = make_model(folder, tie_word_embeddings=setup.is_tied, vocab_size=vocab_size)
    if setup.format in FORMATS:
        module = "model.embed_tokens" if setup.is_tied else "lm_head"
        tensors = load_file(target / "model.safetensors")
        stored, quantization = FORMATS[setup.format](tensors.pop(f"{module}.weight"))
        save_file({**tensors, **{f"{module}.{part}": tensor for part, tensor in stored.items()}}, str(target / "model.safetensors"))
        config = json.loads((target / "config.json").read_text(encoding="utf-8"))
        (target / "config.json").write_text(json.dumps(config | ({"quantization_config": quantization} if quantization else {})))
    return target


def run_all(group: RankGroup, target: str, calls: list[tuple[SamplingParams, dict[str, Any]]]) -> list[Decoded | str]:
    """One result per call; an error becomes its text, so that the other cells are still filled."""
    torch.set_num_threads(1)
    results: list[Decoded | str] = []
    for sampling, options in calls:
        try:
            results.append(decode(make_core(Path(target), group, dtype="float32", **options), PROMPTS, sampling))
        except Exception as error:
            results.append(f"{type(error).__name__}: {error}")
            if group.size > 1:
                raise
    return results


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.name)
def test_every_draft_in_every_layout(setup: Setup, tmp_path: Path) -> None:
    target = make_target(tmp_path / "target", setup)
    token_map = tmp_path / "map.safetensors"
    TokenMap(np.random.default_rng(3).permutation(240)[:NUM_HOT].astype(np.int64)).save(token_map)
    jobs = [(kind, sampling) for kind in DRAFTS for sampling in SAMPLINGS]
    calls = []
    for kind, sampling in jobs:
        make, has_head = DRAFTS[kind]
        options = {"speculative_algorithm": kind, **TREE, **make(tmp_path, target)}
        options |= {"speculative_token_map": str(token_map)} if has_head else {}
        params, rule = SAMPLINGS[sampling]
        calls.append((params, {**options, **rule}))
    plain = {name: decode(make_core(target, dtype="float32", **PLAIN), PROMPTS, SAMPLINGS[name][0]) for name in ("greedy", "coupled")}
    alone = run_on_ranks(run_all, 1, str(target), calls)[0]
    failures = []
    for tp_size in setup.tp_sizes:
        per_rank = [alone] if tp_size == 1 else run_on_ranks(run_all, tp_size, str(target), calls)
        for index, (kind, sampling) in enumerate(jobs):
            # Rejection draws another text with the same law, which is tested elsewhere: here it must be the same on any number of ranks.
            # NGRAM # has no law, and is judged by the coupled rule.
            name = "coupled" if kind == "NGRAM" and sampling == "rejection" else sampling
            expected = plain[name].token_ids if name in plain else _tokens(alone[index])
            found = [_tokens(results[index]) for results in per_rank]
            passed = expected is not None and all(tokens == expected for tokens in found)
            CELLS.add(kind, (sampling, f"tp {tp_size}", *setup.columns), passed)
            if not passed:
                failures.append((kind, sampling, tp_size, [results[index] for results in per_rank], expected))
    CELLS.setups.add(setup.name)
    assert not failures, failures[:3]


@pytest.mark.real_model
def test_every_draft_on_a_gguf_file(default_model: Path, tmp_path: Path) -> None:
    """The default model, whose tied head is stored in blocks: drafts with random weights for it, and its own twin as a small model."""
    config = load_config(default_model)
    likeness = tmp_path / "config"
    likeness.mkdir()
    sizes = {"vocab_size": config.vocab_size, "hidden_size": config.hidden_size, "intermediate_size": config.intermediate_size}
    heads = {"num_attention_heads": config.num_heads, "num_key_value_heads": config.num_kv_heads, "head_dim": config.head_dim}
    others = {"num_hidden_layers": config.num_layers, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "hidden_act": "silu"}
    (likeness / "config.json").write_text(json.dumps({**sizes, **heads, **others, "model_type": "llama", "rope_theta": 1e4}))
    drafts = {"EAGLE": _eagle(tmp_path, likeness), "EAGLE3": _eagle3(tmp_path, likeness), "NGRAM": {}}
    drafts["STANDALONE"] = {"speculative_draft_model_path": str(default_model)}
    token_map = tmp_path / "map.safetensors"
    TokenMap(np.random.default_rng(3).permutation(240)[:NUM_HOT].astype(np.int64)).save(token_map)
    num_token_ids = Tokenizer.load(default_model).vocab_size

    def run(options: dict[str, Any], sampling: SamplingParams) -> list[list[int]]:
        core = make_core(default_model, num_token_ids=num_token_ids, dtype="float32", context_length=64, **options)
        return decode(core, PROMPTS[:1], sampling).token_ids

    plain = run(PLAIN, GREEDY)
    for kind in DRAFTS:
        cut = {"speculative_token_map": str(token_map)} if DRAFTS[kind][1] else {}
        passed = run({"speculative_algorithm": kind, **TREE, **drafts[kind], **cut}, GREEDY) == plain
        CELLS.add(kind, (GGUF,), passed)
        assert passed, kind
    CELLS.setups.add(GGUF)


def test_the_tables_say_what_was_run() -> None:
    missing = {setup.name for setup in SETUPS} | {GGUF}
    if missing - CELLS.setups:
        pytest.skip(f"not all of the matrix was run: without {', '.join(sorted(missing - CELLS.setups))}")
    found = {"columns": {title: list(names) for title, names in COLUMNS.items()}, "cells": CELLS.counts}
    text = json.dumps(found, indent=1) + "\n"
    if os.environ.get("HOTHEAD_WRITE_SUPPORT"):
        SUPPORT.write_text(text, encoding="utf-8")
    assert SUPPORT.read_text(encoding="utf-8") == text, "write it again: see the first lines of this file"


def _tokens(result: Decoded | str) -> list[list[int]] | None:
    return None if isinstance(result, str) else result.token_ids
