"""How good a head is on held-out responses: loss and hit rate by depth, and tokens per step of a greedy chain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

import torch
import torch.nn.functional as F

from hothead.train.examples import Example
from hothead.train.network import NextEmbeddings
from hothead.train.trainee import E, Evaluation, Source

E_contra = TypeVar("E_contra", bound=Example, contravariant=True)


class Unroll(Protocol[E_contra]):
    """An example's draft steps from every response row as root -> what the head reads, one [N, D] tensor per step. next_embeddings: as in
    `EagleHead.unroll`."""

    def __call__(self, example: E_contra, next_embeddings: NextEmbeddings | None = None) -> Sequence[torch.Tensor]: ...


@torch.inference_mode()
def evaluate(source: Source[E], unroll: Unroll[E], head_rows: torch.Tensor) -> Evaluation:
    """One pass over all documents of the source. head_rows: [H, D], of the hot vocabulary in the order of its map."""
    num_steps = source.num_steps
    totals = torch.zeros(3, num_steps, dtype=torch.float64)
    counts = torch.zeros(2, num_steps, dtype=torch.float64)
    num_emitted, num_verify_steps, num_hot, num_tokens = 0, 0, 0, 0
    for chosen in _in_order(source):
        example = source.load(chosen)
        num_rows = example.batch.num_response_rows
        hits = torch.zeros(num_steps, num_rows, dtype=torch.bool)
        for step, features in enumerate(unroll(example)):
            is_counted = example.num_after > step
            labels = example.hot_indices[step + 1 : num_rows + step + 1]
            is_hot = is_counted & (labels >= 0)
            totals[0, step] += _cross_entropy(features[is_hot], head_rows, labels[is_hot])
            counts[0, step] += is_hot.sum()
            totals[1, step] += ((_best(features, head_rows) == labels) & is_counted).sum()
            counts[1, step] += is_counted.sum()
        chosen_indices = _chain(source, example, unroll, head_rows)
        for step, hot_indices in enumerate(chosen_indices):
            labels = example.hot_indices[step + 1 : num_rows + step + 1]
            hits[step] = (hot_indices == labels) & (example.num_after > step)
            if step > 0:
                hits[step] &= hits[step - 1]
            totals[2, step] += hits[step].sum()
        emitted, verify_steps = _walk(hits.sum(0), example)
        num_emitted += emitted
        num_verify_steps += verify_steps
        is_token = example.num_after > 0
        num_hot += int((example.hot_indices[1 : num_rows + 1][is_token] >= 0).sum())
        num_tokens += int(is_token.sum())
    return Evaluation(
        tuple((totals[0] / counts[0].clamp(min=1)).tolist()),
        tuple((totals[1] / counts[1].clamp(min=1)).tolist()),
        tuple((totals[2] / counts[1].clamp(min=1)).tolist()),
        num_emitted / max(num_verify_steps, 1),
        num_hot / max(num_tokens, 1),
    )


def _in_order(source: Source[E]) -> Iterator[tuple[int, ...]]:
    current: list[int] = []
    num_rows = 0
    for index, document in enumerate(source.documents):
        if current and num_rows + document.num_response_rows + source.num_steps > source.batch_rows:
            yield tuple(current)
            current, num_rows = [], 0
        current.append(index)
        num_rows += document.num_response_rows
    if current:
        yield tuple(current)


def _cross_entropy(features: torch.Tensor, head_rows: torch.Tensor, labels: torch.Tensor) -> float:
    """features: [n, D], labels: [n] hot indices -> the sum."""
    parts = zip(features.split(1024), labels.split(1024), strict=True)
    return sum(float(F.cross_entropy(F.linear(rows, head_rows).float(), wanted, reduction="sum")) for rows, wanted in parts)


def _best(features: torch.Tensor, head_rows: torch.Tensor) -> torch.Tensor:
    """[N, D] -> [N] hot indices of the best scores."""
    # The same as argmax, which for bfloat16 on a CPU takes six times as long.
    return torch.cat([F.linear(chunk, head_rows).max(-1).indices for chunk in features.split(1024)])


def _chain(source: Source[E], example: E, unroll: Unroll[E], head_rows: torch.Tensor) -> Sequence[torch.Tensor]:
    """Hot indices that a greedy chain drafts from every root: one [N] tensor per step."""
    drafted: list[torch.Tensor] = []

    def next_embeddings(features: torch.Tensor) -> torch.Tensor:
        drafted.append(_best(features, head_rows))
        return source.embed(source.hot_token_ids[drafted[-1]])

    predicted = unroll(example, next_embeddings)
    return [*drafted, _best(predicted[-1], head_rows)]


def _walk(num_accepted: torch.Tensor, example: Example) -> tuple[int, int]:
    """Emitted tokens and verify steps if every response of the batch is decoded with these accepted counts per root."""
    num_emitted = num_verify_steps = 0
    accepted = num_accepted.tolist()
    for start, length in zip(example.batch.response_starts, example.batch.response_lengths, strict=True):
        row = start
        while row < start + length - 1:
            row += accepted[row] + 1
            num_verify_steps += 1
        num_emitted += row - start
    return num_emitted, num_verify_steps
