"""The public engine: text, stop conditions, arrival and abort while others run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.tiny import make_eagle, make_model

from hothead import Engine, EngineConfig, SamplingParams
from hothead.errors import PromptError
from hothead.records import StepOutput

PROMPTS = ["the quick brown fox", "lazy", "runs to the river and drinks water. the quick"]
LONG = SamplingParams(max_tokens=40, ignore_eos=True)


@pytest.fixture(scope="module", params=["EAGLE", "STANDALONE"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A head with random weights is nearly never right; the model as its own draft model nearly always is: three tokens a step."""
    model = make_model(tmp_path_factory.mktemp("model"))
    draft = model if request.param == "STANDALONE" else make_eagle(tmp_path_factory.mktemp("eagle"), model)
    config = EngineConfig(
        model_path=str(model),
        speculative_algorithm=request.param,
        speculative_draft_model_path=str(draft),
        max_total_tokens=2048,
        context_length=200,
    )
    with Engine(config) as made:
        if request.param == "STANDALONE":
            assert made.generate([PROMPTS[0]], LONG)[0].stats.tokens_per_step > 2
        yield made


def test_streamed_text_is_the_text(engine: Engine) -> None:
    pieces: dict[str, str] = {}

    def collect(output: StepOutput) -> None:
        pieces[output.request_id] = pieces.get(output.request_id, "") + output.text

    completions = engine.generate(PROMPTS, LONG, on_output=collect)
    assert [pieces[completion.request_id] for completion in completions] == [completion.text for completion in completions]
    for completion in completions:
        assert completion.finish_reason == "length"
        assert completion.text == engine.tokenizer.decode(completion.token_ids)
        assert completion.stats.num_emitted == len(completion.token_ids) == 40


def test_figures_add_up(engine: Engine) -> None:
    for completion in engine.generate(PROMPTS, LONG):
        stats = completion.stats
        assert stats.num_emitted == stats.num_accepted + stats.num_steps
        assert 0 <= stats.num_accepted <= stats.num_drafted
        assert stats.tokens_per_step == pytest.approx(stats.num_emitted / stats.num_steps)
        assert all(0 <= share <= 1 for share in stats.accepted_by_depth)
        assert set(stats.stage_s) == {"draft", "draft_head", "verify", "other"}
        assert all(seconds >= 0 for seconds in stats.stage_s.values())
        assert stats.ttft_s is not None
        assert stats.ttft_s > 0
        assert stats.hot_hit_rate is None  # the head is not cut


@pytest.mark.parametrize("length", [1, 2, 3, 5, 9])
def test_a_stop_string_anywhere_cuts_the_text_before_it(engine: Engine, length: int) -> None:
    (whole,) = engine.generate([PROMPTS[0]], LONG)
    start = len(whole.text) // 3
    stop = whole.text[start : start + length]
    (stopped,) = engine.generate([PROMPTS[0]], SamplingParams(max_tokens=40, ignore_eos=True, stop=(stop, "never there")))
    assert stopped.finish_reason == "stop"
    assert stopped.text == whole.text[: whole.text.index(stop)]
    assert stopped.token_ids == whole.token_ids[: len(stopped.token_ids)]
    assert not engine.has_work


def test_a_stop_token_is_the_last_one(engine: Engine) -> None:
    (whole,) = engine.generate([PROMPTS[0]], LONG)
    stop = whole.token_ids[10]
    (stopped,) = engine.generate([PROMPTS[0]], SamplingParams(max_tokens=40, ignore_eos=True, stop_token_ids=(stop,)))
    assert stopped.token_ids == whole.token_ids[: whole.token_ids.index(stop) + 1]
    assert stopped.finish_reason == "stop"


def test_requests_come_and_go_while_others_run(engine: Engine) -> None:
    expected = {prompt: completion.token_ids for prompt, completion in zip(PROMPTS, engine.generate(PROMPTS, LONG), strict=True)}
    first = engine.add(PROMPTS[0], LONG)
    engine.step()
    second, third = engine.add(PROMPTS[1], LONG), engine.add(PROMPTS[2], LONG)
    for _ in range(3):
        engine.step()
    engine.abort(second)
    aborted = engine.take(second)
    while engine.has_work:
        engine.step()
    assert engine.take(first).token_ids == expected[PROMPTS[0]]
    assert engine.take(third).token_ids == expected[PROMPTS[2]]
    assert aborted.finish_reason == "abort"
    assert 0 < len(aborted.token_ids) < 40
    assert aborted.token_ids == expected[PROMPTS[1]][: len(aborted.token_ids)]
    engine.step()  # carries the last command out
    engine._core.cache.check_integrity()
    assert engine._core.cache.num_free_blocks == engine._core.cache.num_blocks


def test_unseeded_sampling_differs_and_a_seed_repeats(engine: Engine) -> None:
    free = SamplingParams(max_tokens=30, temperature=1.5, ignore_eos=True)
    texts = {completion.token_ids for completion in engine.generate([PROMPTS[0]] * 3, free)}
    assert len(texts) == 3
    seeded = SamplingParams(max_tokens=30, temperature=1.5, seed=4, ignore_eos=True)
    assert len({completion.token_ids for completion in engine.generate([PROMPTS[0]] * 3, seeded)}) == 1


def test_prompts_that_cannot_run_are_refused_before_anything_runs(engine: Engine) -> None:
    with pytest.raises(PromptError, match="empty"):
        engine.generate([PROMPTS[0], []])
    with pytest.raises(PromptError, match=r"has 200 tokens; the context window has room for 200"):
        engine.generate([PROMPTS[0], [5] * 200])
    with pytest.raises(PromptError, match="Token id 99999"):
        engine.generate([[5, 99999]])
    assert not engine.has_work


def test_an_interrupted_generate_leaves_the_engine_usable(engine: Engine) -> None:
    def interrupt(output: StepOutput) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.generate(PROMPTS, LONG, on_output=interrupt)
    assert not engine.has_work
    assert len(engine.generate([PROMPTS[0]], LONG)[0].token_ids) == 40
    assert engine._core.cache.num_free_blocks == engine._core.cache.num_blocks
