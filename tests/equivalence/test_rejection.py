"""`--verification rejection` through the whole engine: greedy requests and drafts without a law as ever, sampled ones with the target's
law, and the same numbers on any number of ranks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from tests.support.decode import Decoded, decode, decode_on_rank, make_core
from tests.support.ranks import run_on_ranks
from tests.support.tiny import make_eagle, make_eagle3, make_model

from hothead.config.sampling import SamplingParams
from hothead.vocab.token_map import TokenMap

GREEDY = SamplingParams(max_tokens=16)
SAMPLED = SamplingParams(max_tokens=16, temperature=0.9, seed=14)
FILTERED = SamplingParams(max_tokens=16, temperature=1.2, top_k=30, top_p=0.9, min_p=0.01, seed=12)
CHAIN = {"speculative_num_steps": 3, "speculative_eagle_topk": 1}
TREE = {"speculative_num_steps": 3, "speculative_eagle_topk": 3, "speculative_num_draft_tokens": 9}
PROMPTS = [[5, 6, 7, 8], [40, 41], list(range(60, 79)), [9] * 7]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), tie_word_embeddings=True)


@pytest.fixture(scope="module")
def drafts(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("draft")
    file = folder / "map.safetensors"
    TokenMap(np.random.default_rng(3).permutation(300)[:101].astype(np.int64)).save(file)
    eagle = {"speculative_algorithm": "EAGLE", "speculative_draft_model_path": str(make_eagle(folder / "eagle", model))}
    eagle3 = {"speculative_algorithm": "EAGLE3", "speculative_draft_model_path": str(make_eagle3(folder / "eagle3", model, range(300)))}
    same = make_model(folder / "same", tie_word_embeddings=True)
    standalone = {"speculative_algorithm": "STANDALONE", "speculative_draft_model_path": str(same)}
    both = {"verification": "rejection", "speculative_token_map": str(file)}
    return {
        "EAGLE chain": {**eagle, **both, **CHAIN},
        "EAGLE tree": {**eagle, **both, **TREE},
        "EAGLE3 tree": {**eagle3, **both, **TREE},
        "STANDALONE chain": {**standalone, **both, **CHAIN},
        "STANDALONE tree": {**standalone, **both, **TREE},
        "NGRAM tree": {"speculative_algorithm": "NGRAM", "verification": "rejection", **TREE},
    }


NAMES = ("EAGLE chain", "EAGLE tree", "EAGLE3 tree", "STANDALONE chain", "STANDALONE tree", "NGRAM tree")


def run(model: Path, options: dict[str, Any], sampling: SamplingParams | list[SamplingParams]) -> Decoded:
    return decode(make_core(model, **options), PROMPTS, sampling)


@pytest.mark.parametrize("name", NAMES)
def test_greedy_requests_are_plain_beside_sampled_ones(name: str, model: Path, drafts: dict[str, dict[str, Any]]) -> None:
    plain = run(model, {"speculative_algorithm": "NONE"}, GREEDY)
    mixed = run(model, drafts[name], [GREEDY, SAMPLED, GREEDY, FILTERED])
    assert [mixed.token_ids[index] for index in (0, 2)] == [plain.token_ids[index] for index in (0, 2)]
    assert run(model, drafts[name], GREEDY).token_ids == plain.token_ids


def test_a_draft_without_a_law_is_judged_by_the_coupled_rule(model: Path, drafts: dict[str, dict[str, Any]]) -> None:
    plain = run(model, {"speculative_algorithm": "NONE"}, SAMPLED)
    assert run(model, drafts["NGRAM tree"], SAMPLED).token_ids == plain.token_ids


@pytest.mark.case(20, 21, 36)
@pytest.mark.parametrize("name", ["EAGLE chain", "EAGLE tree", "STANDALONE chain", "STANDALONE tree"])
def test_sampled_text_has_the_law_of_plain_decoding(name: str, model: Path, drafts: dict[str, dict[str, Any]]) -> None:
    """Two samples of continuations of one prompt, compared by chi-square for each position (1e-6 false alarms a check)."""
    num_requests = 1500
    sampling = [SamplingParams(max_tokens=4, temperature=0.7, top_k=6, seed=seed, ignore_eos=True) for seed in range(num_requests)]
    prompts = [[5, 6, 7, 8]] * num_requests
    options = {"max_concurrency": 64, "max_total_tokens": 8192}
    drafted = decode(make_core(model, **{**drafts[name], **options}), prompts, sampling)
    others = [replace(params, seed=num_requests + index) for index, params in enumerate(sampling)]
    plain = decode(make_core(model, speculative_algorithm="NONE", **options), prompts, others)
    assert drafted.num_accepted > (100 if name.startswith("STANDALONE") else -1)
    for position in range(4):
        tables = [Counter(tokens[position] for tokens in one.token_ids) for one in (drafted, plain)]
        common = [token_id for token_id, count in (tables[0] + tables[1]).items() if count >= 20]
        rows = [[table[token_id] for token_id in common] + [num_requests - sum(table[token_id] for token_id in common)] for table in tables]
        columns = [column for column in zip(*rows, strict=True) if sum(column) > 0]
        assert stats.chi2_contingency(np.asarray(columns)).pvalue > 1e-6, (position, columns)


@pytest.mark.parametrize("tp_size", [2, 3])
def test_ranks_do_not_change_a_token(tp_size: int, model: Path, drafts: dict[str, dict[str, Any]]) -> None:
    """Sums over ranks differ in the last bit from one rank's: with these seeds no draw lies that near to its border."""
    calls: list[tuple[SamplingParams, dict[str, Any]]] = [
        (SAMPLED, {**drafts[name], "hot_placement": placement})
        for name in ("EAGLE tree", "STANDALONE tree")
        for placement in ("balanced", "replicated", "owner")
    ]
    calls += [(FILTERED, drafts["STANDALONE chain"]), (replace(SAMPLED, top_k=9), drafts["EAGLE chain"])]
    per_rank = run_on_ranks(decode_on_rank, tp_size, str(model), PROMPTS, calls)
    for index, (sampling, options) in enumerate(calls):
        alone = run(model, options, sampling)
        assert alone.num_drafted > 0
        for decoded in per_rank:
            assert decoded[index] == alone, (options, sampling)


def test_a_draft_model_that_is_the_target_is_kept_at_any_temperature(model: Path, drafts: dict[str, dict[str, Any]]) -> None:
    """Where p = q little is rejected: the hot vocabulary is the whole one here."""
    options = {**drafts["STANDALONE chain"], "speculative_token_map": None}
    decoded = run(model, options, replace(SAMPLED, max_tokens=40, temperature=0.3, ignore_eos=True))
    # The tiny target's head has padding rows, with random weights like the others, that no draft can name.
    assert decoded.num_accepted > 0.85 * decoded.num_drafted
