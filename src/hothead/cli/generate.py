"""`hothead generate`: prompts in, text or JSON out, one line of figures."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from hothead.cli import notes, prompts, results
from hothead.cli.lazy import Command
from hothead.cli.options import options, sources
from hothead.config.engine import EngineConfig
from hothead.config.generate import GenerateConfig
from hothead.config.sampling import SamplingParams
from hothead.errors import OptionError, PromptError

if TYPE_CHECKING:
    from hothead.engine import Completion, Engine
    from hothead.records import StepOutput

CONFIGS = (GenerateConfig, SamplingParams, EngineConfig)


@click.command(cls=Command, epilog='Example: hothead generate "Explain gravity in two sentences." --max-tokens 64')
@click.argument("prompt", nargs=-1)
@options(*CONFIGS)
@click.pass_context
def generate(ctx: click.Context, prompt: tuple[str, ...]) -> None:
    """Generate text for each PROMPT.

    Text goes to stdout as it comes, figures to stderr. With several prompts each text is printed under a heading, in
    order, when all are done. Nothing has to be chosen: the default model comes with a draft head and a token map.
    """
    given = sources(ctx, *CONFIGS)
    config, sampling, engine_config = given.fill(GenerateConfig), given.fill(SamplingParams), given.fill(EngineConfig)
    # torchrun starts every process with the same command line and input: rank 0 reads, the others follow it.
    found = [] if _follows_another() else _read_prompts(prompt, config)
    for name in sampling.options_without_effect():
        notes.note(f"{sampling.said(name)} has no effect at temperature 0; add {sampling.label('temperature')}.")
    if engine_config.verification != "auto" and sampling.is_greedy:
        notes.note(f"{engine_config.said('verification')} has no effect at temperature 0: both rules give the most probable tokens.")
    _run(found, config, sampling, engine_config)


def _follows_another() -> bool:
    """Whether this is one of torchrun's processes and not the first; some clusters set RANK for other reasons."""
    rank, size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return rank.isdecimal() and size.isdecimal() and int(size) > 1 and int(rank) > 0


def _read_prompts(texts: Sequence[str], config: GenerateConfig) -> list[prompts.Prompt]:
    if not texts and config.prompts_file is None:
        raise OptionError(
            "There is no prompt.",
            advice='Give one in quotes, or --prompts-file FILE (- for standard input). "hothead generate --help" shows more.',
        )
    found = prompts.from_arguments(texts)
    if config.prompts_file is not None:
        found += prompts.from_file(config.prompts_file)
    if config.system is not None:
        num_own = sum(prompts.has_system(prompt) for prompt in found)
        if num_own:
            notes.note(f"{num_own} of {len(found)} prompts keep their own system message; {config.said('system')} is for the others.")
    return found


def _run(found: Sequence[prompts.Prompt], config: GenerateConfig, sampling: SamplingParams, engine_config: EngineConfig) -> None:
    from hothead.engine import Engine

    with Engine(engine_config) as engine:
        if not engine.is_leader:  # one of torchrun's other processes
            engine.follow()
            return
        encoded = [prompts.encode(prompt, engine.tokenizer, config.chat, config.system) for prompt in found]
        start = time.perf_counter()
        if len(found) == 1 and not config.json:
            done = engine.generate(encoded, sampling, on_output=_print_text)
            if not done[0].text.endswith("\n"):
                sys.stdout.write("\n")
        else:
            done = _run_many(engine, found, encoded, config, sampling)
        sys.stdout.flush()
        wall_s = time.perf_counter() - start
    notes.figures(results.Figures.of(done, wall_s).line())


def _run_many(
    engine: Engine, found: Sequence[prompts.Prompt], encoded: Sequence[list[int]], config: GenerateConfig, sampling: SamplingParams
) -> list[Completion]:
    """Each result is printed as soon as all before it are: what ends the run early costs what was not finished, and no more."""
    waiting = {}
    for number, (prompt, token_ids) in enumerate(zip(found, encoded, strict=True)):
        try:
            waiting[engine.add(token_ids, sampling)] = number
        except PromptError as error:
            raise PromptError(f"{prompt.source}: {error.what}", *error.details, advice=error.advice) from error
    done: list[Completion | None] = [None] * len(found)
    num_printed = 0
    with notes.progress("generating", len(found)) as advance:
        while waiting:
            for output in engine.step():
                if output.finish_reason is not None:
                    done[waiting.pop(output.request_id)] = engine.take(output.request_id)
                    advance()
            while num_printed < len(found) and (completion := done[num_printed]) is not None:
                title = f"### {num_printed + 1}. {found[num_printed].title}\n"
                print(results.as_json(completion) if config.json else f"{title}{completion.text.strip()}\n", flush=True)
                num_printed += 1
    return [completion for completion in done if completion is not None]


def _print_text(output: StepOutput) -> None:
    sys.stdout.write(output.text)
    sys.stdout.flush()
