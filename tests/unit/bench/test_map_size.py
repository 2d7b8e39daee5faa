"""The prediction of the best hot size: right where it can be checked by counting, monotone, and refused where it has no ground."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hothead.bench.head_times import measure_head_times, read_head_times, write_head_times
from hothead.bench.map_size import Drafting, band_of, best, drafting_by_assumption, drafting_of_run, predict, ranks_of
from hothead.bench.run_figures import RunFigures
from hothead.errors import DataError, OptionError
from hothead.vocab.token_map import TokenMap

V = 1024
MAP = TokenMap(np.arange(V)[::-1].copy())
COUNTS = np.arange(1, V + 1) ** 2


def run_of(step_sizes: list[int], token_ids: list[int], seconds: float = 0.01) -> RunFigures:
    stage_s = dict.fromkeys(("draft", "draft_head", "verify", "other"), seconds * len(step_sizes))
    return RunFigures.of_records([{"token_ids": token_ids, "step_sizes": step_sizes, "stage_s": stage_s}], "test")


def test_a_run_is_read_from_what_generate_prints(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    stage_s = {"draft": 0.3, "draft_head": 0.2, "verify": 1.0, "other": 0.1}
    row = {"text": "x", "token_ids": [5, 6, 7], "step_sizes": [2, 1], "stage_s": stage_s}
    path.write_text(json.dumps(row) + "\n\n" + json.dumps(row) + "\n")
    run = RunFigures.load(path)
    assert (run.num_steps, run.tokens_per_step, run.is_drafted) == (4, 1.5, (True, False, False) * 2)
    assert (run.draft_s, run.verify_s) == (0.15, 0.5)
    assert run.tokens_per_s == pytest.approx(1.5 / 0.8)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "cannot be read"),
        ('{"token_ids": [1]}', "line 1 is not from a run"),
        ('{"token_ids": [1], "step_sizes": [2], "stage_s": {"draft": 0, "draft_head": 0, "verify": 0, "other": 0}}', "emitted 2 tokens"),
        ('{"token_ids": [], "step_sizes": [], "stage_s": {"draft": 0, "draft_head": 0, "verify": 0, "other": 0}}', "no verify step"),
        ("", "no verify step"),
    ],
)
def test_what_is_no_run(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "run").write_text(content)
    with pytest.raises(DataError, match=said):
        RunFigures.load(tmp_path / "run")


def test_at_the_size_of_the_run_the_run_is_predicted() -> None:
    generator = np.random.default_rng(0)
    sizes = generator.integers(1, 5, 2000).tolist()
    run = run_of(sizes, generator.integers(0, V, sum(sizes)).tolist())
    drafting = drafting_of_run(run, MAP, 512, V)
    (row,) = predict(drafting, {512: run.draft_head_s}, MAP, COUNTS)
    assert row.tokens_per_step == pytest.approx(run.tokens_per_step)
    assert row.tokens_per_s == pytest.approx(run.tokens_per_s)


def test_a_drafter_that_is_never_right_on_rare_tokens_gains_nothing_from_their_rows() -> None:
    frequent, rare = V - 1, 0
    run = run_of([2] * 200 + [1] * 200, [frequent, frequent] * 200 + [rare] * 200)
    drafting = drafting_of_run(run, MAP, V, V)
    assert drafting.rates[-2] == 0.0
    rows = predict(drafting, {512: 0.001, V: 0.001}, MAP, COUNTS)
    assert rows[0].tokens_per_step == pytest.approx(rows[1].tokens_per_step)
    assert best(rows).size == 512, "of equals the smaller"


def test_the_full_head_is_best_where_heads_cost_nothing_and_a_small_one_where_they_are_dear() -> None:
    drafting = drafting_by_assumption(2.5, 5, 0.02, 0.9, 512, V)
    assert best(predict(drafting, dict.fromkeys((64, 256, V), 1e-6), MAP, COUNTS)).size == V
    assert best(predict(drafting, {64: 1e-3, 256: 0.5, V: 5.0}, MAP, COUNTS)).size == 64


@given(tokens_per_step=st.floats(1.05, 5.5), hit_rate=st.floats(0.5, 1.0), sizes=st.sets(st.integers(1, V), min_size=2, max_size=8))
def test_more_hot_tokens_never_accept_less(tokens_per_step: float, hit_rate: float, sizes: set[int]) -> None:
    drafting = drafting_by_assumption(tokens_per_step, 5, 0.02, hit_rate, 512, V)
    rows = predict(drafting, dict.fromkeys(sizes, 0.001), MAP, COUNTS)
    assert [row.size for row in rows] == sorted(sizes)
    for smaller, larger in itertools.pairwise(rows):
        assert 1 <= smaller.tokens_per_step <= larger.tokens_per_step + 1e-9 <= 6 + 1e-6
        assert smaller.hit_rate <= larger.hit_rate + 1e-12


@given(st.floats(1.05, 5.9))
def test_an_assumption_is_met_at_its_own_size(tokens_per_step: float) -> None:
    drafting = drafting_by_assumption(tokens_per_step, 5, 0.02, 0.9, 512, V)
    (row,) = predict(drafting, {512: 0.001}, MAP, COUNTS)
    assert row.tokens_per_step == pytest.approx(tokens_per_step, rel=1e-6)


def test_assumptions_that_cannot_be() -> None:
    with pytest.raises(OptionError, match="6 tokens per step cannot come from 5 draft steps"):
        drafting_by_assumption(6, 5, 0.02, 0.9, 512, V)


def test_ranks_and_bands() -> None:
    token_map = TokenMap(np.array([3, 1]))
    assert ranks_of(token_map, 5).tolist() == [2, 1, 3, 0, 4]
    assert band_of(np.array([0, 63, 64, 127, 128, 8191, 8192])).tolist() == [0, 0, 1, 1, 2, 7, 8]
    assert best(predict(Drafting(np.zeros(9), (), 2, 0.1), {1: 0.1}, token_map, np.ones(5, np.int64))).tokens_per_step == 1.0


def test_head_times_grow_with_the_size_and_survive_a_file(tmp_path: Path) -> None:
    times = measure_head_times(20_000, 256, [64, 20_000], dtype=torch.float32, num_rounds=9)
    assert times[20_000] > times[64] > 0
    write_head_times(times, tmp_path / "times")
    assert read_head_times(tmp_path / "times") == times
    (tmp_path / "times").write_text("hot size,seconds\n1024,0.5\n2048, 1e-3\n")
    assert read_head_times(tmp_path / "times") == {1024: 0.5, 2048: 0.001}


@pytest.mark.parametrize("content", ["", "{}", '{"a": 1}', '{"1": -1}', "{", "1,x", '{"1": null}', '{"0": 1.0}'])
def test_what_is_no_table_of_head_times(tmp_path: Path, content: str) -> None:
    (tmp_path / "times").write_text(content)
    with pytest.raises(DataError, match="head times"):
        read_head_times(tmp_path / "times")
