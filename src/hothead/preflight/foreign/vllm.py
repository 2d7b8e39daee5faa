"""A vLLM launch: its command parsed as FlexibleArgumentParser does, and what SpeculativeConfig would make of it (vLLM 0.33.0)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hothead.preflight.foreign import config_file
from hothead.preflight.foreign.facts import Facts
from hothead.preflight.foreign.map_facts import draft_offsets
from hothead.preflight.foreign.model_facts import ModelFacts
from hothead.preflight.foreign.options import Option, OptionTable, close_names
from hothead.preflight.foreign.parsed import Parsed, parse_like_argparse
from hothead.preflight.foreign.pasted import Pasted


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_BEFORE_DOT = re.compile(r"(?<=--)[^.]*")

KEYS = _names(
    "enforce_eager num_speculative_tokens model method draft_tensor_parallel_size tensor_parallel_size quantization moe_backend "
    "attention_backend kv_cache_dtype max_model_len revision code_revision index_share_for_mtp_iteration disable_padded_drafter_batch "
    "disable_eagle_block_drop disable_lookahead_block_hashes draft_lm_head_quantization use_local_argmax_reduction "
    "use_heterogeneous_vocab prompt_lookup_max prompt_lookup_min parallel_drafting num_speculative_tokens_per_batch_size "
    "suffix_decoding_max_tree_depth suffix_decoding_max_cached_requests suffix_decoding_max_spec_factor "
    "suffix_decoding_min_token_prob draft_load_config rejection_sample_method synthetic_acceptance_rates synthetic_acceptance_length "
    "enable_adaptive_verification draft_sample_method dspark_draft_topk xpress_topc fly_window_size fly_entropy_threshold "
    "fly_entropy_top_k"
)
"""Fields of SpeculativeConfig that a user sets."""

METHODS = _names(
    "ngram draft_model suffix custom_class eagle eagle3 extract_hidden_states mtp dflash dspark ngram_gpu deepseek_mtp dots3_note_mtp "
    "mimo_mtp mimo_v2_mtp glm4_moe_mtp glm4_moe_lite_mtp glm_ocr_mtp ernie_mtp nemotron_h_mtp exaone_moe_mtp exaone4_5_mtp "
    "qwen3_next_mtp qwen4_exp_mtp qwen3_5_mtp longcat_flash_mtp bailing_hybrid_v3_mtp minimax_m3_mtp bailing_hybrid_mtp kimi_k3_mtp "
    "pangu_ultra_moe_mtp step3p5_mtp step5_mtp hy_v3_mtp hy_v4_mtp gemma4_mtp inkling_mtp glm5_next_mtp"
)

_WITHOUT_MODEL = ("ngram", "ngram_gpu", "suffix", "mtp", "dspark", "extract_hidden_states")
_PREDICTED = ("n_predict", "num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
_PLAIN_ROPE = ("default", "linear", "llama3", "ntk", "proportional")


def parse(pasted: Pasted, table: OptionTable, version: str, folder: Path) -> Parsed:
    """The command with underscores, dotted keys and `--config FILE` undone, as vLLM does before argparse sees it."""
    known = table.known(version)
    argv = list(pasted.argv)
    errors: list[str] = []
    if "--config" in argv:
        argv, errors = config_file.merge_vllm(argv, known, folder, pasted.program == "serve")
    argv = [_dashed(word) if word.startswith("--") else word for word in argv]
    argv = _undo_dots(argv, errors)
    parsed = parse_like_argparse(argv, known, num_positionals=1)
    parsed.errors = errors + parsed.errors
    if parsed.positionals:
        parsed.values["model"] = parsed.positionals[0][1]
    return parsed


def _dashed(word: str) -> str:
    key, equals, value = word.partition("=")
    return _BEFORE_DOT.sub(lambda match: match.group(0).replace("_", "-"), key, count=1) + equals + value


def _undo_dots(argv: list[str], errors: list[str]) -> list[str]:
    """`--name.key value` and `--name.key+ a,b` as one JSON argument at the end."""
    kept: list[str] = []
    tables: dict[str, dict[str, Any]] = {}
    at = 0
    while at < len(argv):
        word = argv[at]
        name, equals, value = word.partition("=")
        at += 1
        if not name.startswith("-") or "." not in name or not any(letter.isalpha() for letter in name):
            kept.append(word)
            continue
        if not equals:
            if at >= len(argv):
                errors.append(f"no value follows {name}")
                continue
            value, at = argv[at], at + 1
        parsed: Any
        if name.endswith("+"):
            name, parsed = name[:-1], value.split(",")
        else:
            parsed = _value(value)
        key, *path = name.split(".")
        for part in reversed(path):
            parsed = {part: parsed}
        _merge(tables.setdefault(key, {}), parsed)
    return [*kept, *(word for key, table in tables.items() for word in (key, json.dumps(table)))]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        match = re.fullmatch(r"(\d+)([kKmMgGtT])", text.strip())
        if match:
            unit = match.group(2)
            base = 1000 if unit.islower() else 1024
            return int(match.group(1)) * base ** ("kmgt".index(unit.lower()) + 1)
        return text


def _merge(table: dict[str, Any], update: Any) -> None:
    for key, value in update.items() if isinstance(update, dict) else ():
        if isinstance(value, dict) and isinstance(table.get(key), dict):
            _merge(table[key], value)
        elif isinstance(value, list) and isinstance(table.get(key), list):
            table[key] = table[key] + value
        else:
            table[key] = value


def speculative_config(parsed: Parsed, facts: Facts) -> dict[str, Any] | None:
    """The table that --speculative-config, its dotted form and the --spec-* options make together; errors go to facts."""
    text = parsed.values.get("speculative_config")
    config: dict[str, Any] | None = None
    if isinstance(text, str) and text != "None":
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            facts["config_problem"] = f"it is not JSON: {str(error)[:100]}"
            return None
        if content is not None and not isinstance(content, dict):
            facts["config_problem"] = f"it holds a {type(content).__name__} instead of a table"
            return None
        config = content
    for flag, key in (("spec_method", "method"), ("spec_model", "model"), ("spec_tokens", "num_speculative_tokens")):
        value = parsed.values.get(flag)
        if value is None:
            continue
        config = {} if config is None else config
        if key in config:
            facts["doubled"] = f"--{flag.replace('_', '-')} and --speculative-config's {key}"
        config[key] = value
    return None if config is None else {str(key).replace("-", "_"): value for key, value in config.items()}


def resolve(parsed: Parsed) -> Facts:
    """The options that rules look at, resolved without looking at files."""
    facts = Facts()
    values = parsed.values
    facts["model"] = values.get("model")
    facts["tp_size"] = values.get("tensor_parallel_size") if isinstance(values.get("tensor_parallel_size"), int) else 1
    config = speculative_config(parsed, facts)
    facts["speculates"] = config is not None
    facts["max_model_len"] = values.get("max_model_len") if isinstance(values.get("max_model_len"), int) else None
    if config is None:
        return facts
    unknown = sorted(key for key in config if key not in KEYS)
    if unknown:
        facts["unknown_key"] = unknown[0]
        facts["nearest_keys"] = ", ".join(close_names(unknown[0], KEYS)) or "none is near"
        facts["known_config"] = json.dumps({key: value for key, value in config.items() if key in KEYS})
    method, model = config.get("method"), config.get("model")
    method = method.lower() if isinstance(method, str) and method.lower() in METHODS else method
    if method is None:
        method = "ngram" if model in ("ngram", "[ngram]") else "custom_class" if _is_import_path(model) else None
    if isinstance(method, str) and method in METHODS and method.endswith("_mtp"):
        facts["deprecated_method"], method = method, "mtp"
    facts["method"], facts["draft"] = method, model if isinstance(model, str) else None
    facts["method_is_unknown"] = method is not None and method not in METHODS
    facts["nearest_methods"] = ", ".join(close_names(str(method), METHODS)) or "draft_model, eagle, eagle3, mtp, ngram"
    tokens = config.get("num_speculative_tokens")
    facts["num_speculative_tokens"] = tokens if isinstance(tokens, int) and not isinstance(tokens, bool) else None
    facts["tokens_given"] = tokens is not None
    facts["tokens_bad"] = tokens is not None and (facts["num_speculative_tokens"] is None or tokens <= 0)
    draft_tp = config.get("draft_tensor_parallel_size")
    facts["draft_tp_size"] = draft_tp if isinstance(draft_tp, int) else None
    facts["tp_in_config"] = config.get("tensor_parallel_size")
    facts["heterogeneous"] = config.get("use_heterogeneous_vocab") is True
    facts["config"] = config
    facts["draft_max_model_len"] = config.get("max_model_len") if isinstance(config.get("max_model_len"), int) else None
    facts["draft_sampling"] = config.get("draft_sample_method", "greedy")
    facts["head_quantization"] = config.get("draft_lm_head_quantization")
    facts["needs_model"] = method not in _WITHOUT_MODEL and method != "custom_class"
    for name, change in _changes(config, facts):
        facts[name] = json.dumps(change)
    return facts


def _changes(config: Mapping[str, Any], facts: Facts) -> list[tuple[str, dict[str, Any]]]:
    """Configurations that advice can name."""
    without_tp = {key: value for key, value in config.items() if key != "tensor_parallel_size"}
    tokens = facts["num_speculative_tokens"] or 3
    return [
        ("config_heterogeneous", {**config, "use_heterogeneous_vocab": True, "draft_sample_method": "greedy"}),
        ("config_tokens", {**config, "num_speculative_tokens": max(1, tokens)}),
        ("config_draft_tp", {**without_tp, "draft_tensor_parallel_size": facts["tp_size"]}),
        ("config_one_token", {**config, "num_speculative_tokens": 1}),
        ("config_ngram", {"method": "ngram", "num_speculative_tokens": max(1, tokens)}),
        ("config_draft_model", {**config, "method": "draft_model"}),
        ("config_eagle3", {**config, "method": "eagle3"}),
        ("config_plain_head", {key: value for key, value in config.items() if key != "draft_lm_head_quantization"}),
    ]


def _is_import_path(model: object) -> bool:
    if not isinstance(model, str) or "/" in model:
        return False
    parts = model.split(".")
    return len(parts) >= 2 and all(part.isidentifier() for part in parts)


def add_models(facts: Facts, target: ModelFacts, draft: ModelFacts | None) -> None:
    """What the files say, and the method that vLLM would find out by looking at the draft."""
    facts["target_known"], facts["target_problem"] = target.is_known, target.problem
    if target.is_known:
        facts["target_arch"] = target.architecture
        facts["vocab_size"], facts["hidden_size"] = target.number("vocab_size"), target.number("hidden_size")
        facts["context"] = facts["max_model_len"] if (facts["max_model_len"] or 0) > 0 else target.context_length
        found = [target.text[key] for key in _PREDICTED if isinstance(target.text.get(key), int)]
        facts["n_predict"] = max(found) if found else None
        facts["has_mtp"] = bool(found) and max(found) > 0
        if facts["config"] is not None and found:
            facts["config_n_predict"] = json.dumps({**facts["config"], "num_speculative_tokens": max(found)})
    if draft is None or not facts["speculates"]:
        if facts["speculates"] and facts["method"] is None:
            facts["method"] = "draft_model"
        return
    facts["draft_known"], facts["draft_problem"] = draft.is_known, draft.problem
    if facts["method"] in (None, "draft_model"):
        lowered = (facts["draft"] or "").lower()
        facts["method_was_found"] = True
        facts["method"] = (
            "eagle"
            if "eagle-" in lowered
            else "eagle3"
            if "eagle3" in lowered
            else "dflash"
            if "dflash" in lowered
            else "dspark"
            if "dspark" in lowered
            else "draft_model"
        )
    if not draft.is_known:
        return
    facts["draft_arch"] = draft.architecture
    facts["draft_is_eagle3"] = "eagle3" in (draft.architecture or "").lower()
    facts["draft_vocab"], facts["draft_vocab_size"] = draft.number("vocab_size"), draft.number("draft_vocab_size")
    facts["draft_hidden"], facts["draft_context"] = draft.number("hidden_size"), draft.context_length
    scaling = draft.text.get("rope_scaling") or draft.text.get("rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default")) if isinstance(scaling, dict) else "default"
    facts["draft_rope"], facts["draft_rope_is_plain"] = str(kind)[:20], kind in _PLAIN_ROPE
    if draft.tensor_names is not None:
        facts["d2t"] = "missing" if draft.find_tensor("d2t") is None else None
        offsets = draft_offsets(draft)
        if offsets is not None and len(offsets):
            facts["d2t"] = "fine" if offsets.any() else "zero"
            facts["d2t_rows"] = len(offsets)


def renamed_option(option: Option, parsed: Parsed) -> str:
    """The --speculative-config that the options of earlier versions stand for."""
    config: dict[str, int | str] = {}
    for used in parsed.used:
        if used.option.now and used.values:
            try:
                config[used.option.now] = int(used.values[0])
            except ValueError:
                config[used.option.now] = used.values[0]
    return json.dumps(config)
