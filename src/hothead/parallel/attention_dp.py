"""The ranks of one launch as its head sees them: which of them share a row of logits, and whose rows they are.

Under attention data parallelism tp_size ranks are dp_size groups of neighbours, and each group has requests of its own. A head that follows
the attention group is cut over the group and sees the group's rows only. A head that stays cut over all ranks needs the rows of all groups
first: they are gathered, padded to the longest, and each group takes its own ones back.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from hothead.errors import OptionError
from hothead.parallel.groups import ProcessGroupRanks, RankGroup, SingleRank
from hothead.parallel.layout import HeadLayout, ParallelConfig


@dataclass(frozen=True)
class HeadRanks:
    """Made by `HeadRanks.make` on every rank. group: the ranks that share a row of logits. dp_rank: which attention group this rank is in.

    across: the ranks with this one's place in every attention group, where rows have to be gathered; else None.
    """

    group: RankGroup
    dp_rank: int
    across: RankGroup | None

    @staticmethod
    def make(layout: HeadLayout, parallel: ParallelConfig) -> HeadRanks:
        """Called by all ranks of the default process group, which must be tp_size; raises OptionError where it is not."""
        if parallel.tp_size == 1:
            return HeadRanks(SingleRank(), 0, None)
        size, rank = dist.get_world_size(), dist.get_rank()
        if size != parallel.tp_size:
            raise OptionError(f"--tp-size {parallel.tp_size} ranks are needed, and {size} are there.")
        width = parallel.attn_tp_size
        if width == size:
            return HeadRanks(ProcessGroupRanks(), 0, None)
        blocks = [list(range(start, start + width)) for start in range(0, size, width)]
        if layout.group == "attention":
            return HeadRanks(_own_group(blocks, rank), rank // width, None)
        return HeadRanks(ProcessGroupRanks(), rank // width, _own_group([list(range(place, size, width)) for place in range(width)], rank))

    def gather_rows(self, hidden: torch.Tensor) -> tuple[torch.Tensor, slice]:
        """hidden: [N, D], the same on all ranks of an attention group -> the rows that the head must see [M, D], and which of them are this
        group's. Two collectives over `across`; none where the head sees the group's own rows."""
        if self.across is None:
            return hidden, slice(0, len(hidden))
        counts = self.across.all_gather(torch.tensor([len(hidden)], dtype=torch.int64, device=hidden.device)).flatten().tolist()
        padded = hidden.new_zeros((max(counts), hidden.shape[1]))
        padded[: len(hidden)] = hidden
        parts = self.across.all_gather(padded)
        rows = torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
        start = sum(counts[: self.dp_rank])
        return rows, slice(start, start + len(hidden))


def _own_group(members: list[list[int]], rank: int) -> RankGroup:
    """All ranks make all groups, in the same order, as torch.distributed wants it; one rank alone needs none."""
    groups = [dist.new_group(ranks) if len(ranks) > 1 else None for ranks in members]
    own = next(group for group, ranks in zip(groups, members, strict=True) if rank in ranks)
    return SingleRank() if own is None else ProcessGroupRanks(own)
