"""Which rank holds which rows: vocabulary shards and attention heads as plain integers.

The vocabulary layout is the one of the engines whose checkpoints and launch commands users bring: for O checkpoint rows, A added rows and n
shards, p = 64, or 64 * n if ceil64(O) is not a multiple of n; O_pad = ceil_p(O); V_pad = ceil_p(O_pad + A); every rank has V_pad / n rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hothead.errors import HotheadError, HotMapError, ModelConfigError, OptionError

PAD_MULTIPLE = 64
PLACEMENTS = ("balanced", "replicated", "owner")


@dataclass(frozen=True)
class VocabShards:
    """Rows of an embedding or head cut over `num_shards` ranks.

    num_rows: O, rows in the checkpoint. num_added: A, rows appended to it (token ids O..O+A-1). Each rank's rows are its base rows,
    padding, its added rows, padding; padded rows have no token id.
    """

    num_rows: int
    num_added: int = 0
    num_shards: int = 1

    def __post_init__(self) -> None:
        if self.num_rows < 1 or self.num_added < 0 or self.num_shards < 1:
            raise OptionError(
                f"a vocabulary of {self.num_rows} rows and {self.num_added} added rows cannot be cut over {self.num_shards} ranks.",
                "Needed: at least 1 row, 0 added rows and 1 rank.",
            )
        if self.padded_rows % self.num_shards:
            raise OptionError(
                f"a vocabulary of {self.num_rows} rows and {self.num_added} added rows cannot be cut over {self.num_shards} ranks.",
                f"Its padded size {self.padded_rows} is not a multiple of {self.num_shards}.",
                advice="Use a tp_size that is a power of two, or store the added rows in the checkpoint.",
            )

    @property
    def num_token_ids(self) -> int:
        """O + A: the token ids that have a row."""
        return self.num_rows + self.num_added

    @property
    def padded_base_rows(self) -> int:
        """O_pad."""
        return _ceil(self.num_rows, self._multiple)

    @property
    def padded_rows(self) -> int:
        """V_pad."""
        return _ceil(self.padded_base_rows + self.num_added, self._multiple)

    @property
    def rows_per_shard(self) -> int:
        return self.padded_rows // self.num_shards

    def range(self, rank: int) -> tuple[int, int]:
        """Base token ids [start, stop) of a rank; empty where the rank has padding only. start is never past O."""
        width = self._base_rows_per_shard
        return min(rank * width, self.num_rows), min((rank + 1) * width, self.num_rows)

    def added_range(self, rank: int) -> tuple[int, int]:
        """Added token ids [start, stop) of a rank."""
        width = self._added_rows_per_shard
        return (
            self.num_rows + min(rank * width, self.num_added),
            self.num_rows + min((rank + 1) * width, self.num_added),
        )

    def num_owned(self, rank: int) -> int:
        (start, stop), (added_start, added_stop) = self.range(rank), self.added_range(rank)
        return stop - start + added_stop - added_start

    def num_padded(self, rank: int) -> int:
        return self.rows_per_shard - self.num_owned(rank)

    def owner(self, token_id: int) -> int:
        """The one rank that holds this token id."""
        self._check_token_id(token_id)
        if token_id < self.num_rows:
            return token_id // self._base_rows_per_shard
        return (token_id - self.num_rows) // self._added_rows_per_shard

    def local_row(self, token_id: int) -> int:
        """Row of this token id in its owner's shard."""
        owner = self.owner(token_id)
        if token_id < self.num_rows:
            return token_id - owner * self._base_rows_per_shard
        return self._base_rows_per_shard + token_id - self.num_rows - owner * self._added_rows_per_shard

    def token_id(self, rank: int, local_row: int) -> int | None:
        """Inverse of owner and local_row; None for a padded row."""
        if local_row < self._base_rows_per_shard:
            token_id = rank * self._base_rows_per_shard + local_row
            return token_id if token_id < self.num_rows else None
        token_id = self.num_rows + rank * self._added_rows_per_shard + local_row - self._base_rows_per_shard
        return token_id if local_row < self.rows_per_shard and token_id < self.num_token_ids else None

    @property
    def _multiple(self) -> int:
        return PAD_MULTIPLE if _ceil(self.num_rows, PAD_MULTIPLE) % self.num_shards == 0 else PAD_MULTIPLE * self.num_shards

    @property
    def _base_rows_per_shard(self) -> int:
        return self.padded_base_rows // self.num_shards

    @property
    def _added_rows_per_shard(self) -> int:
        return self.rows_per_shard - self._base_rows_per_shard

    def _check_token_id(self, token_id: int) -> None:
        if not 0 <= token_id < self.num_token_ids:
            raise HotMapError(f"token id {token_id} has no row: the vocabulary has {self.num_token_ids} (ids 0..{self.num_token_ids - 1}).")


