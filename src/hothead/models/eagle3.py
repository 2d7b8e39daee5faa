"""EAGLE-3's draft network: one decoder layer over the token and what the target saw, with a reduced head of its own.

Position i sees the target's low, middle and high hidden states at i, fused by fc to its own width, and the token at i + 1; it predicts
the token at i + 2. From the second draft step on, its own output stands in for the fused states. Attention reads [norm(embedding),
norm(feature)], so its inputs are twice as wide as the residual stream. After EAGLE-3 (arXiv 2503.01840); weight names as in published
checkpoints (`midlayer.*` of the authors and SpecForge, `layers.0.*` of speculators). The network lies whole on every rank; only its head is
cut (`parallel/hot_head.py`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch

from hothead.models.attention import AttentionPlan, KVPool
from hothead.models.decoder import DecoderLayer, LayerReader, Rotary, rms_norm
from hothead.models.eagle3_config import Eagle3Config
from hothead.models.weights.base import WeightSource
from hothead.parallel.groups import SingleRank
from hothead.parallel.linear import Linear

_LAYER = "model.layers.0."
HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Eagle3Names:
    """How a checkpoint calls its weights. root: before all but the head; layer: before those of the decoder layer, root included."""

    root: str
    layer: str

    @staticmethod
    def of(names: Collection[str]) -> Eagle3Names:
        root = "model." if "model.fc.weight" in names else ""
        has_midlayer = any(name.startswith(f"{root}midlayer.") for name in names)
        return Eagle3Names(root, root + ("midlayer." if has_midlayer else "layers.0."))

    @property
    def embedding(self) -> str:
        return f"{self.root}embed_tokens.weight"


def eagle3_shapes(config: Eagle3Config, names: Collection[str], num_head_rows: int | None) -> dict[str, tuple[int, ...]]:
    """Every tensor that a checkpoint must have, by the names that it uses. names: those that it has, which say whether fc has a bias and
    whether there is an embedding of its own. num_head_rows: of its own head, None where it uses the target's."""
    called, layer = Eagle3Names.of(names), config.layer
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in layer.tensor_shapes().items():
        if name.startswith(_LAYER):
            is_wide = name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))
            shapes[called.layer + name.removeprefix(_LAYER)] = (shape[0], 2 * shape[1]) if is_wide else shape
    width, num_layers, target_width = layer.hidden_size, config.num_feature_layers, config.target_hidden_size
    shapes[f"{called.layer}hidden_norm.weight"] = (width,)
    shapes[f"{called.root}fc.weight"] = (width, num_layers * target_width)
    shapes[f"{called.root}norm.weight"] = (width,)
    if f"{called.root}fc.bias" in names:
        shapes[f"{called.root}fc.bias"] = (width,)
    if config.has_fusion_norm:
        shapes[f"{called.root}input_norm.weight"] = (num_layers * target_width,)
    if config.has_layer_norms:
        shapes |= {f"{called.root}fc_norm.{index}.weight": (target_width,) for index in range(num_layers)}
    if called.embedding in names:
        shapes[called.embedding] = (layer.vocab_size, width)
    if num_head_rows is not None:
        shapes[HEAD] = (num_head_rows, width)
    return shapes


class Eagle3Network:
    """fc over the target's states, then one layer, then the final norm before the head. Build with `Eagle3Network.load`."""

    def __init__(
        self,
        config: Eagle3Config,
        fusion: Linear,
        fusion_norm: torch.Tensor | None,
        layer_norms: list[torch.Tensor],
        rotary: Rotary,
        layer: DecoderLayer,
        token_norm: torch.Tensor,
        hidden_norm: torch.Tensor,
        final_norm: torch.Tensor,
    ) -> None:
        self.config = config
        self.eps = config.layer.rms_norm_eps
        self.fusion = fusion
        self.fusion_norm, self.layer_norms = fusion_norm, layer_norms
        self.rotary = rotary
        self.layer = layer
        self.token_norm, self.hidden_norm, self.final_norm = token_norm, hidden_norm, final_norm

    @staticmethod
    def load(
        config: Eagle3Config, source: WeightSource, dtype: torch.dtype, device: torch.device, num_positions: int | None = None
    ) -> Eagle3Network:
        reader = LayerReader(source, dtype, device)
        names = source.names()
        called = Eagle3Names.of(names)
        root = called.root
        norms = [f"{root}fc_norm.{index}.weight" for index in range(config.num_feature_layers)] if config.has_layer_norms else []
        return Eagle3Network(
            config,
            reader.linear([(f"{root}fc", None)], f"{root}fc.bias" in names),
            reader.read(f"{root}input_norm.weight") if config.has_fusion_norm else None,
            [reader.read(name) for name in norms],
            Rotary.make(config.layer, num_positions or config.layer.context_length, dtype, device),
            DecoderLayer.load(config.layer, reader, called.layer, 0, SingleRank(), has_attention_norm=False),
            reader.read(f"{called.layer}input_layernorm.weight"),
            reader.read(f"{called.layer}hidden_norm.weight"),
            reader.read(f"{root}norm.weight"),
        )

    def new_pool(self, num_slots: int, dtype: torch.dtype, device: torch.device) -> KVPool:
        layer = self.config.layer
        return KVPool(1, num_slots, layer.num_kv_heads, layer.head_dim, dtype, device)

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        """The target's hidden states of the feature layers, joined: [N, 3 * Dt] -> [N, D]."""
        if self.fusion_norm is not None:
            features = rms_norm(features, self.fusion_norm, self.eps)
        if self.layer_norms:
            parts = features.chunk(len(self.layer_norms), -1)
            features = torch.cat([rms_norm(part, weight, self.eps) for part, weight in zip(parts, self.layer_norms, strict=True)], -1)
        return self.fusion(features)

    def forward(
        self,
        token_embeddings: torch.Tensor,
        features: torch.Tensor,
        positions: torch.Tensor,
        plan: AttentionPlan,
        pool: KVPool | None,
    ) -> torch.Tensor:
        """token_embeddings (of the token at i + 1), features (at i: fused, or an earlier output): [N, D]; positions i: [N] -> [N, D]."""
        normed = rms_norm(features, self.hidden_norm, self.eps)
        residual = normed if self.config.norm_before_residual else features
        joined = torch.cat([rms_norm(token_embeddings, self.token_norm, self.eps), normed], -1)  # [N, 2 D]
        output = self.layer.forward_normed(joined, residual, self.rotary.at(positions), plan, pool)
        return rms_norm(output, self.final_norm, self.eps) if self.config.is_output_normed else output

    def head_input(self, output: torch.Tensor) -> torch.Tensor:
        """[N, D] -> [N, D]: the head reads what the final norm leaves, the next draft step what lies before it."""
        return output if self.config.is_output_normed else rms_norm(output, self.final_norm, self.eps)
