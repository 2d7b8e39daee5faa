"""From responses of a small real model to a draft head that the engine's own network loads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from tests.support.tiny import make_model

from hothead.draft.eagle_loader import read_eagle_config
from hothead.errors import OptionError
from hothead.models.attention import AttentionPlan
from hothead.models.config_files import load_config
from hothead.models.eagle import EagleNetwork
from hothead.models.weights import open_weights
from hothead.train.checkpoint import Progress
from hothead.train.config import TrainEagleConfig
from hothead.train.dataset import Document
from hothead.train.eagle import train_eagle
from hothead.train.eagle_trainee import evaluate_eagle
from hothead.train.evaluation import _walk
from hothead.train.examples import ExampleSource, Scales
from hothead.train.export import export_head
from hothead.train.features import FeatureCache
from hothead.train.network import EagleHead, RotaryTables
from hothead.train.prepare import Callbacks
from hothead.train.target import head_config, load_target
from hothead.vocab.token_map import TokenMap

from .tiny import SHAPE, make_documents, make_network, make_source


def write_responses(prompts: Sequence[str]) -> Iterator[tuple[int, Sequence[int], Sequence[int]]]:
    for index, prompt in enumerate(prompts):
        yield index, [1, 5 + len(prompt), 7], [(index * 3 + step * 5) % 40 for step in range(12)]


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_trained_head_is_what_the_engine_loads(tmp_path: Path, family: str) -> None:
    model = make_model(tmp_path / "model", family)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": "x" * count}) + "\n" for count in range(1, 13)))
    config = TrainEagleConfig(
        model_path=str(model),
        output=tmp_path / "head",
        prompts=prompts,
        num_steps=4,
        num_unrolled=2,
        batch_tokens=64,
        max_length=40,
        hot_size=32,
        num_held_out=3,
        warmup_steps=1,
        dtype="float32",
    )
    stages: list[str] = []
    folders: list[Path] = []

    def measure(folder: Path) -> dict[str, object]:
        folders.append(folder)
        assert (folder / "config.json").exists()
        return {"engine_tokens_per_step": 1.5}

    target = load_target(model, "tiny-model", torch.float32, config.max_length)
    callbacks = Callbacks(lambda stage, done, total: stages.append(stage), lambda report: None, write_responses, measure)
    progress: Progress = train_eagle(config, target, callbacks)
    assert progress.num_steps == 4
    assert list(dict.fromkeys(stages)) == ["responses", "features", "distributions"]
    assert folders == [config.output]
    assert progress.evaluations[-1]["engine_tokens_per_step"] == 1.5

    about = json.loads((config.output / "config.json").read_text())
    assert about["architectures"] == ["LlamaForCausalLMEagle"]
    assert about["hothead"]["target"] == "tiny-model"
    assert about["hothead"]["training"]["evaluation"]["engine_tokens_per_step"] == 1.5
    token_map = TokenMap.load(config.output / "token_map.safetensors")
    assert len(token_map) == 32
    assert set(target.eos_token_ids) <= set(token_map.token_ids.tolist())
    assert token_map.tokenizer_fingerprint == target.tokenizer_fingerprint

    # The engine's network on raw features = the trained one on unit features, up to bfloat16 weights.
    source = open_weights(config.output)
    network = EagleNetwork.load(read_eagle_config(config.output), source, torch.float32, torch.device("cpu"))
    source.close()
    assert not any(path.name.startswith(".") for path in config.output.rglob("*"))
    token_ids = [1, 6, 7, 0, 5, 10, 15]
    features = target.hidden_states([token_ids])
    predicted = network.forward(
        target.embedding[torch.tensor(token_ids[1:])],
        features[:-1],
        torch.arange(len(token_ids) - 1),
        AttentionPlan.for_sequences([len(token_ids) - 1], torch.device("cpu"), torch.float32),
        None,
    )
    assert predicted.shape == (len(token_ids) - 1, target.shape.hidden_size)
    assert bool(predicted.isfinite().all())

    assert train_eagle(config, target, callbacks).num_steps == 4  # nothing left to do: everything is there


def test_exported_weights_on_raw_features_equal_training(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model")
    target = load_target(model, "tiny-model", torch.float32, 40)
    documents = [Document((1, 6), (7, 0, 5, 10, 15, 20, 3))]
    cache = FeatureCache(documents, tmp_path / "work", "tiny")
    cache.write(target.hidden_states)
    token_map = TokenMap(list(range(30)))
    scales = Scales(0.25, 2.0)
    source = ExampleSource(documents, cache, target, token_map.token_ids, scales, 2, 64, torch.float32)
    source.prepare(tmp_path / "work")
    head = EagleHead(target.shape)
    head.initialise(1)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(parameter.bfloat16())  # what the export keeps
        (in_training,) = head.unroll(head.compute_weights(torch.float32), source.load([0]).inputs, target.rotary(64, torch.float32), 1)
    assert head_config(load_config(model)) == target.config
    export_head(tmp_path / "head", head, scales, target, token_map, {})
    weights = open_weights(tmp_path / "head")
    network = EagleNetwork.load(read_eagle_config(tmp_path / "head"), weights, torch.float32, torch.device("cpu"))
    weights.close()
    token_ids = documents[0].token_ids
    in_engine = network.forward(
        target.embedding[torch.tensor(token_ids[1:])],
        target.hidden_states([token_ids])[:-1].bfloat16().float(),
        torch.arange(len(token_ids) - 1),
        AttentionPlan.for_sequences([len(token_ids) - 1], torch.device("cpu"), torch.float32),
        None,
    )
    # Scales are powers of two, so folding them rounds nothing.
    torch.testing.assert_close(in_training[:7] * scales.feature, in_engine[1:], atol=1e-4, rtol=1e-3)


def test_the_evaluation_walks_as_decoding_does(tmp_path: Path) -> None:
    source = make_source(make_documents(3), tmp_path)
    example = source.load([0, 2])
    lengths = example.batch.response_lengths
    num_accepted = torch.zeros(example.batch.num_response_rows, dtype=torch.int64)
    assert _walk(num_accepted, example) == (sum(lengths) - 2, sum(lengths) - 2)
    for start, length in zip(example.batch.response_starts, lengths, strict=True):
        num_accepted[start : start + length] = torch.arange(length - 1, -1, -1).clamp(max=2)
    num_emitted, num_steps = _walk(num_accepted, example)
    assert num_steps == sum(-(-(length - 1) // 3) for length in lengths)
    assert num_emitted >= sum(lengths) - 2


def test_an_untrained_head_evaluates(tmp_path: Path) -> None:
    source = make_source(make_documents(5), tmp_path)
    evaluation = evaluate_eagle(make_network(), source, RotaryTables.plain(64, SHAPE.head_dim, 10000.0, torch.float32))
    assert len(evaluation.accuracy) == len(evaluation.cross_entropy) == len(evaluation.chain_acceptance) == 3
    assert 1 <= evaluation.tokens_per_step <= 4
    assert 0.5 < evaluation.hot_hit_rate <= 1
    assert evaluation.chain_acceptance[0] == pytest.approx(evaluation.accuracy[0])


def test_contradictions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="exclude"):
        TrainEagleConfig(responses=tmp_path / "a", prompts=tmp_path / "b")
    with pytest.raises(OptionError, match="exclude"):
        TrainEagleConfig(budget_minutes=1.0, num_steps=5)
    with pytest.raises(OptionError, match="does not fit"):
        TrainEagleConfig(batch_tokens=512)
