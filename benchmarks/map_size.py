"""Predicted against measured: tokens per second of the default model over hot sizes.

    python benchmarks/map_size.py --questions spec_bench.jsonl --counts own.counts -o benchmarks/results/DATE-map-size.md

The map is ranked by --counts (hothead map build --counts-output) and filled up to the whole vocabulary. Prediction: from a run with the
shipped head over the map's first 8,192 tokens on the first half of the questions, the head times that `hothead map size` measures, and
the hit rates of --counts. Measurement: the second half of the questions, bf16, greedy, one request at a time, the sizes in turns prompt by
prompt; tokens per second are of all tokens over all time.
"""

from __future__ import annotations

import argparse
import datetime
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import hothead
from hothead import Engine, EngineConfig, SamplingParams
from hothead.bench.head_times import measure_head_times
from hothead.bench.map_size import best, drafting_of_run, predict
from hothead.bench.run_figures import measure_run
from hothead.engine.responses import prompt_token_ids
from hothead.models.catalog import load_tokenizer, resolve_model
from hothead.models.config_files import load_config
from hothead.models.required import required_token_ids
from hothead.vocab.count import TokenCounts
from hothead.vocab.token_map import TokenMap

MODEL = "smollm2-135m-instruct"
SIZES = (1024, 2048, 4096, 8192, 16384, 32768, 49152)
RUN_SIZE = 8192
FIRST, LAST = 81, 120
NUM_NEW_TOKENS = 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--counts", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = [json.loads(line) for line in arguments.questions.read_text(encoding="utf-8").splitlines()]
    questions = [row["turns"][0] for row in rows if FIRST <= row["question_id"] <= LAST]
    for_run, for_measurement = questions[0::2], questions[1::2]
    tokenizer = load_tokenizer(MODEL)
    counts = TokenCounts.load(arguments.counts).counts
    token_map = TokenMap.ranked(counts, required_token_ids(tokenizer), tokenizer.vocab_size, tokenizer.vocab_size)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "map.safetensors"
        token_map.save(path)

        def config(size: int) -> EngineConfig:
            whole = (
                {"speculative_token_map": "none"}
                if size == tokenizer.vocab_size
                else {"speculative_token_map": str(path), "hot_size": size}
            )
            return EngineConfig(
                dtype="bf16",
                num_threads=arguments.threads,
                max_concurrency=1,
                context_length=2048,
                **whole,  # type: ignore[arg-type]
            )

        run = measure_run(config(RUN_SIZE), for_run, NUM_NEW_TOKENS)
        times = measure_head_times(tokenizer.vocab_size, load_config(resolve_model(MODEL).path).hidden_size, SIZES)
        times = {size: seconds * run.draft_head_s / times[RUN_SIZE] for size, seconds in times.items()}
        predicted = predict(drafting_of_run(run, token_map, RUN_SIZE, tokenizer.vocab_size), times, token_map, counts)
        measured = measure({size: config(size) for size in SIZES}, for_measurement)
    chosen = best(predicted)
    most = max(row["tokens_per_s"] for row in measured.values())
    figures: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "versions": f"hothead {hothead.__version__}, torch {torch.__version__}",
        "run": {"tokens_per_step": run.tokens_per_step, "tokens_per_s": run.tokens_per_s},
        "rows": [
            {
                "size": row.size,
                "hit_rate": row.hit_rate,
                "head_ms": 1000 * row.head_s,
                "predicted_tokens_per_step": row.tokens_per_step,
                "predicted_tokens_per_s": row.tokens_per_s,
                **measured[row.size],
            }
            for row in predicted
        ],
        "predicted_best": chosen.size,
        "measured_at_predicted_best / measured_best": measured[chosen.size]["tokens_per_s"] / most,
    }
    print(json.dumps(figures, indent=1))
    if arguments.output:
        arguments.output.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        arguments.output.write_text(report(figures), encoding="utf-8")


def measure(configs: dict[int, EngineConfig], questions: list[str]) -> dict[int, dict[str, float]]:
    engines = {size: Engine(config) for size, config in configs.items()}
    seconds, tokens, steps = (dict.fromkeys(engines, 0.0) for _ in range(3))
    sampling = SamplingParams(max_tokens=NUM_NEW_TOKENS, ignore_eos=True)
    for is_warm, question in [(False, questions[0]), *((True, question) for question in questions)]:
        for size, engine in engines.items():
            prompt = prompt_token_ids(engine.tokenizer, question)
            start = time.perf_counter()
            (completion,) = engine.generate([prompt], sampling)
            if is_warm:
                seconds[size] += time.perf_counter() - start
                tokens[size] += completion.stats.num_emitted
                steps[size] += completion.stats.num_steps
    for engine in engines.values():
        engine.close()
    return {size: {"tokens_per_step": tokens[size] / steps[size], "tokens_per_s": tokens[size] / seconds[size]} for size in engines}


def report(figures: dict[str, Any]) -> str:
    lines = [
        f"# Best hot size of the default model, predicted and measured, {figures['date']}",
        "",
        f"{figures['versions']}, 2 cores with AMX. Command: see `benchmarks/map_size.py`. The run that the prediction rests on: "
        f"{figures['run']['tokens_per_step']:.2f} tokens per step at H = {RUN_SIZE}. Predicted tokens/s leave out prefill.",
        "",
        "| H | hit rate | head ms per step | tokens per step: predicted | measured | tokens/s: predicted | measured |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in figures["rows"]:
        lines.append(
            f"| {row['size']} | {100 * row['hit_rate']:.2f} % | {row['head_ms']:.2f} | {row['predicted_tokens_per_step']:.2f} "
            f"| {row['tokens_per_step']:.2f} | {row['predicted_tokens_per_s']:.1f} | {row['tokens_per_s']:.1f} |"
        )
    share = figures["measured_at_predicted_best / measured_best"]
    lines += ["", f"Predicted best: {figures['predicted_best']}; measured there, {100 * share:.1f} % of the measured best.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
