"""Speculative decoding emits exactly what plain decoding emits: every drafter, tree, map, tp_size, batch, chunk size and memory
pressure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.decode import Decoded, OracleDrafter, decode, decode_on_rank, make_core, use_drafter
from tests.support.ranks import run_on_ranks
from tests.support.tiny import EOS_TOKEN_ID, make_eagle, make_eagle3, make_model

from hothead.config.sampling import SamplingParams
from hothead.draft.base import TreeShape
from hothead.draft.tree_drafter import TreeDrafter
from hothead.parallel.groups import RankGroup
from hothead.vocab.token_map import TokenMap

GREEDY = SamplingParams(max_tokens=24)
SAMPLED = SamplingParams(max_tokens=24, temperature=0.9, seed=11)
FILTERED = SamplingParams(max_tokens=24, temperature=1.2, top_k=20, top_p=0.9, min_p=0.01, seed=12)
BORDERED = SamplingParams(max_tokens=24, temperature=1.2, top_k=20, min_p=0.01, seed=13)
"""Cut without gathering whole rows."""
SAMPLINGS = {"greedy": GREEDY, "sampled": SAMPLED, "filtered": FILTERED, "bordered": BORDERED}

CHAIN = {"speculative_num_steps": 3, "speculative_eagle_topk": 1}
TREE = {"speculative_num_steps": 3, "speculative_eagle_topk": 3, "speculative_num_draft_tokens": 9}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), tie_word_embeddings=True)


@pytest.fixture(scope="module")
def eagle(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An EAGLE head, and in its folder `same` the target once more, as a draft model, and EAGLE-3 heads in two forms."""
    folder = make_eagle(tmp_path_factory.mktemp("eagle"), model)
    make_model(folder / "same", tie_word_embeddings=True)
    make_eagle3(folder / "eagle3", model, range(1, 300, 2))
    make_eagle3(folder / "speculators", model, range(300), form="speculators")
    return folder


