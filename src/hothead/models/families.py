"""How the implemented model families differ: one table, which the configuration and the weight reader ask.

Everything that is not in this table is common to all of them: RMSNorm before attention and before a gated SiLU MLP, rotary
embedding over the whole head, grouped key/value heads, no biases.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

When = Literal["never", "always", "config"]  # "config": as the configuration's own key says
Windows = Literal["none", "all layers", "upper layers"]


@dataclass(frozen=True)
class Family:
    """What one family declares; the defaults are those which its configuration files may leave out."""

    name: str
    hugging_face_class: str
    qkv_bias: When  # key: attention_bias
    output_bias: When  # key: attention_bias
    mlp_bias: When  # key: mlp_bias
    has_qk_norm: bool
    windows: Windows
    default_head_dim: int | None = None  # None: hidden_size / num_heads
    default_num_kv_heads: int | None = None  # None: num_heads
    default_context_length: int = 32768
    default_sliding_window: int | None = 4096
    default_bos_token_id: int | None = None
    default_eos_token_ids: tuple[int, ...] = ()
    gguf_architectures: frozenset[str] = field(default_factory=frozenset)
    is_gguf_permuted: bool = False  # GGUF stores q and k rows in interleaved rotary order


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family(
            name="llama",
            hugging_face_class="LlamaForCausalLM",
            qkv_bias="config",
            output_bias="config",
            mlp_bias="config",
            has_qk_norm=False,
            windows="none",
            default_context_length=2048,
            default_bos_token_id=1,
            default_eos_token_ids=(2,),
            gguf_architectures=frozenset({"llama"}),
            is_gguf_permuted=True,
        ),
        Family(
            name="mistral",
            hugging_face_class="MistralForCausalLM",
            qkv_bias="never",
            output_bias="never",
            mlp_bias="never",
            has_qk_norm=False,
            windows="all layers",
            default_num_kv_heads=8,
            default_context_length=131072,
            default_bos_token_id=1,
            default_eos_token_ids=(2,),
            gguf_architectures=frozenset({"mistral"}),
            is_gguf_permuted=True,
        ),
        Family(
            name="qwen2",
            hugging_face_class="Qwen2ForCausalLM",
            qkv_bias="always",
            output_bias="never",
            mlp_bias="never",
            has_qk_norm=False,
            windows="upper layers",
            default_num_kv_heads=32,
            gguf_architectures=frozenset({"qwen2"}),
        ),
        Family(
            name="qwen3",
            hugging_face_class="Qwen3ForCausalLM",
            qkv_bias="config",
            output_bias="config",
            mlp_bias="never",
            has_qk_norm=True,
            windows="upper layers",
            default_head_dim=128,
            default_num_kv_heads=32,
            gguf_architectures=frozenset({"qwen3"}),
        ),
    )
}

# Keys of a Hugging Face configuration that switch on something which is not implemented, with the values that leave it off.
UNIMPLEMENTED_KEYS: dict[str, tuple[object, ...]] = {
    # mixture of experts
    "num_experts": (None, 0, 1),
    "num_local_experts": (None, 0, 1),
    "n_routed_experts": (None, 0),
    "num_experts_per_tok": (None, 0),
    "moe_intermediate_size": (None, 0),
    # scores and logits changed on the way
    "attn_logit_softcapping": (None, 0),
    "final_logit_softcapping": (None, 0),
    "logit_scale": (None, 1),
    "logits_scaling": (None, 1),
    "attention_multiplier": (None,),
    "query_pre_attn_scalar": (None,),
    # hidden states scaled
    "embedding_multiplier": (None, 1),
    "residual_multiplier": (None, 1),
    "scale_emb": (None, 1),
    "scale_depth": (None,),
    # other attention
    "clip_qkv": (None,),
    "alibi": (None, False),
    "use_mrope": (None, False),
    "no_rope_layers": (None, []),
    "attention_chunk_size": (None,),
    "use_qk_norm": (None, False),
    "qk_layernorm": (None, False),
    "partial_rotary_factor": (None, 1),
    "rotary_pct": (None, 1),
    "is_encoder_decoder": (None, False),
    "add_cross_attention": (None, False),
    # other weights
    "pretraining_tp": (None, 0, 1),
    "vision_config": (None,),
    "audio_config": (None,),
}

# The same for GGUF keys, which follow the architecture's name and a dot.
UNIMPLEMENTED_GGUF_KEYS: dict[str, tuple[object, ...]] = {
    "expert_count": (None, 0),
    "expert_used_count": (None, 0),
    "attn_logit_softcapping": (None, 0),
    "final_logit_softcapping": (None, 0),
    "logit_scale": (None, 0, 1),
    "embedding_scale": (None, 0, 1),
    "residual_scale": (None, 0, 1),
    "attention.scale": (None, 0),
    "attention.clamp_kqv": (None, 0),
    "attention.max_alibi_bias": (None, 0),
    "attention.causal": (None, True),
    "attention.sliding_window_pattern": (None, 0),
    "use_parallel_residual": (None, False),
    "rope.scaling.yarn_log_multiplier": (None, 0),
}
