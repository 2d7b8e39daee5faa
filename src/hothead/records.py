"""What one step hands to the next: frozen records, token ids only.

Counts follow one rule everywhere: `num_drafted` are draft tokens proposed, `num_accepted` those kept (bonus token excluded), and
`num_emitted` = num_accepted + 1 per verify step, before a stop condition cuts the last step's tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hothead.config.sampling import SamplingParams

ROOT = -1
"""Parent of a tree's first level: the last committed token, which the target has not seen yet."""


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and how to continue it. `request_id` is unique among the requests that an engine knows."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams


@dataclass(frozen=True, slots=True, eq=False)
class TokenTree:
    """Draft tokens for one request, as a tree under its last committed token.

    token_ids: [T] int64. parents: [T] int64, the index of each node's parent, smaller than its own; ROOT for the first level.
    A chain is the tree with parents -1, 0, 1, ...; an empty tree is plain decoding.
    """

    token_ids: NDArray[np.int64]
    parents: NDArray[np.int64]
    depths: NDArray[np.int64] = field(init=False)
    """[T] int64: 1 for children of the root."""

    def __post_init__(self) -> None:
        depths = np.zeros(len(self.token_ids), np.int64)
        assert len(self.parents) == len(depths), (len(self.parents), len(depths))
        for node, parent in enumerate(self.parents.tolist()):
            assert ROOT <= parent < node, (node, parent)
            depths[node] = 1 if parent == ROOT else depths[parent] + 1
        object.__setattr__(self, "depths", depths)

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def is_chain(self) -> bool:
        return bool((self.parents == np.arange(len(self)) - 1).all())


def chain(token_ids: list[int]) -> TokenTree:
    """The tree in which each token follows the one before it."""
    return TokenTree(np.asarray(token_ids, np.int64), np.arange(len(token_ids), dtype=np.int64) - 1)


EMPTY_TREE = chain([])


@dataclass(frozen=True, slots=True, eq=False)
class BatchRow:
    """One request's part in a step: `num_new` committed tokens from `num_cached` on, then its draft tokens.

    token_ids: int64, all committed tokens. slots: int64, a KV slot per position, and enough behind the last one for draft tokens.
    max_draft_tokens: most tree nodes that fit (0: do not draft). seed: this request's, drawn once if its sampling has none.
    """

    request_id: str
    token_ids: NDArray[np.int64]
    num_cached: int
    num_new: int
    slots: NDArray[np.int64]
    max_draft_tokens: int
    sampling: SamplingParams
    seed: int

    @property
    def is_scored(self) -> bool:
        """Whether the step reaches the last committed token, so that the target chooses the next one."""
        return self.num_cached + self.num_new == len(self.token_ids)

    @property
    def num_computed(self) -> int:
        """Committed tokens whose keys and values lie in the cache after this step."""
        return self.num_cached + self.num_new


Batch = tuple[BatchRow, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the target made of one tree.

    accepted_nodes: the nodes of the accepted path, root side first. token_ids: what is emitted: their tokens, then the bonus token.
    """

    accepted_nodes: tuple[int, ...]
    token_ids: tuple[int, ...]


NO_VERDICT = Verdict((), ())
"""For a row that was only prefilled in part: nothing is emitted."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one step did for one request.

    token_ids: new tokens, already cut at a stop condition. text: new text that no later token can change.
    finish_reason: None while the request runs; "stop" (end token, stop token or stop string), "length" (max_tokens or context end),
    "abort".
    """

    request_id: str
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str | None
