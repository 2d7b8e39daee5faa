"""From packed documents to the tensors of one training step of an EAGLE-3 head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from hothead.train.attention import AttentionLayout
from hothead.train.dataset import Batch, Document, pack
from hothead.train.eagle3_network import Eagle3Inputs
from hothead.train.examples import Example, FrozenTarget, as_bfloat16, lay_out
from hothead.train.features import FeatureRows


@dataclass(frozen=True)
class Eagle3Example(Example):
    """final_states: [N, D], the target's hidden states after its final norm at every response row."""

    inputs: Eagle3Inputs
    final_states: torch.Tensor


class Eagle3Source:
    """Loads examples of one list of documents. hot_rows: [H, D] of the target's head."""

    def __init__(
        self,
        documents: Sequence[Document],
        features: FeatureRows,
        target: FrozenTarget,
        hot_token_ids: npt.NDArray[np.int64],
        feature_scales: Sequence[float],
        num_steps: int,
        batch_rows: int,
        dtype: torch.dtype,
        later_share: float = 1.0,
    ) -> None:
        """features: [tokens, 4 D] of each document, the final states last. later_share: of the positions that later steps start from."""
        self.documents = documents
        self.num_steps = num_steps
        self.batch_rows = batch_rows
        self.dtype = dtype
        self.target_fingerprint = target.weights_fingerprint
        self.hot_token_ids = torch.tensor(hot_token_ids)
        self.hot_rows = target.head[self.hot_token_ids].to(dtype)
        self._features = features
        self._groups = target.shape.num_heads // target.shape.num_kv_heads
        self._width = target.shape.hidden_size
        self._embedding = target.embedding.to(dtype)
        self._inverse_scales = torch.tensor([1 / scale for scale in feature_scales], dtype=dtype).repeat_interleave(self._width)
        self._hot_index = torch.full((target.vocab_size,), -1, dtype=torch.int64)
        self._hot_index[self.hot_token_ids] = torch.arange(len(hot_token_ids))
        self._later_share = later_share

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[N] -> [N, D]."""
        return self._embedding[token_ids]

    def load(self, chosen: Sequence[int], key: Sequence[int] = ()) -> Eagle3Example:
        """Tensors of the documents with these indices; key seeds the choice of positions that later steps start from."""
        batch = pack(self.documents, chosen, self.batch_rows, self.num_steps)
        joined = as_bfloat16(lay_out(batch, self._features.documents(chosen))).to(self.dtype)  # [M, 4 D]
        num_rows = batch.num_response_rows
        roots = None if self._later_share >= 1 else choose_roots(batch, self._later_share, key)
        next_token_ids = torch.from_numpy(batch.next_token_ids)
        inputs = Eagle3Inputs(
            self.embed(next_token_ids),
            joined[:, : -self._width] * self._inverse_scales,
            torch.from_numpy(batch.positions),
            AttentionLayout.make(batch, self._groups, self.num_steps, self.dtype),
            None if roots is None else torch.from_numpy(roots),
            None if roots is None else AttentionLayout.make(batch, self._groups, self.num_steps, self.dtype, roots),
        )
        final_states = joined[:num_rows, -self._width :].contiguous()
        return Eagle3Example(self._hot_index[next_token_ids], torch.from_numpy(batch.num_after), batch, inputs, final_states)


def choose_roots(batch: Batch, share: float, key: Sequence[int]) -> npt.NDArray[np.int64]:
    """[R] response rows in order, chosen at random among those that have something to predict in a later step; R is the same for every
    batch, so padding rows fill up where there are too few. Each row is as likely as any other, so the loss of every depth is a mean over a
    fair sample."""
    num_roots = max(1, round(batch.num_response_rows * share))
    useful = np.flatnonzero(batch.num_after > 1)
    if len(useful) > num_roots:
        useful = np.random.default_rng([*key, 3]).choice(useful, num_roots, replace=False)
    others = np.setdiff1d(np.arange(batch.num_response_rows), useful)[: num_roots - len(useful)]
    return np.sort(np.concatenate([useful, others]))


def measure_scales(target: FrozenTarget, features: FeatureRows, num_documents: int = 16) -> tuple[float, ...]:
    """A power of two for each feature layer: the median over tokens of the states' root mean square, since some tokens (the first one of
    a text, say) have a hundred times the others'."""
    bits = np.concatenate(features.documents(range(num_documents)))
    layers = as_bfloat16(bits).float().split(target.shape.hidden_size, 1)[:-1]
    return tuple(float(2.0 ** layer.square().mean(1).sqrt().median().log2().round()) for layer in layers)
