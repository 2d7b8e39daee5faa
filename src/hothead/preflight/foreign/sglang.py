"""An SGLang launch: its command parsed as `prepare_server_args` does, and what its own resolution would make of it.

After `arg_groups/speculative_hook.py`, `parallel_hook.py` and `overrides.py` of SGLang 0.5.23, what concerns drafts, maps and
ranks; `tests/oracle` compares with the package itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hothead.preflight.foreign import config_file
from hothead.preflight.foreign.facts import Facts
from hothead.preflight.foreign.options import OptionTable
from hothead.preflight.foreign.parsed import Parsed, parse_like_argparse
from hothead.preflight.foreign.pasted import Pasted


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


SPEC = "speculative_"
BUILT_IN = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "UNO", "FROZEN_KV_MTP")

TARGET_IS_DRAFT = _names(
    "DeepseekV32ForCausalLM DeepseekV3ForCausalLM DeepseekV4ForCausalLM Glm4MoeForCausalLM Glm4MoeLiteForCausalLM "
    "GlmMoeDsaForCausalLM BailingMoeForCausalLM BailingMoeV2ForCausalLM BailingMoeV2_5ForCausalLM MistralLarge3ForCausalLM "
    "PixtralForConditionalGeneration HYV3ForCausalLM HYV4ForCausalLM Qwen4ExpForConditionalGeneration"
)
"""Targets whose own path becomes the draft's where none is given."""

HAS_DRAFT_LAYERS = TARGET_IS_DRAFT | _names(
    "Glm5NextForConditionalGeneration GlmOcrForConditionalGeneration LongcatFlashForCausalLM MiMoForCausalLM MiMoV2ForCausalLM "
    "MiMoV2FlashForCausalLM Step3p5ForCausalLM InklingForConditionalGeneration GigaChat35ForCausalLM Step3p7ForConditionalGeneration "
    "BailingMoeV3ForCausalLM Ernie4_5_MoeForCausalLM Qwen3NextForCausalLM Qwen3MoeForCausalLM Qwen3_5ForConditionalGeneration "
    "Qwen3_5MoeForConditionalGeneration Qwen3_5ForCausalLM Qwen3_5MoeForCausalLM InternS2PreviewForConditionalGeneration "
    "InternS2MobiusForConditionalGeneration ExaoneMoEForCausalLM ExaoneMoeForCausalLM NemotronH_Omni_Reasoning_V3 "
    "NemotronHForCausalLM NemotronHPuzzleForCausalLM Dots3NoteForCausalLM"
)
"""Targets whose configuration is turned into that of their own draft layers when they are loaded as a draft."""

MULTI_LAYER = _names(
    "MiMoV2ForCausalLM MiMoV2FlashForCausalLM GigaChat35ForCausalLM GigaChat35ForCausalLMNextN Step3p5ForCausalLM "
    "Step3p7ForConditionalGeneration"
)
"""Targets that turn EAGLE into its multi-layer form; only a launch that says EAGLE, since NEXTN is renamed after they were asked."""

FIVE_FOUR_EIGHT = ("LlamaForCausalLM", "Grok1ForCausalLM", "Grok1VForCausalLM")
GEMMA4_DRAFTS = ("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM")


def parse(pasted: Pasted, table: OptionTable, version: str, folder: Path) -> Parsed:
    """The command with `sglang serve MODEL` and `--config FILE` undone."""
    known = table.known(version)
    argv = list(pasted.argv)
    errors: list[str] = []
    if pasted.program == "serve":
        argv = _without_model_type(argv)
        if argv and not argv[0].startswith("-"):
            argv = ["--model-path", *argv]
    if "--config" in argv:
        argv, errors = config_file.merge_sglang(argv, known, folder)
    parsed = parse_like_argparse(argv, known)
    parsed.errors = errors + parsed.errors
    if "model_path" not in parsed.values and not parsed.errors:
        parsed.errors.append("the following arguments are required: --model-path/--model")
    return parsed


def _without_model_type(argv: list[str]) -> list[str]:
    for at, word in enumerate(argv):
        if word == "--model-type":
            return argv[:at] + argv[at + 2 :]
        if word.startswith("--model-type="):
            return argv[:at] + argv[at + 1 :]
    return argv


def resolve(values: Mapping[str, Any], architecture: str | None, draft_architecture: str | None) -> Facts:
    """The speculative and parallel options as SGLang resolves them. refusal: what it would raise, "" for none."""
    facts = Facts(refusal="", model=values.get("model_path"))
    for name in ("tp_size", "dp_size", "attn_dp_size", "attn_cp_size", "pp_size", "moe_dp_size"):
        facts[name] = values.get(name) if values.get(name) is not None else 1
    _resolve_parallel(values, facts)
    _resolve_speculative(values, facts, architecture, draft_architecture)
    return facts


def _refuse(facts: Facts, name: str, what: str) -> None:
    if not facts["refusal"]:
        facts["refusal"], facts["refusal_id"] = what, name


