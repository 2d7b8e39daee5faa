"""The EAGLE-3 head in training: against the plainest network, its gradients, a run that stops, and what the engine makes of the export."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.support.decode import decode, make_core
from tests.support.tiny import make_model

from hothead.config.option import replace
from hothead.config.sampling import SamplingParams
from hothead.draft.eagle import EagleDrafter
from hothead.models.attention import AttentionPlan
from hothead.models.eagle3 import Eagle3Network
from hothead.models.eagle3_config import read_eagle3_config
from hothead.models.weights import open_weights
from hothead.train.config import TrainEagle3Config
from hothead.train.dataset import Document, pack
from hothead.train.eagle3 import eagle3_loss, eagle3_trainee, train_eagle3
from hothead.train.eagle3_examples import Eagle3Source, choose_roots, measure_scales
from hothead.train.eagle3_losses import LossRows, head_loss, hot_distribution
from hothead.train.eagle3_network import Eagle3Head
from hothead.train.features import OnlineFeatures
from hothead.train.loop import StepReport, train
from hothead.train.network import RotaryTables
from hothead.train.prepare import Callbacks
from hothead.train.target import load_target
from hothead.vocab.formats.registry import read_stored_map
from hothead.vocab.token_map import TokenMap

from .tiny import SHAPE, VOCAB_SIZE, make_documents, make_target

ROTARY = RotaryTables.plain(64, SHAPE.head_dim, 10000.0, torch.float32)
SCALES = (1.0, 2.0, 0.5)
CONFIG = TrainEagle3Config(
    num_steps=14, num_unrolled=3, batch_tokens=64, max_length=60, warmup_steps=3, learning_rate=3e-3, checkpoint_minutes=1e-9
)


def joined_states(hidden_states: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Three layers made of the final states, and those."""

    def joined(sequences: object) -> torch.Tensor:
        final = hidden_states(sequences)
        return torch.cat([final.roll(1, 1), 2 * final.tanh(), 0.5 * final, final], 1)

    return joined


def make_source(
    documents: list[Document], num_steps: int = 3, later_share: float = 1.0, scales: tuple[float, ...] = SCALES
) -> Eagle3Source:
    target = make_target()
    features = OnlineFeatures(documents, joined_states(target.hidden_states))
    hot_token_ids = np.arange(VOCAB_SIZE - 1, VOCAB_SIZE - 41, -1)
    return Eagle3Source(documents, features, target, hot_token_ids, SCALES, num_steps, 64, torch.float32, later_share)


def make_head(source: Eagle3Source) -> Eagle3Head:
    head = Eagle3Head(SHAPE, len(source.hot_rows))
    head.initialise(0, source.hot_rows, torch.ones(SHAPE.hidden_size))
    with torch.no_grad():
        for parameter in head.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
    return head


