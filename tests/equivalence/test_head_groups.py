"""The hot head and the target's choices in every group that a launch can make, against one rank: real gloo processes.

Weights and hidden states are small whole numbers: sums are exact in any order, and equal scores are as common as in bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.ranks import run_on_ranks

from hothead.config.sampling import SamplingParams
from hothead.parallel.attention_dp import HeadRanks
from hothead.parallel.full_head import VocabHead
from hothead.parallel.groups import RankGroup, SingleRank
from hothead.parallel.hot_head import HotHead
from hothead.parallel.layout import ParallelConfig, head_layout
from hothead.parallel.partition import PLACEMENTS, VocabShards
from hothead.verify.choose import ChoiceRow, choose_tokens
from hothead.verify.noise import gumbel

D = 16
K = 5
SAMPLINGS = [
    SamplingParams(),
    SamplingParams(temperature=0.7, seed=1),
    SamplingParams(temperature=1.3, top_k=20, seed=2),
    SamplingParams(temperature=1.0, min_p=0.05, seed=3),
    SamplingParams(temperature=1.0, top_p=0.8, seed=4),
]


@dataclass(frozen=True)
class Case:
    """A head in a launch. family: a key of the layout tables. num_hot: H."""

    vocab_size: int
    num_hot: int
    parallel: ParallelConfig
    family: str = "llama"
    is_tied: bool = False
    placement: str = "balanced"
    is_bf16: bool = False
    offset: float = 0.0
    """Added to every score through a constant feature: all real scores can be very negative."""


def rows_of(token_ids: np.ndarray, case: Case) -> torch.Tensor:
    """Rows of the head by token id: no table of the whole vocabulary is needed. The last feature is constant."""
    ids, features = np.asarray(token_ids, np.int64)[:, None], np.arange(D - 1)[None]
    rows = ((ids * 7919 + features * 104729 + ids * features) % 7 - 3).astype(np.float32)
    weight = torch.from_numpy(np.concatenate([rows, np.ones((len(rows), 1), np.float32)], 1))
    return weight.bfloat16() if case.is_bf16 else weight


def hidden_of(dp_rank: int, case: Case) -> torch.Tensor:
    """Each attention group has requests of its own, and another number of them."""
    generator = torch.Generator().manual_seed(dp_rank)
    hidden = torch.randint(-2, 3, (3 + dp_rank, D), generator=generator).float()
    hidden[:, -1] = case.offset
    return hidden


def hot_token_ids(case: Case) -> np.ndarray:
    return np.random.default_rng(case.num_hot).permutation(case.vocab_size)[: case.num_hot].astype(np.int64)


Found = dict[str, Any]


def look(case: Case, ranks: HeadRanks, shards: VocabShards) -> Found:
    """What this rank sees of its own rows."""
    group = ranks.group
    own = hidden_of(ranks.dp_rank, case)
    hidden, mine = ranks.gather_rows(own)
    head = HotHead.build(lambda ids: rows_of(ids, case), hot_token_ids(case), group, case.placement, case.vocab_size)
    num_wanted = min(K, case.num_hot)
    before = group.num_bytes
    best = head.candidates(hidden, num_wanted)
    # The row's number in its own group keys the noise, so that a gathered row is the same row.
    place = torch.cat([torch.arange(3 + number) for number in range(8)])[: len(hidden)] if ranks.across else torch.arange(len(hidden))
    drawn = head.draw(hidden, num_wanted, noise=lambda ids: gumbel([9] * len(hidden), place.tolist(), ids))
    traffic = (group.num_bytes - before) / max(1, 2 * len(hidden))
    assert traffic <= 16 * num_wanted * group.size + 64, (traffic, group.size)
    start, stop = shards.range(group.rank)
    dtype = torch.bfloat16 if case.is_bf16 else torch.float32
    dtype = torch.bfloat16 if case.is_bf16 else torch.float32
    logits = VocabHead(rows_of(np.arange(start, stop), case), shards, group).logits(hidden.to(dtype))
    choices = []
    for sampling in SAMPLINGS:
        before = group.num_bytes
        rows = [ChoiceRow(sampling, sampling.seed or 0, int(number)) for number in place]
        choices.append(choose_tokens(logits, rows)[mine].tolist())
        # Whole rows are gathered for top-p only, and then once.
        pairs = 16 * 21 * len(hidden) * group.size
        whole_rows = 4 * len(hidden) * shards.padded_rows if sampling.top_p < 1 else 0
        assert group.num_bytes - before <= pairs + whole_rows, sampling
    return {
        "best": best.token_ids[mine].tolist(),
        "best_log_probs": best.log_probs[mine].tolist(),
        "drawn": drawn.token_ids[mine].tolist(),
        "drawn_log_probs": drawn.log_probs[mine].tolist(),
        "choices": choices,
    }


def look_on_rank(group: RankGroup, cases: list[Case]) -> list[Found]:
    torch.set_num_threads(1)
    found = []
    for case in cases:
        layout = head_layout(case.family, case.parallel, case.vocab_size, is_tied=case.is_tied)
        found.append(look(case, HeadRanks.make(layout, case.parallel), layout.shards))
    return found


def alone(case: Case, dp_rank: int) -> Found:
    return look(case, HeadRanks(SingleRank(), dp_rank, None), VocabShards(case.vocab_size))


def dp(tp_size: int, dp_size: int, *, lm_head: bool) -> ParallelConfig:
    return ParallelConfig(tp_size, dp_size, enable_dp_attention=True, enable_dp_lm_head=lm_head)


def cases_of(tp_size: int) -> list[Case]:
    plain = ParallelConfig(tp_size)
    cases = [
        *(Case(1010, 301, plain, placement=placement) for placement in PLACEMENTS),
        *(Case(1010, 1010, plain, placement=placement) for placement in PLACEMENTS),  # H = V
        *(Case(1010, max(1, tp_size - 1), plain, placement=placement) for placement in PLACEMENTS),  # fewer rows than ranks
        Case(1010, 301, plain, is_bf16=True),
        Case(1010, 301, plain, offset=-1e4),  # a padded row at 0 would win
        Case(32000, 997, plain, is_tied=True),
        Case(32002, 997, plain, family="qwen2"),
    ]
    if tp_size == 2:
        cases += [Case(248077, 4099, plain), Case(151669, 4099, plain, family="qwen3", is_tied=True)]
    if tp_size == 4:
        cases.append(Case(151669, 997, plain, family="qwen3"))
    for dp_size in {4: (2, 4), 8: (2,)}.get(tp_size, ()):
        for lm_head in (False, True):
            for family, is_tied in (("llama", False), ("llama", True), ("qwen2", True), ("qwen3", False)):
                cases.append(Case(1010, 301, dp(tp_size, dp_size, lm_head=lm_head), family, is_tied))
            cases.append(Case(1010, 3, dp(tp_size, dp_size, lm_head=lm_head), placement="owner"))
    return cases


@pytest.mark.case(1, 2, 3, 22)
@pytest.mark.parametrize("tp_size", [1, 2, 3, 4, 8])
def test_every_group_gives_what_one_rank_gives(tp_size: int) -> None:
    """Candidates, draws and choices: the same tokens exactly, log-probabilities to 1e-5 in float32 (1e-2 with weights in bfloat16)."""
    cases = cases_of(tp_size)
    per_rank = run_on_ranks(look_on_rank, tp_size, cases)
    for number, case in enumerate(cases):
        for rank, found in enumerate(results[number] for results in per_rank):
            expected = alone(case, rank // case.parallel.attn_tp_size)
            for name in ("best", "drawn", "choices"):
                assert found[name] == expected[name], (case, rank, name)
            for name in ("best_log_probs", "drawn_log_probs"):
                np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-2 if case.is_bf16 else 1e-5)


@pytest.mark.parametrize(
    "case", [Case(1010, 301, ParallelConfig()), Case(1010, 1010, ParallelConfig(), is_bf16=True)], ids=["float32", "bf16"]
)
def test_one_rank_gives_what_sorting_gives(case: Case) -> None:
    """The oracle itself, against plain sorting: by score, then by lower token id."""
    found = alone(case, 0)
    hidden = hidden_of(0, case)
    ids = np.sort(hot_token_ids(case))
    scores = (hidden.bfloat16().float() if case.is_bf16 else hidden) @ rows_of(ids, case).float().T
    scores = scores.bfloat16().float() if case.is_bf16 else scores
    for row, scores_of_row in enumerate(scores.numpy()):
        order = np.lexsort((ids, -scores_of_row))
        assert found["best"][row] == ids[order[:K]].tolist()
        assert (np.diff(scores_of_row[order[:K]]) == 0).any(), "ties are really there"
    full = hidden @ rows_of(np.arange(case.vocab_size), case).float().T
    assert found["choices"][0] == full.argmax(1).tolist()


def test_groups_of_another_size_than_the_launch_s_are_refused() -> None:
    with pytest.raises(Exception, match="4 ranks are needed, and 2 are there"):
        run_on_ranks(look_on_rank, 2, [Case(1010, 11, ParallelConfig(4))])
