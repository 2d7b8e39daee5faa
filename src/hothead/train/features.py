"""The target's features of every document, written once and read many times.

Shards of documents lie in one folder as .npy files of bfloat16 bits (uint16 [tokens, F]), each named by the hash of the target and of its
documents' token ids. A shard is written under a temporary name and renamed, so an interrupted run goes on where it stopped, and a longer
file of responses reuses what is there.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from hothead.errors import OutputError
from hothead.train.dataset import Document, fingerprint

SHARD_DOCUMENTS = 256

HiddenStates = Callable[[Sequence[Sequence[int]]], torch.Tensor]
"""Whole sequences -> [N, F], the target's features, one sequence after the other: for EAGLE its hidden states after the final norm, for
EAGLE-3 those of several layers and behind them the ones after the final norm."""


class FeatureRows(Protocol):
    """Features by document: the cache itself, or some documents of it."""

    def document(self, index: int) -> npt.NDArray[np.uint16]:
        """[tokens, F] bfloat16 bits of one document."""
        ...

    def documents(self, indices: Sequence[int]) -> list[npt.NDArray[np.uint16]]:
        """The same of several documents."""
        ...


class OnlineFeatures:
    """Features that are computed whenever they are asked for, several documents in one pass."""

    def __init__(self, documents: Sequence[Document], hidden_states: HiddenStates) -> None:
        self._documents = documents
        self._hidden_states = hidden_states

    def document(self, index: int) -> npt.NDArray[np.uint16]:
        """[tokens, F] bfloat16 bits of one document."""
        return self.documents([index])[0]

    def documents(self, indices: Sequence[int]) -> list[npt.NDArray[np.uint16]]:
        """The same of several documents, in one pass."""
        return compute_bits([self._documents[index] for index in indices], self._hidden_states)


def compute_bits(documents: Sequence[Document], hidden_states: HiddenStates) -> list[npt.NDArray[np.uint16]]:
    """bfloat16 bits [tokens, F] of each document, in one pass."""
    with torch.inference_mode():
        hidden = hidden_states([document.token_ids for document in documents]).to("cpu", torch.bfloat16)
    lengths = [len(document.token_ids) for document in documents]
    assert len(hidden) == sum(lengths), (hidden.shape, sum(lengths))
    return np.split(hidden.view(torch.int16).numpy().view(np.uint16), np.cumsum(lengths)[:-1])


@dataclass(frozen=True)
class FeatureSubset:
    """Some documents of a cache, numbered anew."""

    cache: FeatureRows
    indices: Sequence[int]

    def document(self, index: int) -> npt.NDArray[np.uint16]:
        """[tokens, F] bfloat16 bits of one document."""
        return self.cache.document(self.indices[index])

    def documents(self, indices: Sequence[int]) -> list[npt.NDArray[np.uint16]]:
        """The same of several documents."""
        return self.cache.documents([self.indices[index] for index in indices])


class FeatureCache:
    """Features of documents, in their order. `document(index)` -> uint16 [tokens, D], bfloat16 bits, mapped from disk."""

    def __init__(self, documents: Sequence[Document], folder: Path, target_name: str) -> None:
        self._folder = folder
        self._shards = [documents[start : start + SHARD_DOCUMENTS] for start in range(0, len(documents), SHARD_DOCUMENTS)]
        self._paths = [folder / f"features-{_shard_name(shard, target_name)}.npy" for shard in self._shards]
        self._maps: dict[int, npt.NDArray[np.uint16]] = {}
        self._starts = [np.cumsum([0, *(len(document.token_ids) for document in shard)]) for shard in self._shards]

    def missing(self) -> list[int]:
        """Shards that are not yet on disk."""
        return [index for index, path in enumerate(self._paths) if not path.exists()]

    def write(self, hidden_states: HiddenStates, progress: Callable[[int, int], None] | None = None, batch_tokens: int = 4096) -> None:
        """Compute what is missing. progress(documents done, documents in all) after every shard."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for index in self.missing():
            _write_shard(self._paths[index], self._shards[index], hidden_states, batch_tokens)
            if progress is not None:
                progress(sum(len(self._shards[one]) for one in range(len(self._shards)) if self._paths[one].exists()), self.num_documents)

    @property
    def num_documents(self) -> int:
        return sum(len(shard) for shard in self._shards)

    def document(self, index: int) -> npt.NDArray[np.uint16]:
        """[tokens, D] bfloat16 bits of one document."""
        shard, place = divmod(index, SHARD_DOCUMENTS)
        if shard not in self._maps:
            self._maps[shard] = np.load(self._paths[shard], mmap_mode="r")
        starts = self._starts[shard]
        return self._maps[shard][starts[place] : starts[place + 1]]

    def documents(self, indices: Sequence[int]) -> list[npt.NDArray[np.uint16]]:
        """The same of several documents."""
        return [self.document(index) for index in indices]


def _shard_name(documents: Sequence[Document], target_name: str) -> str:
    return hashlib.sha256(f"{target_name}\n{fingerprint(documents)}".encode()).hexdigest()[:24]


def _write_shard(path: Path, documents: Sequence[Document], hidden_states: HiddenStates, batch_tokens: int) -> None:
    # Longest first, so that sequences of one forward pass have similar lengths.
    order = sorted(range(len(documents)), key=lambda index: -len(documents[index].token_ids))
    parts: dict[int, npt.NDArray[np.uint16]] = {}
    while order:
        taken: list[int] = []
        num_tokens = 0
        while order and (not taken or num_tokens + len(documents[order[0]].token_ids) <= batch_tokens):
            taken.append(order.pop(0))
            num_tokens += len(documents[taken[-1]].token_ids)
        parts.update(zip(taken, compute_bits([documents[index] for index in taken], hidden_states), strict=True))
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            np.save(file, np.concatenate([parts[index] for index in range(len(documents))]))
        temporary.replace(path)
    except OSError as error:
        raise OutputError(
            f"Features cannot be written to '{path.parent}': {error.strerror or error}.", advice="Free disk space or give another --output."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
