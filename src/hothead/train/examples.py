"""From packed documents to the tensors of one training step, in unit features."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from hothead.errors import OutputError
from hothead.train.attention import AttentionLayout
from hothead.train.dataset import Batch, Document, fingerprint, pack
from hothead.train.features import FeatureRows, HiddenStates
from hothead.train.losses import expected_head_rows
from hothead.train.network import HeadShape, RotaryTables, UnrollInputs


@dataclass(frozen=True)
class FrozenTarget:
    """What training needs of the target.

    weights_fingerprint: changes whenever the weights do; names cached features. embedding, head: [V, D], the same tensor where they are
    tied. rotary: tables of the head's own rotary embedding for so many positions. hidden_states: see `features.HiddenStates`.
    eos_token_ids are always in the hot vocabulary. config: what the head's config.json takes over. feature_layers: layers whose inputs lie
    before the final states in what hidden_states gives, none for EAGLE. final_norm: [D].
    """

    name: str
    tokenizer_fingerprint: str
    weights_fingerprint: str
    shape: HeadShape
    embedding: torch.Tensor
    head: torch.Tensor
    rotary: Callable[[int, torch.dtype], RotaryTables]
    hidden_states: HiddenStates
    eos_token_ids: tuple[int, ...]
    config: dict[str, object]
    final_norm: torch.Tensor
    feature_layers: tuple[int, ...] = ()

    @property
    def vocab_size(self) -> int:
        return len(self.embedding)


@dataclass(frozen=True)
class Example:
    """What every kind of head needs of one training step: hot_indices: [M] int64 of each row's next token, -1 outside the hot vocabulary;
    num_after: [N] int64, see Batch."""

    hot_indices: torch.Tensor
    num_after: torch.Tensor
    batch: Batch


@dataclass(frozen=True)
class EagleExample(Example):
    """N response rows as in `dataset.Batch`, and num_steps rows of padding where reading ahead needs them.

    expected_rows: [N + S, D], features: [M, D], both at the row's own position.
    """

    inputs: UnrollInputs
    expected_rows: torch.Tensor


def lay_out(batch: Batch, of_documents: Sequence[npt.NDArray[np.uint16]]) -> npt.NDArray[np.uint16]:
    """[tokens, F] of each document of a batch -> [M, F], each row at its place, padding zero."""
    features = np.zeros((len(batch.positions), of_documents[0].shape[1]), np.uint16)
    for place, rows in enumerate(of_documents):
        num_context, num_response = batch.context_lengths[place], batch.response_lengths[place]
        start, context_start = batch.response_starts[place], batch.context_starts[place]
        features[start : start + num_response] = rows[num_context : num_context + num_response]
        features[context_start : context_start + num_context] = rows[:num_context]
    return features


def as_bfloat16(bits: npt.NDArray[np.uint16]) -> torch.Tensor:
    """The numbers whose bits these are."""
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)


class ExampleSource:
    """Loads examples of one list of documents."""

    def __init__(
        self,
        documents: Sequence[Document],
        features: FeatureRows,
        target: FrozenTarget,
        hot_token_ids: npt.NDArray[np.int64],
        scales: Scales,
        num_steps: int,
        batch_rows: int,
        dtype: torch.dtype,
    ) -> None:
        self.documents = documents
        self.num_steps = num_steps
        self.batch_rows = batch_rows
        self.dtype = dtype
        self.target_fingerprint = target.weights_fingerprint
        self._features = features
        self._scales = scales
        self._groups = target.shape.num_heads // target.shape.num_kv_heads
        self._embedding = (target.embedding.float() / scales.embedding).to(dtype)
        self.hot_token_ids = torch.tensor(hot_token_ids)
        self.hot_rows = (target.head[self.hot_token_ids].float() * scales.feature).to(dtype)
        self._hot_index = torch.full((target.vocab_size,), -1, dtype=torch.int64)
        self._hot_index[self.hot_token_ids] = torch.arange(len(hot_token_ids))
        self._starts = np.cumsum([0, *(document.num_response_rows for document in documents)])
        self._expected: npt.NDArray[np.float16] | None = None

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[N] -> [N, D] in unit scale."""
        return self._embedding[token_ids]

    def prepare(self, folder: Path, progress: Callable[[int, int], None] | None = None) -> None:
        """Compute the expected head rows of every response row, once for this map; kept in the folder as float16."""
        digest = hashlib.sha256(self.hot_token_ids.numpy().astype("<i8").tobytes())
        digest.update(self.hot_rows.float().numpy().tobytes() + fingerprint(self.documents).encode())
        path = folder / f"expected-{digest.hexdigest()[:24]}.npy"
        if not path.exists():
            self._write_expected(path, progress)
        self._expected = np.load(path, mmap_mode="r")

    def load(self, chosen: Sequence[int], key: Sequence[int] = ()) -> EagleExample:
        """Tensors of the documents with these indices. key: unused, nothing here is random."""
        assert self._expected is not None, "prepare() comes first"
        batch = pack(self.documents, chosen, self.batch_rows, self.num_steps)
        features = lay_out(batch, self._features.documents(chosen))
        expected = np.zeros((batch.num_response_rows + self.num_steps, self.hot_rows.shape[1]), np.float16)
        for place, index in enumerate(chosen):
            start, num_response = batch.response_starts[place], batch.response_lengths[place]
            expected[start : start + num_response] = self._expected[self._starts[index] : self._starts[index + 1]]
        next_token_ids = torch.from_numpy(batch.next_token_ids)
        inputs = UnrollInputs(
            self.embed(next_token_ids),
            self._to_unit(features),
            torch.from_numpy(batch.positions),
            AttentionLayout.make(batch, self._groups, self.num_steps, self.dtype),
        )
        return EagleExample(self._hot_index[next_token_ids], torch.from_numpy(batch.num_after), batch, inputs, torch.from_numpy(expected))

    def _to_unit(self, bits: npt.NDArray[np.uint16]) -> torch.Tensor:
        return as_bfloat16(bits).to(self.dtype) / self._scales.feature

    def _write_expected(self, path: Path, progress: Callable[[int, int], None] | None) -> None:
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            shape = (int(self._starts[-1]), self.hot_rows.shape[1])
            out = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.float16, shape=shape)
            for first in range(0, len(self.documents), 16):
                indices = range(first, min(first + 16, len(self.documents)))
                features = np.concatenate([self._features.document(one)[self.documents[one].num_context_rows :][:-1] for one in indices])
                rows = expected_head_rows(self._to_unit(features), self.hot_rows).numpy()
                out[self._starts[indices[0]] : self._starts[indices[-1] + 1]] = rows
                if progress is not None:
                    progress(indices[-1] + 1, len(self.documents))
            out.flush()
            del out
            temporary.replace(path)
        except OSError as error:
            raise OutputError(
                f"Training data cannot be written to '{path.parent}': {error.strerror or error}.",
                advice="Free disk space or give another --output.",
            ) from error
        finally:
            temporary.unlink(missing_ok=True)


@dataclass(frozen=True)
class Scales:
    """Root mean squares that unit features and embeddings are divided by; powers of two, so that bfloat16 values keep their digits."""

    embedding: float
    feature: float

    @staticmethod
    def measure(target: FrozenTarget, features: FeatureRows, documents: Sequence[Document], num_documents: int = 64) -> Scales:
        token_ids = torch.tensor([token_id for document in documents[:num_documents] for token_id in document.token_ids])
        bits = np.concatenate([np.asarray(features.document(index)) for index in range(min(num_documents, len(documents)))])
        raw = as_bfloat16(bits)
        return Scales(power_of_two(target.embedding[token_ids]), power_of_two(raw))


def power_of_two(values: torch.Tensor) -> float:
    """The power of two next to the root mean square."""
    return float(2.0 ** torch.log2(values.float().square().mean().sqrt()).round().item())
