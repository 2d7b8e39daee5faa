"""EAGLE's draft network: the target's own features one step ahead, from one decoder layer.

Position i sees the target's feature at i and the token at i + 1 and predicts the feature at i + 1, which the target's head turns into the
token at i + 2. Features are the target's hidden states after its final norm. After EAGLE (arXiv 2401.15077) and EAGLE-2 (arXiv
2406.16858); weight names as in their authors' checkpoints. The network is small and lies whole on every rank: cutting it would cost two
collectives per draft step.
"""

from __future__ import annotations

import torch

from hothead.models.attention import AttentionPlan, KVPool
from hothead.models.config import ModelConfig
from hothead.models.decoder import DecoderLayer, LayerReader, Rotary
from hothead.models.weights.base import WeightSource
from hothead.parallel.groups import SingleRank
from hothead.parallel.linear import Linear


class EagleNetwork:
    """fc over (embedding, feature), then the layers; the first has no norm before its attention, and none follows the last."""

    def __init__(self, config: ModelConfig, fusion: Linear, rotary: Rotary, layers: list[DecoderLayer]) -> None:
        self.config = config
        self.fusion = fusion
        self.rotary = rotary
        self.layers = layers

    @staticmethod
    def load(
        config: ModelConfig, source: WeightSource, dtype: torch.dtype, device: torch.device, num_positions: int | None = None
    ) -> EagleNetwork:
        reader = LayerReader(source, dtype, device)
        group = SingleRank()
        layers = [
            DecoderLayer.load(config, reader, f"layers.{index}.", index, group, has_attention_norm=index > 0)
            for index in range(config.num_layers)
        ]
        rotary = Rotary.make(config, num_positions or config.context_length, dtype, device)
        return EagleNetwork(config, reader.linear([("fc", None)], "fc.bias" in source.names()), rotary, layers)

    @staticmethod
    def tensor_shapes(config: ModelConfig, has_fusion_bias: bool) -> dict[str, tuple[int, ...]]:
        """Every tensor that a checkpoint must have: the decoder layers' names without `model.`, and the fusion of embedding and feature."""
        unused = ("model.embed_tokens.weight", "model.norm.weight", "model.layers.0.input_layernorm.weight", "lm_head.weight")
        shapes = {name.removeprefix("model."): shape for name, shape in config.tensor_shapes().items() if name not in unused}
        shapes["fc.weight"] = (config.hidden_size, 2 * config.hidden_size)
        return shapes | ({"fc.bias": (config.hidden_size,)} if has_fusion_bias else {})

    def new_pool(self, num_slots: int, dtype: torch.dtype, device: torch.device) -> KVPool:
        return KVPool(self.config.num_layers, num_slots, self.config.num_kv_heads, self.config.head_dim, dtype, device)

    def fuse(self, features: torch.Tensor) -> torch.Tensor:
        """The target's features are what the network predicts: nothing to do."""
        return features

    def head_input(self, output: torch.Tensor) -> torch.Tensor:
        """Predicted features go to the target's head as they are."""
        return output

    def forward(
        self,
        token_embeddings: torch.Tensor,
        features: torch.Tensor,
        positions: torch.Tensor,
        plan: AttentionPlan,
        pool: KVPool | None,
    ) -> torch.Tensor:
        """token_embeddings (of the token at i + 1), features (at i): [N, D]; positions i: [N] -> predicted features at i + 1: [N, D]."""
        hidden = self.fusion(torch.cat([token_embeddings, features], dim=-1))
        rotation = self.rotary.at(positions)
        for layer in self.layers:
            hidden = layer.forward(hidden, rotation, plan, pool)
        return hidden
