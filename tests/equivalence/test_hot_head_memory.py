"""Loading a hot head of Llama 3's size over two ranks touches the hot rows and nothing else."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.ranks import run_on_ranks

from hothead.models.weights import open_weights
from hothead.parallel.groups import RankGroup
from hothead.parallel.hot_head import HotHead

V, D, H = 128256, 4096, 32768
NAME = "lm_head.weight"


def sparse_checkpoint(folder: Path) -> Path:
    """A file of the real size that holds zeros and takes no room."""
    header = json.dumps({NAME: {"dtype": "BF16", "shape": [V, D], "data_offsets": [0, 2 * V * D]}}).encode()
    file = folder / "model.safetensors"
    with file.open("wb") as content:
        content.write(struct.pack("<Q", len(header)) + header)
        content.truncate(8 + len(header) + 2 * V * D)
    return folder


def resident(field: str) -> int:
    """Bytes of a line of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def load(group: RankGroup, folder: str) -> tuple[int, int, int]:
    """Bytes of weights read, growth of the process at its highest, rows."""
    source = open_weights(folder)
    num_bytes = 0

    def read_rows(token_ids: np.ndarray) -> torch.Tensor:
        nonlocal num_bytes
        rows = source.read(NAME, rows=token_ids, dtype=torch.bfloat16)
        num_bytes += rows.nbytes
        return rows

    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = resident("VmRSS")
    hot_token_ids = np.random.default_rng(0).permutation(V)[:H].astype(np.int64)
    head = HotHead.build(read_rows, hot_token_ids, group, "balanced", V)
    return num_bytes, resident("VmHWM") - before, head.num_local_rows


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the high-water mark of memory is read from /proc")
def test_loading_touches_the_hot_rows_only(tmp_path: Path) -> None:
    per_rank = run_on_ranks(load, 2, str(sparse_checkpoint(tmp_path)))
    assert sum(rows for _, _, rows in per_rank) == H
    assert sum(num_bytes for num_bytes, _, _ in per_rank) <= 1.1 * H * D * 2
    for _, growth, rows in per_rank:
        # The rows as they are kept, once more while they are packed, and the pages of the file that any rank has read.
        assert growth < 4.5 * rows * D * 2
        assert growth < 0.6 * V * D * 2  # no copy of the head, and not all of its pages
