"""The draft head cut to the hot vocabulary, over any number of ranks: which rows a rank holds, and the best candidates over all of them.

Frequent token ids cluster at low numbers, so rows left with their vocabulary shards would load one rank with nearly all of them. A token
map is ordered by frequency, and under `balanced` rank r holds hot indices r, r + P, r + 2P, ...: ranks differ by at most one row, and so
they do for every prefix of the map. Rows are read by token id straight from the reader, so a shard of the target's head is never indexed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from hothead.errors import CheckpointError, HotMapError
from hothead.parallel.full_head import NO_TOKEN_ID
from hothead.parallel.groups import RankGroup
from hothead.parallel.linear import Linear
from hothead.parallel.partition import hot_indices_of_rank
from hothead.parallel.quantized_linear import Int4Linear, Int8Linear, check_kernels
from hothead.vocab.token_map import check_token_ids, check_token_ids_fit

HeadLinear = Linear | Int8Linear | Int4Linear

RowReader = Callable[[np.ndarray], torch.Tensor]
"""token ids [n] int64 -> their rows [n, D]; called with this rank's ids only, possibly none."""

Noise = Callable[[torch.Tensor], torch.Tensor]
"""token ids [R] int64 -> [N, R] float32, the same number for the same token id on every rank."""

_READ_ROWS = 4096
_MIN_BLOCKED = 4096
_BLOCK = 64
_SPARE_VALUES = 8


@dataclass(frozen=True)
class Candidates:
    """K hot tokens of each row, best first. log_probs: [N, K] float32. token_ids: [N, K] int64. Both same on every rank.

    laws: [N, R] float32, shard of H: log-probabilities of this rank's rows, where the tokens were drawn from them (`HotHead.draw`).
    """

    log_probs: torch.Tensor
    token_ids: torch.Tensor
    laws: torch.Tensor | None = None