class PlainHead:
    """One pair at a time, everything in the open. state: weights by the checkpoint's names, on the target's own states."""

    def __init__(self, state: dict[str, torch.Tensor]) -> None:
        self.state = state

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean() + SHAPE.rms_norm_eps) * self.state[name]

    def step(
        self, embedding: torch.Tensor, feature: torch.Tensor, position: int, cache: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> torch.Tensor:
        state = self.state
        prefix = "midlayer.self_attn."
        x = torch.cat([self.norm(embedding, "midlayer.input_layernorm.weight"), self.norm(feature, "midlayer.hidden_norm.weight")])
        queries, keys, values = ((state[f"{prefix}{part}_proj.weight"] @ x).view(1, -1, SHAPE.head_dim) for part in ("q", "k", "v"))
        at = torch.tensor([position])
        queries, keys = ROTARY.rotate(queries, at)[0], ROTARY.rotate(keys, at)[0]
        cache.append((keys, values[0]))
        out = []
        for head in range(SHAPE.num_heads):
            own = head // (SHAPE.num_heads // SHAPE.num_kv_heads)
            past_keys, past_values = torch.stack([entry[0][own] for entry in cache]), torch.stack([entry[1][own] for entry in cache])
            out.append(torch.softmax(past_keys @ queries[head] * SHAPE.head_dim**-0.5, 0) @ past_values)
        x = feature + state[f"{prefix}o_proj.weight"] @ torch.cat(out)
        normed = self.norm(x, "midlayer.post_attention_layernorm.weight")
        gate, up = state["midlayer.mlp.gate_proj.weight"] @ normed, state["midlayer.mlp.up_proj.weight"] @ normed
        return x + state["midlayer.mlp.down_proj.weight"] @ (F.silu(gate) * up)


@pytest.mark.parametrize("later_share", [1.0, 0.4])
def test_unrolled_steps_equal_recursive_drafting(later_share: float) -> None:
    target, documents = make_target(), make_documents(4)
    source = make_source(documents, num_steps=4, later_share=later_share)
    head = make_head(source)
    example = source.load([2, 0, 3], key=(1, 2))
    states = joined_states(target.hidden_states)
    with torch.no_grad():
        read = head.unroll(head.compute_weights(torch.float32), example.inputs, ROTARY, 4)
        plain = PlainHead(head.export_state(SCALES))
        roots = list(range(64)) if example.inputs.roots is None else example.inputs.roots.tolist()
        assert len(roots) == round(64 * later_share)
        num_compared = [0] * 4
        for place, index in enumerate(example.batch.documents):
            token_ids = documents[index].token_ids
            features = states([token_ids]).bfloat16().float()[:, : -SHAPE.hidden_size] @ plain.state["fc.weight"].T
            start, context = example.batch.response_starts[place], documents[index].num_context_rows
            for root in range(context, len(token_ids) - 1):
                cache: list[tuple[torch.Tensor, torch.Tensor]] = []
                for position in range(root):
                    plain.step(target.embedding[token_ids[position + 1]], features[position], position, cache)
                row, feature = start + root - context, features[root]
                for step in range(4):
                    if root + step + 1 >= len(token_ids) or (step > 0 and row not in roots):
                        break
                    feature = plain.step(target.embedding[token_ids[root + step + 1]], feature, root + step, cache)
                    found = read[step][row if step == 0 else roots.index(row)]
                    torch.testing.assert_close(found, plain.norm(feature, "norm.weight"), atol=3e-5, rtol=1e-4)
                    num_compared[step] += 1
    assert num_compared[0] > 20
    assert num_compared[3] > 5


def test_own_tokens_are_a_greedy_chain() -> None:
    target, documents = make_target(), make_documents(2)
    source = make_source(documents)
    head = make_head(source)
    chosen: list[torch.Tensor] = []

    def next_embeddings(read: torch.Tensor) -> torch.Tensor:
        chosen.append((read @ head.lm_head.weight.T).argmax(-1))
        return source.embed(source.hot_token_ids[chosen[-1]])

    with torch.no_grad():
        head.unroll(head.compute_weights(torch.float32), source.load([0]).inputs, ROTARY, 3, next_embeddings)
        plain = PlainHead(head.export_state(SCALES))
        token_ids = documents[0].token_ids
        features = joined_states(target.hidden_states)([token_ids]).bfloat16().float()[:, : -SHAPE.hidden_size] @ plain.state["fc.weight"].T
        root = documents[0].num_context_rows
        cache: list[tuple[torch.Tensor, torch.Tensor]] = []
        for position in range(root):
            plain.step(target.embedding[token_ids[position + 1]], features[position], position, cache)
        feature, token_id = features[root], token_ids[root + 1]
        for step in range(2):
            feature = plain.step(target.embedding[token_id], feature, root + step, cache)
            hot_index = int((head.lm_head.weight @ plain.norm(feature, "norm.weight")).argmax())
            assert hot_index == int(chosen[step][0])
            token_id = int(source.hot_token_ids[hot_index])


def test_loss_and_gradients_equal_autograd() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(1100, 12, generator=generator).requires_grad_()  # more than two chunks
    head = torch.randn(30, 12, generator=generator).requires_grad_()
    labels = torch.randint(-1, 30, (1100,), generator=generator)
    states, rows = torch.randn(700, 12, generator=generator), torch.randint(0, 700, (1100,), generator=generator)
    own = torch.randint(-1, 30, (700,), generator=generator)
    weights = torch.rand(1100, generator=generator)
    hot_rows = torch.randn(30, 12, generator=generator)
    targets = hot_distribution(states, hot_rows, own, hard_label_share=0.25)
    torch.testing.assert_close(targets.sum(1), torch.ones(700))
    mixed = torch.softmax(states @ hot_rows.T, 1)
    mixed[own >= 0] = 0.75 * mixed[own >= 0] + 0.25 * F.one_hot(own[own >= 0], 30)
    torch.testing.assert_close(targets, mixed)
    loss, figures = head_loss(features, head, targets, LossRows(rows, labels, weights, (0, 700)))
    found = torch.autograd.grad(loss * 3, (features, head))
    scores = features @ head.T
    expected = (F.cross_entropy(scores, targets[rows], reduction="none") * weights).sum()
    wanted = torch.autograd.grad(expected * 3, (features, head))
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-3)
    for step, part in enumerate((slice(0, 700), slice(700, 1100))):
        is_best = scores.argmax(1)[part] == labels[part]
        assert float(figures[step, 1]) == pytest.approx(int(is_best.sum()) / int((labels[part] >= 0).sum()))
    sampled, _ = head_loss(features, head, targets, LossRows(rows, labels, weights, (0, 700)), 200)
    for one, other in zip(torch.autograd.grad(sampled * 3, (features, head)), found, strict=True):
        assert torch.equal(one, other)
    assert float(sampled.detach()) == pytest.approx(float(loss.detach()), rel=0.1)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("later_share", [1.0, 0.5])
