"""Speed and sameness of `hothead generate` on the default model: the figures in README and in benchmarks/results/.

    python benchmarks/generate.py --questions spec_bench.jsonl -o benchmarks/results/DATE-generate.md

Every comparison is made inside one run, the sides taking turns prompt by prompt, and is given as the median over prompts and rounds. The
questions are Spec-Bench's (github.com/hemingkx/Spec-Bench, data/spec_bench/question.jsonl), question_ids 81 to 120, first turns.
transformers must be importable.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

import hothead
from hothead import Engine, EngineConfig, SamplingParams
from hothead.models.catalog import resolve_model
from hothead.parallel.full_head import VocabHead
from hothead.parallel.groups import SingleRank
from hothead.parallel.hot_head import HotHead
from hothead.parallel.partition import VocabShards

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.support.reference import reference_model

MODEL = "smollm2-135m-instruct"
FIRST, LAST = 81, 120
NUM_NEW_TOKENS = 128
OURS: dict[str, dict[str, Any]] = {
    "plain": {"speculative_draft_model_path": "none"},
    "EAGLE, hot map": {},
    "EAGLE, full vocabulary": {"speculative_token_map": "none"},
}


@dataclass
class Side:
    """One way to continue a prompt, and what it did. seconds, token_ids: one entry per round and prompt."""

    run: Callable[[list[int]], list[int]]
    seconds: list[float] = field(default_factory=list)
    token_ids: list[list[int]] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)
    """Emitted tokens and verify steps."""

    @property
    def speeds(self) -> list[float]:
        return [len(tokens) / seconds for tokens, seconds in zip(self.token_ids, self.seconds, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=Path, required=True, help="Spec-Bench questions, JSONL with question_id and turns")
    parser.add_argument("--rounds", type=int, default=2, help="rounds over all prompts")
    parser.add_argument("--num-prompts", type=int, default=40, help="use only the first N prompts (for a quick look)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--parts", default="speed,prefill,head,identity,bf16", help="which parts to run")
    parser.add_argument("-o", "--output", type=Path, help="Markdown report; a .json of the same name is written beside it")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    prompts = read_prompts(arguments.questions)[: arguments.num_prompts]
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "speed": lambda: measure_speed(prompts, arguments.rounds, arguments.threads),
        "prefill": lambda: measure_prefill(arguments.threads),
        "head": measure_head,
        "identity": lambda: measure_identity(prompts, arguments.threads),
        "bf16": lambda: measure_bf16(prompts, arguments.threads),
    }
    figures: dict[str, Any] = {"setup": setup(arguments.threads, len(prompts), arguments.rounds)}
    for name in arguments.parts.split(","):
        figures[name] = parts[name]()
        print(json.dumps({name: figures[name]}, indent=1), flush=True)
    if arguments.output:
        arguments.output.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        arguments.output.write_text(report(figures), encoding="utf-8")


def setup(num_threads: int, num_prompts: int, num_rounds: int) -> dict[str, Any]:
    model = next(
        (line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")),
        platform.processor(),
    )
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": f"{model}, {num_threads} threads",
        "versions": f"hothead {hothead.__version__}, torch {torch.__version__}, transformers {transformers.__version__}",
        "num_prompts": num_prompts,
        "num_rounds": num_rounds,
    }


def read_prompts(questions: Path) -> list[list[int]]:
    rows = [json.loads(line) for line in questions.read_text(encoding="utf-8").splitlines()]
    turns = [row["turns"][0] for row in rows if FIRST <= row["question_id"] <= LAST]
    with Engine(EngineConfig(max_total_tokens=64, speculative_draft_model_path="none")) as engine:
        return [engine.tokenizer.apply_chat_template([{"role": "user", "content": turn}]) for turn in turns]


def measure_speed(prompts: Sequence[list[int]], num_rounds: int, num_threads: int) -> dict[str, Any]:
    """bf16, greedy, one request at a time; a request's time is from its prompt to its last token, prefill included, for every side."""
    engines = {
        name: Engine(EngineConfig(dtype="bf16", num_threads=num_threads, max_concurrency=1, context_length=2048, **options))
        for name, options in OURS.items()
    }
    sides = {name: engine_side(engine) for name, engine in engines.items()}
    sides["transformers"] = transformers_side(torch.bfloat16)
    for side in sides.values():  # warm-up
        side.run(prompts[0])
        side.steps.clear()
    for _ in range(num_rounds):
        for prompt in prompts:
            for side in sides.values():
                start = time.perf_counter()
                token_ids = side.run(prompt)
                side.seconds.append(time.perf_counter() - start)
                side.token_ids.append(token_ids)
    for engine in engines.values():
        engine.close()
    hot, plain = sides["EAGLE, hot map"], sides["plain"]
    return {
        "tokens_per_s": {name: statistics.median(side.speeds) for name, side in sides.items()},
        "tokens_per_step": {
            name: sum(n for n, _ in side.steps) / sum(s for _, s in side.steps) for name, side in sides.items() if side.steps
        },
        "ratio": {
            "EAGLE, hot map / plain": ratio(hot, plain),
            "EAGLE, hot map / EAGLE, full vocabulary": ratio(hot, sides["EAGLE, full vocabulary"]),
            "plain / transformers generate": ratio(plain, sides["transformers"]),
        },
    }


