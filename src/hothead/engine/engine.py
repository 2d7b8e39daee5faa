"""The public face: requests in, text out. `EngineCore.step` (core.py) is what happens in between.

Rank 0 runs this; the other ranks run `follow` on the same core. What only rank 0 knows (new requests, stop strings, aborts) travels as
commands before the next step, so that every rank's scheduler stays in the same state.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from hothead.config.engine import EngineConfig
from hothead.config.sampling import SamplingParams
from hothead.draft.plan import plan_draft
from hothead.engine.build import CorePlan, build_core, check_launch, resolve_device, resolve_draft_path
from hothead.engine.core import EngineCore, StepResult
from hothead.engine.ranks import Ranks, join_ranks
from hothead.engine.stats import RequestStats
from hothead.engine.text import TextStream
from hothead.errors import PromptError, RankError
from hothead.models.catalog import resolve_model, shipped_draft
from hothead.models.config_files import load_config
from hothead.models.tokenizer import StreamDecoder, Tokenizer
from hothead.records import Request, StepOutput
from hothead.verify.noise import resolve_seed


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request. token_ids: emitted tokens, an end token included. finish_reason: "stop", "length" or "abort"."""

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    stats: RequestStats


class Engine:
    """Generates text for many requests at once. A context manager: leaving it ends the other ranks.

    Raises a HotheadError when the model, the draft head, the token map or the options do not fit each other. Under torchrun every process
    makes an Engine; those with `is_leader` False only call `follow`.
    """

    def __init__(self, config: EngineConfig | None = None) -> None:
        self.config = config or EngineConfig()
        files = resolve_model(self.config.model_path, self.config.cache_dir)
        model = load_config(files.path)
        check_launch(self.config, model)
        self.tokenizer = Tokenizer.load(files.path)
        num_token_ids = min(self.tokenizer.vocab_size, model.vocab_size)
        draft_path = resolve_draft_path(self.config, shipped_draft(files.catalog_name))
        draft = plan_draft(self.config, model, self.tokenizer, num_token_ids, draft_path)
        plan = CorePlan(self.config, files.path, draft, num_token_ids, frozenset(model.eos_token_ids))
        self._live: dict[str, _LiveRequest] = {}
        self._finished: dict[str, Completion] = {}
        self._commands: list[_Command] = []
        self._names = (f"request-{number}" for number in itertools.count())
        self._ranks = join_ranks(
            self.config.tp_size,
            resolve_device(self.config),
            _Follower(plan),
            self.config.num_threads,
            uses_shared_memory=self.config.collectives == "auto",
        )
        try:
            self._core = build_core(plan, self._ranks.group)
        except (RuntimeError, RankError) as error:
            raised = self._ranks.guard(error)
            self._ranks.close(is_clean=False)
            raise raised from error
        except BaseException:
            self._ranks.close(is_clean=False)
            raise
        self._is_hot = _membership(self._core.drafter.hot_token_ids, model.vocab_size)

    @property
    def is_leader(self) -> bool:
        """Whether this process takes requests; False for torchrun's other processes."""
        return self._ranks.is_leader

    @property
    def has_work(self) -> bool:
        return bool(self._live)

    @property
    def max_request_tokens(self) -> int:
        """Prompt and new tokens that one request can have."""
        return self._core.scheduler.max_request_tokens

    def generate(
        self,
        prompts: Sequence[str | Sequence[int]],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        on_output: Callable[[StepOutput], None] | None = None,
    ) -> list[Completion]:
        """Continue every prompt (text, or token ids as a chat template gives them) and return the completions in the same order.

        on_output sees each step's new text as it comes; its request ids are those of the completions. Raises PromptError before anything
        runs.
        """
        each = [sampling or SamplingParams()] * len(prompts) if not isinstance(sampling, Sequence) else list(sampling)
        if len(each) != len(prompts):
            raise PromptError(
                f"{len(each)} sampling parameters were given for {len(prompts)} prompts.", advice="Give one for each, or one for all."
            )
        token_ids = [self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt) for prompt in prompts]
        for prompt in token_ids:
            self._check_prompt(prompt)
        request_ids = [self.add(prompt, params) for prompt, params in zip(token_ids, each, strict=True)]
        try:
            while any(request_id in self._live for request_id in request_ids):
                for output in self.step():
                    if on_output is not None:
                        on_output(output)
        except BaseException:
            for request_id in request_ids:
                self._live.pop(request_id, None)
                self._finished.pop(request_id, None)
                self._commands.append(_Command("finish", request_id))
            raise
        return [self._finished.pop(request_id) for request_id in request_ids]

    def add(self, prompt: str | Sequence[int], sampling: SamplingParams | None = None, request_id: str | None = None) -> str:
        """Queue a request -> its id. Raises PromptError if the prompt is empty or leaves no room for a new token."""
        token_ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        self._check_prompt(token_ids)
        if request_id is None:
            request_id = next(name for name in self._names if name not in self._live and name not in self._finished)
        elif request_id in self._live or request_id in self._finished:
            raise PromptError(
                f"There is a request {request_id!r} already.", advice="Give each request its own id, and take finished ones with `take`."
            )
        sampling = sampling or SamplingParams()
        # The seed is drawn here, once: a preempted request and every rank go on with the same noise.
        seeded = dataclasses.replace(sampling, seed=resolve_seed(sampling, request_id))
        self._live[request_id] = _LiveRequest(
            TextStream(StreamDecoder(self.tokenizer), sampling.stop), RequestStats(len(token_ids), time.perf_counter())
        )
        self._commands.append(_Command("add", Request(request_id, tuple(token_ids), seeded)))
        return request_id

    def step(self) -> list[StepOutput]:
        """Advance every request that can run by one step. Requests that end are given back by `take`."""
        commands, self._commands = self._commands, []
        try:
            if self._ranks.control is not None:
                self._ranks.control.send(commands)
            _carry_out(self._core, commands)
            result = self._core.step() if self._core.scheduler.has_work else None
        except (RuntimeError, RankError) as error:
            raised = self._ranks.guard(error)
            self._break()
            raise raised from error
        except BaseException:
            self._break()
            raise
        return [] if result is None else self._publish(result)

    def take(self, request_id: str) -> Completion:
        """The completion of a request that has finished; it is forgotten here. Raises PromptError for any other."""
        if request_id not in self._finished:
            state = "has not finished" if request_id in self._live else "is not known, or was taken before"
            raise PromptError(f"The request {request_id!r} {state}.", advice="Take a request once, after a step gave its finish_reason.")
        return self._finished.pop(request_id)

    def abort(self, request_id: str) -> None:
        """End a request at once; its completion has what came so far and the reason "abort". Requests that ended already stay as they
        are."""
        if request_id in self._live:
            self._commands.append(_Command("finish", request_id))
            self._complete(request_id, "abort")

    def follow(self) -> None:
        """What torchrun's other processes do: the same steps, until rank 0 ends."""
        _follow(self._ranks, self._core)

    def close(self) -> None:
        """End the other ranks. Safe to call twice."""
        self._ranks.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    def _break(self) -> None:
        """A step was left in its middle: what ran is lost, and ranks that wait for each other can only be ended."""
        for request_id in self._live:
            self._core.scheduler.finish(request_id)
        self._live.clear()
        self._commands.clear()
        if self._ranks.group.size > 1:
            self._ranks.close(is_clean=False)

    def _check_prompt(self, token_ids: Sequence[int]) -> None:
        limit = self.max_request_tokens
        if not token_ids:
            raise PromptError("The prompt is empty: it has no tokens.", advice="Give some text, or a chat message.")
        if len(token_ids) >= limit:
            context_length = self._core.scheduler.context_length
            why = "the context window" if limit == context_length else "the KV cache (--max-total-tokens)"
            raise PromptError(
                f"The prompt has {len(token_ids)} tokens; {why} has room for {limit}, at least one new token included.",
                advice="Shorten it" + (", or raise --max-total-tokens." if limit < context_length else "."),
            )
        bad = next((token_id for token_id in token_ids if not 0 <= token_id < self._core.target.decoder.config.vocab_size), None)
        if bad is not None:
            raise PromptError(f"Token id {bad} is not in the vocabulary of {self._core.target.decoder.config.vocab_size} tokens.")

    def _publish(self, result: StepResult) -> list[StepOutput]:
        now_s = time.perf_counter()
        for row in result.stats.rows:
            if row.request_id in self._live:
                stats = result.stats
                self._live[row.request_id].stats.add_step(row, stats.stage_s, stats.num_collectives, stats.num_rank_bytes)
        outputs = []
        for output in result.outputs:
            live = self._live.get(output.request_id)
            if live is None:
                continue  # aborted while the step ran
            text, num_kept = live.text_stream.push(output.token_ids)
            token_ids, reason = output.token_ids[:num_kept], output.finish_reason
            if live.text_stream.is_stopped:
                if reason is None:
                    self._commands.append(_Command("finish", output.request_id))
                reason = "stop"
            live.stats.add_tokens(token_ids, self._is_hot, now_s)
            live.token_ids.extend(token_ids)
            live.texts.append(text)
            if reason is not None:
                text += self._complete(output.request_id, reason)
            outputs.append(StepOutput(output.request_id, token_ids, text, reason))
        return outputs

    def _complete(self, request_id: str, reason: str) -> str:
        """Move a request to the finished ones -> text that was held back until now."""
        live = self._live.pop(request_id)
        rest = live.text_stream.finish()
        self._finished[request_id] = Completion(request_id, "".join(live.texts) + rest, tuple(live.token_ids), reason, live.stats)
        return rest


