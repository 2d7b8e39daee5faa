"""EAGLE-3 heads in the forms they are published in: what is read, what is refused, and the network against the plainest one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tests.support.decode import NUM_TOKEN_IDS, decode, make_core
from tests.support.tiny import make_eagle, make_eagle3, make_model

from hothead.config.engine import EngineConfig
from hothead.config.sampling import SamplingParams
from hothead.draft.plan import plan_draft
from hothead.engine.build import resolve_draft_path
from hothead.errors import HotheadError
from hothead.models.attention import AttentionPlan
from hothead.models.config_files import load_config
from hothead.models.decoder import Decoder
from hothead.models.eagle3 import Eagle3Network
from hothead.models.eagle3_config import default_feature_layers, read_eagle3_config
from hothead.models.tokenizer import Tokenizer
from hothead.models.weights import open_weights
from hothead.parallel.groups import SingleRank
from hothead.vocab.token_map import TokenMap

IDS = list(range(2, 280, 3))
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def plan(model: Path, folder: Path | None, **options: Any) -> Any:
    config = EngineConfig(**{"model_path": str(model), "speculative_algorithm": "EAGLE3", **options})
    return plan_draft(config, load_config(model), Tokenizer.load(model), NUM_TOKEN_IDS, folder)


def refused(model: Path, folder: Path | None, **options: Any) -> str:
    with pytest.raises(HotheadError) as caught:
        plan(model, folder, **options)
    return str(caught.value)


def change(folder: Path, take: str = "", **tensors: torch.Tensor) -> Path:
    """Take tensors out of a head, or put some in."""
    weights = load_file(folder / "model.safetensors") | tensors
    save_file({name: tensor for name, tensor in weights.items() if name != take}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("form", ["authors", "bin", "speculators"])
def test_every_form_is_read(model: Path, tmp_path: Path, form: str) -> None:
    folder = make_eagle3(tmp_path / "head", model, IDS, form=form)
    planned = plan(model, folder, speculative_algorithm="auto")
    assert planned.algorithm == "EAGLE3"
    assert planned.token_map.token_ids.tolist() == IDS
    assert planned.feature_layers == (0, 1, 2)
    options: dict[str, Any] = {"speculative_algorithm": "EAGLE3", "speculative_draft_model_path": str(folder)}
    core = make_core(model, **options)
    head = core.drafter.hot_head  # type: ignore[attr-defined]
    stored = open_weights(folder)
    hidden = torch.randn(3, 48)
    expected = (hidden @ stored.read("lm_head.weight").T).log_softmax(-1)
    found = head.candidates(hidden, len(IDS))
    for row in range(3):
        order = torch.argsort(-expected[row])
        assert found.token_ids[row].tolist() == [IDS[index] for index in order]
    decoded = decode(core, [[5, 6, 7]], SamplingParams(max_tokens=12))
    assert decoded.num_drafted > 0


class PlainNetwork:
    """One pair at a time: float32, a list as the cache. weights by the authors' names, flags as config.json has them."""

    def __init__(self, weights: dict[str, torch.Tensor], layer: str, sizes: Any, flags: dict[str, bool], rotate: Any) -> None:
        self.weights, self.layer, self.sizes, self.flags, self.rotate = weights, layer, sizes, flags, rotate

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x / (x.square().mean() + self.sizes.rms_norm_eps).sqrt() * self.weights[name]

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        if self.flags.get("norm_before_fc"):
            features = self.norm(features, "input_norm.weight")
        if self.flags.get("fc_norm"):
            parts = features.chunk(3)
            features = torch.cat([self.norm(part, f"fc_norm.{index}.weight") for index, part in enumerate(parts)])
        return self.weights["fc.weight"] @ features

    def step(self, embedding: torch.Tensor, hidden: torch.Tensor, position: int, cache: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """-> what the head reads, what the next step reads."""
        weights, layer, sizes = self.weights, self.layer, self.sizes
        normed = self.norm(hidden, f"{layer}hidden_norm.weight")
        x = torch.cat([self.norm(embedding, f"{layer}input_layernorm.weight"), normed])
        queries, keys, values = ((weights[f"{layer}self_attn.{part}_proj.weight"] @ x).view(-1, sizes.head_dim) for part in ("q", "k", "v"))
        queries, keys = self.rotate(queries, position), self.rotate(keys, position)
        cache.append((keys, values))
        attended = []
        for head in range(sizes.num_heads):
            own = head // (sizes.num_heads // sizes.num_kv_heads)
            past = torch.stack([entry[0][own] for entry in cache])
            shares = torch.softmax(past @ queries[head] / sizes.head_dim**0.5, 0)
            attended.append(shares @ torch.stack([entry[1][own] for entry in cache]))
        x = (normed if self.flags.get("norm_before_residual") else hidden) + weights[f"{layer}self_attn.o_proj.weight"] @ torch.cat(
            attended
        )
        inner = self.norm(x, f"{layer}post_attention_layernorm.weight")
        gate, up = (weights[f"{layer}mlp.{part}_proj.weight"] @ inner for part in ("gate", "up"))
        x = x + weights[f"{layer}mlp.down_proj.weight"] @ (F.silu(gate) * up)
        read = self.norm(x, "norm.weight")
        return read, read if self.flags.get("norm_output") else x


@pytest.mark.parametrize(
    ("form", "flags"),
    [
        ("authors", {}),
        ("authors", {"norm_before_residual": True}),
        ("speculators", {"norm_before_residual": True, "norm_before_fc": True}),
        ("speculators", {"norm_before_residual": False, "fc_norm": True, "norm_output": True}),
    ],
)
def test_the_network_is_the_plain_one(model: Path, tmp_path: Path, form: str, flags: dict[str, bool]) -> None:
    folder = make_eagle3(tmp_path / "head", model, IDS, form=form, **flags)
    config = read_eagle3_config(folder)
    source = open_weights(folder)
    network = Eagle3Network.load(config, source, torch.float32, CPU)
    rotary = network.rotary

    def rotate(heads: torch.Tensor, position: int) -> torch.Tensor:
        return rotary.at(torch.tensor([position]))(heads[None])[0]

    plain = PlainNetwork(
        {name: source.read(name) for name in source.names() if name not in ("d2t", "t2d")},
        "midlayer." if form == "authors" else "layers.0.",
        config.layer,
        flags,
        rotate,
    )
    generator = torch.Generator().manual_seed(5)
    embeddings, features = torch.randn(7, 48, generator=generator), torch.randn(7, 144, generator=generator)
    output = network.forward(
        embeddings, network.fuse(features), torch.arange(7), AttentionPlan.for_sequences([7], CPU, torch.float32), None
    )
    read = network.head_input(output)
    cache: list[Any] = []
    for position in range(7):
        expected, following = plain.step(embeddings[position], plain.fuse(features[position]), position, cache)
        torch.testing.assert_close(read[position], expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(output[position], following, atol=1e-4, rtol=1e-4)


def test_captured_states_are_what_enters_a_layer(model: Path) -> None:
    source = open_weights(model)
    decoder = Decoder.load(load_config(model), source, SingleRank(), torch.float32, CPU)
    token_ids = [4, 9, 30, 7]
    hidden, joined = decoder.captured_states([token_ids], (0, 2, 1))
    embedded, last, middle = joined.split(48, -1)
    assert torch.equal(embedded, decoder.embedding(torch.tensor(token_ids)))
    rotation = decoder.rotary.at(torch.arange(4))
    attention = AttentionPlan.for_sequences([4], CPU, torch.float32)
    assert torch.equal(middle, decoder.layers[0].forward(embedded, rotation, attention, None))
    assert torch.equal(last, decoder.layers[1].forward(middle, rotation, attention, None))
    assert torch.equal(hidden, decoder.hidden_states([token_ids]))


def test_layers_are_counted_as_the_form_counts_them(model: Path, tmp_path: Path) -> None:
    named = make_eagle3(tmp_path / "a", model, IDS, eagle_config={"eagle_aux_hidden_state_layer_ids": [-1, 0, 1]})
    assert plan(model, named).feature_layers == (0, 1, 2)  # outputs of these layers are inputs of the next
    named = make_eagle3(tmp_path / "b", model, IDS, form="speculators", eagle_aux_hidden_state_layer_ids=[0, 2])
    assert plan(model, named).feature_layers == (0, 2)
    assert "before layer 7, and the target has 2 layers" in refused(
        model, make_eagle3(tmp_path / "c", model, IDS, form="speculators", eagle_aux_hidden_state_layer_ids=[1, 7])
    )
    assert default_feature_layers(32) == (2, 16, 29)


def test_a_map_cuts_an_own_head_in_its_own_order(model: Path, tmp_path: Path) -> None:
    folder = make_eagle3(tmp_path / "head", model, IDS)
    TokenMap(np.array([279, 8, 3, 5, 278, 2]), np.array([9, 7, 5, 4, 3, 1])).save(tmp_path / "map.safetensors")
    given = str(tmp_path / "map.safetensors")
    with pytest.warns(UserWarning, match=r"2 of 6 tokens of the map have no row in the draft head of 93 rows .*first: id 279"):
        planned = plan(model, folder, speculative_token_map=given, speculative_eagle_topk=1)
    assert planned.token_map.token_ids.tolist() == [8, 5, 278, 2]
    assert planned.token_map.counts.tolist() == [7, 4, 3, 1]
    with pytest.warns(UserWarning, match="have no row"):
        assert plan(model, folder, speculative_token_map=given, hot_size=4).token_map.token_ids.tolist() == [8, 5, 278, 2]
    TokenMap(np.array([3, 4])).save(tmp_path / "none.safetensors")
    assert "None of the token map's 2 tokens has a row" in refused(model, folder, speculative_token_map=str(tmp_path / "none.safetensors"))
    assert plan(model, folder, speculative_token_map="none").token_map.token_ids.tolist() == IDS


def test_a_size_needs_an_order(model: Path, tmp_path: Path) -> None:
    folder = make_eagle3(tmp_path / "head", model, IDS)
    assert "hot_size=5 has no order of frequency to cut by" in refused(model, folder, hot_size=5)
    assert "hot_coverage=0.5 has no order" in refused(model, folder, hot_coverage=0.5)
    ranked = np.array(IDS)[::-1].copy()
    TokenMap(ranked, np.arange(len(IDS), 0, -1)).save(folder / "token_map.safetensors")
    assert plan(model, folder, hot_size=5).token_map.token_ids.tolist() == ranked[:5].tolist()
    assert plan(model, folder).token_map.token_ids.tolist() == ranked.tolist()
    TokenMap(ranked[:-1]).save(folder / "token_map.safetensors")
    assert "It has 92 tokens, the head 93, and 92 are in both" in refused(model, folder)


def test_a_head_over_the_whole_vocabulary_is_cut_as_any_other(model: Path, tmp_path: Path) -> None:
    folder = make_eagle3(tmp_path / "head", model, None)
    assert plan(model, folder).token_map is None
    TokenMap(np.array([7, 3, 9, 1])).save(tmp_path / "map.safetensors")
    assert plan(model, folder, speculative_token_map=str(tmp_path / "map.safetensors")).token_map.token_ids.tolist() == [7, 3, 9, 1]
    decoded = decode(make_core(model, speculative_draft_model_path=str(folder)), [[5, 6, 7]], SamplingParams(max_tokens=12))
    assert decoded.num_drafted > 0


@pytest.mark.case(7, 8, 9)
def test_what_is_missing_is_refused(model: Path, tmp_path: Path) -> None:
    assert "EAGLE3 needs a draft head" in refused(model, None)
    assert "lm_head.weight" in refused(model, change(make_eagle3(tmp_path / "a", model, IDS), "lm_head.weight"))
    without = change(change(make_eagle3(tmp_path / "b", model, IDS), "d2t"), "t2d")
    assert "the head has 93 of" in refused(model, without)
    extra = change(make_eagle3(tmp_path / "c", model, IDS), **{"extra.weight": torch.zeros(2)})
    assert "Left over: extra.weight" in refused(model, extra)
    narrow = change(make_eagle3(tmp_path / "d", model, IDS), **{"fc.weight": torch.zeros(48, 96)})
    assert "instead of [48, 144]" in refused(model, narrow)


def test_what_does_not_fit_is_refused(model: Path, tmp_path: Path) -> None:
    other = make_model(tmp_path / "other", hidden_size=96, head_dim=16)
    assert "hidden states of 96 numbers, the target's have 48" in refused(model, make_eagle3(tmp_path / "a", other, IDS))
    assert "not an EAGLE-3 draft head" in refused(model, make_eagle(tmp_path / "b", model))
    deep = make_eagle3(tmp_path / "c", model, IDS)
    (deep / "config.json").write_text(json.dumps({**json.loads((deep / "config.json").read_text()), "num_hidden_layers": 2}))
    assert "has 2 decoder layers" in refused(model, deep)
    narrow = make_eagle3(tmp_path / "d", model, IDS, hidden_size=24, target_hidden_size=48)
    assert "no embedding of its own, and the target's is 48 wide, not 24" in refused(model, narrow)


def test_a_narrower_head_with_its_own_embedding_drafts(model: Path, tmp_path: Path) -> None:
    layer = json.loads((model / "config.json").read_text()) | {"hidden_size": 24, "num_hidden_layers": 1, "model_type": "llama"}
    folder = make_eagle3(tmp_path, model, IDS, form="speculators", transformer_layer_config=layer, target_hidden_size=48)
    decoded = decode(make_core(model, speculative_draft_model_path=str(folder)), [[5, 6, 7]], SamplingParams(max_tokens=12))
    assert decoded.num_drafted > 0


def test_a_head_of_eagle_as_its_authors_publish_it(model: Path, tmp_path: Path) -> None:
    """pytorch_model.bin with the target's embedding in it."""
    folder = make_eagle(tmp_path, model)
    weights = load_file(folder / "model.safetensors") | {"embed_tokens.weight": torch.zeros(3, 48)}
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    decoded = decode(make_core(model, speculative_draft_model_path=str(folder)), [[5, 6, 7]], SamplingParams(max_tokens=12))
    assert decoded.num_drafted > 0


@pytest.mark.case(10)
def test_a_copied_tying_is_said_and_ignored(model: Path, tmp_path: Path) -> None:
    folder = make_eagle3(tmp_path, model, IDS, tie_word_embeddings=True)
    with pytest.warns(UserWarning, match="says tie_word_embeddings, but it has a head of 93 rows"):
        assert len(plan(model, folder).token_map) == 93


def test_a_shipped_head_is_used_by_its_own_algorithm(model: Path, tmp_path: Path) -> None:
    eagle, eagle3 = make_eagle(tmp_path / "eagle", model), make_eagle3(tmp_path / "eagle3", model, IDS)
    for algorithm, shipped, expected in (
        ("auto", eagle, eagle),
        ("auto", eagle3, eagle3),
        ("EAGLE", eagle3, None),
        ("EAGLE3", eagle, None),
    ):
        assert resolve_draft_path(EngineConfig(speculative_algorithm=algorithm), shipped) == expected
