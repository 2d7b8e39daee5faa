"""The rejection rule: a draft token x, drawn from q, is kept with probability min(1, p(x) / q(x)); else the next one comes from max(0, p
- q).

After Leviathan, Kalman, Matias (arXiv 2211.17192); siblings of a tree, drawn without replacement, are tried one after the other, each
against what the earlier ones left of p and of q (as in SpecInfer, arXiv 2305.09781, and Sequoia, arXiv 2402.12374). What is emitted
follows p exactly whatever q is; q is 0 outside the hot vocabulary, so the residual there is p itself.

All draws (draft, acceptance, what follows a rejection) have noise of their own. Ranks merge p and q on the hot token ids, once, and then
all walk the same tree with the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hothead.parallel.full_head import ShardedLogits
from hothead.parallel.hot_head import HotHead
from hothead.records import ROOT, BatchRow, TokenTree, Verdict
from hothead.verify.choose import filtered_scores
from hothead.verify.noise import derived_seed, gumbel, uniform

_DRAFT, _ACCEPT, _EMIT = 1, 2, 3

FloatArray = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """What the nodes of one tree were drawn from: siblings from one law, without replacement, in the order of their numbers.

    head: whose rows the columns of the laws are. laws: [L, R] float32 log-probabilities, shard of H. law_of_parent: [T + 1], the law of the
    root's children and of those of each node.
    """

    head: HotHead
    laws: Tensor
    law_of_parent: NDArray[np.int64]


def draft_seed(seed: int, num_committed: int, draw: int) -> int:
    """Seed of the noise with which one level's node draws its children. num_committed: tokens before the tree. draw: which of the tree's
    draws."""
    return derived_seed(seed, _DRAFT, num_committed, draw)


def reject(logits: ShardedLogits, rows: Sequence[BatchRow], trees: Sequence[TokenTree], proposals: Sequence[Proposal]) -> list[Verdict]:
    """A verdict per row, same on every rank.

    logits.local: [M, R], shard of V: for each row its root, then its tree's nodes. Rows are sampled ones, with a tree that was drawn.
    Collectives, where ranks share the vocabulary: one all-gather of 4 bytes a node, one all-reduce of 8 * H bytes for each node that has
    children, the merge of one (score, token id) pair a row; and what `filtered_scores` needs for top-k, top-p and min-p.
    """
    scores = filtered_scores(logits, [row.sampling for row, tree in zip(rows, trees, strict=True) for _ in range(len(tree) + 1)])
    scores -= _log_total(scores, logits).unsqueeze(1)  # log p, shard of V
    starts = np.cumsum([0, *(len(tree) + 1 for tree in trees)])
    tested = [_Tested.of(tree, proposal) for tree, proposal in zip(trees, proposals, strict=True)]
    laws = _merged_laws(scores, logits, starts, tested, proposals[0].head)
    ends = []
    for row, tree, one, (targets, drafts) in zip(rows, trees, tested, laws, strict=True):
        ends.append(_walk(row, tree, one, targets, drafts))
    bonus = _emit(scores, logits, rows, trees, starts, ends, proposals[0].head)
    return [
        Verdict(tuple(end.path), (*(int(tree.token_ids[node]) for node in end.path), token_id))
        for tree, end, token_id in zip(trees, ends, bonus, strict=True)
    ]


@dataclass(frozen=True, slots=True, eq=False)
class _Tested:
    """The nodes that have children: parents [C] (ROOT or a node), their children in the order drawn, hot index of every node."""

    parents: list[int]
    children: list[list[int]]
    hot_indices: list[int]
    laws: Tensor  # [C, R]

    @staticmethod
    def of(tree: TokenTree, proposal: Proposal) -> _Tested:
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(tree.parents.tolist()):
            children.setdefault(parent, []).append(node)
        laws = proposal.laws[torch.from_numpy(proposal.law_of_parent[np.asarray(list(children)) + 1]).to(proposal.laws.device)]
        return _Tested(list(children), list(children.values()), proposal.head.hot_indices_of(tree.token_ids).tolist(), laws)


@dataclass(slots=True)
class _End:
    """Where a walk ended. path: accepted nodes. residual: [H] what is left of p on the hot token ids, None where nothing was rejected at
    the last node. factor: what p outside them is multiplied with."""

    path: list[int]
    residual: FloatArray | None
    factor: float


def _log_total(scores: Tensor, logits: ShardedLogits) -> Tensor:
    """log of the sum of exp over all ranks' columns: [M]."""
    if scores.shape[1]:
        total = scores.logsumexp(1)
    else:
        total = scores.new_full((len(scores),), -math.inf)
    return total if logits.group.size == 1 else logits.group.all_gather(total).logsumexp(0)