def hot_indices_of_rank(
    hot_token_ids: npt.NDArray[np.int64], placement: str, rank: int, tp_size: int, num_rows: int
) -> npt.NDArray[np.int64]:
    """Hot indices that a rank holds, ascending: [R] int64.

    balanced: r, r + P, r + 2P, ... replicated: all. owner: those whose token id lies in the rank's shard of a head of num_rows rows.
    """
    hot_indices = np.arange(len(hot_token_ids), dtype=np.int64)
    if placement == "replicated":
        return hot_indices
    if placement == "balanced":
        return hot_indices[rank::tp_size]
    if placement == "owner":
        start, stop = VocabShards(num_rows, num_shards=tp_size).range(rank)
        return hot_indices[(hot_token_ids >= start) & (hot_token_ids < stop)]
    raise OptionError(f"unknown placement '{placement}' of the hot rows.", advice=f"Use one of {', '.join(PLACEMENTS)}.")


def balanced_range(total: int, num_parts: int, index: int) -> tuple[int, int]:
    """[start, stop) of part `index` when `total` things are cut in order into parts that differ by at most one; the first parts are the
    longer ones.
    """
    assert 0 <= index < num_parts, (index, num_parts)
    size, num_longer = divmod(total, num_parts)
    start = index * size + min(index, num_longer)
    return start, start + size + (index < num_longer)


@dataclass(frozen=True)
class LocalHeads:
    """Attention heads of one rank. kv_head_of_query: for each local query head, the index of its KV head among this rank's KV heads."""

    query_start: int
    query_stop: int
    kv_start: int
    kv_stop: int
    kv_head_of_query: tuple[int, ...]

    @property
    def num_query_heads(self) -> int:
        return self.query_stop - self.query_start

    @property
    def num_kv_heads(self) -> int:
        return self.kv_stop - self.kv_start


@dataclass(frozen=True)
class HeadSplit:
    """Query heads cut over ranks with at most one head of difference; a rank holds the KV heads that its query heads need.

    Neighbouring ranks may both hold a KV head. Raises OptionError when there are more ranks than query heads.
    """

    num_query_heads: int
    num_kv_heads: int
    tp_size: int

    def __post_init__(self) -> None:
        if self.num_kv_heads < 1 or self.num_query_heads < 1 or self.num_query_heads % self.num_kv_heads:
            raise ModelConfigError(f"{self.num_query_heads} query heads cannot share {self.num_kv_heads} KV heads evenly.")
        if not 1 <= self.tp_size <= self.num_query_heads:
            raise tp_size_error(self.tp_size, self.num_query_heads)

    def for_rank(self, rank: int) -> LocalHeads:
        query_start, query_stop = balanced_range(self.num_query_heads, self.tp_size, rank)
        queries_per_kv = self.num_query_heads // self.num_kv_heads
        kv_start = query_start // queries_per_kv
        kv_stop = (query_stop - 1) // queries_per_kv + 1
        return LocalHeads(
            query_start,
            query_stop,
            kv_start,
            kv_stop,
            tuple(query // queries_per_kv - kv_start for query in range(query_start, query_stop)),
        )


def tp_size_error(tp_size: int, num_query_heads: int) -> HotheadError:
    """The error for a tp_size that leaves a rank without a query head, or is no size at all."""
    return OptionError(
        f"tp_size {tp_size} does not fit a model with {num_query_heads} query heads.",
        "Every rank needs at least one query head.",
        advice=f"Use --tp-size 1 to {num_query_heads}.",
    )


def _ceil(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