def test_gradient_of_the_whole_unrolled_loss(later_share: float) -> None:
    """Compared with differences of the loss itself, in the direction of each parameter's gradient."""
    source = make_source(make_documents(4), later_share=later_share)
    head = make_head(source)
    example = source.load([0, 1, 3], key=(5,))
    config = replace(CONFIG, later_share=later_share)

    def loss() -> torch.Tensor:
        return eagle3_loss(config, head, example, source, ROTARY).total

    loss().backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None, name
        direction, step = parameter.grad / parameter.grad.norm(), 1e-2
        with torch.no_grad():
            parameter += direction * step
            above = loss()
            parameter -= 2 * direction * step
            below = loss()
            parameter += direction * step
        slope = float(above - below) / (2 * step)
        assert abs(slope - float(parameter.grad.norm())) < 0.03 * abs(slope) + 1e-4, (name, slope, float(parameter.grad.norm()))


def test_roots_are_a_fair_sample_of_what_has_something_ahead() -> None:
    batch = pack(make_documents(6), range(6), 128, 3)
    seen = np.zeros(128, np.int64)
    for epoch in range(400):
        roots = choose_roots(batch, 0.25, (0, epoch, 0))
        assert len(np.unique(roots)) == 32
        assert (np.diff(roots) > 0).all()
        seen[roots] += 1
    useful = batch.num_after > 1
    assert (choose_roots(batch, 0.25, (0, 1, 0)) == choose_roots(batch, 0.25, (0, 1, 0))).all()
    if useful.sum() > 32:
        assert seen[~useful].sum() == 0
        assert seen[useful].min() > 0.5 * seen[useful].mean()
    assert len(choose_roots(batch, 1.0, (0,))) == 128


def run(folder: Path, config: TrainEagle3Config, stop_at: int | None = None) -> tuple[Eagle3Head, list[StepReport]]:
    training, held_out = make_source(make_documents(16), later_share=config.later_share), make_source(make_documents(4, seed=9))
    head = Eagle3Head(SHAPE, len(training.hot_rows))
    head.initialise(0, training.hot_rows, torch.ones(SHAPE.hidden_size))
    reports: list[StepReport] = []

    def on_step(report: StepReport) -> None:
        reports.append(report)
        if report.num_steps == stop_at:
            raise SystemError("killed")

    train(config, eagle3_trainee(config, head, training, held_out, ROTARY), folder / "checkpoint.safetensors", on_step)
    return head, reports


def test_the_loss_falls_and_chains_get_longer(tmp_path: Path) -> None:
    _, reports = run(tmp_path, replace(CONFIG, num_steps=60))
    assert reports[-1].cross_entropy < 0.7 * reports[0].cross_entropy
    assert len(reports[0].accuracy) == 3
    assert sum(reports[-1].accuracy) > sum(reports[0].accuracy)
    first, last = reports[0].evaluation, reports[-1].evaluation
    assert first is not None
    assert last is not None
    assert last.tokens_per_step > first.tokens_per_step


def test_a_killed_run_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole, reports = run(tmp_path / "whole", CONFIG)
    with pytest.raises(SystemError, match="killed"):
        run(tmp_path / "killed", CONFIG, stop_at=6)
    resumed, rest = run(tmp_path / "killed", CONFIG)
    assert [report.cross_entropy for report in rest] == [report.cross_entropy for report in reports[6:]]
    for (name, one), (_, other) in zip(whole.named_parameters(), resumed.named_parameters(), strict=True):
        assert torch.equal(one, other), name


