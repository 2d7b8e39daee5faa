"""Folders that launch lines name: configurations, header-only weights, maps and GGUF files of real sizes, without a weight. No torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter

from hothead.files.torch_file import write_torch_list

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
QWEN2 = {**LLAMA, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
QWEN3 = {**LLAMA, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936, "head_dim": 8}
DEEPSEEK = {
    **LLAMA,
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": 129280,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
}
EAGLE = {**LLAMA, "architectures": ["LlamaForCausalLMEagle"], "num_hidden_layers": 1, "max_position_embeddings": 8192}
EAGLE3 = {**LLAMA, "architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 32000}
DRAFT_ROWS = 32000


def make_launch_files(root: Path) -> Path:
    """Everything below `root`; launch lines are judged with it as the working directory."""
    rows = {"lm_head.weight": ("BF16", (128256, 64))}
    good = {"lm_head.weight": ("BF16", (DRAFT_ROWS, 64)), "t2d": ("BOOL", (128256,))}
    spread = np.arange(DRAFT_ROWS, dtype=np.int64) * 3  # draft row i is token 4 i
    _model(root / "llama", LLAMA, rows)
    _model(root / "llama-tied", {**LLAMA, "tie_word_embeddings": True}, {"model.embed_tokens.weight": ("BF16", (128256, 64))})
    _model(root / "llama-gptq", {**LLAMA, "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}},
           {"lm_head.qweight": ("I32", (8, 128256)), "lm_head.scales": ("F16", (1, 128256))})  # fmt: skip
    _model(root / "llama-33k", {**LLAMA, "max_position_embeddings": 32768}, rows)
    _model(root / "qwen-248k", {**QWEN2, "vocab_size": 248077}, {"lm_head.weight": ("BF16", (248077, 64))})
    _model(root / "qwen2-152k", {**QWEN2, "vocab_size": 152064}, {"lm_head.weight": ("BF16", (152064, 64))})
    _model(root / "qwen2-small", {**QWEN2, "vocab_size": 151936, "hidden_size": 32}, None)
    _model(root / "qwen3", QWEN3, {"lm_head.weight": ("BF16", (151936, 64))})
    _model(root / "qwen3-tied", {**QWEN3, "tie_word_embeddings": True}, None)
    _model(root / "deepseek", DEEPSEEK, {"lm_head.weight": ("BF16", (129280, 64))})
    _model(root / "deepseek-no-mtp", {**DEEPSEEK, "num_nextn_predict_layers": 0}, None)
    _model(root / "mimo", {**DEEPSEEK, "architectures": ["MiMoV2FlashForCausalLM"], "model_type": "mimo_v2_flash"}, None)
    step = {"architectures": ["Step3p5ForCausalLM"], "layer_types": ["full_attention"] * 8, "sliding_window": 512}
    _model(root / "step", {**LLAMA, **step, "num_nextn_predict_layers": 1}, rows)
    _model(root / "strange", {**LLAMA, "architectures": ["StrangeForCausalLM"], "model_type": "strange"}, None)
    _model(root / "eagle", EAGLE, {"model.fc.weight": ("BF16", (64, 128))})
    _model(root / "eagle-short", {**EAGLE, "max_position_embeddings": 2048}, {"model.fc.weight": ("BF16", (64, 128))})
    _model(root / "eagle-wide", {**EAGLE, "hidden_size": 128}, {"model.fc.weight": ("BF16", (128, 256))})
    _model(root / "eagle-tied", {**EAGLE, "tie_word_embeddings": True}, {"model.fc.weight": ("BF16", (64, 128))})
    _model(root / "eagle3", EAGLE3, good, spread)
    _model(root / "eagle3-short", {**EAGLE3, "max_position_embeddings": 2048}, good, spread)
    _model(root / "eagle3-no-d2t", EAGLE3, good)
    _model(root / "eagle3-zero", EAGLE3, good, np.zeros(DRAFT_ROWS, np.int64))
    _model(root / "eagle3-absolute", EAGLE3, good, np.arange(DRAFT_ROWS, dtype=np.int64) * 4)
    _model(root / "eagle3-rows", {**EAGLE3, "draft_vocab_size": 16000}, good, spread)
    _model(root / "eagle3-no-head", EAGLE3, {"model.fc.weight": ("BF16", (64, 192))}, spread)
    _model(root / "eagle3-tied", {**EAGLE3, "tie_word_embeddings": True}, good, spread)
    _model(root / "small", {**LLAMA, "hidden_size": 32, "num_hidden_layers": 2}, rows)
    _model(root / "small-32k", {**LLAMA, "hidden_size": 32, "vocab_size": 32000}, None)
    every_fourth = [*range(128255, 0, -4), *range(0, 2816, 4)]  # 32768 ids, the largest first
    _map(root / "maps" / "llama-32k.pt", every_fourth)
    _map(root / "maps" / "first-shard.pt", list(range(32000)))
    _map(root / "maps" / "qwen-32k.pt", [5, 248076, *range(100, 32866)])
    _map(root / "maps" / "past.pt", [130000, *range(1000)])
    (root / "maps" / "llama-32k.txt").write_text("\n".join(map(str, every_fourth)) + "\n")
    np.save(root / "maps" / "llama-32k.npy", np.array(every_fourth))
    (root / "maps" / "broken.pt").write_bytes(b"PK\x03\x04 not a map")
    (root / "launch.yaml").write_text("model-path: llama\ntp-size: 4\nspeculative-algorithm: EAGLE\nspeculative-draft-model-path: eagle\n")
    (root / "vllm.yaml").write_text(
        "tensor-parallel-size: 2\nspeculative-config:\n  method: draft_model\n  model: small-32k\n  num_speculative_tokens: 4\n"
    )
    tokens = [f"token{index}" for index in range(400)]
    _gguf(root / "target.gguf", tokens)
    _gguf(root / "draft.gguf", tokens)
    _gguf(root / "draft-short.gguf", tokens, context=2048)
    _gguf(root / "draft-padded.gguf", [*tokens, *(f"more{index}" for index in range(100))])
    _gguf(root / "draft-larger.gguf", [*tokens, *(f"more{index}" for index in range(200))])
    _gguf(root / "draft-first.gguf", ["other", *tokens[1:]])
    _gguf(root / "draft-token.gguf", [*tokens[:77], "other", *tokens[78:]])
    _gguf(root / "draft-spm.gguf", tokens, kind="llama")
    _gguf(root / "draft-bos.gguf", tokens, bos=3)
    _gguf(root / "draft-dflash.gguf", tokens, architecture="dflash")
    return root


def _model(folder: Path, config: dict[str, Any], tensors: dict[str, tuple[str, tuple[int, ...]]] | None, offsets: Any = None) -> None:
    """config.json and the header of a safetensors file; only the table d2t has its bytes."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    if tensors is None:
        return
    header: dict[str, Any] = {}
    content, at = b"", 0
    if offsets is not None:
        content = np.ascontiguousarray(offsets, "<i8").tobytes()
        header["d2t"] = {"dtype": "I64", "shape": [len(offsets)], "data_offsets": [0, len(content)]}
        at = len(content)
    sizes = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "BOOL": 1}
    for name, (dtype, shape) in tensors.items():
        num_bytes = int(np.prod(shape)) * sizes[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + num_bytes]}
        at += num_bytes
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + content)


def _map(file: Path, token_ids: Sequence[int]) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(write_torch_list(list(token_ids)))


def _gguf(file: Path, tokens: list[str], *, context: int = 8192, kind: str = "gpt2", bos: int = 1, architecture: str = "llama") -> None:
    writer = GGUFWriter(str(file), architecture)
    writer.add_context_length(context)
    writer.add_block_count(2)
    writer.add_tokenizer_model(kind)
    writer.add_token_list(tokens)
    writer.add_bos_token_id(bos)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_tensor("token_embd.weight", np.zeros((len(tokens), 32), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
