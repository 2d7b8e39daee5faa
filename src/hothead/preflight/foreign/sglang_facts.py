"""What is known of an SGLang launch beyond its options: models, the layout of the target's head, and the map in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hothead.errors import HotheadError, OptionError
from hothead.parallel.layout import HEAD_FOLLOWS_ATTENTION, ParallelConfig, head_layout, validate_hot_token_ids_fit
from hothead.preflight.foreign import sglang
from hothead.preflight.foreign.facts import Facts
from hothead.preflight.foreign.map_facts import draft_offsets, find_map
from hothead.preflight.foreign.model_facts import ModelFacts
from hothead.preflight.foreign.options import close_names, load_families
from hothead.preflight.foreign.paths import located
from hothead.preflight.foreign.report import ParallelLaunch

_FLOATS = ("BF16", "F16", "F32")
_MTP_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers")
_MULTI_LAYER = "the multi-layer EAGLE worker"


def gather(values: Mapping[str, Any], target: ModelFacts, draft: ModelFacts | None, folder: Path) -> tuple[Facts, ParallelLaunch | None]:
    """Everything that rules look at. draft: the model that --speculative-draft-model-path names."""
    facts = sglang.resolve(values, target.architecture, draft.architecture if draft else None)
    _add_options(values, facts)
    _add_target(values, target, facts)
    if draft is not None:
        _add_draft(draft, facts)
    layout = _add_layout(target, facts)
    _add_map(values, folder, facts)
    if layout is not None and facts["map_path_exists"]:
        layout = ParallelLaunch(layout.family, layout.num_rows, layout.is_tied, layout.parallel, Path(facts["map_path"]))
    return facts, layout


def _add_options(values: Mapping[str, Any], facts: Facts) -> None:
    algorithm = facts["algorithm"]
    facts["map"] = values.get("speculative_token_map")
    facts["uses_map"] = algorithm == "EAGLE" and not facts["multi_layer"]
    facts["why_ignored"] = (
        "a launch without an algorithm" if algorithm is None else _MULTI_LAYER if algorithm == "EAGLE" else f"the worker of {algorithm}"
    )
    facts["algorithm_is_unknown"] = algorithm is not None and algorithm not in sglang.BUILT_IN
    near = close_names(str(algorithm), sglang.BUILT_IN) if facts["algorithm_is_unknown"] else []
    facts["nearest_algorithms"] = ", ".join(near or sglang.BUILT_IN[:8])
    facts["nearest_algorithm"] = near[0] if near else "EAGLE3"
    named = [
        name for name in ("draft_model_path", "num_steps", "eagle_topk", "num_draft_tokens") if values.get(sglang.SPEC + name) is not None
    ]
    facts["drafting_options"] = ", ".join(f"--speculative-{name.replace('_', '-')}" for name in named)
    facts["likely_algorithm"] = "EAGLE"
    steps, topk, tokens = (facts[name] for name in ("num_steps_given", "eagle_topk_given", "num_draft_tokens_given"))
    facts["steps_or_default"] = steps or 3
    facts["topk_or_default"] = topk or 1
    facts["tokens_or_default"] = (steps or 3) + 1 if (topk or 1) == 1 else tokens or 8
    if facts["num_steps"] and facts["eagle_topk"] and facts["algorithm"] != "NGRAM":
        steps, topk = facts["num_steps"], facts["eagle_topk"]
        facts["max_nodes"] = 1 + topk + (steps - 1) * topk * topk
        facts["nodes"] = min(8, facts["max_nodes"])
    facts["quantization_given"] = values.get("quantization") if values.get("quantization") not in ("unquant", "gguf") else None
    facts["draft_quantization_given"] = values.get("speculative_draft_model_quantization")


def _add_target(values: Mapping[str, Any], target: ModelFacts, facts: Facts) -> None:
    facts["target_known"], facts["target_problem"] = target.is_known, target.problem
    facts["target_arch"] = target.architecture
    if not target.is_known:
        return
    facts["vocab_size"], facts["hidden_size"] = target.number("vocab_size"), target.number("hidden_size")
    given = values.get("context_length")
    facts["context"] = given if isinstance(given, int) and given > 0 else target.context_length
    facts["is_tied"] = target.is_tied
    facts["quantization"] = target.quantization
    facts["has_draft_layers"] = target.architecture in sglang.HAS_DRAFT_LAYERS if target.architecture else None
    facts["num_mtp_layers"] = _num_mtp_layers(target)
    facts["head_is_packed"], facts["head_format"] = _head_format(target)


def _num_mtp_layers(target: ModelFacts) -> int | None:
    found = [target.text[key] for key in _MTP_LAYERS if isinstance(target.text.get(key), int)]
    return int(max(found)) if found else None


def _head_format(target: ModelFacts) -> tuple[bool | None, str | None]:
    """(whether the head is stored in another form than one tensor of floats, what form)."""
    if target.is_gguf:
        return True, "a GGUF file"
    names = [name for name in target.tensor_names or () if name.split(".")[-2:-1] == ["lm_head"]]
    if not names:
        return (None, None) if target.tensor_names is None else (False, None)
    extra = sorted(name.split(".")[-1] for name in names if not name.endswith((".weight", ".bias")))
    dtype = next((target.tensors[name].dtype for name in names if name in target.tensors and name.endswith(".weight")), None)
    is_packed = bool(extra) or (dtype is not None and dtype not in _FLOATS)
    return is_packed, ", ".join([*([dtype] if dtype else []), *extra]) or None


def _add_draft(draft: ModelFacts, facts: Facts) -> None:
    facts["draft_known"], facts["draft_problem"] = draft.is_known, draft.problem
    if not draft.is_known:
        return
    name = draft.architecture or ""
    facts["draft_arch"] = draft.architecture
    facts["draft_is_eagle3"] = "eagle3" in name.lower()
    facts["draft_is_eagle"] = "eagle" in name.lower() and not facts["draft_is_eagle3"]
    facts["draft_hidden"], facts["draft_vocab"] = draft.number("hidden_size"), draft.number("vocab_size")
    facts["draft_vocab_size"] = draft.number("draft_vocab_size")
    facts["draft_context"] = draft.context_length
    facts["draft_is_tied"] = draft.is_tied
    facts["draft_quantization"] = draft.quantization
    if draft.path is not None:
        facts["draft_config"] = str(draft.path / "config.json")
    facts["tied_trouble"] = (
        "one parameter is deleted twice when the target's embedding and head are put in"
        if facts["algorithm"] == "EAGLE"
        else f"its head becomes the embedding of {facts['draft_vocab']} rows, where {facts['draft_vocab_size']} are declared"
    )
    if draft.tensor_names is None:
        return
    facts["draft_has_head"] = draft.find_tensor("lm_head.weight") is not None
    if draft.find_tensor("d2t") is None:
        facts["d2t"] = "missing"
        return
    offsets = draft_offsets(draft)
    if offsets is None or not len(offsets):
        return
    token_ids = offsets + np.arange(len(offsets))
    facts["d2t_rows"], facts["d2t_max"] = len(offsets), int(token_ids.max())
    rows = facts["vocab_size"] or facts["draft_vocab"]
    if not offsets.any():
        facts["d2t"] = "zero"
    elif rows is not None and (token_ids.max() >= rows or token_ids.min() < 0):
        facts["d2t"] = "range"
    else:
        facts["d2t"] = "fine"


def _add_layout(target: ModelFacts, facts: Facts) -> ParallelLaunch | None:
    family = load_families().get(target.architecture or "")
    facts["family"] = family
    facts["head_follows_attention"] = family in HEAD_FOLLOWS_ATTENTION if family else None
    if facts["tp_size"] == 1 and facts["vocab_size"] and not facts["refusal_id"]:
        family = family or "llama"  # one rank has the whole head, whatever the family
    problem = facts["target_problem"] or (
        f"{target.architecture} is in no table"
        if family is None
        else "its config.json has no vocab_size"
        if not facts["vocab_size"]
        else ""
    )
    if not problem and facts["attn_cp_size"] != 1:
        problem = f"attn_cp_size is {facts['attn_cp_size']}"
    if problem or family is None or facts["refusal_id"] in ("sizes", "replicas", "attn-dp", "attn-cp"):
        facts["layout_problem"] = problem or facts["refusal"]
        return None
    try:
        parallel = ParallelConfig(
            facts["tp_size"],
            facts["attn_dp_size"],
            facts["attn_dp_size"] > 1,
            bool(facts["enable_dp_lm_head"] and facts["attn_dp_size"] > 1),
        )
        layout = head_layout(family, parallel, facts["vocab_size"], is_tied=bool(facts["is_tied"]))
    except (HotheadError, OptionError) as error:
        facts["layout_problem"] = error.what
        return None
    facts["num_shards"], facts["rows_per_rank"] = layout.num_shards, layout.shards.rows_per_shard
    facts["num_other_ranks"] = layout.num_shards - 1
    facts["is_gathered"] = layout.num_shards == 1 and facts["tp_size"] > 1 and not parallel.uses_dp_lm_head
    return ParallelLaunch(family, facts["vocab_size"], bool(facts["is_tied"]), parallel)


def _add_map(values: Mapping[str, Any], folder: Path, facts: Facts) -> None:
    name = values.get("speculative_token_map")
    if not name:
        return
    found = find_map(name, folder, None)
    facts["map_path"], facts["map_problem"] = str(found.path), found.problem
    facts["map_path_exists"] = not found.is_missing
    facts["map_is_relative"] = not located(name, Path()).is_absolute() and not (found.is_missing and _is_hub_map(name))
    facts["map_folder"] = str(Path(name).parent) if str(Path(name).parent) != "." else ""
    facts["map_problem_is_fatal"] = bool(found.problem) and not (found.is_missing and _is_hub_map(name))
    facts["new_map"] = str(found.path.with_name(f"{found.path.stem or 'map'}-sglang.pt"))
    facts["map_format"], facts["map_is_torch"] = found.format or None, found.is_torch
    facts["near_map"] = _near_file(found.path) if found.is_missing else None
    facts["map_size"] = 32768 if found.token_ids is None else len(found.token_ids)
    ids = found.token_ids
    if ids is None:
        return
    facts["num_ids"], facts["max_id"], facts["min_id"] = len(ids), int(ids.max()), int(ids.min())
    facts["wide"] = len(ids) * facts["tp_size"]
    if facts["vocab_size"]:
        facts["num_past_vocab"] = int((ids >= facts["vocab_size"]).sum())
    rows = facts["rows_per_rank"]
    if rows is None:
        return
    try:
        validate_hot_token_ids_fit(ids, rows)
        facts["num_bad"] = 0
    except HotheadError:
        bad = np.flatnonzero((ids < 0) | (ids >= rows))
        facts["num_bad"] = len(bad)
        facts["first_bad_id"], facts["first_bad_index"] = int(ids[bad[0]]), int(bad[0])


def _is_hub_map(name: str) -> bool:
    """ORGANISATION/REPOSITORY/FILE: what SGLang would fetch."""
    return name.count("/") == 2 and not name.startswith(("/", ".", "~"))


def _near_file(path: Path) -> str | None:
    """The one file beside a missing one whose name is nearly the same."""
    import difflib

    try:
        names = [entry.name for entry in sorted(path.parent.iterdir())[:1000] if entry.is_file()] if path.parent.is_dir() else []
    except OSError:
        return None
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.8)
    return str(path.with_name(near[0])) if near else None
