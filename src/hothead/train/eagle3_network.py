"""The EAGLE-3 head as a trainable network: weight names of the authors' checkpoints, unrolled over draft steps.

fc over the target's low, middle and high states, then one decoder layer whose attention reads [norm(embedding of the token at i + 1),
norm(feature)]; the final norm and a head of its own over the hot vocabulary. The first step reads the target's states at i, each later one
the output of the step before, as when drafting: the training-time test of EAGLE-3 (arXiv 2503.01840), section 3.2.

The states are divided by a scale for each layer, which `export_state` folds into fc; all else is free of scale, since it is normed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from hothead.train.attention import AttentionLayout
from hothead.train.network import Attention, HeadShape, Mlp, NextEmbeddings, Norm, RotaryTables, group_queries, ungroup


@dataclass(frozen=True)
class Eagle3Inputs:
    """Rows in the order of `dataset.Batch`. embeddings: [M, D] of each row's next token; features: [M, 3 D], scaled; positions: [M].

    layout: of all N response rows, for the first step. roots: [R] int64 response rows from which later steps go on, with their layout;
    None: all of them.
    """

    embeddings: torch.Tensor
    features: torch.Tensor
    positions: torch.Tensor
    layout: AttentionLayout
    roots: torch.Tensor | None = None
    later_layout: AttentionLayout | None = None


@dataclass(frozen=True)
class Eagle3Weights:
    """One pass's copies of the weights. qkv_token, qkv_hidden: the halves of q, k and v that read the token and the feature."""

    fusion: torch.Tensor
    qkv_token: torch.Tensor
    qkv_hidden: torch.Tensor
    attention_output: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    token_norm: torch.Tensor
    hidden_norm: torch.Tensor
    mlp_norm: torch.Tensor
    final_norm: torch.Tensor
    head: torch.Tensor