@pytest.fixture(scope="module")
def token_map(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """101 of the tokens in no order: odd, so that no tp_size divides it."""
    file = tmp_path_factory.mktemp("map") / "map.safetensors"
    TokenMap(np.random.default_rng(3).permutation(300)[:101].astype(np.int64)).save(file)
    return file


@pytest.fixture(scope="module")
def plain(model: Path) -> dict[str, Decoded]:
    return {name: decode(make_core(model, speculative_algorithm="NONE"), prompts(), sampling) for name, sampling in SAMPLINGS.items()}


def drafters(eagle: Path, token_map: Path) -> dict[str, dict[str, Any]]:
    standalone = {"speculative_algorithm": "STANDALONE", "speculative_draft_model_path": str(eagle / "same")}
    head: dict[str, Any] = {"speculative_algorithm": "EAGLE", "speculative_draft_model_path": str(eagle)}
    return {
        "NGRAM chain": {"speculative_algorithm": "NGRAM"},
        "NGRAM tree": {"speculative_algorithm": "NGRAM", **TREE},
        "EAGLE chain, full head": {**head, **CHAIN, "speculative_token_map": "none"},
        "EAGLE tree, full head": {**head, **TREE, "speculative_token_map": "none"},
        "EAGLE chain, hot head": {**head, **CHAIN, "speculative_token_map": str(token_map)},
        "EAGLE tree, int8 hot head": {**head, **TREE, "speculative_token_map": str(token_map), "hot_head_dtype": "int8"},
        "EAGLE tree, bf16 hot head": {**head, **TREE, "speculative_token_map": str(token_map), "hot_head_dtype": "bf16"},
        "EAGLE tree, hot head": {**head, **TREE, "speculative_token_map": str(token_map)},
        # The target itself as its own draft model: every draft token is right unless the hot head misses it.
        "STANDALONE chain, full head": {**standalone, **CHAIN},
        "STANDALONE tree, hot head": {**standalone, **TREE, "speculative_token_map": str(token_map)},
        "EAGLE3 chain, own head": {**_eagle3(eagle / "eagle3"), **CHAIN},
        "EAGLE3 tree, own head": {**_eagle3(eagle / "eagle3"), **TREE},
        "EAGLE3 tree, own head cut by a map": {**_eagle3(eagle / "speculators"), **TREE, "speculative_token_map": str(token_map)},
        "EAGLE3 tree, small int8 own head": {
            **_eagle3(eagle / "speculators"),
            **TREE,
            "speculative_token_map": str(token_map),
            "hot_size": 7,
            "hot_head_dtype": "int8",
        },
        "EAGLE tree, small hot head": {**head, **TREE, "speculative_token_map": str(token_map), "hot_size": 7},
    }


def _eagle3(folder: Path) -> dict[str, Any]:
    return {"speculative_algorithm": "EAGLE3", "speculative_draft_model_path": str(folder)}


NAMES = tuple(drafters(Path(), Path()))


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", NAMES)
def test_drafters_do_not_change_a_token(
    name: str, sampling: str, model: Path, eagle: Path, token_map: Path, plain: dict[str, Decoded]
) -> None:
    decoded = decode(make_core(model, **drafters(eagle, token_map)[name]), prompts(), SAMPLINGS[sampling])
    assert decoded.token_ids == plain[sampling].token_ids
    assert decoded.num_drafted > 0


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("shape", [TreeShape(4, 1, 5), TreeShape(5, 3, 12), TreeShape(8, 4, 17)], ids=str)
def test_accepted_paths_do_not_change_a_token(shape: TreeShape, sampling: str, model: Path, plain: dict[str, Decoded]) -> None:
    answers = {str(index): tokens for index, tokens in enumerate(plain[sampling].token_ids)}
    lengths = {str(index): len(prompt) for index, prompt in enumerate(prompts())}
    core = use_drafter(make_core(model, speculative_algorithm="NONE"), lambda: OracleDrafter(answers, lengths, shape))
    decoded = decode(core, prompts(), SAMPLINGS[sampling])
    assert decoded.token_ids == plain[sampling].token_ids
    assert decoded.tokens_per_step > 1.5
    assert decoded.num_accepted > 20


@pytest.mark.parametrize("tp_size", [2, 3, 4])
def test_ranks_do_not_change_a_token(tp_size: int, model: Path, eagle: Path, token_map: Path, plain: dict[str, Decoded]) -> None:
    by_name = drafters(eagle, token_map)
    hot = by_name["EAGLE tree, hot head"]
    jobs = [(name, {**hot, "hot_placement": "balanced"}) for name in SAMPLINGS]
    jobs += [("sampled", {**hot, "hot_placement": placement}) for placement in ("replicated", "owner")]
    jobs += [("sampled", by_name["STANDALONE tree, hot head"])]
    jobs += [("sampled", by_name["EAGLE3 chain, own head"]), ("greedy", by_name["EAGLE3 tree, own head cut by a map"])]
    jobs += [("greedy", by_name["NGRAM tree"]), ("sampled", by_name["EAGLE chain, full head"])]
    calls = [(replace(SAMPLINGS[name], max_tokens=10), options) for name, options in jobs]
    few = prompts()[2:5]
    per_rank = run_on_ranks(decode_on_rank, tp_size, str(model), few, calls)
    for index, (name, options) in enumerate(jobs):
        alone = decode(make_core(model, **options), few, calls[index][0])
        assert alone.token_ids == [tokens[:10] for tokens in plain[name].token_ids[2:5]], (name, options)
        for decoded in per_rank:
            assert decoded[index] == alone, (name, options)  # the same drafts accepted, too


@pytest.mark.parametrize("name", ["EAGLE chain, hot head", "EAGLE tree, hot head"])
def test_a_full_map_is_no_map(name: str, model: Path, eagle: Path, token_map: Path, tmp_path: Path) -> None:
    options = drafters(eagle, token_map)[name]
    core = make_core(model, **{**options, "speculative_token_map": "none"})
    num_token_ids = core.drafter.hot_head.num_hot  # type: ignore[attr-defined]
    TokenMap(np.random.default_rng(0).permutation(num_token_ids).astype(np.int64)).save(tmp_path / "full.safetensors")
    full_map = make_core(model, **{**options, "speculative_token_map": str(tmp_path / "full.safetensors")})
    assert decode(full_map, prompts(), GREEDY) == decode(core, prompts(), GREEDY)


@pytest.mark.parametrize("name", ["EAGLE tree, hot head", "EAGLE3 tree, own head", "STANDALONE tree, hot head"])
def test_no_draft_is_made_of_what_was_never_written(
    name: str, model: Path, eagle: Path, token_map: Path, plain: dict[str, Decoded]
) -> None:
    """A pool full of NaN: a drafter that reads a slot before it was filled gives itself away, also while prompts are read in pieces."""
    core = make_core(model, **drafters(eagle, token_map)[name], chunked_prefill_size=5)
    drafter = core.drafter
    assert isinstance(drafter, TreeDrafter)
    drafter.pool.data.fill_(float("nan"))  # type: ignore[attr-defined]
    seen = []
    candidates = drafter.hot_head.candidates

    def watched(features: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        seen.append(bool(features.isnan().any()))
        return candidates(features, *arguments, **options)

    drafter.hot_head.candidates = watched  # type: ignore[method-assign]
    assert decode(core, prompts(), GREEDY).token_ids == plain["greedy"].token_ids
    assert len(seen) > 20
    assert not any(seen)


def _unlike_rank(group: RankGroup, model: str, options: dict[str, Any]) -> list[list[int]]:
    """Rank 1 scores a little differently, as another machine would."""
    core = make_core(Path(model), group, **options)
    assert isinstance(core.drafter, TreeDrafter)
    if group.rank == 1:
        linear = core.drafter.hot_head.linear
        core.drafter.hot_head.linear = lambda hidden: linear(hidden) * (1 + 0.05 * torch.rand(1).item())  # type: ignore[assignment]
    return decode(core, prompts()[:3], replace(GREEDY, max_tokens=10)).token_ids


@pytest.mark.parametrize("placement", ["balanced", "replicated"])
@pytest.mark.parametrize("name", ["EAGLE tree, hot head", "STANDALONE tree, hot head"])
def test_unlike_ranks_do_not_drift_apart(
    name: str, placement: str, model: Path, eagle: Path, token_map: Path, plain: dict[str, Decoded]
) -> None:
    options = {**drafters(eagle, token_map)[name], "hot_placement": placement}
    for token_ids in run_on_ranks(_unlike_rank, 2, str(model), options):
        assert token_ids == [tokens[:10] for tokens in plain["greedy"].token_ids[:3]]


def test_a_draft_model_that_is_the_target_is_always_right(model: Path, eagle: Path, token_map: Path) -> None:
    by_name = drafters(eagle, token_map)
    decoded = decode(make_core(model, **by_name["STANDALONE chain, full head"]), prompts(), GREEDY)
    # A level may be left out where its tokens are improbable, and the last step of a request is cut short.
    assert decoded.num_accepted == decoded.num_drafted or decoded.num_accepted > 0.9 * decoded.num_drafted
    assert decoded.tokens_per_step > 2


def test_a_tree_of_width_one_is_a_chain(model: Path, eagle: Path, token_map: Path) -> None:
    options = drafters(eagle, token_map)["EAGLE chain, hot head"]
    chain = decode(make_core(model, **options), prompts(), GREEDY)
    tree = decode(make_core(model, **{**options, "speculative_num_draft_tokens": 4}), prompts(), GREEDY)
    assert chain == tree


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(
    "pressure",
    [
        {"chunked_prefill_size": 5},
        {"max_concurrency": 2},
        {"max_total_tokens": 160, "block_size": 4},
        {"block_size": 1},
        {"max_total_tokens": 128, "block_size": 8, "chunked_prefill_size": 3, "max_concurrency": 5},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["EAGLE tree, hot head", "NGRAM chain"])
def test_scheduling_does_not_change_a_token(
    name: str, pressure: dict[str, int], sampling: str, model: Path, eagle: Path, token_map: Path, plain: dict[str, Decoded]
) -> None:
    core = make_core(model, **{**drafters(eagle, token_map)[name], **pressure})
    assert decode(core, prompts(), SAMPLINGS[sampling], stagger=2).token_ids == plain[sampling].token_ids


@pytest.mark.parametrize("sampling", ["greedy", "sampled"])
def test_scheduling_does_not_change_a_token_of_eagle3(sampling: str, model: Path, eagle: Path, plain: dict[str, Decoded]) -> None:
    """Its features are three layers' states, read in pieces and computed again after a preemption."""
    pressure = {"max_total_tokens": 128, "block_size": 8, "chunked_prefill_size": 3, "max_concurrency": 5}
    core = make_core(model, **_eagle3(eagle / "eagle3"), **TREE, **pressure)
    assert decode(core, prompts(), SAMPLINGS[sampling], stagger=2).token_ids == plain[sampling].token_ids


def test_preemption_happens_and_changes_nothing(model: Path, plain: dict[str, Decoded]) -> None:
    core = make_core(model, speculative_algorithm="NONE", max_total_tokens=96, block_size=4)
    decoded = decode(core, prompts(), GREEDY)
    assert decoded.num_preemptions > 0
    assert decoded.token_ids == plain["greedy"].token_ids


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_batch_is_its_requests_one_by_one(sampling: str, model: Path, eagle: Path, token_map: Path) -> None:
    options = drafters(eagle, token_map)["EAGLE tree, hot head"]
    together = decode(make_core(model, **options), prompts(), SAMPLINGS[sampling])
    alone = [decode(make_core(model, **options), [prompt], SAMPLINGS[sampling]) for prompt in prompts()]
    assert together.token_ids == [decoded.token_ids[0] for decoded in alone]
    assert together.num_accepted == sum(decoded.num_accepted for decoded in alone)


def test_mixed_samplings_in_one_batch(model: Path, eagle: Path, token_map: Path, plain: dict[str, Decoded]) -> None:
    core = make_core(model, **drafters(eagle, token_map)["EAGLE tree, hot head"])
    names = [list(SAMPLINGS)[index % 3] for index in range(len(prompts()))]
    decoded = decode(core, prompts(), [SAMPLINGS[name] for name in names])
    assert decoded.token_ids == [plain[name].token_ids[index] for index, name in enumerate(names)]


def test_end_token_drafted_or_not(model: Path, plain: dict[str, Decoded]) -> None:
    """The end token in the middle of an accepted path, as its last node and as the bonus token: nothing is emitted behind it."""
    answers = plain["greedy"].token_ids
    eos = answers[0][7]
    ended = [tokens[: tokens.index(eos) + 1] if eos in tokens else tokens for tokens in answers]
    lengths = {str(index): len(prompt) for index, prompt in enumerate(prompts())}
    for seed in range(8):
        core = make_core(model, speculative_algorithm="NONE", eos_token_ids=frozenset({eos, EOS_TOKEN_ID}))
        core = use_drafter(
            core, lambda seed=seed: OracleDrafter(dict(zip(lengths, answers, strict=True)), lengths, TreeShape(6, 3, 12), seed)
        )
        assert decode(core, prompts(), GREEDY).token_ids == ended


def test_the_context_ends_where_it_should(model: Path, eagle: Path, token_map: Path) -> None:
    for name in ("EAGLE tree, hot head", "NGRAM tree"):
        core = make_core(model, **drafters(eagle, token_map)[name], context_length=40)
        decoded = decode(core, prompts(), SamplingParams(max_tokens=200, ignore_eos=True))
        assert [len(prompt) + len(tokens) for prompt, tokens in zip(prompts(), decoded.token_ids, strict=True)] == [40] * len(prompts())


def test_a_short_draft_window_stops_drafting_not_decoding(model: Path, token_map: Path, tmp_path: Path, plain: dict[str, Decoded]) -> None:
    short = make_eagle(tmp_path / "short", model, max_position_embeddings=20)
    core = make_core(model, **drafters(short, token_map)["EAGLE tree, hot head"])
    assert decode(core, prompts(), GREEDY).token_ids == plain["greedy"].token_ids
    assert core.drafter.num_out_of_window > 0  # type: ignore[attr-defined]


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(9)
    return [torch.randint(3, 300, (length,), generator=generator).tolist() for length in (1, 2, 9, 16, 17, 30)]
