"""The full vocabulary over ranks: embedding look-up, head logits, and what is asked of logits that stay cut over ranks.

Each rank holds the rows of its own token ids and nothing else, so a padded row has no local column at all and can win nothing; where ranks
must show the same shape (`ShardedLogits.gather`) the padding is -inf.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from hothead.errors import CheckpointError, ModelConfigError
from hothead.parallel.groups import RankGroup
from hothead.parallel.linear import Linear
from hothead.parallel.partition import VocabShards

NO_TOKEN_ID = 2**31 - 1
"""Stands where a rank has nothing to offer: loses every tie."""

_MAX_BLOCK = 256


class VocabHead:
    """The output head. weight_local: [R, D], rows of this rank's token ids in order (`shards.range(group.rank)`), no padding."""

    def __init__(self, weight_local: torch.Tensor, shards: VocabShards, group: RankGroup) -> None:
        _check_rows("head", weight_local, shards, group)
        self.shards = shards
        self.group = group
        self.linear = Linear(weight_local)

    def logits(self, hidden: torch.Tensor) -> ShardedLogits:
        """hidden: [N, D], same on every rank -> logits of N rows, cut over ranks."""
        return ShardedLogits(self.linear(hidden), self.shards, self.group)


class VocabEmbedding:
    """Token id -> hidden state. weight_local: [R, D], rows of this rank's token ids in order, no padding."""

    def __init__(self, weight_local: torch.Tensor, shards: VocabShards, group: RankGroup) -> None:
        _check_rows("embedding", weight_local, shards, group)
        self.weight_local = weight_local
        self.shards = shards
        self.group = group

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """token_ids: [N] int64, same on every rank -> [N, D], same on every rank (one all-reduce)."""
        if self.group.size == 1:
            return F.embedding(token_ids, self.weight_local)
        start, stop = self.shards.range(self.group.rank)
        is_mine = (token_ids >= start) & (token_ids < stop)
        rows = self.weight_local.new_zeros(len(token_ids), self.weight_local.shape[1])
        rows[is_mine] = self.weight_local[token_ids[is_mine] - start]
        return self.group.all_reduce(rows)


@dataclass(frozen=True)
class ShardedLogits:
    """Logits [N, V] of which this rank holds the columns of its own token ids.

    local: [N, R], shard of V; R is this rank's number of token ids and may differ between ranks. Column c is token id first_token_id + c.
    """

    local: torch.Tensor
    shards: VocabShards
    group: RankGroup

    @property
    def first_token_id(self) -> int:
        return self.shards.range(self.group.rank)[0]

    def select(self, rows: torch.Tensor | slice) -> ShardedLogits:
        """Only these of the N rows."""
        return ShardedLogits(self.local[rows], self.shards, self.group)

    def argmax(self) -> torch.Tensor:
        """[N] int64 token ids, same on every rank; the lowest id among equal logits. One all-gather of 8 bytes a row and rank."""
        if self.group.size == 1:
            return first_argmax(self.local)
        num_rows, num_local = self.local.shape
        packed = torch.full((num_rows, 2), NO_TOKEN_ID, dtype=torch.int32, device=self.local.device)  # [N, (score bits, token id)]
        scores = packed[:, 0].view(torch.float32)
        if num_local:
            best = first_argmax(self.local)
            scores.copy_(self.local.gather(1, best.unsqueeze(1)).squeeze(1))
            packed[:, 1] = best + self.first_token_id
        else:
            scores.fill_(float("-inf"))
        return merge_best(self.group.all_gather(packed))

    def gather(self) -> torch.Tensor:
        """[N, V], same on every rank, without padding. Bytes grow with V: for filters that need whole rows, never in a draft step."""
        if self.group.size == 1:
            return self.local
        num_padding = self.shards.rows_per_shard - self.local.shape[1]
        parts = self.group.all_gather(F.pad(self.local, (0, num_padding), value=float("-inf")))  # [P, N, rows_per_shard]
        return parts.transpose(0, 1).flatten(1)[:, : self.shards.num_rows]


def merge_best(gathered: torch.Tensor) -> torch.Tensor:
    """Every rank's (score, token id) -> [N] int64: the highest score, the lowest token id among equal ones.

    gathered: [P, N, 2] int32, the float32 score's bits beside the token id.
    """
    scores, token_ids = gathered[..., 0].view(torch.float32), gathered[..., 1]  # [P, N]
    is_best = scores == scores.amax(0)
    return token_ids.masked_fill(~is_best, NO_TOKEN_ID).amin(0).long()


def first_argmax(values: torch.Tensor) -> torch.Tensor:
    """[N, R] -> [N] int64: position of the largest value in each row, the first among equal ones.

    The bits of a positive float order like an integer, and maxima of integers in blocks are vectorised, which makes this 10 to 60 times
    faster on a CPU than `torch.argmax`; a row without a positive value takes the plain road.
    """
    num_rows, num_columns = values.shape
    num_blocks = num_columns // _MAX_BLOCK
    if values.device.type != "cpu" or values.dtype not in _BITS or values.stride(-1) != 1 or num_blocks < 2 or num_rows == 0:
        return values.argmax(-1)
    bits = values.view(_BITS[values.dtype])
    in_blocks = num_blocks * _MAX_BLOCK
    blocks = bits[:, :in_blocks].view(num_rows, num_blocks, _MAX_BLOCK)  # [N, blocks, block]
    best_of_row, best_block = blocks.amax(-1).max(-1)
    best = best_block * _MAX_BLOCK + blocks[torch.arange(num_rows), best_block].argmax(-1)
    if in_blocks < num_columns:
        tail_best, tail_position = bits[:, in_blocks:].max(-1)
        best = torch.where(tail_best > best_of_row, tail_position + in_blocks, best)
        best_of_row = torch.maximum(best_of_row, tail_best)
    if int(best_of_row.amin()) <= 0:
        return values.argmax(-1)
    return best


_BITS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}


def _check_rows(what: str, weight_local: torch.Tensor, shards: VocabShards, group: RankGroup) -> None:
    if shards.num_added:
        raise ModelConfigError(
            f"the {what} has {shards.num_added} added rows beside the {shards.num_rows} of the checkpoint; this is not implemented.",
            advice="Store the added rows in the checkpoint.",
        )
    if shards.num_shards != group.size:
        raise CheckpointError(f"the {what} is cut in {shards.num_shards} shards, but {group.size} ranks share it.")
    num_owned = shards.num_owned(group.rank)
    if weight_local.shape[0] != num_owned:
        raise CheckpointError(
            f"the {what}'s shard on rank {group.rank} of {group.size} has {weight_local.shape[0]} rows.",
            f"It owns {num_owned} token ids of {shards.num_rows} (ids {shards.range(group.rank)[0]} to {shards.range(group.rank)[1] - 1}).",
        )
