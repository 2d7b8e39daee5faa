"""The trainable head against a plain one that really drafts, token after token, over a KV cache."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from hothead.train.examples import Scales
from hothead.train.network import EagleHead, RotaryTables

from .tiny import SHAPE, make_documents, make_network, make_source, make_target


class PlainHead:
    """One pair at a time, everything in the open: float32, a list as the KV cache. state: weights by the checkpoint's names."""

    def __init__(self, state: dict[str, torch.Tensor], rotary: RotaryTables) -> None:
        self.state, self.rotary = state, rotary

    def step(
        self, embedding: torch.Tensor, feature: torch.Tensor, position: int, cache: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> torch.Tensor:
        """[D], [D] -> [D]; appends to the cache."""
        weight = self.state
        x = weight["fc.weight"] @ torch.cat([embedding, feature]) + weight.get("fc.bias", torch.tensor(0.0))
        prefix = "layers.0.self_attn."
        queries, keys, values = ((weight[f"{prefix}{part}_proj.weight"] @ x).view(1, -1, SHAPE.head_dim) for part in ("q", "k", "v"))
        at = torch.tensor([position])
        queries, keys = self.rotary.rotate(queries, at)[0], self.rotary.rotate(keys, at)[0]
        cache.append((keys, values[0]))
        out = []
        for head in range(SHAPE.num_heads):
            kv_head = head // (SHAPE.num_heads // SHAPE.num_kv_heads)
            past_keys = torch.stack([entry[0][kv_head] for entry in cache])
            past_values = torch.stack([entry[1][kv_head] for entry in cache])
            out.append(torch.softmax(past_keys @ queries[head] * SHAPE.head_dim**-0.5, 0) @ past_values)
        x = x + weight[f"{prefix}o_proj.weight"] @ torch.cat(out)
        normed = x * torch.rsqrt(x.square().mean() + SHAPE.rms_norm_eps) * weight["layers.0.post_attention_layernorm.weight"]
        gate, up = weight["layers.0.mlp.gate_proj.weight"] @ normed, weight["layers.0.mlp.up_proj.weight"] @ normed
        return x + weight["layers.0.mlp.down_proj.weight"] @ (F.silu(gate) * up)


@pytest.mark.parametrize("has_fusion_bias", [False, True])
def test_unrolled_steps_equal_recursive_drafting(tmp_path: Path, has_fusion_bias: bool) -> None:
    target, documents = make_target(), make_documents(4)
    source = make_source(documents, tmp_path, num_steps=4, scales=Scales(1.0, 1.0))
    network = make_network(has_fusion_bias=has_fusion_bias)
    rotary = RotaryTables.plain(64, SHAPE.head_dim, 10000.0, torch.float32)
    example = source.load([2, 0, 3])
    with torch.no_grad():
        predicted = network.unroll(network.compute_weights(torch.float32), example.inputs, rotary, 4)
        plain = PlainHead(dict(network.named_parameters()), rotary)
        num_compared = 0
        for place, index in enumerate(example.batch.documents):
            token_ids = documents[index].token_ids
            features = target.hidden_states([token_ids]).bfloat16().float()
            start, context = example.batch.response_starts[place], documents[index].num_context_rows
            for root in range(context, len(token_ids) - 1):
                cache: list[tuple[torch.Tensor, torch.Tensor]] = []
                for position in range(root):
                    plain.step(target.embedding[token_ids[position + 1]], features[position], position, cache)
                feature = features[root]
                for step in range(4):
                    if root + step + 1 >= len(token_ids):
                        break
                    feature = plain.step(target.embedding[token_ids[root + step + 1]], feature, root + step, cache)
                    torch.testing.assert_close(predicted[step][start + root - context], feature, atol=2e-5, rtol=1e-4)
                    num_compared += 1
    assert num_compared > 60, num_compared


def test_own_tokens_are_a_greedy_chain(tmp_path: Path) -> None:
    documents = make_documents(2)
    source = make_source(documents, tmp_path, scales=Scales(1.0, 1.0))
    target, network = make_target(), make_network()
    rotary = RotaryTables.plain(64, SHAPE.head_dim, 10000.0, torch.float32)
    example = source.load([0])
    chosen: list[torch.Tensor] = []

    def next_embeddings(features: torch.Tensor) -> torch.Tensor:
        chosen.append((features @ source.hot_rows.T).argmax(-1))
        return source.embed(source.hot_token_ids[chosen[-1]])

    with torch.no_grad():
        network.unroll(network.compute_weights(torch.float32), example.inputs, rotary, 3, next_embeddings)
        plain = PlainHead(dict(network.named_parameters()), rotary)
        token_ids = documents[0].token_ids
        features = target.hidden_states([token_ids]).bfloat16().float()
        root = documents[0].num_context_rows
        cache: list[tuple[torch.Tensor, torch.Tensor]] = []
        for position in range(root):
            plain.step(target.embedding[token_ids[position + 1]], features[position], position, cache)
        feature, token_id = features[root], token_ids[root + 1]
        for step in range(2):
            feature = plain.step(target.embedding[token_id], feature, root + step, cache)
            hot_index = int((source.hot_rows @ feature).argmax())
            assert hot_index == int(chosen[step][0])
            token_id = int(source.hot_token_ids[hot_index])


@pytest.mark.parametrize("has_fusion_bias", [False, True])
def test_export_folds_the_scales(has_fusion_bias: bool) -> None:
    """Unit features in, unit features out = the exported weights on raw ones."""
    network = make_network(has_fusion_bias=has_fusion_bias)
    rotary = RotaryTables.plain(64, SHAPE.head_dim, 10000.0, torch.float32)
    embedding_rms, feature_rms = 0.25, 4.0
    generator = torch.Generator().manual_seed(1)
    embeddings, features = (torch.randn(5, SHAPE.hidden_size, generator=generator) for _ in range(2))
    unit = PlainHead(dict(network.named_parameters()), rotary)
    raw = PlainHead(network.export_state(embedding_rms, feature_rms), rotary)
    unit_cache: list[tuple[torch.Tensor, torch.Tensor]] = []
    raw_cache: list[tuple[torch.Tensor, torch.Tensor]] = []
    with torch.no_grad():
        for position in range(5):
            of_unit = unit.step(embeddings[position], features[position], position, unit_cache)
            of_raw = raw.step(embeddings[position] * embedding_rms, features[position] * feature_rms, position, raw_cache)
            torch.testing.assert_close(of_unit * feature_rms, of_raw, atol=1e-4, rtol=1e-4)


def test_names_are_those_of_the_authors_checkpoints() -> None:
    assert {name for name, _ in EagleHead(SHAPE).named_parameters()} == {
        "fc.weight",
        *(f"layers.0.self_attn.{part}_proj.weight" for part in "qkvo"),
        *(f"layers.0.mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
        "layers.0.post_attention_layernorm.weight",
    }
