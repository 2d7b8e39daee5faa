"""Features are computed once, whole, and only where they are missing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from hothead.train import features
from hothead.train.features import FeatureCache

from .tiny import make_documents, make_target


def test_every_document_gets_its_own_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "SHARD_DOCUMENTS", 4)
    target, documents = make_target(), make_documents(10)
    cache = FeatureCache(documents, tmp_path, "tiny")
    done: list[tuple[int, int]] = []
    cache.write(target.hidden_states, lambda *counts: done.append(counts), batch_tokens=30)
    assert done == [(4, 10), (8, 10), (10, 10)]
    for index, document in enumerate(documents):
        bits = torch.from_numpy(np.array(cache.document(index)).view(np.int16)).view(torch.bfloat16)
        torch.testing.assert_close(bits, target.hidden_states([document.token_ids]).bfloat16())


def test_an_interrupted_or_longer_run_computes_only_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "SHARD_DOCUMENTS", 4)
    target, documents = make_target(), make_documents(12)
    num_tokens = 0

    def counted(sequences: Sequence[Sequence[int]]) -> torch.Tensor:
        nonlocal num_tokens
        num_tokens += sum(len(sequence) for sequence in sequences)
        return target.hidden_states(sequences)

    def interrupted(sequences: Sequence[Sequence[int]]) -> torch.Tensor:
        if num_tokens:
            raise KeyboardInterrupt
        return counted(sequences)

    with pytest.raises(KeyboardInterrupt):
        FeatureCache(documents[:8], tmp_path, "tiny").write(interrupted)
    assert all(path.suffix == ".npy" and not path.name.startswith(".") for path in tmp_path.iterdir())
    FeatureCache(documents[:8], tmp_path, "tiny").write(counted)
    FeatureCache(documents, tmp_path, "tiny").write(counted)
    assert num_tokens == sum(len(document.token_ids) for document in documents)
    assert FeatureCache(documents, tmp_path, "another target").missing() == [0, 1, 2]
