"""One decoder for all supported families: embedding, layers of attention and gated MLP, final norm, head; each cut over ranks.

Differences between families are declared in `ModelConfig`, never asked by name here. Linear layers follow the usual split: query, key,
value, gate and up by output rows, output and down by input columns with one all-reduce after each. Query heads are split with at most one
head of difference, and a rank holds the KV heads that its query heads need, so tp_sizes that divide nothing work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from hothead.models.attention import AttentionPlan, KVPool, UnevenHeads
from hothead.models.config import ModelConfig
from hothead.models.rope import rope_tables
from hothead.models.weights.base import WeightSource
from hothead.parallel.full_head import VocabEmbedding, VocabHead
from hothead.parallel.groups import RankGroup
from hothead.parallel.linear import Linear
from hothead.parallel.partition import HeadSplit, VocabShards, balanced_range


class Decoder:
    """The target's network on this rank. Build with `Decoder.load`."""

    def __init__(
        self,
        config: ModelConfig,
        group: RankGroup,
        embedding: VocabEmbedding,
        rotary: Rotary,
        layers: Sequence[DecoderLayer],
        final_norm: torch.Tensor,
        head: VocabHead,
    ) -> None:
        self.config = config
        self.group = group
        self.embedding = embedding
        self.rotary = rotary
        self.layers = layers
        self.final_norm = final_norm
        self.head = head
        self.dtype = final_norm.dtype
        self.device = final_norm.device

    @staticmethod
    def load(
        config: ModelConfig,
        source: WeightSource,
        group: RankGroup,
        dtype: torch.dtype,
        device: torch.device,
        num_positions: int | None = None,
    ) -> Decoder:
        """Read this rank's part. num_positions: longest context that rotary tables are made for (default: the model's)."""
        reader = LayerReader(source, dtype, device)
        shards = VocabShards(config.vocab_size, num_shards=group.size)
        start, stop = shards.range(group.rank)
        embedding_rows = reader.read("model.embed_tokens.weight", rows=slice(start, stop))
        head_rows = embedding_rows if config.tie_word_embeddings else reader.read("lm_head.weight", rows=slice(start, stop))
        layers = [DecoderLayer.load(config, reader, f"model.layers.{index}.", index, group) for index in range(config.num_layers)]
        return Decoder(
            config,
            group,
            VocabEmbedding(embedding_rows, shards, group),
            Rotary.make(config, num_positions or config.context_length, dtype, device),
            layers,
            reader.read("model.norm.weight"),
            VocabHead(head_rows, shards, group),
        )

    @property
    def num_local_kv_heads(self) -> int:
        return self.layers[0].num_kv_heads

    def new_pool(self, num_slots: int) -> KVPool:
        return KVPool(self.config.num_layers, num_slots, self.num_local_kv_heads, self.config.head_dim, self.dtype, self.device)

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor, plan: AttentionPlan, pool: KVPool | None) -> torch.Tensor:
        """token_ids, positions: [N] int64 -> hidden states after the final norm: [N, D], same on every rank."""
        return self.forward_captured(token_ids, positions, plan, pool, ())[0]

    def forward_captured(
        self, token_ids: torch.Tensor, positions: torch.Tensor, plan: AttentionPlan, pool: KVPool | None, layers: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same, and what enters each of `layers` (the output of the layer before it; num_layers: the last one's), joined in order.

        layers: from 0, the embedding, to num_layers -> hidden states [N, D] and [N, len(layers) * D] ([N, 0] for none).
        """
        hidden = self.embedding(token_ids)
        rotation = self.rotary.at(positions)
        captured: dict[int, torch.Tensor] = {}
        for index, layer in enumerate(self.layers):
            if index in layers:
                captured[index] = hidden
            hidden = layer.forward(hidden, rotation, plan, pool)
        captured[len(self.layers)] = hidden
        joined = torch.cat([captured[index] for index in layers], -1) if layers else hidden.new_empty(len(hidden), 0)
        return rms_norm(hidden, self.final_norm, self.config.rms_norm_eps), joined

    def hidden_states(self, sequences: Sequence[Sequence[int]]) -> torch.Tensor:
        """Whole sequences, nothing cached -> [N, D] after the final norm, sequences one after the other."""
        return self.captured_states(sequences, ())[0]

    def captured_states(self, sequences: Sequence[Sequence[int]], layers: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Whole sequences, nothing cached -> what `forward_captured` gives, sequences one after the other."""
        lengths = [len(sequence) for sequence in sequences]
        token_ids = torch.tensor([token_id for sequence in sequences for token_id in sequence], device=self.device)
        positions = torch.cat([torch.arange(length, device=self.device) for length in lengths])
        return self.forward_captured(token_ids, positions, AttentionPlan.for_sequences(lengths, self.device, self.dtype), None, layers)


class DecoderLayer:
    """Attention and gated MLP of one layer, this rank's part."""

    def __init__(
        self,
        config: ModelConfig,
        index: int,
        group: RankGroup,
        split: HeadSplit,
        qkv: Linear,
        attention_output: Linear,
        gate_up: Linear,
        down: Linear,
        attention_norm: torch.Tensor | None,
        mlp_norm: torch.Tensor,
        query_norm: torch.Tensor | None,
        key_norm: torch.Tensor | None,
    ) -> None:
        local = split.for_rank(group.rank)
        self.index = index
        self.group = group
        self.num_query_heads = local.num_query_heads
        self.num_kv_heads = local.num_kv_heads
        self.head_dim = config.head_dim
        self.window = config.sliding_windows[index]
        self.eps = config.rms_norm_eps
        self.uneven_heads = UnevenHeads.of(local.kv_head_of_query, local.num_kv_heads, mlp_norm.device)
        self.qkv, self.attention_output, self.gate_up, self.down = qkv, attention_output, gate_up, down
        self.attention_norm, self.mlp_norm, self.query_norm, self.key_norm = attention_norm, mlp_norm, query_norm, key_norm

    @staticmethod
    def load(
        config: ModelConfig,
        reader: LayerReader,
        prefix: str,
        index: int,
        group: RankGroup,
        *,
        has_attention_norm: bool = True,
    ) -> DecoderLayer:
        """Read the layer whose weights are named `prefix` + ...; EAGLE's first layer has no norm before attention."""
        split = HeadSplit(config.num_heads, config.num_kv_heads, group.size)
        local = split.for_rank(group.rank)
        query_rows = slice(local.query_start * config.head_dim, local.query_stop * config.head_dim)
        kv_rows = slice(local.kv_start * config.head_dim, local.kv_stop * config.head_dim)
        mlp_rows = slice(*balanced_range(config.intermediate_size, group.size, group.rank))
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        qkv = reader.linear(
            [(attention + "q_proj", query_rows), (attention + "k_proj", kv_rows), (attention + "v_proj", kv_rows)], config.attention_bias
        )
        gate_up = reader.linear([(mlp + "gate_proj", mlp_rows), (mlp + "up_proj", mlp_rows)], config.mlp_bias)
        # A bias after a sum over ranks must be added once: by rank 0.
        output_bias = config.attention_output_bias and group.rank == 0
        down_bias = config.mlp_bias and group.rank == 0
        return DecoderLayer(
            config,
            index,
            group,
            split,
            qkv,
            reader.linear([(attention + "o_proj", None)], output_bias, columns=query_rows),
            gate_up,
            reader.linear([(mlp + "down_proj", None)], down_bias, columns=mlp_rows),
            reader.read(prefix + "input_layernorm.weight") if has_attention_norm else None,
            reader.read(prefix + "post_attention_layernorm.weight"),
            reader.read(attention + "q_norm.weight") if config.has_qk_norm else None,
            reader.read(attention + "k_norm.weight") if config.has_qk_norm else None,
        )

    def forward(self, hidden: torch.Tensor, rotation: Rotation, plan: AttentionPlan, pool: KVPool | None) -> torch.Tensor:
        """hidden: [N, D], same on every rank -> [N, D], same on every rank."""
        normed = hidden if self.attention_norm is None else rms_norm(hidden, self.attention_norm, self.eps)
        return self.forward_normed(normed, hidden, rotation, plan, pool)

    def forward_normed(
        self, normed: torch.Tensor, hidden: torch.Tensor, rotation: Rotation, plan: AttentionPlan, pool: KVPool | None
    ) -> torch.Tensor:
        """normed: [N, I], what attention reads, of any width that its weights have; hidden: [N, D], what both blocks add to -> [N, D]."""
        hidden = hidden + self.group.all_reduce(self._attention(normed, rotation, plan, pool))
        gate, up = self.gate_up(rms_norm(hidden, self.mlp_norm, self.eps)).chunk(2, dim=-1)  # shard of the intermediate size
        return hidden + self.group.all_reduce(self.down(F.silu(gate) * up))

    def _attention(self, normed: torch.Tensor, rotation: Rotation, plan: AttentionPlan, pool: KVPool | None) -> torch.Tensor:
        """[N, I] -> this rank's summand of the attention output [N, D]."""
        num_tokens = len(normed)
        heads = self.qkv(normed).view(num_tokens, -1, self.head_dim)  # [N, Hq + 2 Hkv, Dh]
        queries_keys, values = torch.split(heads, [self.num_query_heads + self.num_kv_heads, self.num_kv_heads], dim=1)
        if self.query_norm is not None and self.key_norm is not None:
            queries, keys = torch.split(queries_keys, [self.num_query_heads, self.num_kv_heads], dim=1)
            queries_keys = torch.cat([rms_norm(queries, self.query_norm, self.eps), rms_norm(keys, self.key_norm, self.eps)], dim=1)
        queries, keys = torch.split(rotation(queries_keys), [self.num_query_heads, self.num_kv_heads], dim=1)
        attended = plan.attend(queries, keys, values, pool, self.index, self.uneven_heads, self.window)
        return self.attention_output(attended.reshape(num_tokens, -1))


@dataclass(frozen=True)
class Rotary:
    """Rotary embedding tables: cosine [S, Dh] and sine [S, Dh] with the sign of the rotated half folded in."""

    cosine: torch.Tensor
    signed_sine: torch.Tensor

    @staticmethod
    def make(config: ModelConfig, num_positions: int, dtype: torch.dtype, device: torch.device) -> Rotary:
        return Rotary(*rope_tables(config.rope, config.head_dim, num_positions, dtype, device))

    def at(self, positions: torch.Tensor) -> Rotation:
        """positions: [N] int64. Looked up once per step, used by every layer."""
        return Rotation(self.cosine[positions][:, None], self.signed_sine[positions][:, None])


@dataclass(frozen=True)
class Rotation:
    """The rotation of N tokens. cosine, signed_sine: [N, 1, Dh]."""

    cosine: torch.Tensor
    signed_sine: torch.Tensor

    def __call__(self, heads: torch.Tensor) -> torch.Tensor:
        """[N, H, Dh] -> rotated [N, H, Dh]."""
        return heads * self.cosine + heads.roll(heads.shape[-1] // 2, -1) * self.signed_sine


class LayerReader:
    """Reads weights of one source in one dtype, and refuses values that were never loaded."""

    def __init__(self, source: WeightSource, dtype: torch.dtype, device: torch.device) -> None:
        self.source, self.dtype, self.device = source, dtype, device

    def read(self, name: str, rows: slice | None = None, columns: slice | None = None) -> torch.Tensor:
        return self.source.read(name, rows=rows, columns=columns, dtype=self.dtype).to(self.device)

    def linear(self, parts: Sequence[tuple[str, slice | None]], has_bias: bool, columns: slice | None = None) -> Linear:
        """One Linear from the rows of one or several weights, stacked."""
        weights = [self.read(name + ".weight", rows=rows, columns=columns) for name, rows in parts]
        biases = [self.read(name + ".bias", rows=rows) for name, rows in parts] if has_bias else []
        # NaN first: a row that no part fills cannot pass for a weight.
        weight = torch.full((sum(len(part) for part in weights), weights[0].shape[1]), float("nan"), dtype=self.dtype, device=self.device)
        start = 0
        for part in weights:
            weight[start : start + len(part)] = part
            start += len(part)
        assert not bool(weight.isnan().any()), [name for name, _ in parts]
        return Linear(weight, torch.cat(biases) if biases else None)


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension; the mean in float32, as the families' reference code does."""
    wide = hidden.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * (wide * scale).to(hidden.dtype)