def _resolve_parallel(values: Mapping[str, Any], facts: Facts) -> None:
    facts["dp_attention_given"] = bool(values.get("enable_dp_attention"))
    if facts["dp_attention_given"] and facts["attn_dp_size"] == 1:
        facts["attn_dp_size"], facts["dp_size"] = facts["dp_size"], 1
    tp_size, dp_size, attn_dp_size, attn_cp_size = (facts[name] for name in ("tp_size", "dp_size", "attn_dp_size", "attn_cp_size"))
    if min(tp_size, dp_size, attn_dp_size, attn_cp_size) < 1:
        _refuse(facts, "sizes", f"a size below 1 (tp {tp_size}, dp {dp_size}, attention dp {attn_dp_size}, attention cp {attn_cp_size})")
        facts["attn_tp_size"] = None
        return
    if attn_dp_size > 1 and dp_size > 1:
        _refuse(facts, "replicas", f"--dp-size {dp_size} replicas together with --attn-dp-size {attn_dp_size}")
    if attn_dp_size > 1 and tp_size % attn_dp_size:
        _refuse(facts, "attn-dp", f"{tp_size} ranks (tp_size) cannot be cut into {attn_dp_size} attention groups (attn_dp_size)")
    elif tp_size % (attn_dp_size * attn_cp_size):
        _refuse(facts, "attn-cp", f"{tp_size} ranks cannot be cut by attn_dp_size {attn_dp_size} times attn_cp_size {attn_cp_size}")
    wants = bool(values.get("enable_dp_lm_head"))
    facts["dp_lm_head_given"] = wants
    facts["enable_dp_lm_head"] = wants and dp_size * attn_dp_size > 1
    if facts["enable_dp_lm_head"] and attn_dp_size == 1:
        _refuse(facts, "dp-lm-head", "--enable-dp-lm-head without attention data parallelism")
    is_whole = tp_size % (attn_dp_size * attn_cp_size) == 0
    facts["attn_tp_size"] = tp_size // attn_dp_size // attn_cp_size if is_whole else None


def _resolve_speculative(values: Mapping[str, Any], facts: Facts, architecture: str | None, draft_architecture: str | None) -> None:
    given = values.get("speculative_algorithm")
    algorithm = given.upper() if isinstance(given, str) else None
    facts["algorithm_given"] = algorithm
    is_gemma4 = draft_architecture in GEMMA4_DRAFTS
    if algorithm == "EAGLE3" and is_gemma4:
        _refuse(facts, "gemma4", "EAGLE3 with a Gemma 4 assistant as the draft")
    if algorithm in ("NEXTN", "EAGLE"):
        algorithm = "FROZEN_KV_MTP" if is_gemma4 else "EAGLE"
    facts["algorithm"] = algorithm
    facts["draft"] = values.get("speculative_draft_model_path")
    for name in ("num_steps", "eagle_topk", "num_draft_tokens"):
        facts[name] = facts[f"{name}_given"] = values.get(SPEC + name)
    facts["rejection"] = bool(values.get("speculative_use_rejection_sampling"))
    facts["block_verification"] = bool(values.get("speculative_use_block_verification"))
    facts["multi_layer"] = bool(values.get("enable_multi_layer_eagle")) or (given == "EAGLE" and architecture in MULTI_LAYER)
    if algorithm is None:
        return
    if facts["block_verification"] and algorithm in ("EAGLE", "EAGLE3"):
        facts["rejection"] = True
    if algorithm in ("EAGLE", "EAGLE3", "STANDALONE"):
        _resolve_eagle(facts, architecture, bool(values.get("speculative_adaptive")))
    elif algorithm == "NGRAM":
        breadth = values.get("speculative_ngram_max_bfs_breadth")
        facts["eagle_topk"] = 10 if breadth is None else breadth
        facts["num_draft_tokens"] = 12 if facts["num_draft_tokens"] is None else facts["num_draft_tokens"]
        if facts["num_steps"] is None and facts["eagle_topk"]:
            facts["num_steps"] = facts["num_draft_tokens"] // facts["eagle_topk"]
        if facts["attn_dp_size"] > 1:
            _refuse(facts, "attention-dp-draft", "NGRAM with attention data parallelism")
    elif algorithm in ("DFLASH", "DSPARK"):
        if facts["draft"] is None and algorithm == "DFLASH":
            _refuse(facts, "draft-path", "DFLASH without --speculative-draft-model-path")
        if algorithm == "DFLASH":
            facts["num_steps"], facts["eagle_topk"] = 1, 1
    if values.get("max_running_requests") is None and algorithm in ("EAGLE", "EAGLE3", "STANDALONE", "NGRAM", "FROZEN_KV_MTP"):
        facts["max_running_requests"] = 48


def _resolve_eagle(facts: Facts, architecture: str | None, is_adaptive: bool) -> None:
    algorithm = facts["algorithm"]
    if algorithm == "STANDALONE" and facts["attn_dp_size"] > 1:
        _refuse(facts, "attention-dp-draft", "STANDALONE with attention data parallelism")
    if architecture in TARGET_IS_DRAFT and facts["draft"] is None:
        facts["draft"], facts["draft_is_target"] = facts["model"], True
    steps, topk, tokens = facts["num_steps"], facts["eagle_topk"], facts["num_draft_tokens"]
    if is_adaptive:
        facts["num_steps"] = facts["eagle_topk"] = facts["num_draft_tokens"] = None  # decided by a file that it ships
        return
    if steps is None:
        if topk is not None or tokens is not None:
            _refuse(facts, "steps", "--speculative-eagle-topk or --speculative-num-draft-tokens without --speculative-num-steps")
            return
        if architecture is None and algorithm != "STANDALONE":
            return  # the defaults depend on the target's family
        steps, topk, tokens = (5, 4, 8) if architecture in FIVE_FOUR_EIGHT and algorithm != "STANDALONE" else (3, 1, 4)
    elif topk is None:
        _refuse(facts, "topk", "--speculative-num-steps without --speculative-eagle-topk")
        return
    if facts["rejection"]:
        if algorithm == "STANDALONE":
            _refuse(facts, "rejection-algorithm", "--speculative-use-rejection-sampling with STANDALONE")
        elif topk != 1:
            _refuse(facts, "rejection-topk", f"--speculative-use-rejection-sampling with --speculative-eagle-topk {topk}")
    if topk == 1:
        facts["num_draft_tokens_before"], tokens = tokens, steps + 1
    facts["num_steps"], facts["eagle_topk"], facts["num_draft_tokens"] = steps, topk, tokens
