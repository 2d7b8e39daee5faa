"""A map counted on what the model itself writes: seeded, resumed where it stopped, the same in any batch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.support.tiny import make_model

from hothead import Engine, EngineConfig, SamplingParams
from hothead.cli.main import run
from hothead.engine.responses import plain_config, prompt_token_ids, respond, sample_prompts, user_prefix
from hothead.errors import TokenizerError
from hothead.models.tokenizer import Tokenizer
from hothead.vocab.count import TokenCounts
from hothead.vocab.token_map import TokenMap


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), max_position_embeddings=1024)


@pytest.fixture(scope="module")
def config(model: Path) -> EngineConfig:
    return plain_config(EngineConfig(model_path=str(model)))


def rows_of(path: Path) -> list[dict[str, list[int]]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.case(18)
def test_responses_are_counted_and_kept(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["map", "build", "--model", str(model), "--self", "5", "--max-tokens", "12", "-o", str(tmp_path / "map.safetensors")]
    arguments += ["--counts-output", str(tmp_path / "counts")]
    assert run(arguments) == 0, capsys.readouterr().err
    (responses,) = tmp_path.glob("map.responses-*.jsonl")
    rows = rows_of(responses)
    assert sorted(row["prompt_index"] for row in rows) == [0, 1, 2, 3, 4]
    counts = TokenCounts.load(tmp_path / "counts")
    flat = np.concatenate([row["response_token_ids"] for row in rows])
    assert flat.max() >= counts.vocab_size, "no padded row was chosen: the test proves less than it should"
    assert (counts.counts == np.bincount(flat)[: counts.vocab_size]).all()
    first = TokenMap.load(tmp_path / "map.safetensors")
    assert first.provenance["own_responses"] == "5 to the model's own prompts, at most 12 tokens each, greedy"

    # Two responses are lost: only they are written again, and the same.
    responses.write_text("".join(json.dumps(row) + "\n" for row in rows[2:]))
    assert run(arguments) == 0
    assert "writing responses: 5 of 5" in capsys.readouterr().err
    again = rows_of(responses)
    assert again[:3] == rows[2:]
    assert sorted(map(json.dumps, again)) == sorted(map(json.dumps, rows))
    assert TokenMap.load(tmp_path / "map.safetensors") == first

    # Other options are another run, and its files do not mix.
    assert run([*arguments, "--temperature", "0.7", "--seed", "3"]) == 0
    assert len(list(tmp_path.glob("map.responses-*.jsonl"))) == 2


def test_given_prompts(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "the fox"}\n{"prompt": "the dog"}\n')
    arguments = ["map", "build", "--model", str(model), "--max-tokens", "8", "-o", str(tmp_path / "map"), "--prompts", str(prompts)]
    assert run([*arguments, "--self", "2"]) == 0
    assert not list(tmp_path.glob("map.prompts-*"))
    assert TokenMap.load(tmp_path / "map").provenance["own_responses"].startswith("2 to prompts.jsonl")
    capsys.readouterr()
    assert run([*arguments, "--self", "3"]) == 2
    assert "has 2 prompts, and 3 responses are asked for" in capsys.readouterr().err


def test_a_bare_tokenizer_writes_nothing(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(model / "tokenizer.json")
    assert run(["map", "build", "--model", file, "--self", "3", "-o", str(tmp_path / "map")]) == 2
    assert "is a file, but not a .gguf file" in capsys.readouterr().err


def test_a_response_does_not_depend_on_the_others(config: EngineConfig) -> None:
    sampling = SamplingParams(max_tokens=10, temperature=0.9, seed=5)
    prompts = ["the fox", "the lazy dog", "a river", "drinks"]
    with Engine(config) as engine:
        together = {index: tuple(ids) for index, _, ids in respond(engine, prompts, sampling)}
        alone = {}
        for index, prompt in enumerate(prompts):
            own = SamplingParams(max_tokens=10, temperature=0.9, seed=5 + index)
            alone[index] = engine.generate([prompt_token_ids(engine.tokenizer, prompt)], own)[0].token_ids
        assert together == alone
        assert [index for index, *_ in respond(engine, ["the fox", "the " * 50], sampling, 30)] == [0]


def test_prompts_are_seeded_text(config: EngineConfig) -> None:
    with Engine(config) as engine:
        first = dict(sample_prompts(engine, range(6), seed=1, max_tokens=10))
        assert first == dict(sample_prompts(engine, range(6), seed=1, max_tokens=10))
        assert [first[4]] == [text for _, text in sample_prompts(engine, [4], seed=1, max_tokens=10)]
        assert first != dict(sample_prompts(engine, range(6), seed=2, max_tokens=10))
    assert sorted(first) == [0, 1, 2, 3, 4, 5]


def test_where_a_turn_begins(model: Path) -> None:
    tokenizer = Tokenizer.load(model)
    assert user_prefix(tokenizer) == "<|im_start|>user\n"
    silent = Tokenizer(tokenizer.backend, {}, "{{ messages[0]['content'] }}", "odd")
    with pytest.raises(TokenizerError, match="no place where a user's turn begins"):
        user_prefix(silent)
    with pytest.raises(TokenizerError, match="no chat template"):
        user_prefix(Tokenizer(tokenizer.backend, {}, None, "raw"))
