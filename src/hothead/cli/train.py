"""`hothead train`: draft heads for a target."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from hothead import __version__
from hothead.cli import notes
from hothead.cli.lazy import Command, LazyGroup
from hothead.cli.options import options, sources
from hothead.config.engine import EngineConfig
from hothead.config.sampling import SamplingParams
from hothead.errors import OptionError
from hothead.train.config import TrainConfig, TrainEagle3Config, TrainEagleConfig

if TYPE_CHECKING:
    from hothead.train.loop import StepReport

REPORT_S = 30.0
"""Seconds between lines of progress where there is no evaluation."""


@click.group("train", cls=LazyGroup)
def train_group() -> None:
    """Train draft heads."""


@train_group.command(
    cls=Command, epilog="Example: hothead train eagle --prompts prompts.jsonl --output my-head, then: hothead generate --draft my-head ..."
)
@options(TrainEagleConfig)
@click.pass_context
def eagle(ctx: click.Context) -> None:
    """Train an EAGLE draft head and count its token map.

    The target answers --prompts first, or its --responses are given. The output folder is what --draft takes. An interrupted run
    goes on where it stopped when the same command is given again.
    """
    _train(sources(ctx, TrainEagleConfig).fill(TrainEagleConfig))


@train_group.command(
    cls=Command, epilog="Example: hothead train eagle3 --prompts prompts.jsonl --output my-head, then: hothead generate --draft my-head ..."
)
@options(TrainEagle3Config)
@click.pass_context
def eagle3(ctx: click.Context) -> None:
    """Train an EAGLE-3 draft head with a reduced head of its own, and count its token map.

    The target answers --prompts first, or its --responses are given. The output folder is what --draft takes, in the authors' form of
    EAGLE-3 heads. An interrupted run goes on where it stopped when the same command is given again.
    """
    _train(sources(ctx, TrainEagle3Config).fill(TrainEagle3Config))


def _train(config: TrainConfig) -> None:
    if config.prompts is None and config.responses is None:
        raise OptionError(
            "There is nothing to train on.",
            advice="Give prompts that the target answers (--prompts FILE), or its own responses (--responses FILE).",
        )
    from hothead.models.catalog import resolve_model
    from hothead.models.required import required_token_ids
    from hothead.models.tokenizer import Tokenizer
    from hothead.train.eagle import train_eagle
    from hothead.train.eagle3 import train_eagle3
    from hothead.train.prepare import Callbacks, resolve_dtype
    from hothead.train.target import load_target

    files = resolve_model(config.model_path)
    is_eagle3 = isinstance(config, TrainEagle3Config)
    num_positions = config.max_length + config.num_unrolled
    target = load_target(files.path, files.name, resolve_dtype(config.dtype), num_positions, is_for_eagle3=is_eagle3)
    callbacks = Callbacks(_Lines("").stage, _Lines("training").step, lambda prompts: _responses(config, prompts), version=__version__)
    always_in = required_token_ids(Tokenizer.load(files.path))
    if isinstance(config, TrainEagle3Config):
        train_eagle3(config, target, callbacks, always_in)
    elif isinstance(config, TrainEagleConfig):
        train_eagle(config, target, callbacks, always_in)
    click.echo(config.output)


def _responses(config: TrainConfig, prompts: Sequence[str]) -> Iterator[tuple[int, Sequence[int], Sequence[int]]]:
    """The target's greedy responses: (index of the prompt, its token ids, the response's), as they are finished."""
    from hothead.engine import Engine
    from hothead.engine.responses import plain_config, respond

    sampling = SamplingParams(max_tokens=config.max_response_tokens)
    num_answered = 0
    with Engine(plain_config(EngineConfig(model_path=config.model_path, num_threads=config.num_threads))) as engine:
        for response in respond(engine, prompts, sampling, config.max_length - 1):
            num_answered += 1
            yield response
    if num_answered < len(prompts):
        notes.note(f"{len(prompts) - num_answered} of {len(prompts)} prompts have {config.max_length} tokens or more and are left out.")


def _by_depth(accuracy: Sequence[float]) -> str:
    return f"right by depth {' '.join(f'{share:.2f}' for share in accuracy)}, " if accuracy else ""


class _Lines:
    """Progress as lines on stderr, not more often than every REPORT_S seconds; an evaluation always has its line."""

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._clock = clock
        self._last_s = -math.inf

    def stage(self, what: str, num_done: int, num_all: int) -> None:
        if what != self._what:
            self._what, self._last_s = what, -math.inf
        if self._is_due() or num_done == num_all:
            notes.line(f"{what}: {num_done} of {num_all}")

    def step(self, report: StepReport) -> None:
        if not self._is_due() and report.evaluation is None:
            return
        notes.line(
            f"{self._what}: {report.share_done:.0%}, step {report.num_steps}, epoch {report.epoch + 1}, {report.elapsed_s / 60:.1f} min, "
            f"{report.left_s / 60:.0f} min left, cross-entropy {report.cross_entropy:.3f}, {_by_depth(report.accuracy)}"
            f"{report.tokens_per_s:.0f} tokens/s"
        )
        if report.evaluation is not None:
            accepted = " ".join(f"{share:.2f}" for share in report.evaluation.chain_acceptance)
            notes.line(
                f"  held out: {report.evaluation.tokens_per_step:.3f} tokens per step with chains, accepted by depth {accepted}, "
                f"hot hit rate {report.evaluation.hot_hit_rate:.3f}"
            )

    def _is_due(self) -> bool:
        now_s = self._clock()
        if now_s - self._last_s < REPORT_S:
            return False
        self._last_s = now_s
        return True
