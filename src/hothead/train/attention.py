"""Attention of unrolled draft steps: every row sees the true past of its document, and its own draft steps since.

At draft step s, the row that started from pair i (its root) attends to the keys of step 0 at positions up to i, and to the one key that
each later step 1..s made for the same root. The mask over the true past is therefore the same at every step; the later keys are one
column each. This is the attention of a chain of draft steps over a KV cache, for all roots at once, as in HASS (arXiv 2408.15766) and
EAGLE-3's training-time test (arXiv 2503.01840).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hothead.train.dataset import Batch

_MULTIPLE = 32


@dataclass(frozen=True)
class DocumentSpan:
    """One document in the padded layout: its attending rows, its columns in the padded keys, and the additive mask.

    mask: [Q * G, K], 0 where visible, -inf elsewhere; rows are (attending row, query head of its group); the last `num_reserved` columns
    are kept for the keys of later draft steps.
    """

    row_start: int
    num_rows: int
    num_padded_rows: int
    column_start: int
    num_columns: int
    mask: torch.Tensor


@dataclass(frozen=True)
class AttentionLayout:
    """How the rows of a Batch attend. key_rows: [columns] int64, row of the batch for each padded column, -1 for padding.

    num_rows: rows that attend, N below: all response rows, or those that were chosen.
    """

    spans: tuple[DocumentSpan, ...]
    key_rows: torch.Tensor
    num_rows: int
    num_reserved: int

    @staticmethod
    def make(
        batch: Batch, num_query_groups: int, num_steps: int, dtype: torch.dtype, roots: npt.NDArray[np.int64] | None = None
    ) -> AttentionLayout:
        """num_query_groups: query heads per KV head. num_steps: draft steps that will be unrolled. roots: [R] response rows that attend, in
        order; None for all. Keys are the same for any choice of rows."""
        num_reserved = num_steps - 1
        rows = np.arange(batch.num_response_rows) if roots is None else roots
        spans: list[DocumentSpan] = []
        columns: list[np.ndarray[Any, np.dtype[np.int64]]] = []
        column_start = 0
        for place in range(len(batch.documents)):
            num_context, num_rows = batch.context_lengths[place], batch.response_lengths[place]
            row_start = batch.response_starts[place]
            num_columns = _round_up(num_context + num_rows + num_reserved)
            key_rows = np.full(num_columns, -1, np.int64)
            key_rows[:num_context] = np.arange(num_context) + batch.context_starts[place]
            key_rows[num_context : num_context + num_rows] = np.arange(num_rows) + row_start
            columns.append(key_rows)
            first, stop = (int(at) for at in np.searchsorted(rows, (row_start, row_start + num_rows)))
            num_padded = min(_round_up(stop - first), len(rows) - first)
            last = torch.full((num_padded,), num_context + num_rows - 1)
            last[: stop - first] = torch.from_numpy(rows[first:stop] - row_start + num_context)
            is_hidden = torch.arange(num_columns) > last[:, None]
            mask = torch.zeros(num_padded, num_columns, dtype=dtype).masked_fill_(is_hidden, float("-inf"))
            mask = mask.repeat_interleave(num_query_groups, 0)
            if stop > first:
                spans.append(DocumentSpan(first, stop - first, num_padded, column_start, num_columns, mask))
            column_start += num_columns
        return AttentionLayout(tuple(spans), torch.from_numpy(np.concatenate(columns)), len(rows), num_reserved)

    def pad_keys(self, keys: torch.Tensor) -> torch.Tensor:
        """[Hkv, M, Dh] in batch order -> [Hkv, columns, Dh], padding zero."""
        padded: torch.Tensor = _PadKeys.apply(keys, self.key_rows)  # type: ignore[no-untyped-call]
        return padded

    def attend(
        self,
        queries: torch.Tensor,
        padded_keys: torch.Tensor,
        padded_values: torch.Tensor,
        step_keys: Sequence[torch.Tensor],
        step_values: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        """queries: [Hkv, N * G, Dh], already scaled, rows (attending row, query head of its group); padded_keys, padded_values: of step 0;
        step_keys, step_values: [Hkv, N, Dh] of each later step -> [Hkv, N * G, Dh]."""
        assert len(step_keys) == len(step_values) <= self.num_reserved, (len(step_keys), len(step_values), self.num_reserved)
        inputs = (self, queries, padded_keys, padded_values, len(step_keys), *step_keys, *step_values)
        attended: torch.Tensor = _Attend.apply(*inputs)  # type: ignore[no-untyped-call]
        return attended


def _round_up(count: int) -> int:
    return -(-count // _MULTIPLE) * _MULTIPLE


class _PadKeys(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, keys: torch.Tensor, key_rows: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(key_rows)
        ctx.num_rows = keys.shape[1]
        return keys.index_select(1, key_rows.clamp(min=0)).mul_((key_rows >= 0).to(keys.dtype)[:, None])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (key_rows,) = ctx.saved_tensors
        is_real = key_rows >= 0
        # Each row has at most one column, so a copy is a sum.
        out = gradient.new_zeros(gradient.shape[0], ctx.num_rows, gradient.shape[2])
        out[:, key_rows[is_real]] = gradient[:, is_real]
        return out, None


class _Attend(torch.autograd.Function):
    """Softmax over [columns of the true past | one column per later step], document by document so that scores stay in cache."""

    @staticmethod
    def forward(
        ctx: Any,
        layout: AttentionLayout,
        queries: torch.Tensor,
        padded_keys: torch.Tensor,
        padded_values: torch.Tensor,
        num_later: int,
        *later: torch.Tensor,
    ) -> torch.Tensor:
        step_keys, step_values = later[:num_later], later[num_later:]
        out = torch.zeros_like(queries)
        step_scores = [_dot(queries, keys) for keys in step_keys]  # [Hkv, N * G] each
        probabilities = []
        step_shares = [torch.zeros_like(scores) for scores in step_scores]
        groups = queries.shape[1] // layout.num_rows
        for span in layout.spans:
            rows = slice(span.row_start * groups, (span.row_start + span.num_padded_rows) * groups)
            columns = slice(span.column_start, span.column_start + span.num_columns)
            scores = torch.matmul(queries[:, rows], padded_keys[:, columns].transpose(1, 2)).add_(span.mask)  # [Hkv, Q * G, K]
            first = span.num_columns - layout.num_reserved
            for step, one in enumerate(step_scores):
                scores[:, :, first + step] = one[:, rows]
            shares = torch.softmax(scores, -1)
            shares[:, span.num_rows * groups :] = 0
            out[:, rows] = torch.matmul(shares, padded_values[:, columns])
            for step, one in enumerate(step_shares):
                one[:, rows] = shares[:, :, first + step]
            probabilities.append(shares)
        for share, values in zip(step_shares, step_values, strict=True):
            out += _scale(share, values, groups)
        ctx.layout, ctx.num_later = layout, num_later
        ctx.save_for_backward(queries, padded_keys, padded_values, *later, *step_shares, *probabilities)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        layout: AttentionLayout = ctx.layout
        num_later: int = ctx.num_later
        queries, padded_keys, padded_values, *rest = ctx.saved_tensors
        step_keys, step_values, step_shares = rest[:num_later], rest[num_later : 2 * num_later], rest[2 * num_later : 3 * num_later]
        probabilities = rest[3 * num_later :]
        groups = queries.shape[1] // layout.num_rows
        gradient = gradient.contiguous()
        query_gradient = torch.zeros_like(queries)
        key_gradient, value_gradient = torch.zeros_like(padded_keys), torch.zeros_like(padded_values)
        share_gradients = [_dot(gradient, values) for values in step_values]
        score_gradients = [torch.zeros_like(one) for one in share_gradients]
        for span, shares in zip(layout.spans, probabilities, strict=True):
            rows = slice(span.row_start * groups, (span.row_start + span.num_padded_rows) * groups)
            columns = slice(span.column_start, span.column_start + span.num_columns)
            first = span.num_columns - layout.num_reserved
            above = torch.matmul(gradient[:, rows], padded_values[:, columns].transpose(1, 2))
            for step, one in enumerate(share_gradients):
                above[:, :, first + step] = one[:, rows]
            score_gradient = torch._softmax_backward_data(above, shares, -1, shares.dtype)
            for step, one in enumerate(score_gradients):
                one[:, rows] = score_gradient[:, :, first + step]
            query_gradient[:, rows] = torch.matmul(score_gradient, padded_keys[:, columns])
            key_gradient[:, columns] = torch.matmul(score_gradient.transpose(1, 2), queries[:, rows])
            value_gradient[:, columns] = torch.matmul(shares.transpose(1, 2), gradient[:, rows])
        step_key_gradients, step_value_gradients = [], []
        for score_gradient, keys, share in zip(score_gradients, step_keys, step_shares, strict=True):
            query_gradient += _scale(score_gradient, keys, groups)
            step_key_gradients.append(_collect(score_gradient, queries, groups))
            step_value_gradients.append(_collect(share, gradient, groups))
        return None, query_gradient, key_gradient, value_gradient, None, *step_key_gradients, *step_value_gradients


def _dot(rows: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """rows: [Hkv, N * G, Dh], keys: [Hkv, N, Dh] -> [Hkv, N * G], each row with its own key."""
    num_heads, num_keys, width = keys.shape
    return (rows.view(num_heads, num_keys, -1, width) * keys[:, :, None]).sum(-1).view(num_heads, -1)


def _scale(shares: torch.Tensor, values: torch.Tensor, groups: int) -> torch.Tensor:
    """shares: [Hkv, N * G], values: [Hkv, N, Dh] -> [Hkv, N * G, Dh]."""
    num_heads, num_values, width = values.shape
    return (shares.view(num_heads, num_values, groups, 1) * values[:, :, None]).view(num_heads, -1, width)


def _collect(shares: torch.Tensor, rows: torch.Tensor, groups: int) -> torch.Tensor:
    """shares: [Hkv, N * G], rows: [Hkv, N * G, Dh] -> [Hkv, N, Dh], summed over the group."""
    num_heads, _, width = rows.shape
    return (shares[:, :, None] * rows).view(num_heads, -1, groups, width).sum(2)
