"""The full head and embedding over ranks equal the ones at one rank, padding and ties included."""

from __future__ import annotations

import pytest
import torch
from tests.support.ranks import run_on_ranks

from hothead.errors import CheckpointError, ModelConfigError
from hothead.parallel.full_head import ShardedLogits, VocabEmbedding, VocabHead, first_argmax
from hothead.parallel.groups import RankGroup, SingleRank
from hothead.parallel.partition import VocabShards

VOCAB_SIZES = (1010, 130, 3)


def quantized(*shape: int, seed: int) -> torch.Tensor:
    """Small whole numbers: sums are exact in any order, and equal scores are common."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).float()


def full_head(group: RankGroup) -> list[list[torch.Tensor]]:
    results = []
    for vocab_size in VOCAB_SIZES:
        weight, hidden = quantized(vocab_size, 8, seed=1), quantized(11, 8, seed=2)
        shards = VocabShards(vocab_size, num_shards=group.size)
        rows = weight[slice(*shards.range(group.rank))]
        head, embedding = VocabHead(rows, shards, group), VocabEmbedding(rows, shards, group)
        token_ids = torch.arange(0, vocab_size, max(1, vocab_size // 9))
        logits = head.logits(hidden)
        # every real logit negative: padding that counted as zero would win
        negative = ShardedLogits(logits.local - 1000, shards, group)
        before = group.num_collectives
        best = logits.argmax()
        assert group.num_collectives - before == (group.size > 1)
        results.append([best, negative.argmax(), logits.select(slice(2, 5)).argmax(), logits.gather(), embedding(token_ids)])
    return results


def test_ranks_agree_with_one_rank() -> None:
    (expected,) = run_on_ranks(full_head, 1)
    for vocab_size, (best, negative, selected, logits, embedded) in zip(VOCAB_SIZES, expected, strict=True):
        plain = quantized(11, 8, seed=2) @ quantized(vocab_size, 8, seed=1).T
        assert torch.equal(logits, plain)
        assert best.tolist() == [min(i for i, value in enumerate(row) if value == max(row)) for row in plain.tolist()]
        assert torch.equal(negative, best)
        assert torch.equal(selected, best[2:5])
        assert torch.equal(embedded, quantized(vocab_size, 8, seed=1)[:: max(1, vocab_size // 9)])
    for size in (2, 3):
        for results in run_on_ranks(full_head, size):
            for ours, theirs in zip(results, expected, strict=True):
                assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
@pytest.mark.parametrize("num_columns", [5, 512, 49152, 3001])
def test_first_argmax_equals_the_plain_one(num_columns: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(num_columns)
    for values in (
        torch.randn(17, num_columns, generator=generator),
        torch.randint(-2, 3, (17, num_columns), generator=generator).float(),
        -torch.rand(3, num_columns, generator=generator) - 0.5,
        torch.zeros(2, num_columns),
        torch.cat([torch.full((2, num_columns - 1), float("-inf")), torch.ones(2, 1)], 1),
        torch.randn(num_columns, 4, generator=generator).T,
        torch.zeros(0, num_columns),
    ):
        values = values.to(dtype)
        assert torch.equal(first_argmax(values), values.argmax(-1))


@pytest.mark.case(2, 3)
def test_a_shard_that_does_not_fit_is_refused_with_numbers() -> None:
    shards = VocabShards(1010)
    with pytest.raises(CheckpointError, match=r"rank 0 of 1 has 1024 rows(.|\n)*1010 token ids"):
        VocabHead(torch.zeros(1024, 4), shards, SingleRank())
    with pytest.raises(CheckpointError, match="cut in 2 shards, but 1 ranks"):
        VocabEmbedding(torch.zeros(512, 4), VocabShards(1010, num_shards=2), SingleRank())
    with pytest.raises(ModelConfigError, match="16 added rows"):
        VocabHead(torch.zeros(1026, 4), VocabShards(1010, num_added=16), SingleRank())
