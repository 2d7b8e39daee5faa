"""`hothead map size`: which hot size gives the most tokens per second."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hothead.cli import notes, prompts
from hothead.cli.lazy import Command
from hothead.cli.map import corpus
from hothead.cli.options import options, sources
from hothead.cli.text import as_columns
from hothead.config.corpus import CorpusConfig
from hothead.config.map_size import MapSizeConfig
from hothead.errors import OptionError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from hothead.bench.map_size import Drafting, SizeRow
    from hothead.bench.run_figures import RunFigures
    from hothead.models.catalog import ModelFiles
    from hothead.models.config import ModelConfig
    from hothead.models.tokenizer import Tokenizer
    from hothead.vocab.token_map import TokenMap

CONFIGS = (MapSizeConfig, CorpusConfig)
_MEASURED_TOKENS = 128
_OWN_PROMPTS = (
    "Explain how a refrigerator keeps food cold.",
    "Write a short letter to a friend about a rainy holiday.",
    "A train leaves at 9:40 and arrives at 13:05. How long is the journey?",
    "List five ways to save water at home, with a sentence on each.",
    "Write a Python function that returns the second largest number of a list.",
    "What is the difference between weather and climate?",
    "Describe a market square early in the morning.",
    "Give me arguments for and against working from home.",
)


@click.command(cls=Command, epilog="Example: hothead map size map.safetensors --corpus logs.jsonl --plot size.png")
@click.argument("file", metavar="[MAP]", type=click.Path(path_type=Path), required=False)
@options(*CONFIGS)
@click.pass_context
def size(ctx: click.Context, file: Path | None) -> None:
    """Predict tokens per second for hot sizes of the token map MAP, and recommend one.

    The head's time at each size is measured here; how often a token is hot comes from a corpus; how often the drafter
    is right comes from a run. MAP may be left out for a model that ships with one.
    """
    given = sources(ctx, *CONFIGS)
    config, corpus_config = given.fill(MapSizeConfig), given.fill(CorpusConfig)
    from hothead.bench.map_size import best, predict
    from hothead.models.catalog import resolve_model
    from hothead.models.config_files import load_config
    from hothead.models.tokenizer import Tokenizer
    from hothead.vocab.token_map import TokenMap

    model = resolve_model(corpus_config.model_path, corpus_config.cache_dir)
    model_config, tokenizer = load_config(model.path), Tokenizer.load(model.path)
    map_path = file or _shipped_map(model)
    token_map = TokenMap.load(map_path)
    token_map.check_tokenizer(tokenizer, f"token map '{map_path.name}'")
    token_map.validate_for(tokenizer.vocab_size, model.name, f"token map '{map_path.name}'")
    vocab_size = tokenizer.vocab_size
    sizes = _sizes(config, token_map, vocab_size)
    counts, counts_name = _counts(corpus_config, tokenizer, token_map, model.path)
    drafting, drafting_name, run = _drafting(config, corpus_config, token_map, counts, vocab_size, file)
    head_times = _head_times(config, model_config, sizes, vocab_size, run, drafting.at)
    rows = predict(drafting, head_times, token_map, counts)
    chosen = best(rows)
    answer = {
        "map": str(map_path),
        "counts": counts_name,
        "drafter": drafting_name,
        "step_without_head_ms": 1000 * drafting.other_s,
        "rows": [_as_json(row) for row in rows],
        "best_size": chosen.size,
        "is_full_head_best": chosen.size >= vocab_size,
    }
    if config.plot is not None:
        from hothead.bench.map_plots import plot_sizes

        plot_sizes(config.plot, rows, chosen.size, vocab_size)
    click.echo(json.dumps(answer, ensure_ascii=False, indent=2) if config.json else _as_text(answer, rows, chosen, vocab_size))


def _shipped_map(model: ModelFiles) -> Path:
    from hothead.models.catalog import shipped_draft

    folder = shipped_draft(model.catalog_name)
    if folder is None:
        raise OptionError(f"No token map ships for {model.name}.", advice="Give one: hothead map size MAP --model ...")
    return folder / "token_map.safetensors"


def _sizes(config: MapSizeConfig, token_map: TokenMap, vocab_size: int) -> list[int]:
    from hothead.vocab.coverage import usual_sizes

    asked = config.size_list
    if asked is None:
        return sorted({*usual_sizes(len(token_map)), vocab_size})
    bad = [one for one in asked if one > vocab_size]
    if bad:
        raise OptionError(f"A hot size of {bad[0]} is more than the {vocab_size} tokens of the vocabulary.", advice="Give smaller --sizes.")
    return asked


def _counts(config: CorpusConfig, tokenizer: Tokenizer, token_map: TokenMap, tokenizer_path: Path) -> tuple[npt.NDArray[np.int64], str]:
    """Counts [V] to take hit rates from, and what they are."""
    import numpy as np

    counted = corpus.count(config, tokenizer_path)
    given = [counts.counts for counts in corpus.load_counts(config, tokenizer)]
    if counted is not None:
        given.append(counted.total.counts)
    if given:
        total: npt.NDArray[np.int64] = np.sum(given, axis=0)
        return total, " ".join([*map(str, config.counts), *config.corpus])
    if token_map.counts is None:
        raise OptionError(
            "The token map has no counts, so nothing tells how often its tokens occur.",
            advice="Give a text: --corpus NAME or --counts FILE.",
        )
    own = np.zeros(tokenizer.vocab_size, np.int64)
    own[token_map.token_ids] = token_map.counts
    notes.note("hit rates are of the map's own counts, which know no token outside it; --corpus or --counts of your traffic tells more.")
    return own, "the map's own counts"


def _drafting(
    config: MapSizeConfig,
    corpus_config: CorpusConfig,
    token_map: TokenMap,
    counts: npt.NDArray[np.int64],
    vocab_size: int,
    file: Path | None,
) -> tuple[Drafting, str, RunFigures | None]:
    from hothead.bench.map_size import drafting_by_assumption, drafting_of_run
    from hothead.bench.run_figures import RunFigures, measure_run
    from hothead.config.engine import EngineConfig
    from hothead.vocab.coverage import hit_rates

    if config.tokens_per_step is not None:
        assert config.step_ms is not None
        hit_rate = hit_rates(token_map, counts, [len(token_map)])[0]
        if not hit_rate > 0:
            raise OptionError(
                "No token of the corpus is in the token map, so nothing can be drafted.",
                advice="Give a corpus of the model's language, or the map that was built for this model.",
            )
        drafting = drafting_by_assumption(
            config.tokens_per_step, config.num_steps, config.step_ms / 1000, hit_rate, len(token_map), vocab_size
        )
        return drafting, f"assumed: {config.tokens_per_step:g} tokens per step, right equally often for every hot token", None
    if config.run is not None:
        run, name = RunFigures.load(config.run), str(config.run)
    else:
        found = None if config.prompts is None else [one.text for one in prompts.from_file(str(config.prompts)) if one.text is not None]
        engine_config = EngineConfig(
            model_path=corpus_config.model_path,
            cache_dir=corpus_config.cache_dir,
            speculative_draft_model_path=config.draft,
            speculative_token_map=None if file is None else str(file),
            num_threads=config.num_threads,
            max_concurrency=1,
        )
        asked = found if found is not None else list(_OWN_PROMPTS)
        notes.line(f"running {len(asked)} prompts of at most {_MEASURED_TOKENS} new tokens")
        run = measure_run(engine_config, asked, _MEASURED_TOKENS)
        name = f"a run of {len(asked)} prompts"
    hot_size = config.run_hot_size or len(token_map)
    figures = f"{run.tokens_per_step:.2f} tokens per step, {run.tokens_per_s:.1f} tokens/s of its steps, at H = {hot_size}"
    return drafting_of_run(run, token_map, min(hot_size, vocab_size), vocab_size), f"{name}: {figures}", run


def _head_times(
    config: MapSizeConfig, model_config: ModelConfig, sizes: list[int], vocab_size: int, run: RunFigures | None, run_size: int
) -> dict[int, float]:
    """Seconds of the head in one verify step, by hot size."""
    from hothead.bench.head_times import measure_head_times, read_head_times, write_head_times

    if config.head_times is not None:
        times = read_head_times(config.head_times)
        if config.sizes is not None:
            missing = [one for one in sizes if one not in times]
            if missing:
                raise OptionError(
                    f"'{config.head_times}' has no time for the hot size {missing[0]}.", f"It has {', '.join(map(str, sorted(times)))}."
                )
            times = {one: times[one] for one in sizes}
        if max(times) > vocab_size:
            raise OptionError(f"'{config.head_times}' has a hot size of {max(times)}, and the vocabulary has {vocab_size} tokens.")
        return times
    import torch

    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    notes.line(f"measuring the head of {model_config.hidden_size} columns at {len(sizes)} sizes")
    times = measure_head_times(vocab_size, model_config.hidden_size, sorted({*sizes, run_size}))
    if run is not None:
        # The run knows what its own head took in a step; the measured times say how that changes with the size.
        times = {one: seconds * run.draft_head_s / times[run_size] for one, seconds in times.items()}
    times = {one: times[one] for one in sizes}
    if config.write_head_times is not None:
        write_head_times(times, config.write_head_times)
    return times


def _as_json(row: SizeRow) -> dict[str, Any]:
    return {
        "size": row.size,
        "hit_rate": row.hit_rate,
        "head_ms": 1000 * row.head_s,
        "tokens_per_step": row.tokens_per_step,
        "tokens_per_s": row.tokens_per_s,
    }


def _as_text(answer: dict[str, Any], rows: list[SizeRow], chosen: SizeRow, vocab_size: int) -> str:
    table = [["H", "hit rate", "head ms", "tokens per step", "tokens/s", ""]]
    for row in rows:
        name = f"{row.size} (full)" if row.size >= vocab_size else str(row.size)
        mark = "<- best" if row is chosen else ""
        cells = [f"{100 * row.hit_rate:.2f} %", f"{1000 * row.head_s:.2f}", f"{row.tokens_per_step:.2f}", f"{row.tokens_per_s:.1f}", mark]
        table.append([name, *cells])
    near = [str(row.size) for row in rows if row is not chosen and row.tokens_per_s > 0.99 * chosen.tokens_per_s]
    advice = (
        "The full head is best: use no map (--map none)."
        if answer["is_full_head_best"]
        else f"Use --hot-size {chosen.size}." + (f" Within 1 % of it: {', '.join(near)}." if near else "")
    )
    other_ms = 1000 * rows[0].head_s
    return "\n".join(
        [
            f"map:     {answer['map']}",
            f"corpus:  {answer['counts']}",
            f"drafter: {answer['drafter']}",
            "",
            as_columns(table),
            "",
            "tokens/s = tokens per step / (step without head + head); for the first row "
            f"{rows[0].tokens_per_step:.2f} / ({answer['step_without_head_ms']:.2f} ms + {other_ms:.2f} ms).",
            "tokens per step = 1 + sum over depths d of (share of steps that kept d draft tokens in the run) * (a / a of the run) ^ d,",
            "a = sum over bands of rank in the map, up to H, of (share of the corpus) * (how often the run's drafter was right there).",
            "",
            advice,
        ]
    )