def ratio(side: Side, other: Side) -> float:
    """Median over prompts and rounds of the speed ratio; both sides ran the same prompt one after the other."""
    return statistics.median(ours / theirs for ours, theirs in zip(side.speeds, other.speeds, strict=True))


def engine_side(engine: Engine) -> Side:
    sampling = SamplingParams(max_tokens=NUM_NEW_TOKENS, ignore_eos=True)

    def run(prompt: list[int]) -> list[int]:
        (completion,) = engine.generate([prompt], sampling)
        side.steps.append((completion.stats.num_emitted, completion.stats.num_steps))
        return list(completion.token_ids)

    side = Side(run)
    return side


def transformers_side(dtype: torch.dtype) -> Side:
    model = load_transformers(dtype)

    def run(prompt: list[int]) -> list[int]:
        inputs = torch.tensor([prompt])
        with torch.inference_mode():
            output = model.generate(
                inputs,
                attention_mask=torch.ones_like(inputs),
                max_new_tokens=NUM_NEW_TOKENS,
                min_new_tokens=NUM_NEW_TOKENS,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
        return output[0, len(prompt) :].tolist()

    return Side(run)


def load_transformers(dtype: torch.dtype) -> Any:
    """The same weights in transformers (its own GGUF loader needs a further package; tests compare our reading of the file with gguf's)."""
    return reference_model(resolve_model(MODEL).path, dtype)


def measure_prefill(num_threads: int, num_tokens: int = 512, num_rounds: int = 15) -> dict[str, Any]:
    """Tokens per second over a prompt of 512 tokens: the engine up to its first token, against one forward of transformers."""
    model = load_transformers(torch.bfloat16)
    prompt = torch.randint(100, 40000, (num_tokens,), generator=torch.Generator().manual_seed(0)).tolist()
    ours, theirs = [], []
    config = EngineConfig(
        dtype="bf16", num_threads=num_threads, speculative_draft_model_path="none", max_concurrency=1, context_length=2048
    )
    with Engine(config) as engine, torch.inference_mode():
        for _ in range(num_rounds):
            ours.append(seconds(lambda: engine.generate([prompt], SamplingParams(max_tokens=1))))
            theirs.append(seconds(lambda: model(torch.tensor([prompt]), logits_to_keep=1)))
    ours, theirs = ours[2:], theirs[2:]
    return {
        "tokens_per_s": num_tokens / statistics.median(ours),
        "transformers_tokens_per_s": num_tokens / statistics.median(theirs),
        "ratio": statistics.median(other / own for own, other in zip(ours, theirs, strict=True)),
    }


def measure_head(vocab_size: int = 128256, width: int = 4096, num_hot: int = 32768, num_rounds: int = 25) -> dict[str, Any]:
    """One row through the head alone, random bf16 weights: full head and argmax, hot head and its best candidate, one rank's part of
    two."""
    torch.manual_seed(0)
    weight = torch.randn(vocab_size, width, dtype=torch.bfloat16)
    token_ids = torch.randperm(vocab_size)[:num_hot].numpy()

    def read_rows(ids: NDArray[np.int64]) -> torch.Tensor:
        return weight[torch.from_numpy(ids)]

    full = VocabHead(weight, VocabShards(vocab_size), SingleRank())
    hot = HotHead.build(read_rows, token_ids, SingleRank(), "balanced", vocab_size)
    # What rank 0 of two does between collectives: its half of the rows.
    half = HotHead.build(read_rows, token_ids[0::2], SingleRank(), "balanced", vocab_size)
    hidden = torch.randn(1, width, dtype=torch.bfloat16)
    times: dict[str, list[float]] = {"full": [], "hot": [], "hot, one rank of two": []}
    with torch.inference_mode():
        for _ in range(num_rounds):
            times["full"].append(seconds(lambda: full.logits(hidden).argmax()))
            times["hot"].append(seconds(lambda: hot.candidates(hidden, 1)))
            times["hot, one rank of two"].append(seconds(lambda: half.candidates(hidden, 1)))
    median = {name: statistics.median(values[3:]) for name, values in times.items()}
    return {
        "ms": {name: 1000 * value for name, value in median.items()},
        "hot / full": median["hot"] / median["full"],
        "one rank of two / one rank": median["hot, one rank of two"] / median["hot"],
    }


def measure_identity(prompts: Sequence[list[int]], num_threads: int) -> dict[str, Any]:
    """float32: EAGLE against plain, greedy and sampled, and plain greedy against transformers."""
    greedy = SamplingParams(max_tokens=NUM_NEW_TOKENS, ignore_eos=True)
    sampled = SamplingParams(max_tokens=NUM_NEW_TOKENS, ignore_eos=True, temperature=0.8, seed=7)
    outputs: dict[tuple[str, str], list[tuple[int, ...]]] = {}
    for name in ("plain", "EAGLE, hot map"):
        config = EngineConfig(dtype="float32", num_threads=num_threads, context_length=2048, **OURS[name])
        with Engine(config) as engine:
            for kind, sampling in (("greedy", greedy), ("sampled", sampled)):
                outputs[name, kind] = [completion.token_ids for completion in engine.generate(prompts, sampling)]
    theirs = transformers_side(torch.float32)
    reference = [tuple(theirs.run(prompt)) for prompt in prompts]
    return {
        "EAGLE = plain, greedy": same(outputs["EAGLE, hot map", "greedy"], outputs["plain", "greedy"]),
        "EAGLE = plain, temperature 0.8": same(outputs["EAGLE, hot map", "sampled"], outputs["plain", "sampled"]),
        "plain = transformers, greedy": same(outputs["plain", "greedy"], reference),
    }


def measure_bf16(prompts: Sequence[list[int]], num_threads: int) -> dict[str, Any]:
    """Greedy in bf16: where EAGLE's text leaves plain decoding's, and how near the two tokens were there in float32."""
    sampling = SamplingParams(max_tokens=NUM_NEW_TOKENS, ignore_eos=True)
    outputs: dict[str, list[tuple[int, ...]]] = {}
    for name in ("plain", "EAGLE, hot map"):
        with Engine(EngineConfig(dtype="bf16", num_threads=num_threads, max_concurrency=1, context_length=2048, **OURS[name])) as engine:
            outputs[name] = [engine.generate([prompt], sampling)[0].token_ids for prompt in prompts]
            tokenizer = engine.tokenizer
    exact = load_transformers(torch.float32)
    differences = []
    for number, (prompt, plain, eagle) in enumerate(zip(prompts, outputs["plain"], outputs["EAGLE, hot map"], strict=True)):
        if plain == eagle:
            continue
        position = first_difference(plain, eagle)
        with torch.inference_mode():
            scores = exact(torch.tensor([[*prompt, *plain[:position]]]), logits_to_keep=1).logits[0, -1].float().log_softmax(-1)
        difference = {
            "question_id": FIRST + number,
            "position": position,
            "plain": tokenizer.token_text(plain[position]),
            "eagle": tokenizer.token_text(eagle[position]),
            "log_prob_difference": float(scores[plain[position]] - scores[eagle[position]]),
        }
        differences.append(difference)
    return {"identical": f"{len(prompts) - len(differences)} of {len(prompts)}", "first_differences": differences}


def same(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> str:
    differences = [first_difference(a, b) for a, b in zip(ours, theirs, strict=True) if list(a) != list(b)]
    return f"{len(ours) - len(differences)} of {len(ours)}" + (f"; first differences at {differences}" if differences else "")


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def report(figures: dict[str, Any]) -> str:
    about = figures["setup"]
    lines = [
        f"# Generation on the default model, {about['date']}",
        "",
        f"{MODEL}, question_ids {FIRST} to {LAST} of Spec-Bench ({about['num_prompts']} first turns), {NUM_NEW_TOKENS} new tokens, "
        f"one request at a time, {about['num_rounds']} rounds. {about['cpu']}. {about['versions']}.",
        "",
        "Command: `python benchmarks/generate.py --questions spec_bench.jsonl -o FILE`. The sides take turns prompt by prompt; ratios are "
        "medians of the ratios for the same prompt in the same round. A request's time includes its prefill.",
        "",
    ]
    if "speed" in figures:
        speed = figures["speed"]
        lines += ["| bf16, greedy | tokens/s | tokens per step |", "|---|---|---|"]
        lines += [
            f"| {name} | {value:.1f} | {speed['tokens_per_step'].get(name, 1.0):.2f} |" for name, value in speed["tokens_per_s"].items()
        ]
        lines += ["", "| ratio of tokens/s | |", "|---|---|", *(f"| {name} | {value:.2f} |" for name, value in speed["ratio"].items()), ""]
    if "prefill" in figures:
        prefill = figures["prefill"]
        lines += [
            f"Prefill of 512 tokens: {prefill['tokens_per_s']:.0f} tokens/s, "
            f"transformers' forward {prefill['transformers_tokens_per_s']:.0f}; ratio {prefill['ratio']:.2f}.",
            "",
        ]
    if "head" in figures:
        head = figures["head"]
        times = ", ".join(f"{name} {value:.1f} ms" for name, value in head["ms"].items())
        lines += [
            f"Head alone (V 128256, D 4096, H 32768, one row, bf16): {times}. hot / full {head['hot / full']:.3f}; "
            f"one rank's part of two, on the same threads, {head['one rank of two / one rank']:.3f} of the whole.",
            "",
        ]
    if "identity" in figures:
        lines += [
            "| float32, token for token | prompts |",
            "|---|---|",
            *(f"| {name} | {value} |" for name, value in figures["identity"].items()),
            "",
        ]
    if "bf16" in figures:
        lines += [
            f"bf16, greedy: EAGLE's tokens are plain decoding's on {figures['bf16']['identical']} prompts. On the others they leave it "
            "at a near tie, where scoring several tokens at once rounds differently from scoring one:",
            "",
            "| question | position | plain | EAGLE | difference of log-probability in float32 |",
            "|---|---|---|---|---|",
            *(
                f"| {row['question_id']} | {row['position']} | `{row['plain']!r}` | `{row['eagle']!r}` "
                f"| {row['log_prob_difference']:+.3f} |"
                for row in figures["bf16"]["first_differences"]
            ),
            "",
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
