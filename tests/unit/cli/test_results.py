from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.unit.cli.conftest import FakeCompletion, stats_of

from hothead.cli.results import Figures, as_json

if TYPE_CHECKING:
    from hothead.engine import Completion


def completion(num_tokens: int, **changes: Any) -> Completion:
    """A finished request of so many tokens, its figures changed as given."""
    stats = replace(stats_of(num_tokens), **changes)
    return cast("Completion", FakeCompletion("x", tuple(range(num_tokens)), "length", stats))


def test_rates_are_weighted_by_what_they_are_rates_of() -> None:
    first = completion(10, num_steps=5, accepted_by_depth=[0.8, 0.4], hot_hit_rate=1.0)
    second = completion(30, num_steps=15, accepted_by_depth=[0.4], hot_hit_rate=0.8)
    figures = Figures.of([first, second], wall_s=2.0)
    assert (figures.num_requests, figures.num_tokens, figures.tokens_per_s, figures.tokens_per_step) == (2, 40, 20.0, 2.0)
    assert figures.accepted_by_depth == pytest.approx((0.5, 0.4))
    assert figures.hot_hit_rate == pytest.approx(0.85)


def test_requests_that_shared_steps_do_not_count_the_time_twice() -> None:
    stage_s = {"draft": 1.0, "draft_head": 0.5, "verify": 2.0, "other": 0.5}
    figures = Figures.of([completion(10, stage_s=stage_s), completion(10, stage_s=stage_s)], wall_s=4.0)
    assert figures.stage_s == stage_s
    alone = Figures.of([completion(10, stage_s=stage_s)], wall_s=1.0)
    assert alone.stage_s == stage_s


def test_figures_that_do_not_exist_are_left_out() -> None:
    nothing = {"hot_hit_rate": None, "accepted_by_depth": [], "ttft_s": None, "decode_tokens_per_s": None}
    line = Figures.of([completion(1, **nothing, tokens_per_step=1.0, num_steps=1)], wall_s=1.0).line()
    assert line == "1 token | 1.00 tokens per step | draft 0.10 s, draft head 0.20 s, verify 0.30 s, other 0.40 s"


def test_json_writes_null_for_what_does_not_exist() -> None:
    record = json.loads(as_json(completion(1, hot_hit_rate=None, ttft_s=None, decode_tokens_per_s=None)))
    assert record["hot_hit_rate"] is record["ttft_s"] is record["decode_tokens_per_s"] is None