class HotHead:
    """Rows of the output head for the hot vocabulary; this rank's part. Made by `HotHead.build`.

    local_hot_indices: [R] int64, ascending, position in the map of each local row. token_ids: [R] int64, token id of each local row.
    """

    def __init__(
        self,
        linear: HeadLinear,
        local_hot_indices: np.ndarray,
        hot_token_ids: np.ndarray,
        group: RankGroup,
        placement: str,
        device: torch.device,
    ) -> None:
        self.hot_token_ids = hot_token_ids
        self.group = group
        self.placement = placement
        self.local_hot_indices = local_hot_indices
        self.token_ids = torch.from_numpy(hot_token_ids[local_hot_indices]).to(device)
        self.linear = linear
        self.dtype = linear.dtype if isinstance(linear, Linear) else None
        """Of the plain weight; None where the product takes any."""
        self._columns: tuple[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] | None = None

    @staticmethod
    def build(
        read_rows: RowReader,
        hot_token_ids: np.ndarray,
        group: RankGroup,
        placement: str,
        vocab_size: int,
        dtype_name: str = "auto",
    ) -> HotHead:
        """Read this rank's rows. hot_token_ids: [H] int64, most frequent first. vocab_size: token ids of the head that the rows come from.
        dtype_name: of DTYPES, how the rows are kept; auto as they are read.

        Raises HotMapError if an id has no row there, CheckpointError if the reader leaves a row unfilled.
        """
        hot_token_ids = check_token_ids(hot_token_ids)
        check_token_ids_fit(hot_token_ids, vocab_size)
        local_hot_indices = hot_indices_of_rank(hot_token_ids, placement, group.rank, group.size, vocab_size)
        weight = _read_filled(read_rows, hot_token_ids[local_hot_indices])
        return HotHead(_stored(weight, dtype_name), local_hot_indices, hot_token_ids, group, placement, weight.device)

    @property
    def num_hot(self) -> int:
        """H, over all ranks."""
        return len(self.hot_token_ids)

    @property
    def num_local_rows(self) -> int:
        """R, on this rank."""
        return len(self.local_hot_indices)

    def with_size(self, size: int) -> HotHead:
        """The head of the map's first `size` ids: a slice of the local rows, nothing is read and nothing exchanged."""
        if not 1 <= size <= self.num_hot:
            raise HotMapError(
                f"a hot head of {self.num_hot} rows cannot be cut to {size}.",
                advice=f"Use a size from 1 to {self.num_hot}, or a larger token map.",
            )
        num_local = int(np.searchsorted(self.local_hot_indices, size))
        linear = self.linear.first_rows(num_local)
        local_hot_indices = self.local_hot_indices[:num_local]
        return HotHead(linear, local_hot_indices, self.hot_token_ids[:size], self.group, self.placement, self.token_ids.device)

    def candidates(
        self,
        hidden: torch.Tensor,
        num_candidates: int,
        *,
        inverse_temperature: torch.Tensor | None = None,
        noise: Noise | None = None,
    ) -> Candidates:
        """Best K hot tokens over all ranks by score = logit * inverse_temperature + noise, with log_probs = score - logsumexp(scores of all
        H).

        hidden: [N, D], same on every rank. inverse_temperature: [N] float32. Equal scores go to the lower token id, so the answer depends
        on neither tp_size nor placement. One all-gather of 4 * (2K + 1) bytes per row and rank; none under `replicated` or at one rank,
        where each rank computes the same from the same bits. Raises HotMapError if K is larger than the hot vocabulary. After FR-Spec
        (arXiv 2502.14856), section 3.2.
        """
        scores = self._scores(hidden, num_candidates, inverse_temperature)
        if noise is not None:
            scores = scores + noise(self.token_ids)
        best, token_ids = best_candidates(scores, self.token_ids, num_candidates)
        total = torch.logsumexp(scores, 1)  # [N]; -inf without rows
        if self.is_cut:
            best, token_ids, total = _merge(self.group, best, token_ids, total)
        return Candidates(best - total.unsqueeze(1), token_ids)

    def draw(
        self, hidden: torch.Tensor, num_candidates: int, *, inverse_temperature: torch.Tensor | None = None, noise: Noise | None = None
    ) -> Candidates:
        """K hot tokens drawn without replacement, in the order in which they were drawn, from softmax(logit * inverse_temperature).

        The K highest scores + Gumbel noise are such a draw (Kool, van Hoof, Welling, arXiv 1903.06059). log_probs: of the law itself, not
        perturbed. Rows whose noise is 0 give the K most probable tokens. One all-gather of 4 * (3K + 1) bytes per row and rank where the
        rows are cut. Errors as `candidates`.
        """
        scores = self._scores(hidden, num_candidates, inverse_temperature)
        perturbed = scores if noise is None else scores + noise(self.token_ids)
        best, token_ids = best_candidates(perturbed, self.token_ids, num_candidates)
        total = torch.logsumexp(scores, 1)
        plain = self._score_of(scores, token_ids)
        if self.is_cut:
            _, token_ids, total, plain = _merge(self.group, best, token_ids, total, plain)
        return Candidates(plain - total.unsqueeze(1), token_ids, scores - total.unsqueeze(1))

    @property
    def is_cut(self) -> bool:
        """Whether ranks hold different rows."""
        return self.group.size > 1 and self.placement != "replicated"

    def hot_indices_of(self, token_ids: np.ndarray) -> np.ndarray:
        """Hot token ids [n] -> their positions in the map [n] int64."""
        ordered, order = self._hot_order
        return order[np.searchsorted(ordered, token_ids)]

    def columns_in(self, first_token_id: int, num_columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Which hot indices lie in the vocabulary shard [first_token_id, first_token_id + num_columns), and in which of its columns."""
        key = (first_token_id, num_columns)
        if self._columns is None or self._columns[0] != key:
            owned = np.flatnonzero((self.hot_token_ids >= first_token_id) & (self.hot_token_ids < first_token_id + num_columns))
            columns = self.hot_token_ids[owned] - first_token_id
            device = self.token_ids.device
            self._columns = (key, (torch.from_numpy(owned).to(device), torch.from_numpy(columns).to(device)))
        return self._columns[1]

    def place(self, local: torch.Tensor) -> torch.Tensor:
        """[N, R], a value per local row -> [N, H] in the map's order, 0 where another rank has the row."""
        if self.num_local_rows == self.num_hot:
            return local
        placed = local.new_zeros((len(local), self.num_hot))
        placed[:, torch.from_numpy(self.local_hot_indices).to(local.device)] = local
        return placed

    def _scores(self, hidden: torch.Tensor, num_candidates: int, inverse_temperature: torch.Tensor | None) -> torch.Tensor:
        """[N, R] float32, shard of H."""
        if not 1 <= num_candidates <= self.num_hot:
            raise HotMapError(
                f"{num_candidates} candidates cannot be drafted from a hot vocabulary of {self.num_hot} tokens.",
                advice="Lower --speculative-eagle-topk, or use a larger --hot-size.",
            )
        scores = self.linear(hidden if self.dtype is None else hidden.to(self.dtype)).float()
        return scores if inverse_temperature is None else scores * inverse_temperature.unsqueeze(1)

    @cached_property
    def _hot_order(self) -> tuple[np.ndarray, np.ndarray]:
        """Hot token ids [H] ascending, and the hot index of each."""
        order = np.argsort(self.hot_token_ids, kind="stable")
        return self.hot_token_ids[order], order

    @cached_property
    def _rows_by_token_id(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids [R] ascending, and the local row of each."""
        ordered, rows = self.token_ids.sort()
        return ordered, rows

    def _score_of(self, scores: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        """scores [N, R], token_ids [N, K] of this rank's rows or NO_TOKEN_ID -> [N, K], -inf for the latter."""
        if self.num_local_rows == 0:
            return torch.full(token_ids.shape, float("-inf"), device=scores.device)
        ordered, rows = self._rows_by_token_id
        columns = rows[torch.searchsorted(ordered, token_ids.contiguous()).clamp(max=len(ordered) - 1)]
        return scores.gather(1, columns).masked_fill(token_ids == NO_TOKEN_ID, float("-inf"))


def _stored(weight: torch.Tensor, dtype_name: str) -> HeadLinear:
    """weight [R, D] kept as asked. A rank without rows has nothing to quantize."""
    if dtype_name in ("int8", "int4") and len(weight):
        check_kernels(weight.device, dtype_name)
        return Int8Linear(weight) if dtype_name == "int8" else Int4Linear(weight)
    dtypes = {"float32": torch.float32, "bf16": torch.bfloat16}
    return Linear(weight.to(dtypes.get(dtype_name, weight.dtype)))


def best_candidates(scores: torch.Tensor, token_ids: torch.Tensor, num_candidates: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Best K columns of each row by (score descending, token id ascending).

    scores: [N, R] float32. token_ids: [R] int64, all different -> scores [N, K] float32, token ids [N, K] int64; where R < K the rest is
    -inf, NO_TOKEN_ID.
    """
    num_rows, num_columns = scores.shape
    if num_columns <= num_candidates:
        return sort_candidates(*_padded(scores, token_ids.expand(num_rows, -1), num_candidates))
    # Some more values than asked for: as long as the last one is below the K-th, every column that ties with the K-th is among them.
    values, columns = _top_values(scores, min(num_candidates + _SPARE_VALUES, num_columns))
    best, best_ids = sort_candidates(values, token_ids[columns])
    best, best_ids = best[:, :num_candidates], best_ids[:, :num_candidates]
    is_cut = values[:, num_candidates - 1] == values[:, -1]
    if bool(is_cut.any()):
        rows = is_cut.nonzero().squeeze(1)
        best[rows], best_ids[rows] = _resolve_ties(scores[rows], token_ids, values[rows, -1:], num_candidates)
    return best, best_ids


def sort_candidates(scores: torch.Tensor, token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[N, C] each -> both in order of (score descending, token id ascending)."""
    order = _sort_keys(scores, token_ids).sort(dim=-1, descending=True).indices
    return scores.gather(-1, order), token_ids.gather(-1, order)


def _merge(
    group: RankGroup, best: torch.Tensor, token_ids: torch.Tensor, total: torch.Tensor, *others: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """This rank's [N, K], [N, K], [N] and others [N, K] float32 -> the same over all ranks, in one all-gather of 32-bit words."""
    num_candidates = best.shape[1]
    words = [total.unsqueeze(1), token_ids.int(), best, *others]
    packed = torch.cat([word if word.dtype == torch.int32 else word.view(torch.int32) for word in words], 1)  # [N, 1 + (2 + others) * K]
    gathered = group.all_gather(packed)  # [P, N, 1 + (2 + others) * K]
    columns = [part.transpose(0, 1).flatten(1) for part in gathered[..., 1:].split(num_candidates, -1)]  # [N, P * K] each
    ids, scores, *rest = columns[0].long(), *(column.view(torch.float32) for column in columns[1:])
    order = _sort_keys(scores, ids).sort(dim=-1, descending=True).indices[:, :num_candidates]
    chosen = [column.gather(-1, order) for column in (scores, ids, *rest)]
    return chosen[0], chosen[1], torch.logsumexp(gathered[..., 0].contiguous().view(torch.float32), 0), *chosen[2:]


def _top_values(scores: torch.Tensor, num_values: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Largest values of each row and a column for each; which of several equal columns is undefined.

    The largest values lie in the blocks with the largest maxima, and maxima are vectorised while a top-k is not.
    """
    num_rows, num_columns = scores.shape
    num_blocks = num_columns // _BLOCK
    if scores.device.type != "cpu" or scores.stride(-1) != 1 or num_columns < _MIN_BLOCKED or num_values >= num_blocks:
        plain = scores.topk(num_values)
        return plain.values, plain.indices
    in_blocks = num_blocks * _BLOCK
    blocks = scores[:, :in_blocks].view(num_rows, num_blocks, _BLOCK)  # [N, blocks, block]
    chosen = blocks.amax(-1).topk(num_values, sorted=False).indices  # [N, K + 1]
    values = blocks.gather(1, chosen.unsqueeze(-1).expand(-1, -1, _BLOCK)).flatten(1)
    columns = (chosen.unsqueeze(-1) * _BLOCK + torch.arange(_BLOCK)).flatten(1)
    if in_blocks < num_columns:
        values = torch.cat([values, scores[:, in_blocks:]], 1)
        columns = torch.cat([columns, torch.arange(in_blocks, num_columns).expand(num_rows, -1)], 1)
    top = values.topk(num_values)
    return top.values, columns.gather(1, top.indices)


def _resolve_ties(
    scores: torch.Tensor, token_ids: torch.Tensor, border: torch.Tensor, num_candidates: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Best K of rows in which too many columns equal the K-th value, border [n, 1]: everything at or above it takes part."""
    row, column = (~(scores < border)).nonzero(as_tuple=True)  # row-major; NaN takes part too
    values, ids = scores[row, column], token_ids[column]
    order = _sort_keys(values, ids).sort(descending=True).indices
    order = order[row[order].sort(stable=True).indices]  # rows in order again, best first inside each
    counts = torch.bincount(row, minlength=len(scores))
    starts = counts.cumsum(0) - counts
    picked = order[starts.unsqueeze(1) + torch.arange(num_candidates, device=scores.device)]
    return values[picked], ids[picked]


def _sort_keys(scores: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """int64 keys whose descending order is (score descending, token id ascending): the score's bits made to order as integers, above the
    id's.
    """
    bits = (scores + 0.0).view(torch.int32)  # -0.0 + 0.0 is 0.0: equal scores get equal bits
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    return (ordered << 32) | (NO_TOKEN_ID - token_ids)


def _padded(scores: torch.Tensor, token_ids: torch.Tensor, num_candidates: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns of -inf and NO_TOKEN_ID up to K."""
    # Padded candidates are -inf, not 0: a zero score would win when every real score is negative
    shape = (scores.shape[0], num_candidates - scores.shape[1])
    return (
        torch.cat([scores, scores.new_full(shape, float("-inf"))], 1),
        torch.cat([token_ids, token_ids.new_full(shape, NO_TOKEN_ID)], 1),
    )


def _read_filled(read_rows: RowReader, token_ids: np.ndarray) -> torch.Tensor:
    """[R, D] in the reader's dtype. Starts as NaN, so that a row that the reader leaves out cannot pass for a weight."""
    first = read_rows(token_ids[:_READ_ROWS])
    weight = torch.full((len(token_ids), first.shape[1]), float("nan"), dtype=first.dtype, device=first.device)
    for start in range(0, max(len(token_ids), 1), _READ_ROWS):
        wanted = token_ids[start : start + _READ_ROWS]
        rows = first if start == 0 else read_rows(wanted)
        if rows.shape[0] != len(wanted):
            raise CheckpointError(f"{len(wanted)} rows of the output head were asked for, {rows.shape[0]} came.")
        weight[start : start + len(wanted)] = rows
    is_unfilled = weight.isnan().any(1)
    if bool(is_unfilled.any()):
        first_bad = int(is_unfilled.nonzero()[0])
        raise CheckpointError(
            f"{int(is_unfilled.sum())} of {len(token_ids)} rows of the output head are not numbers.",
            f"First: the row of token id {token_ids[first_bad]}.",
            advice="The checkpoint is damaged: fetch it again.",
        )
    return weight
