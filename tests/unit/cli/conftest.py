"""An engine that needs no model, and the command line as a function."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar

import pytest

from hothead.cli.main import run
from hothead.config.engine import EngineConfig
from hothead.config.sampling import SamplingParams
from hothead.records import StepOutput


@dataclass
class FakeStats:
    num_prompt_tokens: int
    num_emitted: int
    num_steps: int
    num_drafted: int
    num_accepted: int
    tokens_per_step: float
    hot_hit_rate: float | None
    accepted_by_depth: list[float]
    step_sizes: list[int]
    num_collectives: int
    num_rank_bytes: int
    ttft_s: float | None
    decode_tokens_per_s: float | None
    stage_s: dict[str, float]


@dataclass
class FakeCompletion:
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    stats: FakeStats


class FakeTokenizer:
    has_chat_template = True

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def apply_chat_template(self, messages: Sequence[dict[str, Any]]) -> list[int]:
        return self.encode("".join(f"<{message['role']}>{message['content']}" for message in messages))


class FakeEngine:
    """Answers every prompt with the prompt itself, two letters per step, and remembers what it was asked."""

    made: ClassVar[list[FakeEngine]] = []
    fail_with: BaseException | None = None
    is_leader = True

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.tokenizer = FakeTokenizer()
        self.is_closed = False
        self.prompts: list[str] = []
        self.num_steps = 0
        FakeEngine.made.append(self)

    def __enter__(self) -> FakeEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True

    def add(self, prompt: Sequence[int], sampling: SamplingParams) -> str:
        self.sampling = sampling
        self.prompts.append("".join(map(chr, prompt)))
        return f"request-{len(self.prompts) - 1}"

    def step(self) -> list[StepOutput]:
        """The last prompt that waits is done first, one a step."""
        if self.fail_with is not None and self.num_steps >= 1:
            raise self.fail_with
        self.num_steps += 1
        number = len(self.prompts) - self.num_steps
        text = self.prompts[number]
        return [StepOutput(f"request-{number}", (0, 0), text, "stop")]

    def take(self, request_id: str) -> FakeCompletion:
        text = self.prompts[int(request_id.removeprefix("request-"))]
        return FakeCompletion(text, tuple(range(len(text))), "stop", stats_of(len(text)))

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingParams, on_output: Callable[[StepOutput], None] | None = None
    ) -> list[FakeCompletion]:
        self.prompts = ["".join(map(chr, prompt)) for prompt in prompts]
        self.sampling = sampling
        done = []
        for number, text in enumerate(self.prompts):
            for start in range(0, len(text), 2):
                if on_output is not None:
                    is_last = start + 2 >= len(text)
                    on_output(StepOutput(f"request-{number}", (0, 0), text[start : start + 2], "stop" if is_last else None))
                if self.fail_with is not None:
                    raise self.fail_with
            done.append(FakeCompletion(text, tuple(range(len(text))), "stop", stats_of(len(text))))
        return done


def stats_of(num_tokens: int) -> FakeStats:
    return FakeStats(
        num_prompt_tokens=3,
        num_emitted=num_tokens,
        num_steps=num_tokens // 2,
        num_drafted=num_tokens,
        num_accepted=num_tokens // 2,
        tokens_per_step=2.0,
        hot_hit_rate=(num_tokens - 1) / num_tokens,
        accepted_by_depth=[0.75, 0.5],
        step_sizes=[2] * (num_tokens // 2),
        num_collectives=0,
        num_rank_bytes=0,
        ttft_s=0.25,
        decode_tokens_per_s=10.0,
        stage_s={"draft": 0.1, "draft_head": 0.2, "verify": 0.3, "other": 0.4},
    )


@dataclass
class Outcome:
    code: int
    out: str
    err: str
    engine: FakeEngine | None


@dataclass
class CommandLine:
    capture: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch
    stdin: bytes = field(default=b"")

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Outcome:
        self.monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        FakeEngine.made.clear()
        code = run(list(arguments))
        out, err = self.capture.readouterr()
        return Outcome(code, out, err, FakeEngine.made[0] if FakeEngine.made else None)


@pytest.fixture
def hothead(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Runs a command line with the fake engine."""
    module = ModuleType("hothead.engine")
    module.Engine = FakeEngine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hothead.engine", module)
    monkeypatch.setattr(FakeEngine, "fail_with", None)
    return CommandLine(capsys, monkeypatch)