class Eagle3Head(nn.Module):
    """Parameters fc.weight, midlayer.{hidden_norm,input_layernorm,post_attention_layernorm}.weight,
    midlayer.self_attn.{q,k,v,o}_proj.weight, midlayer.mlp.{gate,up,down}_proj.weight, norm.weight and lm_head.weight."""

    def __init__(self, shape: HeadShape, hot_size: int, num_feature_layers: int = 3) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(num_feature_layers * shape.hidden_size, shape.hidden_size, bias=False)
        self.midlayer = _Layer(shape)
        self.norm = Norm(shape.hidden_size)
        self.lm_head = nn.Linear(shape.hidden_size, hot_size, bias=False)

    def initialise(self, seed: int, head_rows: torch.Tensor, final_norm: torch.Tensor) -> None:
        """Random weights by seed; the head starts as the target's own rows [H, D] behind the target's final norm [D], and fc lets the
        highest layer's states through."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.dim() == 1:
                    parameter.fill_(1.0)
                else:
                    parameter.normal_(0.0, parameter.shape[1] ** -0.5, generator=generator)
            self.midlayer.self_attn.o_proj.weight.mul_(0.5)
            self.midlayer.mlp.down_proj.weight.mul_(0.5)
            width = self.shape.hidden_size
            self.fc.weight.mul_(0.5)
            self.fc.weight[:, -width:] += torch.eye(width)
            self.norm.weight.copy_(final_norm)
            self.lm_head.weight.copy_(head_rows)

    def compute_weights(self, dtype: torch.dtype) -> Eagle3Weights:
        layer, width = self.midlayer, self.shape.hidden_size
        attention, mlp = layer.self_attn, layer.mlp
        qkv = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]).to(dtype)
        return Eagle3Weights(
            self.fc.weight.to(dtype),
            qkv[:, :width].contiguous(),
            qkv[:, width:].contiguous(),
            attention.o_proj.weight.to(dtype),
            torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]).to(dtype),
            mlp.down_proj.weight.to(dtype),
            layer.input_layernorm.weight.to(dtype),
            layer.hidden_norm.weight.to(dtype),
            layer.post_attention_layernorm.weight.to(dtype),
            self.norm.weight.to(dtype),
            self.lm_head.weight.to(dtype),
        )

    def unroll(
        self,
        weights: Eagle3Weights,
        inputs: Eagle3Inputs,
        rotary: RotaryTables,
        num_steps: int,
        next_embeddings: NextEmbeddings | None = None,
    ) -> list[torch.Tensor]:
        """What the head reads at draft steps 0..num_steps-1: [N, D] for every response row, then [R, D] for the roots.

        Entry n of step s predicts the token s + 2 positions behind row n's. The tokens between are the document's own, or, with
        `next_embeddings`, the head's own.
        """
        shape, layout = self.shape, inputs.layout
        num_query_columns = shape.num_heads * shape.head_dim
        num_rows = layout.num_rows
        tokens = F.linear(self._norm(inputs.embeddings, weights.token_norm), weights.qkv_token)  # [M, (Hq + 2 Hkv) Dh], for all steps
        fused = F.linear(inputs.features, weights.fusion)  # [M, D]
        normed = self._norm(fused, weights.hidden_norm)
        key_values = tokens[:, num_query_columns:] + F.linear(normed, weights.qkv_hidden[num_query_columns:])
        key_values = key_values.view(len(fused), -1, shape.head_dim)  # [M, 2 Hkv, Dh]
        padded_keys = layout.pad_keys(rotary.rotate(key_values[:, : shape.num_kv_heads], inputs.positions).transpose(0, 1))
        padded_values = layout.pad_keys(key_values[:, shape.num_kv_heads :].transpose(0, 1))
        queries = tokens[:num_rows, :num_query_columns] + F.linear(normed[:num_rows], weights.qkv_hidden[:num_query_columns])
        queries = rotary.rotate(queries.view(num_rows, -1, shape.head_dim), inputs.positions[:num_rows])
        residual = fused[:num_rows]
        rows = torch.arange(num_rows) if inputs.roots is None else inputs.roots
        step_keys: list[torch.Tensor] = []
        step_values: list[torch.Tensor] = []
        read: list[torch.Tensor] = []
        for step in range(num_steps):
            if step > 0:
                if step == 1:
                    layout = inputs.later_layout or layout
                    residual = residual if inputs.roots is None else residual.index_select(0, rows)
                token_part = (
                    tokens.index_select(0, rows + step)
                    if next_embeddings is None
                    else F.linear(self._norm(next_embeddings(read[-1]), weights.token_norm), weights.qkv_token)
                )
                heads = token_part + F.linear(self._norm(residual, weights.hidden_norm), weights.qkv_hidden)
                heads = heads.view(len(rows), -1, shape.head_dim)  # [R, Hq + 2 Hkv, Dh]
                queries_keys, values = heads.split([shape.num_heads + shape.num_kv_heads, shape.num_kv_heads], 1)
                queries_keys = rotary.rotate(queries_keys, inputs.positions[rows] + step)
                queries, keys = queries_keys.split([shape.num_heads, shape.num_kv_heads], 1)
                step_keys.append(keys.transpose(0, 1).contiguous())
                step_values.append(values.transpose(0, 1).contiguous())
            grouped = group_queries(queries * shape.head_dim**-0.5, shape.num_kv_heads)
            attended = ungroup(layout.attend(grouped, padded_keys, padded_values, step_keys, step_values), layout.num_rows)
            residual = residual + F.linear(attended, weights.attention_output)
            gate, up = F.linear(self._norm(residual, weights.mlp_norm), weights.gate_up).chunk(2, -1)
            residual = residual + F.linear(F.silu(gate) * up, weights.down)
            read.append(self._norm(residual, weights.final_norm))
        return read

    def export_state(self, feature_scales: Sequence[float]) -> dict[str, torch.Tensor]:
        """Weights for the target's own states instead of scaled ones, float32, by the checkpoint's names."""
        state = {name: parameter.detach().clone() for name, parameter in self.named_parameters()}
        for part, scale in zip(state["fc.weight"].chunk(len(feature_scales), 1), feature_scales, strict=True):
            part /= scale
        return state

    def _norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(hidden, (self.shape.hidden_size,), weight, self.shape.rms_norm_eps)


class _Layer(nn.Module):
    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.hidden_norm = Norm(shape.hidden_size)
        self.input_layernorm = Norm(shape.hidden_size)
        self.self_attn = Attention(shape, 2 * shape.hidden_size)
        self.mlp = Mlp(shape)
        self.post_attention_layernorm = Norm(shape.hidden_size)
