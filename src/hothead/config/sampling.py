"""How one request is to be continued."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hothead.config.option import Options, option
from hothead.errors import OptionError


@dataclass(frozen=True)
class SamplingParams(Options):
    """Length, randomness and stop conditions of one request.

    temperature 0 takes the most probable token; then top_k, top_p, min_p and seed change nothing. With a seed and the same target, the
    tokens are the same whatever the drafter, the token map, the batch and tp_size (in float32; in bf16 up to near ties).
    """

    heading: ClassVar[str] = "Sampling"

    max_tokens: int = option(128, flags=("--max-tokens", "-n"), help="New tokens at most, per prompt.", ge=1)
    temperature: float = option(0.0, flags=("--temperature",), help="0 takes the most probable token; higher is more random.", ge=0.0)
    top_k: int = option(0, flags=("--top-k",), help="Sample among the K most probable tokens only; 0 for all.", ge=0)
    top_p: float = option(
        1.0, flags=("--top-p",), help="Sample among the most probable tokens that hold this share of probability.", gt=0.0, le=1.0
    )
    min_p: float = option(
        0.0, flags=("--min-p",), help="Drop tokens less probable than this share of the most probable one.", ge=0.0, le=1.0
    )
    seed: int | None = option(None, flags=("--seed",), help="Same seed, same text. Left out: a new one each time.", ge=0, le=2**63 - 1)
    stop: tuple[str, ...] = option((), flags=("--stop",), help="Stop before this text. May be repeated.", metavar="TEXT")
    stop_token_ids: tuple[int, ...] = option(
        (), flags=("--stop-token-ids",), help="Stop at this token id. May be repeated.", ge=0, metavar="ID"
    )
    ignore_eos: bool = option(False, flags=("--ignore-eos",), help="Go on past the end token, up to --max-tokens.")

    def check(self) -> None:
        if "" in self.stop:
            raise OptionError("A stop text is empty: generation would stop before the first token.", advice="Leave it out.")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0

    def options_without_effect(self) -> tuple[str, ...]:
        """Names of options that were changed and do nothing at temperature 0."""
        if not self.is_greedy:
            return ()
        changed = {"top_k": self.top_k != 0, "top_p": self.top_p != 1.0, "min_p": self.min_p != 0.0, "seed": self.seed is not None}
        return tuple(name for name, is_changed in changed.items() if is_changed)
