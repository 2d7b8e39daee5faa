"""How good a head is on held-out responses: loss and hit rate by depth, and tokens per step of a greedy chain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from hothead.train.examples import Example, ExampleSource
from hothead.train.losses import distillation_loss
from hothead.train.network import ComputeWeights, EagleHead, RotaryTables


@dataclass(frozen=True)
class Evaluation:
    """Means over held-out response tokens, one entry per draft step where a tuple.

    cross_entropy, accuracy: on the document's own tokens (top-1 hits; a token outside the hot vocabulary is a miss). chain_acceptance:
    share of roots for which the first s + 1 tokens of the head's own greedy chain are all right. tokens_per_step: of greedy speculative
    decoding by such chains, bonus token included.
    """

    cross_entropy: tuple[float, ...]
    accuracy: tuple[float, ...]
    chain_acceptance: tuple[float, ...]
    tokens_per_step: float
    hot_hit_rate: float


@torch.inference_mode()
def evaluate(network: EagleHead, source: ExampleSource, rotary: RotaryTables) -> Evaluation:
    """One pass over all documents of the source."""
    weights = network.compute_weights(source.dtype)
    num_steps = source.num_steps
    totals = torch.zeros(3, num_steps, dtype=torch.float64)
    counts = torch.zeros(2, num_steps, dtype=torch.float64)
    num_emitted, num_verify_steps, num_hot, num_tokens = 0, 0, 0, 0
    for chosen in _in_order(source):
        example = source.load(chosen)
        num_rows = example.batch.num_response_rows
        hits = torch.zeros(num_steps, num_rows, dtype=torch.bool)
        predicted = network.unroll(weights, example.inputs, rotary, num_steps)
        for step, features in enumerate(predicted):
            is_counted = example.num_after > step
            labels = example.hot_indices[step + 1 : num_rows + step + 1]
            cross_entropy_weights = (is_counted & (labels >= 0)).float()
            expected = example.expected_rows[step + 1 : num_rows + step + 1]
            _, parts = distillation_loss(
                features, source.hot_rows, _padded(expected, num_rows), features, cross_entropy_weights, torch.zeros(num_rows)
            )
            totals[0, step] += parts[0].double()
            counts[0, step] += cross_entropy_weights.sum()
            totals[1, step] += ((_best(features, source) == labels) & is_counted).sum()
            counts[1, step] += is_counted.sum()
        chosen_indices = _chain(network, weights, source, example, rotary)
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


def _in_order(source: ExampleSource) -> Iterator[tuple[int, ...]]:
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


def _padded(rows: torch.Tensor, num_rows: int) -> torch.Tensor:
    return rows if len(rows) == num_rows else F.pad(rows, (0, 0, 0, num_rows - len(rows)))


def _best(features: torch.Tensor, source: ExampleSource) -> torch.Tensor:
    """[N, D] -> [N] hot indices of the best scores."""
    return torch.cat([F.linear(chunk, source.hot_rows).argmax(-1) for chunk in features.split(1024)])


def _chain(
    network: EagleHead, weights: ComputeWeights, source: ExampleSource, example: Example, rotary: RotaryTables
) -> Sequence[torch.Tensor]:
    """Hot indices that a greedy chain drafts from every root: one [N] tensor per step."""
    drafted: list[torch.Tensor] = []

    def next_embeddings(features: torch.Tensor) -> torch.Tensor:
        drafted.append(_best(features, source))
        return source.embed(source.hot_token_ids[drafted[-1]])

    predicted = network.unroll(weights, example.inputs, rotary, source.num_steps, next_embeddings)
    return [*drafted, _best(predicted[-1], source)]


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
