"""What the training loop and the evaluation need of one kind of draft head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch

from hothead.train.dataset import Document
from hothead.train.examples import Example

E = TypeVar("E", bound=Example)
E_co = TypeVar("E_co", bound=Example, covariant=True)


class Source(Protocol[E_co]):
    """Examples of one list of documents.

    num_steps: draft steps that are unrolled. batch_rows: response rows of an example. hot_token_ids: [H] int64. target_fingerprint: changes
    whenever the target's weights do.
    """

    documents: Sequence[Document]
    num_steps: int
    batch_rows: int
    dtype: torch.dtype
    hot_token_ids: torch.Tensor
    target_fingerprint: str

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[N] -> [N, D] in the scale of training."""
        ...

    def load(self, chosen: Sequence[int], key: Sequence[int] = ()) -> E_co:
        """Tensors of the documents with these indices. key: seeds what is random in it; equal keys give equal examples."""
        ...


@dataclass(frozen=True)
class StepLoss:
    """total: what is minimised. cross_entropy, feature_loss: means over rows and depths, weighted as in the total. accuracy: top-1 hits by
    depth on the document's own tokens, where the loss comes by them for nothing."""

    total: torch.Tensor
    cross_entropy: float
    feature_loss: float = 0.0
    accuracy: tuple[float, ...] = ()


@dataclass(frozen=True)
class Trainee(Generic[E]):
    """fixed: options by name that must stay the same when a run goes on, besides those of every kind of head."""

    network: torch.nn.Module
    training: Source[E]
    held_out: Source[E]
    loss: Callable[[E], StepLoss]
    evaluate: Callable[[], Evaluation]
    fixed: Mapping[str, object]


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
