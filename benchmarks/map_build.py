"""Speed, memory and coverage of `hothead map build`: the figures in docs/guides/maps.md and in benchmarks/results/.

    python benchmarks/map_build.py --text wikitext2_valid.txt wikitext2_test.txt --questions spec_bench.jsonl \\
        --own-map own.safetensors -o benchmarks/results/DATE-map-build.md

Corpora are the given text, repeated. Speed: counting against the tokenizer's own batch encoding of the same text with all cores, in turns.
Memory: the largest resident size of all processes together, on 2 GB. Kill: what a run that was killed has to do again. Coverage: of the
model's greedy responses to Spec-Bench's questions (first turns, at most 1,024 prompt tokens, 256 new tokens), for a map counted on the
model's own text (hothead map build --self) and for one counted on the given text.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import hothead
from hothead import Engine, EngineConfig, SamplingParams, TokenMap
from hothead.corpus.counting import count_corpus
from hothead.corpus.files import find_files
from hothead.corpus.worker import CountSettings
from hothead.engine.responses import plain_config, respond
from hothead.models.catalog import resolve_model
from hothead.models.tokenizer import Tokenizer
from hothead.vocab.coverage import hit_rates

MODEL = "smollm2-135m-instruct"
SIZES = (2048, 4096, 8192, 16384)
LINES_AT_ONCE = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="plain text files")
    parser.add_argument("--questions", type=Path, help="Spec-Bench questions, for coverage")
    parser.add_argument("--own-map", type=Path, help="map built with --self, for coverage")
    parser.add_argument("--parts", default="speed,memory,kill,coverage")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-o", "--output", type=Path, help="Markdown report; a .json of the same name is written beside it")
    arguments = parser.parse_args()
    tokenizer_path = resolve_model(MODEL).path
    text = "".join(path.read_text(encoding="utf-8") for path in arguments.text)
    figures: dict[str, Any] = {"setup": setup(arguments.text)}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        corpus = Path(folder) / "corpus.txt"
        parts: dict[str, Callable[[], dict[str, Any]]] = {
            "speed": lambda: measure_speed(tokenizer_path, repeated(corpus, text, 100), arguments.rounds),
            "memory": lambda: measure_memory(repeated(corpus, text, 2000), Path(folder)),
            "kill": lambda: measure_kill(repeated(corpus, text, 2000), Path(folder)),
            "coverage": lambda: measure_coverage(tokenizer_path, arguments.questions, arguments.own_map, arguments.text),
        }
        for name in arguments.parts.split(","):
            figures[name] = parts[name]()
            print(json.dumps({name: figures[name]}, indent=1), flush=True)
    if arguments.output:
        arguments.output.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        arguments.output.write_text(report(figures), encoding="utf-8")


def setup(texts: Sequence[Path]) -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    return {
        "date": datetime.date.today().isoformat(),
        "cpu": f"{model}, {len(os.sched_getaffinity(0))} cores",
        "version": hothead.__version__,
        "text": ", ".join(path.name for path in texts),
    }


def repeated(path: Path, text: str, num_megabytes: int) -> Path:
    """A file of about so many MB."""
    data = text.encode()
    with path.open("wb") as file:
        for _ in range(max(1, round(num_megabytes * 1e6 / len(data)))):
            file.write(data)
    return path


def measure_speed(tokenizer_path: Path, corpus: Path, num_rounds: int) -> dict[str, Any]:
    """Whole counting, starting processes included, against encode_batch_fast alone; the batch side encodes a quarter, which is enough."""
    tokenizer = Tokenizer.load(tokenizer_path)
    lines = corpus.read_text(encoding="utf-8").splitlines(keepends=True)
    lines = lines[: len(lines) // 4]
    num_bytes, num_line_bytes = corpus.stat().st_size, sum(len(line.encode()) for line in lines)
    ours, theirs = [], []
    for _ in range(num_rounds):
        start = time.perf_counter()
        count_corpus(find_files([str(corpus)]), CountSettings(tokenizer_path))
        ours.append(num_bytes / (time.perf_counter() - start) / 1e6)
        start = time.perf_counter()
        for first in range(0, len(lines), LINES_AT_ONCE):
            tokenizer.backend.encode_batch_fast(lines[first : first + LINES_AT_ONCE], add_special_tokens=False)
        theirs.append(num_line_bytes / (time.perf_counter() - start) / 1e6)
    small = repeated(corpus, "".join(lines[: len(lines) // 10]), 2)
    counted = count_corpus(find_files([str(small)]), CountSettings(tokenizer_path), num_workers=2).total.counts
    encoded = tokenizer.encode(small.read_text(encoding="utf-8"), add_special_tokens=False)
    return {
        "corpus_mb": num_bytes / 1e6,
        "mb_per_s": statistics.median(ours),
        "batch_mb_per_s": statistics.median(theirs),
        "ratio": statistics.median(a / b for a, b in zip(ours, theirs, strict=True)),
        "identical_counts": bool((counted == np.bincount(encoded, minlength=tokenizer.vocab_size)).all()),
    }


def build_command(corpus: Path, folder: Path) -> list[str]:
    return [sys.executable, "-m", "hothead", "map", "build", "--corpus", str(corpus), "-o", str(folder / "map.safetensors")]


def measure_memory(corpus: Path, folder: Path) -> dict[str, Any]:
    start = time.perf_counter()
    process = subprocess.Popen(build_command(corpus, folder), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    peak_kb = 0
    while process.poll() is None:
        peak_kb = max(peak_kb, sum(map(resident_kb, family(process.pid))))
        time.sleep(0.05)
    assert process.returncode == 0
    return {"corpus_mb": corpus.stat().st_size / 1e6, "seconds": time.perf_counter() - start, "peak_mb_of_all_processes": peak_kb / 1000}


def measure_kill(corpus: Path, folder: Path, after_s: float = 45.0) -> dict[str, Any]:
    """Kill the whole family after so long, start it again, and see from where it goes on."""
    map_path = folder / "map.safetensors"
    map_path.unlink(missing_ok=True)
    log = folder / "log"
    process = subprocess.Popen(build_command(corpus, folder), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    time.sleep(after_s)
    assert process.poll() is None, "it was done before it was killed: take a larger corpus"
    state = folder / f".{map_path.name}.counting"
    age_s = time.time() - state.stat().st_mtime
    for pid in family(process.pid):
        os.kill(pid, signal.SIGKILL)
    process.wait()
    start = time.perf_counter()
    with log.open("w") as file:
        subprocess.run(build_command(corpus, folder), stderr=file, stdout=subprocess.DEVNULL, check=True)
    return {
        "killed_after_s": after_s,
        "lost_s": age_s,
        "second_run_s": time.perf_counter() - start,
        "said": log.read_text().splitlines()[0],
    }


def family(pid: int) -> list[int]:
    """A process and all below it."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(one for child in children for one in family(int(child)))]


