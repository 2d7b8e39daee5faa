"""The quantized heads of tests/data, and what the libraries that define their formats make of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch

DATA = Path(__file__).resolve().parent.parent / "data" / "quantized"
CASES = sorted(folder.name for folder in DATA.iterdir())


def head_name(case: str) -> str:
    return "model.embed_tokens.weight" if case.startswith("tied") else "lm_head.weight"


@cache
def expected_head(case: str) -> torch.Tensor:
    """The library's own dequantized matrix, in the dtype that it gives."""
    with np.load(DATA / case / "expected.npz") as stored:
        return torch.from_numpy(stored["bits"]).view(getattr(torch, str(stored["dtype"])))
