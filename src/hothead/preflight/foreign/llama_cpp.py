"""A llama.cpp launch: its command parsed as `common_params_parse_ex` does, and whether the draft would be used.

After ggml-org/llama.cpp@0c1e57098.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hothead.preflight.foreign.facts import Facts
from hothead.preflight.foreign.model_facts import ModelFacts
from hothead.preflight.foreign.options import OptionTable, close_names
from hothead.preflight.foreign.parsed import Parsed, parse_like_llama_cpp
from hothead.preflight.foreign.pasted import Pasted

TYPES = (
    "none", "draft-simple", "draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark",
    "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache",
)  # fmt: skip
NEED_DRAFT = ("draft-simple", "draft-eagle3", "draft-dflash", "draft-dspark")

MAX_VOCAB_DIFFERENCE = 128
FIRST_COMPARED_ID = 5
"""SPEC_VOCAB_MAX_SIZE_DIFFERENCE and SPEC_VOCAB_CHECK_START_TOKEN_ID of common/speculative.cpp: the first tokens may differ."""

_MAX_TOKENS = 2**22
_DEFAULT_MAX, _DEFAULT_MIN = 3, 0


def parse(pasted: Pasted, table: OptionTable, version: str) -> Parsed:
    known = table.known(version, pasted.program)
    return parse_like_llama_cpp(pasted.argv, known, pasted.env)


def resolve(parsed: Parsed, program: str) -> Facts:
    values = parsed.values
    facts = Facts(program=f"llama-{program}" if program else "llama-server")
    facts["model"], facts["draft"] = values.get("model"), values.get("spec_draft_model")
    facts["draft_repo"] = values.get("spec_draft_hf")
    facts["model_repo"] = values.get("hf_repo")
    names = [name for used in parsed.used if used.option.dest == "spec_type" for value in used.values for name in value.split(",")]
    facts["types"] = ",".join(names) or None
    facts["unknown_type"] = next((name for name in names if name not in TYPES), None)
    facts["nearest_types"] = ", ".join(close_names(facts["unknown_type"] or "", TYPES)) or ", ".join(TYPES)
    facts["type_names"] = names
    facts["n_max"] = _number(values, "spec_draft_n_max", _DEFAULT_MAX)
    facts["n_min"] = _number(values, "spec_draft_n_min", _DEFAULT_MIN)
    facts["has_draft_numbers"] = any(values.get(f"spec_draft_{name}") is not None for name in ("n_max", "n_min", "p_min", "p_split"))
    given = values.get("ctx_size")
    facts["context_given"] = given if isinstance(given, int) and given > 0 else None
    renamed = {"draft_max": "spec_draft_n_max", "draft_n_min": "spec_draft_n_min"}
    for used in parsed.used:
        if used.option.removed and used.values:
            facts["removed"] = used.typed
            facts["removed_says"] = used.option.removed
            facts["removed_dest"] = used.option.dest
            facts["removed_value"] = used.values[0]
            facts["renamed_dest"] = renamed.get(used.option.dest)
            if facts["renamed_dest"]:
                facts[f"new_{facts['renamed_dest']}"] = used.values[0]
    return facts


def _number(values: Mapping[str, Any], name: str, default: int) -> int:
    value = values.get(name)
    return value if isinstance(value, int) else default


def add_models(facts: Facts, target: ModelFacts | None, draft: ModelFacts | None) -> None:
    """Fields of the GGUF headers, compared as `common_speculative_are_compatible` does."""
    if target is not None:
        facts["target_problem"] = target.problem if not target.is_known else None
        facts["target_missing"] = target.is_missing_path
        facts["context"] = facts["context_given"] or _field(target, "context_length")
        facts["has_nextn"] = _has_nextn(target) if target.is_known else None
    if draft is not None:
        facts["draft_problem"] = draft.problem if not draft.is_known else None
        facts["draft_missing"] = draft.is_missing_path
        facts["draft_context"] = _field(draft, "context_length")
        facts["inferred_type"] = _inferred_type(draft) if draft.is_known else None
    types = [name for name in facts["type_names"] if name != "none"]
    if not types and draft is not None and facts["inferred_type"]:
        types = [facts["inferred_type"]]
        facts["type_was_inferred"] = True
    facts["active_types"] = ", ".join(types) or None
    facts["has_draft"] = facts["draft"] is not None or facts["draft_repo"] is not None
    facts["needs_draft"] = next((name for name in types if name in NEED_DRAFT), None)
    facts["likely_type"] = "draft-eagle3" if draft is not None and draft.is_known and "eagle3" in _architecture(draft) else "draft-simple"
    if target is not None and draft is not None and target.is_gguf and draft.is_gguf:
        _compare(target.config, draft.config, facts)


def _architecture(model: ModelFacts) -> str:
    return str(model.config.get("general.architecture", ""))


def _field(model: ModelFacts, key: str) -> int | None:
    value = model.config.get(f"{_architecture(model)}.{key}")
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _has_nextn(model: ModelFacts) -> bool:
    return (_field(model, "nextn_predict_layers") or 0) > 0 or any(".nextn." in name for name in model.tensor_names or ())


def _inferred_type(model: ModelFacts) -> str | None:
    """What llama.cpp finds out itself from the draft's file."""
    names = model.tensor_names or frozenset()
    if _architecture(model) == "dflash":
        return "draft-dspark" if "markov_w1.weight" in names else "draft-dflash"
    last = (_field(model, "block_count") or 0) - 1
    return "draft-mtp" if f"blk.{last}.nextn.eh_proj.weight" in names else None


def _compare(target: Mapping[str, Any], draft: Mapping[str, Any], facts: Facts) -> None:
    ggml = "tokenizer.ggml."
    facts["target_vocab_type"], facts["draft_vocab_type"] = str(target.get(f"{ggml}model")), str(draft.get(f"{ggml}model"))
    for name in ("bos", "eos"):
        adds = [fields.get(f"{ggml}add_{name}_token") for fields in (target, draft)]
        ids = [fields.get(f"{ggml}{name}_token_id") for fields in (target, draft)]
        facts[f"{name}_differs"] = (adds[0] is not None and adds[1] is not None and adds[0] != adds[1]) or (
            adds[0] is True and adds[1] is True and ids[0] != ids[1]
        )
        facts[f"target_{name}"], facts[f"draft_{name}"] = str(ids[0]), str(ids[1])
    tokens: list[Any] = [fields.get(f"{ggml}tokens") for fields in (target, draft)]
    if not (isinstance(tokens[0], list) and isinstance(tokens[1], list)) or max(len(tokens[0]), len(tokens[1])) > _MAX_TOKENS:
        return
    facts["vocab_size"], facts["draft_vocab"] = len(tokens[0]), len(tokens[1])
    facts["vocab_difference"] = abs(len(tokens[0]) - len(tokens[1]))
    facts["max_difference"], facts["first_compared"] = MAX_VOCAB_DIFFERENCE, FIRST_COMPARED_ID
    for token_id in range(FIRST_COMPARED_ID, min(len(tokens[0]), len(tokens[1]))):
        if tokens[0][token_id] != tokens[1][token_id]:
            facts["first_differing_id"] = token_id
            facts["target_token"], facts["draft_token"] = repr(tokens[0][token_id])[:60], repr(tokens[1][token_id])[:60]
            break
