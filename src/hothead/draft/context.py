"""What a drafter is built from: what was decided before weights are read, and what is there once they are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hothead.config.engine import EngineConfig
from hothead.draft.base import TreeShape
from hothead.models.decoder import Decoder
from hothead.models.weights.base import WeightSource
from hothead.vocab.token_map import TokenMap


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """What drafts, checked against headers and tokenizers; the same on every rank.

    path: the draft head's or draft model's, None where the algorithm needs none. token_map: None where the head is not cut. feature_layers:
    layers of the target whose inputs the drafter reads as features; none for its hidden states after the final norm.
    """

    algorithm: str
    shape: TreeShape
    path: Path | None = None
    token_map: TokenMap | None = None
    feature_layers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DraftContext:
    """The target as it was loaded, and the sizes that both share.

    num_slots: KV slots, the same ones as the target's. context_length: tokens per request at most. num_token_ids: real vocabulary of the
    tokenizer (the head may have padding rows behind it).
    """

    config: EngineConfig
    plan: DraftPlan
    decoder: Decoder
    source: WeightSource
    num_slots: int
    context_length: int
    num_token_ids: int

    @property
    def hot_token_ids(self) -> NDArray[np.int64] | None:
        """[H], None where the head is not cut."""
        return None if self.plan.token_map is None else self.plan.token_map.token_ids
