"""What a drafter may be built from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hothead.config.engine import EngineConfig
from hothead.draft.base import TreeShape
from hothead.models.decoder import Decoder
from hothead.models.weights.base import WeightSource


@dataclass(frozen=True, slots=True)
class DraftContext:
    """The target, where the draft lies, and the sizes that both share.

    draft_path: given or shipped, None where the algorithm needs none. num_slots: KV slots, the same ones as the target's. context_length:
    tokens per request at most. num_token_ids: real vocabulary of the tokenizer (the head may have padding rows behind it).
    """

    config: EngineConfig
    shape: TreeShape
    decoder: Decoder
    source: WeightSource
    draft_path: Path | None
    num_slots: int
    context_length: int
    num_token_ids: int
    tokenizer_fingerprint: str
