"""A run that stops, by a kill or by Ctrl-C, goes on as if it had not."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

from hothead.config.option import replace
from hothead.errors import CheckpointError
from hothead.train import checkpoint
from hothead.train.checkpoint import Progress
from hothead.train.config import TrainEagleConfig
from hothead.train.eagle_trainee import eagle_trainee
from hothead.train.loop import StepReport, make_optimizer, train
from hothead.train.network import EagleHead, RotaryTables

from .tiny import SHAPE, make_documents, make_network, make_source

CONFIG = TrainEagleConfig(
    num_steps=14, num_unrolled=3, batch_tokens=64, max_length=60, warmup_steps=3, learning_rate=3e-3, checkpoint_minutes=1e-9
)
ROTARY = RotaryTables.plain(64, SHAPE.head_dim, 10000.0, torch.float32)


def run(folder: Path, config: TrainEagleConfig = CONFIG, stop_at: int | None = None, how: str = "") -> tuple[EagleHead, list[StepReport]]:
    training = make_source(make_documents(16), folder)
    held_out = make_source(make_documents(4, seed=9), folder)
    network = make_network()
    reports: list[StepReport] = []

    def on_step(report: StepReport) -> None:
        reports.append(report)
        if report.num_steps == stop_at:
            if how == "kill":
                raise SystemError("killed")
            signal.raise_signal(signal.SIGINT)

    train(config, eagle_trainee(config, network, training, held_out, ROTARY), folder / "checkpoint.safetensors", on_step)
    return network, reports


def test_the_loss_falls_and_chains_get_longer(tmp_path: Path) -> None:
    _, reports = run(tmp_path, replace(CONFIG, num_steps=60))
    assert reports[-1].cross_entropy < 0.6 * reports[0].cross_entropy
    first, last = reports[0].evaluation, reports[-1].evaluation
    assert first is not None
    assert last is not None
    assert last.tokens_per_step > first.tokens_per_step
    assert reports[-1].learning_rate < 0.01 * max(report.learning_rate for report in reports)


@pytest.mark.parametrize("how", ["kill", "interrupt"])
def test_a_stopped_run_gives_the_same_weights(tmp_path: Path, how: str) -> None:
    whole, whole_reports = run(tmp_path / "whole")
    error = SystemError if how == "kill" else KeyboardInterrupt
    with pytest.raises(error):
        run(tmp_path / "stopped", stop_at=6, how=how)
    resumed, reports = run(tmp_path / "stopped")
    assert [report.num_steps for report in reports][-1] == 14
    assert len(reports) == 8
    assert [report.cross_entropy for report in reports] == [report.cross_entropy for report in whole_reports[6:]]
    for (name, one), (_, other) in zip(whole.named_parameters(), resumed.named_parameters(), strict=True):
        assert torch.equal(one, other), name


def test_interrupt_saves_although_no_checkpoint_was_due(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, replace(CONFIG, checkpoint_minutes=60.0), stop_at=5, how="interrupt")
    network = make_network()
    optimizer = make_optimizer(CONFIG, network)
    with pytest.raises(CheckpointError, match="other data"):
        checkpoint.load(tmp_path / "checkpoint.safetensors", network, optimizer, "another key")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    _, reports = run(tmp_path)
    assert reports[0].num_steps == 6
    assert len(reports) == 9


def test_other_options_or_data_are_refused(tmp_path: Path) -> None:
    run(tmp_path)
    with pytest.raises(CheckpointError, match="other data"):
        run(tmp_path, replace(CONFIG, seed=5))
    _, reports = run(tmp_path, replace(CONFIG, num_steps=16))  # a longer budget is fine
    assert len(reports) == 2


def test_damaged_checkpoints_are_refused(tmp_path: Path) -> None:
    network = make_network()
    optimizer = make_optimizer(CONFIG, network)
    path = tmp_path / "checkpoint.safetensors"
    checkpoint.save(path, network, optimizer, Progress(3), "key")
    assert checkpoint.load(path, network, optimizer, "key").num_steps == 3
    assert [one.name for one in tmp_path.iterdir()] == ["checkpoint.safetensors"]
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoint.load(path, network, optimizer, "key")
    checkpoint.write_safetensors(path, {"x": torch.zeros(1)}, {})
    with pytest.raises(CheckpointError, match="no training checkpoint"):
        checkpoint.load(path, network, optimizer, "key")
