"""How completions are printed: text as it comes, JSON objects, and the line of figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hothead.engine import Completion

STAGES = ("draft", "draft_head", "verify", "other")


def as_json(result: Completion) -> str:
    """One line with the keys of the JSON output, in a fixed order."""
    stats = result.stats
    record: dict[str, Any] = {
        "text": result.text,
        "token_ids": list(result.token_ids),
        "finish_reason": result.finish_reason,
        "num_prompt_tokens": stats.num_prompt_tokens,
        "num_emitted": stats.num_emitted,
        "num_steps": stats.num_steps,
        "num_drafted": stats.num_drafted,
        "num_accepted": stats.num_accepted,
        "tokens_per_step": _rounded(stats.tokens_per_step),
        "step_sizes": stats.step_sizes,
        "hot_hit_rate": _rounded(stats.hot_hit_rate),
        "ttft_s": _rounded(stats.ttft_s),
        "decode_tokens_per_s": _rounded(stats.decode_tokens_per_s),
        "num_collectives_per_step": _rounded(stats.num_collectives / stats.num_steps) if stats.num_steps else 0.0,
        "num_rank_bytes_per_step": round(stats.num_rank_bytes / stats.num_steps) if stats.num_steps else 0,
        "stage_s": {stage: _rounded(stats.stage_s.get(stage, 0.0)) for stage in STAGES},
    }
    return json.dumps(record, ensure_ascii=False)


@dataclass(frozen=True)
class Figures:
    """Sums over requests. Rates are weighted by what they are rates of: steps for acceptance, tokens for hot hits."""

    num_requests: int = 0
    num_tokens: int = 0
    tokens_per_s: float | None = None
    tokens_per_step: float = 0.0
    accepted_by_depth: tuple[float, ...] = ()
    hot_hit_rate: float | None = None
    ttft_s: float | None = None
    stage_s: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, completions: Sequence[Completion], wall_s: float) -> Figures:
        """wall_s: from the first prompt to the last token. One request is timed by its own decoding instead, the prompt left out."""
        all_stats = [completion.stats for completion in completions]
        is_single = len(all_stats) == 1
        num_tokens = sum(len(completion.token_ids) for completion in completions)
        num_steps = sum(stats.num_steps for stats in all_stats)
        num_emitted = sum(stats.num_emitted for stats in all_stats)
        depth = max((len(stats.accepted_by_depth) for stats in all_stats), default=0)
        return cls(
            num_requests=len(all_stats),
            num_tokens=num_tokens,
            tokens_per_s=all_stats[0].decode_tokens_per_s if is_single else num_tokens / max(wall_s, 1e-9),
            tokens_per_step=num_emitted / num_steps if num_steps else 0.0,
            accepted_by_depth=tuple(
                _mean([(stats.accepted_by_depth[level], stats.num_steps) for stats in all_stats if level < len(stats.accepted_by_depth)])
                or 0.0
                for level in range(depth)
            ),
            hot_hit_rate=_mean([(stats.hot_hit_rate, stats.num_emitted) for stats in all_stats if stats.hot_hit_rate is not None]),
            ttft_s=all_stats[0].ttft_s if is_single else None,
            stage_s=_stages([stats.stage_s for stats in all_stats], wall_s),
        )

    def line(self) -> str:
        """'128 tokens | 61.2 tokens/s | 2.05 tokens per step | ...': what came, how fast, and where the time went."""
        tokens = f"{self.num_tokens} token{'s' * (self.num_tokens != 1)}"
        parts = [tokens if self.num_requests == 1 else f"{self.num_requests} prompts, {tokens}"]
        if self.tokens_per_s is not None:
            parts.append(f"{self.tokens_per_s:.1f} tokens/s")
        if self.ttft_s is not None:
            parts.append(f"first after {self.ttft_s:.2f} s")
        parts.append(f"{self.tokens_per_step:.2f} tokens per step")
        if self.accepted_by_depth:
            parts.append("accepted by depth " + " ".join(f"{share:.2f}" for share in self.accepted_by_depth))
        if self.hot_hit_rate is not None:
            parts.append(f"hot hit rate {self.hot_hit_rate:.3f}")
        parts.append(", ".join(f"{stage.replace('_', ' ')} {seconds:.2f} s" for stage, seconds in self.stage_s.items()))
        return " | ".join(parts)


def _mean(pairs: Sequence[tuple[float, int]]) -> float | None:
    """Weighted mean of (value, weight) pairs; None without weight."""
    total = sum(weight for _, weight in pairs)
    return sum(value * weight for value, weight in pairs) / total if total else None


def _stages(each: Sequence[dict[str, float]], wall_s: float) -> dict[str, float]:
    """Seconds per stage. Requests that shared steps each count them in full, so sums are scaled down to the time that passed."""
    sums = {stage: sum(stage_s.get(stage, 0.0) for stage_s in each) for stage in STAGES}
    total = sum(sums.values())
    scale = min(1.0, wall_s / total) if len(each) > 1 and total else 1.0
    return {stage: seconds * scale for stage, seconds in sums.items()}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
