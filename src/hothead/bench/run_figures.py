"""What a run of the engine tells about a drafter: how often it is right by how frequent the target's token is, and what a step costs.

A run is the lines that `hothead generate --json` prints, or one that is made here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hothead.config.engine import EngineConfig
from hothead.errors import DataError

MAX_FILE_BYTES = 256 << 20
_ADVICE = "Write it with hothead generate ... --json > run.jsonl."


@dataclass(frozen=True)
class RunFigures:
    """Sums over requests. token_ids: emitted tokens in order; is_drafted: for each, whether it was a draft token that was kept.

    seconds per step: draft_s (the draft network), draft_head_s, verify_s, other_s.
    """

    num_steps: int
    token_ids: tuple[int, ...]
    is_drafted: tuple[bool, ...]
    draft_s: float
    draft_head_s: float
    verify_s: float
    other_s: float

    @property
    def tokens_per_step(self) -> float:
        return len(self.token_ids) / self.num_steps

    @property
    def tokens_per_s(self) -> float:
        """Of the steps alone."""
        return self.tokens_per_step / (self.draft_s + self.draft_head_s + self.verify_s + self.other_s)

    @classmethod
    def of_records(cls, records: Iterable[Mapping[str, Any]], where: str) -> RunFigures:
        """records: with token_ids, step_sizes and stage_s of `generate --json`. Raises DataError for what is none."""
        token_ids: list[int] = []
        is_drafted: list[bool] = []
        stage_s = dict.fromkeys(("draft", "draft_head", "verify", "other"), 0.0)
        num_steps = 0
        for number, record in enumerate(records, start=1):
            try:
                own, sizes = list(map(int, record["token_ids"])), list(map(int, record["step_sizes"]))
                times = {stage: float(record["stage_s"][stage]) for stage in stage_s}
            except (KeyError, TypeError, ValueError) as error:
                raise DataError(
                    f"{where} line {number} is not from a run: {error!s:.100}.",
                    advice=_ADVICE,
                ) from error
            if sum(sizes) != len(own) or any(size < 1 for size in sizes):
                raise DataError(f"{where} line {number}: its steps emitted {sum(sizes)} tokens, and it has {len(own)}.")
            token_ids += own
            for size in sizes:
                is_drafted += [True] * (size - 1) + [False]
            num_steps += len(sizes)
            for stage in stage_s:
                stage_s[stage] += times[stage]
        if not num_steps:
            raise DataError(f"{where} holds no verify step.", advice="Generate some text with --json.")
        per_step = {stage: seconds / num_steps for stage, seconds in stage_s.items()}
        return cls(
            num_steps,
            tuple(token_ids),
            tuple(is_drafted),
            per_step["draft"],
            per_step["draft_head"],
            per_step["verify"],
            per_step["other"],
        )

    @classmethod
    def load(cls, path: Path) -> RunFigures:
        """Raises DataError."""
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                raise DataError(f"'{path}' is no run: it has {path.stat().st_size} bytes, and at most {MAX_FILE_BYTES} are read.")
            records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(f"the run '{path}' cannot be read: {error!s:.200}.", advice=_ADVICE) from error
        return cls.of_records(records, f"'{path}'")


def measure_run(config: EngineConfig, prompts: Sequence[str], max_tokens: int) -> RunFigures:
    """Answer the prompts one after the other and keep the figures. config: EngineConfig. The first prompt is answered twice, the first
    time to warm up."""
    from hothead.config.sampling import SamplingParams
    from hothead.engine import Engine
    from hothead.engine.responses import prompt_token_ids

    records = []
    with Engine(config) as engine:
        token_ids = [prompt_token_ids(engine.tokenizer, prompt) for prompt in prompts]
        for one in (token_ids[0], *token_ids):
            (completion,) = engine.generate([one], SamplingParams(max_tokens=max_tokens))
            stats = completion.stats
            records.append({"token_ids": completion.token_ids, "step_sizes": stats.step_sizes, "stage_s": stats.stage_s})
    return RunFigures.of_records(records[1:], "the run")