@dataclass(slots=True)
class _LiveRequest:
    text_stream: TextStream
    stats: RequestStats
    token_ids: list[int] = dataclasses.field(default_factory=list)
    texts: list[str] = dataclasses.field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Command:
    """ "add" with a Request, or "finish" with a request id."""

    kind: str
    value: Request | str


@dataclass(frozen=True, slots=True)
class _Follower:
    """What a started rank runs. A class, not a closure: it goes to another process."""

    plan: CorePlan

    def __call__(self, ranks: Ranks) -> None:
        _follow(ranks, build_core(self.plan, ranks.group))


def _follow(ranks: Ranks, core: EngineCore) -> None:
    assert ranks.control is not None
    while (commands := ranks.control.receive()) is not None:
        _carry_out(core, commands)
        if core.scheduler.has_work:
            core.step()


def _carry_out(core: EngineCore, commands: Sequence[_Command]) -> None:
    for command in commands:
        if isinstance(command.value, Request):
            core.scheduler.add(command.value)
        else:
            core.scheduler.finish(command.value)


def _membership(hot_token_ids: NDArray[np.int64] | None, vocab_size: int) -> NDArray[np.bool_] | None:
    """[V] bool, True for hot tokens."""
    if hot_token_ids is None:
        return None
    is_hot = np.zeros(vocab_size, bool)
    is_hot[hot_token_ids] = True
    return is_hot