def test_from_responses_to_a_head_that_drafts(tmp_path: Path) -> None:
    """The whole way, on a tiny model's own greedy text; the engine's network equals the trained one, and its drafts are accepted."""
    model = make_model(tmp_path / "model", num_hidden_layers=6)
    prompts = [[5 + index, 40 + index, 7] for index in range(24)]
    plain = decode(make_core(model, speculative_algorithm="NONE"), prompts, SamplingParams(max_tokens=20, ignore_eos=True))
    responses = tmp_path / "responses.jsonl"
    lines = zip(prompts, plain.token_ids, strict=True)
    responses.write_text("".join(json.dumps({"prompt_token_ids": p, "response_token_ids": r}) + "\n" for p, r in lines))
    config = TrainEagle3Config(
        responses=responses,
        output=tmp_path / "head",
        num_steps=200,
        num_unrolled=3,
        batch_tokens=128,
        max_length=40,
        hot_size=200,
        num_held_out=2,
        warmup_steps=2,
        learning_rate=5e-3,
        dtype="float32",
        cache_dir=tmp_path / "cache",
    )
    target = load_target(model, "tiny", torch.float32, 64, is_for_eagle3=True)
    assert target.feature_layers == (2, 3, 3)
    train_eagle3(config, target, Callbacks(lambda *_: None, lambda _: None))
    record = json.loads((config.output / "run.json").read_text())
    assert record["options"]["num_steps"] == record["progress"]["num_steps"] == 200
    assert len(record["progress"]["evaluations"]) == 1
    about = json.loads((config.output / "config.json").read_text())
    assert about["architectures"] == ["LlamaForCausalLMEagle3"]
    assert about["draft_vocab_size"] == 200
    assert about["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 2, 2]
    assert about["hothead"]["training"]["evaluation"]["tokens_per_step"] >= 1
    ranked = TokenMap.load(config.output / "token_map.safetensors")
    assert ranked.counts is not None
    stored_map, _ = read_stored_map(config.output / "model.safetensors")
    assert np.asarray(stored_map.token_ids).tolist() == sorted(ranked.token_ids.tolist())

    core = make_core(model, speculative_draft_model_path=str(config.output), hot_size=150)
    assert isinstance(core.drafter, EagleDrafter)
    assert core.drafter.hot_head.num_hot == 150
    decoded = decode(
        make_core(model, speculative_draft_model_path=str(config.output)), prompts, SamplingParams(max_tokens=20, ignore_eos=True)
    )
    assert decoded.token_ids == plain.token_ids
    assert decoded.tokens_per_step > 1.3
    sampled = SamplingParams(max_tokens=12, temperature=0.3, seed=4, ignore_eos=True)
    ours = decode(make_core(model, speculative_draft_model_path=str(config.output)), prompts[:4], sampled)
    assert ours.token_ids == decode(make_core(model, speculative_algorithm="NONE"), prompts[:4], sampled).token_ids
    assert ours.num_accepted > 0

    token_ids = (*prompts[0], *plain.token_ids[0])
    states = target.hidden_states([token_ids])[:, :-48]
    source = open_weights(config.output)
    network = Eagle3Network.load(read_eagle3_config(config.output), source, torch.float32, torch.device("cpu"))
    source.close()
    features = OnlineFeatures([Document(token_ids[:3], token_ids[3:])], target.hidden_states)
    scales = measure_scales(target, features, 1)
    made = Eagle3Source([Document(token_ids[:3], token_ids[3:])], features, target, ranked.token_ids, scales, 1, 64, torch.float32)
    head = Eagle3Head(target.shape, 200)
    stored = open_weights(config.output)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            parameter.copy_(stored.read(name, dtype=torch.float32))
        for part, scale in zip(head.fc.weight.chunk(3, 1), scales, strict=True):
            part *= scale
        (trained,) = head.unroll(head.compute_weights(torch.float32), made.load([0]).inputs, target.rotary(64, torch.float32), 1)
        causal = AttentionPlan.for_sequences([len(token_ids) - 1], torch.device("cpu"), torch.float32)
        embeddings = target.embedding[torch.tensor(token_ids[1:])]
        positions = torch.arange(len(token_ids) - 1)
        output = network.forward(embeddings, network.fuse(states.bfloat16().float()[:-1]), positions, causal, None)
    torch.testing.assert_close(trained[: len(token_ids) - 3], network.head_input(output)[2:], atol=1e-3, rtol=1e-3)