def _merged_laws(
    log_p: Tensor, logits: ShardedLogits, starts: NDArray[np.int64], tested: Sequence[_Tested], head: HotHead
) -> list[tuple[FloatArray, FloatArray]]:
    """For each row, p and q of the nodes with children on all H hot token ids: [C, H] each, same on every rank."""
    num_tested = [len(one.parents) for one in tested]
    nodes = np.concatenate([start + 1 + np.asarray(one.parents) for start, one in zip(starts[:-1], tested, strict=True)])
    owned, columns = head.columns_in(logits.first_token_id, log_p.shape[1])
    on_hot = log_p[torch.from_numpy(nodes).to(log_p.device)][:, columns].exp()
    p = on_hot
    if len(columns) < head.num_hot:
        p = log_p.new_zeros((len(nodes), head.num_hot))
        p[:, owned] = on_hot
    q = head.place(torch.cat([one.laws for one in tested]).exp())
    if logits.group.size > 1:
        if head.is_cut:
            p, q = logits.group.all_reduce(torch.stack([p, q])).unbind(0)
        else:
            p = logits.group.all_reduce(p)
    bounds = np.cumsum(num_tested)[:-1]
    return list(zip(np.split(p.cpu().numpy(), bounds), np.split(q.cpu().numpy(), bounds), strict=True))


def _walk(row: BatchRow, tree: TokenTree, tested: _Tested, targets: FloatArray, drafts: FloatArray) -> _End:
    """Try the root's children, then those of the one that was kept, until none is. targets, drafts: p and q [C, H]."""
    place_of = {parent: place for place, parent in enumerate(tested.parents)}
    path: list[int] = []
    node = ROOT
    while node in place_of:
        place = place_of[node]
        position = len(row.token_ids) + len(path)
        kept, residual, factor = try_siblings(
            targets[place],
            drafts[place],
            [tested.hot_indices[child] for child in tested.children[place]],
            [uniform(derived_seed(row.seed, _ACCEPT, number), position) for number in range(len(tested.children[place]))],
        )
        if kept is None:
            return _End(path, residual, factor)
        node = tested.children[place][kept]
        path.append(node)
    return _End(path, None, 1.0)


def try_siblings(
    p: FloatArray, q: FloatArray, drawn: Sequence[int], uniforms: Sequence[float]
) -> tuple[int | None, FloatArray | None, float]:
    """Draft tokens, drawn from q without replacement, one after the other against p.

    p, q: [H] probabilities on the hot token ids; p may have mass elsewhere, q has not. drawn: hot indices in the order drawn. uniforms: one
    number in (0, 1) for each -> which one is kept, None and 1; or None, the residual [H] and the factor of p elsewhere.
    """
    left, factor, elsewhere = p, 1.0, max(0.0, 1.0 - float(p.sum(dtype=np.float64)))
    for number, (index, threshold) in enumerate(zip(drawn, uniforms, strict=True)):
        if threshold * float(q[index]) < float(left[index]):
            return number, None, 1.0
        left = np.maximum(left - q, 0.0)
        total = float(left.sum(dtype=np.float64)) + factor * elsewhere
        if total <= 0.0:
            # p and q are the same up to rounding: nothing can be left over, and the draft token is one of p's.
            return number, None, 1.0
        left /= np.float32(total)
        factor /= total
        if number + 1 < len(drawn):
            q = q.copy()
            q[index] = 0.0
            remaining = float(q.sum(dtype=np.float64))
            if remaining <= 0.0:
                break
            q /= np.float32(remaining)
    return None, left, factor


def _emit(
    log_p: Tensor,
    logits: ShardedLogits,
    rows: Sequence[BatchRow],
    trees: Sequence[TokenTree],
    starts: NDArray[np.int64],
    ends: Sequence[_End],
    head: HotHead,
) -> list[int]:
    """The token after each walk's end: from p where nothing was rejected there, else from what is left of it."""
    last = [int(start) + 1 + (end.path[-1] if end.path else ROOT) for start, end in zip(starts[:-1], ends, strict=True)]
    weights = log_p[torch.tensor(last, dtype=torch.int64, device=log_p.device)]  # [B, R], a copy
    owned, columns = head.columns_in(logits.first_token_id, log_p.shape[1])
    for place, end in enumerate(ends):
        if end.residual is not None:
            weights[place] += math.log(end.factor)
            weights[place, columns] = torch.from_numpy(end.residual).to(log_p.device)[owned].log()
    first = logits.first_token_id
    token_ids = torch.arange(first, first + log_p.shape[1], dtype=torch.int64, device=log_p.device)
    seeds = [derived_seed(row.seed, _EMIT) for row in rows]
    positions = [len(row.token_ids) + len(end.path) for row, end in zip(rows, ends, strict=True)]
    weights += gumbel(seeds, positions, token_ids)
    return [int(token_id) for token_id in ShardedLogits(weights, logits.shards, logits.group).argmax().tolist()]
