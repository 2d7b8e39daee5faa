"""A launch's head rank by rank: rows, padding, and where a token map's rows would lie."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hothead.parallel.layout import HeadLayout
from hothead.parallel.partition import PLACEMENTS, hot_indices_of_rank


def layout_rows(layout: HeadLayout, hot_token_ids: npt.NDArray[np.int64] | None) -> list[dict[str, int]]:
    """One row per rank of a group that shares the head: token ids [first, last], rows, padded rows; with a map the hot rows under each
    placement, and the ids that have no row where a shard is indexed by token id."""
    rows = []
    for rank in range(layout.num_shards):
        start, stop = layout.shards.range(rank)
        row = {
            "rank": rank,
            "first_id": start,
            "last_id": stop - 1,
            "rows": layout.shards.rows_per_shard,
            "padded": layout.shards.num_padded(rank),
        }
        if hot_token_ids is not None:
            for placement in PLACEMENTS:
                held = hot_indices_of_rank(hot_token_ids, placement, rank, layout.num_shards, layout.shards.num_rows)
                row[f"hot_{placement}"] = len(held)
            row["past_the_shard"] = int((hot_token_ids >= layout.shards.rows_per_shard).sum())
        rows.append(row)
    return rows


def layout_text(layout: HeadLayout, rows: Sequence[dict[str, int]]) -> str:
    groups = layout.num_ranks // layout.num_shards
    shared = f"{layout.num_shards} of {layout.num_ranks} ranks share the head ({layout.group}; {groups} group{'s' * (groups > 1)})"
    names = list(rows[0])
    cells = [[name.replace("_", " ") for name in names], *([f"{row[name]:,}" for name in names] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
    return "\n".join([f"{shared}:", *("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)])
