"""The two verification rules on the default model: tokens per step of chains and trees at several temperatures.

    python benchmarks/verification.py --questions spec_bench.jsonl -o benchmarks/results/DATE-verification.md

First turns of Spec-Bench's questions, in each of its categories the same number; 128 new tokens, bf16, EAGLE with the shipped head and map.
Acceptance does not depend on the machine's load, speed does: it is not measured here.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch

import hothead
from hothead import Engine, EngineConfig, SamplingParams
from hothead.engine.responses import prompt_token_ids

NUM_NEW_TOKENS = 128
TEMPERATURES = (0.3, 0.7, 1.0)
SHAPES: dict[str, dict[str, Any]] = {
    "chain of 5": {"speculative_eagle_topk": 1, "speculative_num_steps": 5},
    "tree of 13": {},
}
RULES = ("coupled", "rejection")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--per-category", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    questions = choose_questions(arguments.questions, arguments.per_category)
    rows = [
        {"shape": shape, "rule": rule, **figures}
        for shape, options in SHAPES.items()
        for rule in RULES
        for figures in measure(questions, arguments.threads, {**options, "verification": rule})
    ]
    figures = {
        "date": datetime.date.today().isoformat(),
        "versions": f"hothead {hothead.__version__}, torch {torch.__version__}",
        "num_prompts": len(questions),
        "rows": rows,
    }
    print(json.dumps(figures, indent=1))
    if arguments.output:
        arguments.output.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        arguments.output.write_text(report(figures), encoding="utf-8")


def choose_questions(file: Path, per_category: int) -> list[str]:
    by_category: dict[str, list[str]] = defaultdict(list)
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        by_category[row["category"]].append(row["turns"][0])
    return [question for questions in by_category.values() for question in questions[:per_category]]


def measure(questions: list[str], num_threads: int, options: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    with Engine(EngineConfig(dtype="bf16", max_concurrency=8, context_length=2048, num_threads=num_threads, **options)) as engine:
        prompts = [prompt for question in questions if len(prompt := prompt_token_ids(engine.tokenizer, question)) < 1024]
        for temperature in TEMPERATURES:
            sampling = [
                SamplingParams(max_tokens=NUM_NEW_TOKENS, temperature=temperature, seed=seed, ignore_eos=True)
                for seed in range(len(prompts))
            ]
            stats = [completion.stats for completion in engine.generate(prompts, sampling)]
            each = [one.num_emitted / one.num_steps for one in stats]
            mean = sum(each) / len(each)
            found.append(
                {
                    "temperature": temperature,
                    "num_prompts": len(prompts),
                    "tokens_per_step": sum(one.num_emitted for one in stats) / sum(one.num_steps for one in stats),
                    "standard_error": math.sqrt(sum((one - mean) ** 2 for one in each) / len(each) / (len(each) - 1)),
                    "drafted_per_step": sum(one.num_drafted for one in stats) / sum(one.num_steps for one in stats),
                    "hot_hit_rate": sum((one.num_hot or 0) for one in stats) / sum(one.num_emitted for one in stats),
                }
            )
    return found


def report(figures: dict[str, Any]) -> str:
    lines = [
        f"# Coupled and rejection verification, {figures['date']}",
        "",
        f"{figures['versions']}, 2 cores with AMX; {figures['rows'][0]['num_prompts']} prompts of Spec-Bench (all categories), "
        f"{NUM_NEW_TOKENS} new tokens, bf16, EAGLE with the shipped head and map. Command: see `benchmarks/verification.py`.",
        "",
        "| tokens per step | temperature | coupled | rejection | rejection / coupled |",
        "|---|---|---|---|---|",
    ]
    by_key = {(row["shape"], row["temperature"], row["rule"]): row for row in figures["rows"]}
    for shape in SHAPES:
        for temperature in TEMPERATURES:
            coupled, rejection = (by_key[shape, temperature, rule] for rule in RULES)
            cells = [f"{row['tokens_per_step']:.3f} ± {row['standard_error']:.3f}" for row in (coupled, rejection)]
            lines.append(
                f"| {shape} | {temperature} | {cells[0]} | {cells[1]} | {rejection['tokens_per_step'] / coupled['tokens_per_step']:.3f} |"
            )
    return "\n".join([*lines, "", "± is the standard error over prompts.", ""])


if __name__ == "__main__":
    main()
