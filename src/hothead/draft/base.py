"""What every drafter offers: propose a token tree per request, then see what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hothead.records import EMPTY_TREE, Batch, TokenTree, Verdict
from hothead.verify.rejection import Proposal


@dataclass(frozen=True, slots=True)
class TreeShape:
    """How far and how wide to draft. topk 1 is a chain of num_steps tokens.

    num_draft_tokens counts as SGLang's flag does: the tokens that the target scores, the root included.
    """

    num_steps: int
    topk: int
    num_draft_tokens: int

    @property
    def num_nodes(self) -> int:
        """Draft tokens in a tree at most: the root is not one."""
        return self.num_draft_tokens - 1


class Drafter(Protocol):
    """Token ids in, token ids out; what a drafter keeps per request is its own and goes with `forget`."""

    shape: TreeShape
    num_scratch_slots: int
    """KV slots behind a request's last committed token that `propose` may use."""
    hot_token_ids: NDArray[np.int64] | None
    """Tokens that can be drafted at all; None where nothing limits them."""
    head_s: float
    """Seconds spent in the draft head since the start."""
    draws: bool
    """Whether trees of sampled requests are to be drawn from the drafter's own law, as the rejection rule needs it."""
    proposals: dict[str, Proposal]
    """By request id, what the trees of the last `propose` were drawn from; a tree without one was not drawn."""

    def propose(self, batch: Batch) -> list[TokenTree]:
        """A tree per row, with at most `row.max_draft_tokens` nodes; empty where there is nothing to propose."""
        ...

    def observe(self, batch: Batch, trees: Sequence[TokenTree], verdicts: Sequence[Verdict], hidden: torch.Tensor) -> None:
        """Called after the verdicts are committed.

        hidden: [N, F], the target's features for each row's new tokens and then its tree nodes, rows one after the other: its hidden states
        after the final norm, or those that enter the plan's `feature_layers`.
        """
        ...

    def forget(self, request_id: str) -> None:
        """The request ended, or was preempted and will be computed again from its first token."""
        ...


class NoDrafter:
    """Plain decoding: the same step with empty trees."""

    def __init__(self) -> None:
        self.shape = TreeShape(0, 1, 1)
        self.num_scratch_slots = 0
        self.hot_token_ids: NDArray[np.int64] | None = None
        self.head_s = 0.0
        self.draws = False
        self.proposals: dict[str, Proposal] = {}

    def propose(self, batch: Batch) -> list[TokenTree]:
        return [EMPTY_TREE] * len(batch)

    def observe(self, batch: Batch, trees: Sequence[TokenTree], verdicts: Sequence[Verdict], hidden: torch.Tensor) -> None:
        pass

    def forget(self, request_id: str) -> None:
        pass
