"""Run an engine core on prompts, on one rank or several, without processes of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.support.tiny import EOS_TOKEN_ID, make_tokenizer

from hothead.config.engine import EngineConfig
from hothead.config.sampling import SamplingParams
from hothead.draft.base import TreeShape
from hothead.draft.plan import plan_draft
from hothead.engine.build import CorePlan, build_core
from hothead.engine.core import EngineCore
from hothead.models.config_files import load_config
from hothead.models.tokenizer import Tokenizer
from hothead.parallel.groups import RankGroup, SingleRank
from hothead.records import ROOT, Batch, Request, TokenTree, Verdict
from hothead.verify.rejection import Proposal

NUM_TOKEN_IDS = make_tokenizer().get_vocab_size()


@dataclass(frozen=True)
class Decoded:
    """token_ids of each prompt, and what it took."""

    token_ids: list[list[int]]
    num_verify_steps: int
    num_drafted: int
    num_accepted: int
    num_preemptions: int

    @property
    def tokens_per_step(self) -> float:
        return sum(map(len, self.token_ids)) / self.num_verify_steps


def make_core(
    model: Path,
    group: RankGroup | None = None,
    *,
    num_token_ids: int = NUM_TOKEN_IDS,
    eos_token_ids: frozenset[int] = frozenset({EOS_TOKEN_ID}),
    **options: Any,
) -> EngineCore:
    """options: fields of EngineConfig."""
    config = EngineConfig(**({"model_path": str(model), "max_total_tokens": 4096, "max_concurrency": 8} | options))
    draft = None if config.speculative_draft_model_path in (None, "none") else Path(str(config.speculative_draft_model_path))
    plan = plan_draft(config, load_config(model), Tokenizer.load(model), num_token_ids, draft)
    return build_core(CorePlan(config, model, plan, num_token_ids, eos_token_ids), group or SingleRank())


def decode(
    core: EngineCore, prompts: Sequence[Sequence[int]], sampling: SamplingParams | Sequence[SamplingParams], *, stagger: int = 0
) -> Decoded:
    """Continue all prompts together. stagger: steps between two arrivals (0: all at once). Checks the cache after every step."""
    each = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else list(sampling)
    each = [params if params.seed is not None else replace(params, seed=0) for params in each]
    requests = [Request(str(index), tuple(prompt), params) for index, (prompt, params) in enumerate(zip(prompts, each, strict=True))]
    emitted: dict[str, list[int]] = {request.request_id: [] for request in requests}
    num_verify_steps = num_drafted = num_accepted = num_steps = 0
    while requests or core.scheduler.has_work:
        if requests and num_steps % max(stagger, 1) == 0:
            arriving, requests = (requests[:1], requests[1:]) if stagger else (requests, [])
            for request in arriving:
                core.scheduler.add(request)
        result = core.step()
        core.cache.check_integrity()
        num_steps += 1
        assert num_steps < 10_000, "no progress"
        for output in result.outputs:
            emitted[output.request_id] += output.token_ids
        for row in result.stats.rows:
            num_verify_steps += row.is_verify_step
            num_drafted += row.num_drafted
            num_accepted += row.num_accepted
    assert core.cache.num_free_blocks == core.cache.num_blocks
    return Decoded(list(emitted.values()), num_verify_steps, num_drafted, num_accepted, core.scheduler.num_preemptions)


def decode_on_rank(
    group: RankGroup, model: str, prompts: list[list[int]], calls: list[tuple[SamplingParams, dict[str, Any]]]
) -> list[Decoded]:
    """For `run_on_ranks`: one result per (sampling, engine options)."""
    return [decode(make_core(Path(model), group, **options), prompts, sampling) for sampling, options in calls]


class OracleDrafter:
    """Drafts the right continuation with deliberate mistakes and wrong siblings, in every shape of tree: what random weights never reach.

    answers: for each request id, all tokens that plain decoding emits.
    """

    def __init__(self, answers: dict[str, list[int]], num_prompt_tokens: dict[str, int], shape: TreeShape, seed: int = 0) -> None:
        self.answers, self.num_prompt_tokens, self.shape = answers, num_prompt_tokens, shape
        self.num_scratch_slots = shape.num_nodes
        self.hot_token_ids = None
        self.head_s = 0.0
        self.draws = False
        self.proposals: dict[str, Proposal] = {}
        self._random = np.random.default_rng(seed)

    def propose(self, batch: Batch) -> list[TokenTree]:
        return [self._tree(row.request_id, len(row.token_ids), row.max_draft_tokens) for row in batch]

    def observe(self, batch: Batch, trees: Sequence[TokenTree], verdicts: Sequence[Verdict], hidden: torch.Tensor) -> None:
        assert len(hidden) == sum(row.num_new + len(tree) for row, tree in zip(batch, trees, strict=True))
        assert not bool(hidden.isnan().any())

    def forget(self, request_id: str) -> None:
        pass

    def _tree(self, request_id: str, num_tokens: int, num_nodes: int) -> TokenTree:
        num_emitted = num_tokens - self.num_prompt_tokens[request_id]
        answer = self.answers[request_id][num_emitted : num_emitted + self.shape.num_steps]
        right_length = int(self._random.integers(0, len(answer) + 1))
        token_ids: list[int] = []
        parents: list[int] = []
        on_path = ROOT  # node of the right continuation so far
        num_right = 0
        while len(token_ids) < num_nodes:
            is_right = num_right < right_length and self._random.random() < 0.6
            if is_right:
                token_ids.append(answer[num_right])
                parents.append(on_path)
                on_path = len(token_ids) - 1
                num_right += 1
            elif self._random.random() < 0.9:
                token_ids.append(int(self._random.integers(3, 200)))
                parents.append(int(self._random.integers(ROOT, len(token_ids) - 1)) if len(token_ids) > 1 else ROOT)
            else:
                break
        return TokenTree(np.asarray(token_ids, np.int64), np.asarray(parents, np.int64))


def use_drafter(core: EngineCore, make: Callable[[], Any]) -> EngineCore:
    """Put another drafter into a core that was built without one."""
    drafter = make()
    core.drafter = drafter
    core.scheduler._forget = drafter.forget
    core.scheduler.max_tree_nodes = drafter.shape.num_nodes
    core.scheduler.num_scratch_slots = max(drafter.shape.num_nodes, drafter.num_scratch_slots)
    return core
