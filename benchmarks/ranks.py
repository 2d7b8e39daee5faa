"""One process against two on one machine: tokens per second of the default model, and what collectives cost.

    python benchmarks/ranks.py --questions spec_bench.jsonl -o benchmarks/results/DATE-ranks.md

tp 1 with two threads against tp 2 with one thread each, bf16, greedy, one request at a time, the sides in turns prompt by prompt; tp 2 also
with torch.distributed for every collective.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

import hothead
from hothead import Engine, EngineConfig, SamplingParams
from hothead.engine.responses import prompt_token_ids

FIRST, LAST = 81, 120
NUM_NEW_TOKENS = 128
PLAIN: dict[str, Any] = {"speculative_draft_model_path": "none"}
SIDES: dict[str, dict[str, Any]] = {
    "tp 1, plain": {"num_threads": 2, **PLAIN},
    "tp 2, plain": {"tp_size": 2, "num_threads": 1, **PLAIN},
    "tp 2, plain, torch.distributed": {"tp_size": 2, "num_threads": 1, "collectives": "torch", **PLAIN},
    "tp 1, EAGLE + map": {"num_threads": 2},
    "tp 2, EAGLE + map, balanced": {"tp_size": 2, "num_threads": 1, "hot_placement": "balanced"},
    "tp 2, EAGLE + map, replicated": {"tp_size": 2, "num_threads": 1, "hot_placement": "replicated"},
}


class Side:
    """An engine in a process of its own: a process can be rank 0 of one group only. While it has nothing to do it sleeps."""

    def __init__(self, options: dict[str, Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(options, theirs))
        self.process.start()
        self.pipe.recv()

    def answer(self, question: str) -> tuple[float, tuple[int, int, int]]:
        """Seconds, and (tokens, steps, collectives)."""
        self.pipe.send(question)
        answer: tuple[float, tuple[int, int, int]] = self.pipe.recv()
        return answer

    def close(self) -> None:
        self.pipe.send(None)
        self.process.join()


def serve(options: dict[str, Any], pipe: Connection) -> None:
    sampling = SamplingParams(max_tokens=NUM_NEW_TOKENS, ignore_eos=True)
    with Engine(EngineConfig(dtype="bf16", max_concurrency=1, context_length=2048, **options)) as engine:
        pipe.send("ready")
        while (question := pipe.recv()) is not None:
            prompt = prompt_token_ids(engine.tokenizer, question)
            start = time.perf_counter()
            (completion,) = engine.generate([prompt], sampling)
            seconds, stats = time.perf_counter() - start, completion.stats
            pipe.send((seconds, (stats.num_emitted, stats.num_steps, stats.num_collectives)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--num-prompts", type=int, default=20)
    parser.add_argument("--no-identity", action="store_true", help="leave out the comparison of texts in float32")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    rows = [json.loads(line) for line in arguments.questions.read_text(encoding="utf-8").splitlines()]
    questions = [row["turns"][0] for row in rows if FIRST <= row["question_id"] <= LAST][: arguments.num_prompts]
    engines = {name: Side(options) for name, options in SIDES.items()}
    speeds: dict[str, list[float]] = {name: [] for name in SIDES}
    totals = {name: [0, 0, 0] for name in SIDES}  # tokens, steps, collectives
    for is_warm, question in [(False, questions[0]), *((True, one) for one in questions)]:
        for name, engine in engines.items():
            seconds, counts = engine.answer(question)
            if is_warm:
                speeds[name].append(NUM_NEW_TOKENS / seconds)
                totals[name] = [a + b for a, b in zip(totals[name], counts, strict=True)]
    for engine in engines.values():
        engine.close()

    def ratio(side: str, other: str) -> float:
        return statistics.median(a / b for a, b in zip(speeds[side], speeds[other], strict=True))

    figures = {
        "date": datetime.date.today().isoformat(),
        "versions": f"hothead {hothead.__version__}, torch {torch.__version__}",
        "num_prompts": len(questions),
        "sides": {
            name: {
                "tokens_per_s": statistics.median(speeds[name]),
                "tokens_per_step": totals[name][0] / totals[name][1],
                "collectives_per_step": totals[name][2] / totals[name][1],
            }
            for name in SIDES
        },
        "ratios": {
            f"{side} / {other}": ratio(side, other)
            for side, other in (
                ("tp 2, plain", "tp 1, plain"),
                ("tp 2, plain", "tp 2, plain, torch.distributed"),
                ("tp 2, EAGLE + map, balanced", "tp 2, plain"),
                ("tp 2, EAGLE + map, replicated", "tp 2, plain"),
                ("tp 2, EAGLE + map, balanced", "tp 1, EAGLE + map"),
            )
        },
    }
    if not arguments.no_identity:
        figures["identity"] = measure_identity([row["turns"][0] for row in rows if FIRST <= row["question_id"] <= LAST])
    print(json.dumps(figures, indent=1))
    if arguments.output:
        arguments.output.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        arguments.output.write_text(report(figures), encoding="utf-8")


def measure_identity(questions: list[str]) -> dict[str, str]:
    """float32, greedy, all questions: texts of two ranks under every placement against those of one."""
    sampling = SamplingParams(max_tokens=NUM_NEW_TOKENS, ignore_eos=True)

    def texts(**options: Any) -> list[tuple[int, ...]]:
        with Engine(EngineConfig(dtype="float32", context_length=2048, **options)) as engine:
            prompts = [prompt_token_ids(engine.tokenizer, question) for question in questions]
            return [completion.token_ids for completion in engine.generate(prompts, sampling)]

    alone = texts()
    found = {}
    for placement in ("balanced", "replicated", "owner"):
        together = texts(tp_size=2, hot_placement=placement)
        found[placement] = f"{sum(a == b for a, b in zip(alone, together, strict=True))} of {len(alone)}"
    return found


def report(figures: dict[str, Any]) -> str:
    lines = [
        f"# Ranks on one machine, {figures['date']}",
        "",
        f"{figures['versions']}, 2 cores with AMX; {figures['num_prompts']} prompts of Spec-Bench, {NUM_NEW_TOKENS} new tokens, bf16, "
        "greedy, one request at a time, in turns; medians. Command: see `benchmarks/ranks.py`.",
        "",
        "| | tokens/s | tokens per step | collectives per step |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {side['tokens_per_s']:.1f} | {side['tokens_per_step']:.2f} | {side['collectives_per_step']:.1f} |"
        for name, side in figures["sides"].items()
    ]
    lines += ["", "| ratio of tokens/s | |", "|---|---|", *(f"| {name} | {value:.2f} |" for name, value in figures["ratios"].items()), ""]
    if "identity" in figures:
        lines += ["| float32, greedy: tp 2 = tp 1, token for token | texts |", "|---|---|"]
        lines += [f"| {placement} | {count} |" for placement, count in figures["identity"].items()] + [""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
