from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hothead.cli.train import REPORT_S, _Lines
from hothead.train.loop import StepReport
from hothead.train.trainee import Evaluation

if TYPE_CHECKING:
    from tests.unit.cli.conftest import CommandLine


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "OptionError: There is nothing to train on.\n  Give prompts"),
        (["--prompts", "a", "--responses", "b"], "OptionError: --responses b and --prompts a exclude each other."),
        (["--prompts", "a", "--hot-size", "0"], "OptionError: --hot-size 0 is out of range."),
    ],
)
@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_bad_usage_is_refused(hothead: CommandLine, kind: str, arguments: list[str], expected: str) -> None:
    done = hothead("train", kind, *arguments)
    assert (done.code, done.out) == (2, "")
    assert expected in done.err


def test_progress_lines_are_rare_and_evaluations_are_always_told(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = [0.0]
    lines = _Lines("training", lambda: now_s[0])
    evaluation = Evaluation((2.0,), (0.5,), (0.5, 0.25), 1.75, 0.96)

    def report(num_steps: int, evaluation: Evaluation | None = None) -> StepReport:
        return StepReport(num_steps, 0, 60.0, 0.25, 2.5, 0.1, 1.0, 1e-3, 5000.0, evaluation)

    for num_steps in (1, 2):
        lines.step(report(num_steps))
    now_s[0] = REPORT_S
    lines.step(report(3))
    lines.step(report(4, evaluation))
    assert capsys.readouterr().err.splitlines() == [
        "training: 25%, step 1, epoch 1, 1.0 min, 3 min left, cross-entropy 2.500, 5000 tokens/s",
        "training: 25%, step 3, epoch 1, 1.0 min, 3 min left, cross-entropy 2.500, 5000 tokens/s",
        "training: 25%, step 4, epoch 1, 1.0 min, 3 min left, cross-entropy 2.500, 5000 tokens/s",
        "  held out: 1.750 tokens per step with chains, accepted by depth 0.50 0.25, hot hit rate 0.960",
    ]


def test_each_stage_has_its_first_and_its_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _Lines("", lambda: 0.0)
    for what in ("features", "distributions"):
        for num_done in (1, 2, 3):
            lines.stage(what, num_done, 3)
    assert capsys.readouterr().err.splitlines() == [
        "features: 1 of 3",
        "features: 3 of 3",
        "distributions: 1 of 3",
        "distributions: 3 of 3",
    ]