def resident_kb(pid: int) -> int:
    """Proportional size: what processes share counts once."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def measure_coverage(tokenizer_path: Path, questions: Path, own_map: Path, texts: Sequence[Path]) -> dict[str, Any]:
    rows = [json.loads(line) for line in questions.read_text(encoding="utf-8").splitlines()]
    categories = [row["category"] for row in rows]
    tokenizer = Tokenizer.load(tokenizer_path)
    counts: dict[str, np.ndarray] = {}
    with Engine(plain_config(EngineConfig(dtype="bf16", context_length=2048))) as engine:
        for index, _, token_ids in respond(engine, [row["turns"][0] for row in rows], SamplingParams(max_tokens=256), 1024):
            of_category = counts.setdefault(categories[index], np.zeros(tokenizer.vocab_size, np.int64))
            of_category += np.bincount(token_ids, minlength=tokenizer.vocab_size)
    counts["all"] = sum(counts.values())  # type: ignore[assignment]
    text_counts = count_corpus(find_files([str(path) for path in texts]), CountSettings(tokenizer_path)).total.counts
    maps = {
        "own text": TokenMap.load(own_map),
        "given text": TokenMap.ranked(text_counts, tokenizer.end_token_ids, None, tokenizer.vocab_size),
    }
    return {
        "num_tokens": {name: int(values.sum()) for name, values in counts.items()},
        "num_counted": {name: int(one.counts.sum()) for name, one in maps.items() if one.counts is not None},
        "hit_rate": {
            name: {
                category: dict(zip(SIZES, hit_rates(one, values, [min(size, len(one)) for size in SIZES]), strict=True))
                for category, values in counts.items()
            }
            for name, one in maps.items()
        },
    }


def report(figures: dict[str, Any]) -> str:
    about = figures["setup"]
    lines = [
        f"# Counting a corpus and covering responses, {about['date']}",
        "",
        f"{about['cpu']}. hothead {about['version']}. Text: {about['text']}, repeated. Command: see `benchmarks/map_build.py`.",
        "",
    ]
    if "speed" in figures:
        speed = figures["speed"]
        lines += [
            f"Plain text ({speed['corpus_mb']:.0f} MB): {speed['mb_per_s']:.1f} MB/s counted, starting processes included; the tokenizer's "
            f"batch encoding alone {speed['batch_mb_per_s']:.1f} MB/s; ratio {speed['ratio']:.2f}. "
            f"Identical counts: {'yes' if speed['identical_counts'] else 'NO'}.",
            "",
        ]
    if "memory" in figures:
        memory = figures["memory"]
        lines += [
            f"{memory['corpus_mb'] / 1000:.1f} GB: {memory['seconds']:.0f} s, at most {memory['peak_mb_of_all_processes']:.0f} MB in all "
            "processes together.",
            "",
        ]
    if "kill" in figures:
        kill = figures["kill"]
        lines += [
            f"Killed (SIGKILL) after {kill['killed_after_s']:.0f} s: {kill['lost_s']:.1f} s of work were lost; the second run took "
            f"{kill['second_run_s']:.0f} s.",
            "",
        ]
    if "coverage" in figures:
        coverage = figures["coverage"]
        for name, by_category in coverage["hit_rate"].items():
            lines += [
                f"Share of greedy response tokens that are hot, map counted on {name} ({coverage['num_counted'][name]:,} tokens):",
                "",
                "| Spec-Bench category | tokens | " + " | ".join(f"H = {size}" for size in SIZES) + " |",
                "|---|---|" + "---|" * len(SIZES),
            ]
            for category, rates in by_category.items():
                cells = " | ".join(f"{100 * rate:.2f} %" for rate in rates.values())
                lines.append(f"| {category} | {coverage['num_tokens'][category]:,} | {cells} |")
            lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
