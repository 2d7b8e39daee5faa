"""How long a draft head of so many rows takes on this machine, with the rows and shapes that the drafter uses."""

from __future__ import annotations

import csv
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from hothead.errors import DataError
from hothead.files.whole import write_whole
from hothead.parallel.groups import SingleRank
from hothead.parallel.hot_head import HotHead

MAX_FILE_BYTES = 1 << 20
_WARM_UP_ROUNDS = 3


def measure_head_times(
    vocab_size: int,
    hidden_size: int,
    sizes: Sequence[int],
    *,
    rows_per_call: Sequence[int] = (1, 4, 4, 4),
    dtype: torch.dtype = torch.bfloat16,
    num_rounds: int = 15,
    device: torch.device | None = None,
) -> dict[int, float]:
    """Median seconds that the head takes in one verify step, by hot size: candidates for each entry of rows_per_call, which are the rows of
    one draft level. Weights are random: time does not depend on them. Sizes take turns, so that a busy moment hits all of them."""
    device = device or torch.device("cpu")
    generator = torch.Generator(device=device).manual_seed(0)
    # One weight for all sizes: each head copies its rows.
    weight = torch.empty(vocab_size, hidden_size, dtype=dtype, device=device).normal_(generator=generator)

    def read_rows(token_ids: np.ndarray) -> torch.Tensor:
        return weight[torch.from_numpy(token_ids).to(weight.device)]

    heads = {size: HotHead.build(read_rows, np.arange(size), SingleRank(), "balanced", vocab_size) for size in sizes}
    hidden = [torch.empty(rows, hidden_size, dtype=dtype, device=device).normal_(generator=generator) for rows in rows_per_call]
    num_candidates = max(rows_per_call)
    times: dict[int, list[float]] = {size: [] for size in sizes}
    with torch.inference_mode():
        for _ in range(_WARM_UP_ROUNDS + num_rounds):
            for size, head in heads.items():
                start = time.perf_counter()
                for rows in hidden:
                    head.candidates(rows, min(num_candidates, size)).token_ids.cpu()
                times[size].append(time.perf_counter() - start)
    return {size: statistics.median(values[_WARM_UP_ROUNDS:]) for size, values in times.items()}


def write_head_times(times: dict[int, float], path: Path) -> None:
    """JSON: hot size -> seconds. Raises OutputError."""
    write_whole(path, (json.dumps({str(size): seconds for size, seconds in times.items()}, indent=1) + "\n").encode())


def read_head_times(path: Path) -> dict[int, float]:
    """A JSON object of hot size -> seconds, or CSV lines of the two. Raises DataError."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise DataError(f"'{path}' is no table of head times: it has {path.stat().st_size} bytes.")
        text = path.read_text(encoding="utf-8")
        if text.lstrip().startswith("{"):
            rows = list(json.loads(text).items())
        else:
            rows = [row for row in csv.reader(text.splitlines()) if row and row[0].strip().isdecimal()]
        times = {int(size): float(seconds) for size, seconds in rows}
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise DataError(
            f"the head times '{path}' cannot be read: {error!s:.200}.",
            advice='Give a JSON object {"8192": 0.0021, ...} or CSV lines 8192,0.0021: hot size and seconds.',
        ) from error
    bad = {size: seconds for size, seconds in times.items() if size < 1 or not 0 < seconds < 1000}
    if bad or not times:
        raise DataError(f"the head times '{path}' hold {bad or 'nothing'}.", advice="Give hot sizes from 1 and seconds above 0.")
    return times
