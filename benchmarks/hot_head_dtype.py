"""What the draft head's own precision costs and gains: acceptance on the default model, and the head's time at two widths.

    python benchmarks/hot_head_dtype.py --questions spec_bench.jsonl -o benchmarks/results/DATE-hot-head-dtype.md

Acceptance: first turns of Spec-Bench, the same number in each category, greedy, bf16 target, EAGLE with the shipped head and map. Time:
random rows, the types in turns, medians; one row as a chain drafts, four as a level of the default tree does.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from verification import choose_questions

import hothead
from hothead import Engine, EngineConfig, SamplingParams
from hothead.engine.responses import prompt_token_ids
from hothead.parallel.groups import SingleRank
from hothead.parallel.hot_head import HotHead

DTYPES = ("float32", "bf16", "int8", "int4")
SHAPES = ((49152, 576, 8192), (128256, 4096, 32768))  # V, D, H: the default model's, and Llama 3's at FR-Spec's size
NUM_ROWS = (1, 4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--per-category", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--parts", default="acceptance,time")
    parser.add_argument("--merge", type=Path, help="figures of the other part, from an earlier run")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    figures: dict[str, Any] = json.loads(arguments.merge.read_text(encoding="utf-8")) if arguments.merge else {}
    figures |= {"date": datetime.date.today().isoformat(), "versions": f"hothead {hothead.__version__}, torch {torch.__version__}"}
    if "acceptance" in arguments.parts:
        figures["acceptance"] = measure_acceptance(choose_questions(arguments.questions, arguments.per_category), arguments.threads)
    if "time" in arguments.parts:
        figures["time_ms"] = [measure_times(*shape) for shape in SHAPES]
    print(json.dumps(figures, indent=1))
    if arguments.output:
        arguments.output.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        arguments.output.write_text(report(figures), encoding="utf-8")


def measure_acceptance(questions: list[str], num_threads: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for dtype in DTYPES:
        with Engine(
            EngineConfig(dtype="bf16", max_concurrency=8, context_length=2048, hot_head_dtype=dtype, num_threads=num_threads)
        ) as engine:
            prompts = [prompt for question in questions if len(prompt := prompt_token_ids(engine.tokenizer, question)) < 1024]
            stats = [one.stats for one in engine.generate(prompts, SamplingParams(max_tokens=128, ignore_eos=True))]
            found["num_prompts"] = len(prompts)
            found[dtype] = sum(one.num_emitted for one in stats) / sum(one.num_steps for one in stats)
    return found


def measure_times(vocab_size: int, hidden_size: int, hot_size: int, num_rounds: int = 15) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    weight = torch.empty(hot_size, hidden_size, dtype=torch.bfloat16).normal_(generator=generator)
    heads = {
        dtype: HotHead.build(lambda ids: weight[torch.from_numpy(ids)], np.arange(hot_size), SingleRank(), "balanced", vocab_size, dtype)
        for dtype in DTYPES
    }
    times: dict[str, Any] = {"vocab_size": vocab_size, "hidden_size": hidden_size, "hot_size": hot_size}
    with torch.inference_mode():
        for rows in NUM_ROWS:
            hidden = torch.randn(rows, hidden_size, generator=generator).bfloat16()
            taken: dict[str, list[float]] = {dtype: [] for dtype in DTYPES}
            for _ in range(num_rounds + 3):
                for dtype, head in heads.items():
                    start = time.perf_counter()
                    head.candidates(hidden, 4)
                    taken[dtype].append(time.perf_counter() - start)
            times[f"{rows} rows"] = {dtype: 1e3 * statistics.median(values[3:]) for dtype, values in taken.items()}
    return times


def report(figures: dict[str, Any]) -> str:
    lines = [
        f"# The hot head's precision, {figures['date']}",
        "",
        f"{figures['versions']}, 2 cores with AMX. See `benchmarks/hot_head_dtype.py`.",
        "",
    ]
    if "acceptance" in figures:
        found = figures["acceptance"]
        lines += [f"| tokens per step, {found['num_prompts']} prompts | {' | '.join(DTYPES)} |", "|---|---|---|---|---|"]
        lines += [f"| EAGLE, default tree and map | {' | '.join(f'{found[dtype]:.3f}' for dtype in DTYPES)} |", ""]
    if "time_ms" in figures:
        lines += [f"| ms for a draft level's candidates | {' | '.join(DTYPES)} | int8 / bf16 |", "|---|---|---|---|---|---|"]
        for shape in figures["time_ms"]:
            for rows in NUM_ROWS:
                taken = shape[f"{rows} rows"]
                name = f"H {shape['hot_size']}, D {shape['hidden_size']}, {rows} row{'s' * (rows > 1)}"
                cells = " | ".join(f"{taken[dtype]:.2f}" for dtype in DTYPES)
                lines.append(f"| {name} | {cells} | {taken['int8'] / taken['bf16']:.2f} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
