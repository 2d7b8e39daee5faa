"""A tiny random target and responses of it, for the tests of training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from hothead.train.dataset import Document
from hothead.train.examples import ExampleSource, FrozenTarget, Scales
from hothead.train.features import FeatureCache
from hothead.train.network import EagleHead, HeadShape, RotaryTables

VOCAB_SIZE = 50
SHAPE = HeadShape(hidden_size=24, intermediate_size=32, num_heads=6, num_kv_heads=2, head_dim=4, rms_norm_eps=1e-5)


def make_target() -> FrozenTarget:
    """Features are a fixed function of the token and its position; enough to learn something from."""
    generator = torch.Generator().manual_seed(3)
    embedding = torch.randn(VOCAB_SIZE, SHAPE.hidden_size, generator=generator) * 0.3
    mix = torch.randn(SHAPE.hidden_size, SHAPE.hidden_size, generator=generator)

    def hidden_states(sequences: Sequence[Sequence[int]]) -> torch.Tensor:
        parts = []
        for sequence in sequences:
            rows = embedding[torch.tensor(list(sequence))]
            parts.append(torch.tanh((rows + 0.5 * torch.roll(rows, 1, 0)) @ mix) * 2)
        return torch.cat(parts)

    return FrozenTarget(
        "tiny",
        "0" * 64,
        "1" * 64,
        SHAPE,
        embedding,
        torch.randn(VOCAB_SIZE, SHAPE.hidden_size, generator=generator),
        lambda num_positions, dtype: RotaryTables.plain(num_positions, SHAPE.head_dim, 10000.0, dtype),
        hidden_states,
        (0,),
        {"model_type": "llama", "vocab_size": VOCAB_SIZE},
        torch.ones(SHAPE.hidden_size),
    )


def make_documents(num_documents: int, seed: int = 0) -> list[Document]:
    random = np.random.default_rng(seed)
    documents = []
    for _ in range(num_documents):
        prompt = random.integers(0, VOCAB_SIZE, random.integers(1, 9))
        response = (np.arange(random.integers(2, 20)) * 7 + random.integers(0, 5)) % VOCAB_SIZE
        documents.append(Document(tuple(prompt.tolist()), tuple(response.tolist())))
    return documents


def make_source(
    documents: Sequence[Document],
    folder: Path,
    *,
    num_steps: int = 3,
    batch_rows: int = 64,
    hot_size: int = 40,
    scales: Scales | None = None,
) -> ExampleSource:
    target = make_target()
    cache = FeatureCache(documents, folder, target.name)
    cache.write(target.hidden_states)
    hot_token_ids = np.arange(VOCAB_SIZE - 1, VOCAB_SIZE - 1 - hot_size, -1)
    scales = scales or Scales.measure(target, cache, documents)
    source = ExampleSource(documents, cache, target, hot_token_ids, scales, num_steps, batch_rows, torch.float32)
    source.prepare(folder)
    return source


def make_network(seed: int = 0, has_fusion_bias: bool = False) -> EagleHead:
    network = EagleHead(SHAPE, has_fusion_bias)
    network.initialise(seed)
    return network
