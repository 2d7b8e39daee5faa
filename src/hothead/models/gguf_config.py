"""What a GGUF file says about its model, checked as strictly as a Hugging Face configuration."""

from __future__ import annotations

from hothead.errors import CheckpointError, ModelConfigError
from hothead.files.gguf_header import GgufHeader
from hothead.models.config import IntReader, ModelConfig, read_epsilon, read_token_id, refuse_keys, unknown_architecture
from hothead.models.families import FAMILIES, UNIMPLEMENTED_GGUF_KEYS
from hothead.models.rope import rope_from_gguf


def from_gguf(header: GgufHeader) -> ModelConfig:
    """Check and convert a GGUF file's fields; what they leave out is read off the tensors. Raises ModelConfigError, CheckpointError."""
    fields, tensors, where = header.fields, header.tensors, header.path.name
    architecture = str(fields.get("general.architecture", ""))
    by_architecture = {name: family for family in FAMILIES.values() for name in family.gguf_architectures}
    if architecture not in by_architecture:
        raise unknown_architecture(architecture, "general.architecture", by_architecture, where)
    family = by_architecture[architecture]
    own = {key.removeprefix(f"{architecture}."): value for key, value in fields.items() if key.startswith(f"{architecture}.")}
    refuse_keys(own, UNIMPLEMENTED_GGUF_KEYS, where, f"{architecture}.")
    read = IntReader(own, where)
    num_heads, hidden_size = read("attention.head_count"), read("embedding_length")
    head_dim = read("attention.key_length", hidden_size // num_heads)
    if read("attention.value_length", head_dim) != head_dim:
        raise ModelConfigError(
            f"{where} has keys of {head_dim} and values of {own['attention.value_length']} dimensions per head; "
            "different ones are not implemented."
        )
    if read("rope.dimension_count", head_dim) != head_dim:
        raise ModelConfigError(
            f"{where} rotates only {own['rope.dimension_count']} of {head_dim} dimensions per head (rope.dimension_count), "
            "which is not implemented."
        )
    context_length = read("context_length", family.default_context_length)
    num_layers = read("block_count")
    if "token_embd.weight" not in tensors:
        raise CheckpointError(
            f"{where} has no embedding (tensor token_embd.weight).",
            f"It has {len(tensors)} tensors. A file that holds only a tokenizer or an adapter cannot be run.",
        )
    vocab_size = tensors["token_embd.weight"].shape[0]
    declared = own.get("vocab_size", vocab_size)
    if declared != vocab_size:
        raise ModelConfigError(f"{where} contradicts itself: vocab_size is {declared}, but token_embd.weight has {vocab_size} rows.")
    window = own.get("attention.sliding_window") or None
    if window is not None and window < context_length and family.windows == "upper layers":
        raise ModelConfigError(
            f"{where} has a sliding window of {window} tokens, and a GGUF file does not say which layers of a {family.name} model have it.",
            advice="Use the model's Hugging Face folder.",
        )
    windows = (window if window is not None and window < context_length else None,) * num_layers
    eos = [fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    return ModelConfig(
        family=family.name,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=read("feed_forward_length"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=read("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        rms_norm_eps=read_epsilon(own.get("attention.layer_norm_rms_epsilon", 1e-6), where),
        rope=rope_from_gguf(fields, architecture, head_dim, header.float32_values("rope_freqs.weight"), context_length, where),
        tie_word_embeddings="output.weight" not in tensors,
        attention_bias="blk.0.attn_q.bias" in tensors,
        attention_output_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_gate.bias" in tensors,
        has_qk_norm=family.has_qk_norm,
        sliding_windows=windows,
        context_length=context_length,
        eos_token_ids=tuple(dict.fromkeys(int(token_id) for token_id in eos if token_id is not None)),
        bos_token_id=read_token_id(fields.get("tokenizer.ggml.bos_token_id"), "tokenizer.ggml.bos_token_id", where),
        torch_dtype=_dtype({tensor.format for tensor in tensors.values() if len(tensor.shape) > 1}),
        source=where,
    )


def _dtype(formats: set[str]) -> str:
    """F32 and F16 files keep their precision; quantized ones are run in bfloat16."""
    if formats == {"F32"}:
        return "float32"
    return "float16" if formats <= {"F32", "F16"} else "bfloat16"
