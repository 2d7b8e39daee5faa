"""The EAGLE head as a trainable network: weight names of the authors' checkpoints, unrolled over draft steps.

fc over (embedding of the token at i + 1, feature at i), then one decoder layer without a norm before its attention and without a norm
after it; the output is the feature at i + 1. Master weights are float32; `compute_weights` makes the copies that a pass multiplies with.

Training is in *unit features*: features and embeddings are divided by their root mean square, the head's rows multiplied by it.
`export_state` folds these scales into the weights, so that the exported head works on the target's own features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from hothead.train.attention import AttentionLayout

NextEmbeddings = Callable[[torch.Tensor], torch.Tensor]
"""What the head reads, [N, D] -> embeddings [N, D] of the tokens chosen from it: a real chain of draft steps."""


@dataclass(frozen=True)
class HeadShape:
    """Sizes of a head; those of its target's layers."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float


@dataclass(frozen=True)
class RotaryTables:
    """cosine, signed_sine: [positions, Dh]; the sign of the rotated half is folded into the sine."""

    cosine: torch.Tensor
    signed_sine: torch.Tensor

    @staticmethod
    def plain(num_positions: int, head_dim: int, theta: float, dtype: torch.dtype) -> RotaryTables:
        inverse = theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), inverse)
        return RotaryTables(torch.cat([angles.cos()] * 2, -1).to(dtype), torch.cat([-angles.sin(), angles.sin()], -1).to(dtype))

    def rotate(self, heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """heads: [N, H, Dh], positions: [N] -> [N, H, Dh]."""
        return heads * self.cosine[positions][:, None] + heads.roll(heads.shape[-1] // 2, -1) * self.signed_sine[positions][:, None]


@dataclass(frozen=True)
class UnrollInputs:
    """Rows in the order of `dataset.Batch`. embeddings: [M, D] of each row's next token, features: [M, D], both unit; positions: [M]."""

    embeddings: torch.Tensor
    features: torch.Tensor
    positions: torch.Tensor
    layout: AttentionLayout


@dataclass(frozen=True)
class ComputeWeights:
    """One pass's copies of the weights, joined where one product does the work of several."""

    fuse_embedding: torch.Tensor
    fuse_feature: torch.Tensor
    fuse_bias: torch.Tensor | None
    qkv: torch.Tensor
    attention_output: torch.Tensor
    norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


class EagleHead(nn.Module):
    """Parameters fc.weight, layers.0.self_attn.{q,k,v,o}_proj.weight, layers.0.mlp.{gate,up,down}_proj.weight,
    layers.0.post_attention_layernorm.weight, and fc.bias if asked for."""

    def __init__(self, shape: HeadShape, has_fusion_bias: bool = False) -> None:
        super().__init__()
        self.shape = shape
        self.fc = nn.Linear(2 * shape.hidden_size, shape.hidden_size, bias=has_fusion_bias)
        self.layers = nn.ModuleList([_Layer(shape)])

    def initialise(self, seed: int) -> None:
        """Random weights by seed: the feature passes through, everything else starts small."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.dim() == 1:
                    parameter.fill_(0.0 if name.endswith("bias") else 1.0)
                else:
                    parameter.normal_(0.0, parameter.shape[1] ** -0.5, generator=generator)
            layer = self.layers[0]
            assert isinstance(layer, _Layer)
            layer.self_attn.o_proj.weight.mul_(0.5)
            layer.mlp.down_proj.weight.mul_(0.5)

    def compute_weights(self, dtype: torch.dtype) -> ComputeWeights:
        layer = self.layers[0]
        assert isinstance(layer, _Layer)
        attention, mlp = layer.self_attn, layer.mlp
        fusion = self.fc.weight.to(dtype)
        return ComputeWeights(
            fusion[:, : self.shape.hidden_size],
            fusion[:, self.shape.hidden_size :],
            None if self.fc.bias is None else self.fc.bias.to(dtype),
            torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]).to(dtype),
            attention.o_proj.weight.to(dtype),
            layer.post_attention_layernorm.weight.to(dtype),
            torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]).to(dtype),
            mlp.down_proj.weight.to(dtype),
        )

    def unroll(
        self,
        weights: ComputeWeights,
        inputs: UnrollInputs,
        rotary: RotaryTables,
        num_steps: int,
        next_embeddings: NextEmbeddings | None = None,
    ) -> list[torch.Tensor]:
        """Features that draft steps 0..num_steps-1 predict from every response row as root: num_steps tensors [N, D].

        Entry n of step s predicts the feature s + 1 positions behind row n's. The tokens between are the document's own, or, with
        `next_embeddings` (predicted features [N, D] -> embeddings [N, D] of the tokens chosen from them), the head's own: a real chain of
        draft steps.
        """
        num_rows = inputs.layout.num_rows
        shape = self.shape
        fused = F.linear(inputs.embeddings, weights.fuse_embedding, weights.fuse_bias)  # [M, D], shared by all steps
        hidden = fused + F.linear(inputs.features, weights.fuse_feature)
        num_query_columns = shape.num_heads * shape.head_dim
        key_values = F.linear(hidden, weights.qkv[num_query_columns:]).view(len(hidden), -1, shape.head_dim)  # [M, 2 Hkv, Dh]
        keys = rotary.rotate(key_values[:, : shape.num_kv_heads], inputs.positions)
        padded_keys = inputs.layout.pad_keys(keys.transpose(0, 1))
        padded_values = inputs.layout.pad_keys(key_values[:, shape.num_kv_heads :].transpose(0, 1))
        hidden = hidden[:num_rows]
        queries = F.linear(hidden, weights.qkv[:num_query_columns]).view(num_rows, -1, shape.head_dim)
        queries = rotary.rotate(queries, inputs.positions[:num_rows])
        predicted: list[torch.Tensor] = []
        step_keys: list[torch.Tensor] = []
        step_values: list[torch.Tensor] = []
        for step in range(num_steps):
            if step > 0:
                token_part = (
                    fused[step : step + num_rows]
                    if next_embeddings is None
                    else F.linear(next_embeddings(predicted[-1]), weights.fuse_embedding, weights.fuse_bias)
                )
                hidden = token_part + F.linear(predicted[-1], weights.fuse_feature)
                heads = F.linear(hidden, weights.qkv).view(num_rows, -1, shape.head_dim)  # [N, Hq + 2 Hkv, Dh]
                queries_keys, values = heads.split([shape.num_heads + shape.num_kv_heads, shape.num_kv_heads], 1)
                queries_keys = rotary.rotate(queries_keys, inputs.positions[:num_rows] + step)
                queries, keys = queries_keys.split([shape.num_heads, shape.num_kv_heads], 1)
                step_keys.append(keys.transpose(0, 1).contiguous())
                step_values.append(values.transpose(0, 1).contiguous())
            grouped = group_queries(queries * shape.head_dim**-0.5, shape.num_kv_heads)
            attended = ungroup(inputs.layout.attend(grouped, padded_keys, padded_values, step_keys, step_values), num_rows)
            hidden = hidden + F.linear(attended, weights.attention_output)
            normed = F.rms_norm(hidden, (shape.hidden_size,), weights.norm, shape.rms_norm_eps)
            gate, up = F.linear(normed, weights.gate_up).chunk(2, -1)
            hidden = hidden + F.linear(F.silu(gate) * up, weights.down)
            predicted.append(hidden)
        return predicted

    def export_state(self, embedding_rms: float, feature_rms: float) -> dict[str, torch.Tensor]:
        """Weights for the target's own features and embeddings instead of unit ones, float32, by the checkpoint's names.

        The residual stream is feature_rms times that of training: what reads it is divided by feature_rms, what adds to it multiplied.
        The norm before the MLP takes the scale out by itself.
        """
        state = {name: parameter.detach().clone() for name, parameter in self.named_parameters()}
        width = self.shape.hidden_size
        state["fc.weight"][:, :width] *= feature_rms / embedding_rms
        for name in ("fc.bias", "layers.0.self_attn.o_proj.weight", "layers.0.mlp.down_proj.weight"):
            if name in state:
                state[name] *= feature_rms
        for part in ("q", "k", "v"):
            state[f"layers.0.self_attn.{part}_proj.weight"] /= feature_rms
        return state


class _Layer(nn.Module):
    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = Mlp(shape)
        self.post_attention_layernorm = Norm(shape.hidden_size)


class Attention(nn.Module):
    """Weights of attention. num_inputs: of q, k and v; None is the hidden size."""

    def __init__(self, shape: HeadShape, num_inputs: int | None = None) -> None:
        super().__init__()
        num_inputs = num_inputs or shape.hidden_size
        self.q_proj = nn.Linear(num_inputs, shape.num_heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(num_inputs, shape.num_kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(num_inputs, shape.num_kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.num_heads * shape.head_dim, shape.hidden_size, bias=False)


class Mlp(nn.Module):
    """Weights of the gated MLP."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)


class Norm(nn.Module):
    """The weight of an RMSNorm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))


def group_queries(queries: torch.Tensor, num_kv_heads: int) -> torch.Tensor:
    """Query heads of one KV head together: [N, Hq, Dh] -> [Hkv, N * G, Dh]."""
    num_rows, num_heads, width = queries.shape
    return queries.view(num_rows, num_kv_heads, num_heads // num_kv_heads, width).transpose(0, 1).reshape(num_kv_heads, -1, width)


def ungroup(attended: torch.Tensor, num_rows: int) -> torch.Tensor:
    """The way back: [Hkv, N * G, Dh] -> [N, Hq * Dh]."""
    num_kv_heads, _, width = attended.shape
    return attended.view(num_kv_heads, num_rows, -1, width).transpose(0, 1).reshape(num_rows, -1)
