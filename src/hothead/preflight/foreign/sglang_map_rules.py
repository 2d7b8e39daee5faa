"""Where a token map and an SGLang launch do not fit: a table. A new row needs a test."""

from __future__ import annotations

from hothead.preflight.foreign.facts import Facts
from hothead.preflight.foreign.rule import Change, Rule, Run
from hothead.preflight.foreign.sglang_places import HOOK, ISSUE, NO_MAP, WORKER


def _cuts(facts: Facts) -> bool:
    """The map is used: the target's head is indexed with it."""
    return bool(facts["uses_map"] and facts["map"])


def _is_cut(facts: Facts) -> bool:
    return _cuts(facts) and (facts["num_shards"] or 1) > 1


def _can_be_whole(facts: Facts) -> bool:
    return bool(facts["head_follows_attention"]) and not facts["is_tied"]


_WITHOUT = Change("Leave the map out, or give all its work to one rank (it works with tp_size 1). Without the map:", NO_MAP)
_WHOLE_HEADS = Change(
    "Give every rank a whole head with full attention data parallelism, or leave the map out. With whole heads:",
    {"dp_size": None, "enable_dp_attention": None, "attn_dp_size": "{tp_size}", "enable_dp_lm_head": True},
)

_BUILD = Run(
    "Build one for this model from texts like its traffic (here responses.jsonl), and use it:",
    "hothead map build --model {model} --corpus responses.jsonl --size {map_size} -o {new_map}",
    {"speculative_token_map": "{new_map}"},
)
_WHOLE_HEADS_BEFORE = Change(_WHOLE_HEADS.say, {"dp_size": "{tp_size}", "enable_dp_attention": True, "enable_dp_lm_head": True})
"""For versions without --attn-dp-size."""

MAP_RULES = (
    Rule(
        "sglang-map-past-shard",
        "ids of the token map have no row in a head that is cut over ranks",
        "error",
        lambda f: _is_cut(f) and f["num_bad"],
        "The head is cut over {num_shards} ranks with {rows_per_rank} rows each, and SGLang indexes a rank's rows with the map's global "
        "ids: "
        "{num_bad} of {num_ids} ids have no row there (first: id {first_bad_id} at hot index {first_bad_index}).",
        "SGLang reads the map after both models are loaded and does head.data[ids] on each rank. A rank of a head that is cut over the "
        "vocabulary "
        "has V / n rows, so ids past them are an IndexError, a device-side assert, or, where nothing checks, other rows. Rows per rank: "
        "V padded to "
        "a multiple of 64 (64 n where that does not divide), over n. n is tp_size, or the attention group's size for families whose head "
        "follows it: "
        "with full attention data parallelism and --enable-dp-lm-head every rank of those has a whole head, the gather is right, no "
        "scores are "
        "exchanged, and the map works at tp_size > 1.",
        (
            ISSUE + "4328",
            "https://github.com/Ascend/sglang/pull/1133",
            WORKER + " (init_lm_head)",
            "sglang 0.5.23: srt/layers/vocab_parallel_embedding.py",
        ),
        ("vocab_size", "num_shards", "rows_per_rank", "num_ids", "num_bad", "first_bad_id", "first_bad_index", "max_id"),
        lambda f: _WITHOUT if not _can_be_whole(f) else _WHOLE_HEADS if f["has_attn_dp_size"] else _WHOLE_HEADS_BEFORE,
        fine_when=lambda f: _cuts(f) and f["num_shards"] == 1 and f["num_ids"] and not f["num_bad"] and not f["is_gathered"],
        fine="Every id of the map has a row: the head is whole on each rank ({rows_per_rank} rows, ids to {max_id}).",
    ),
    Rule(
        "sglang-map-inside-first-shard",
        "all ids of the token map lie inside the first shard of the head",
        "error",
        lambda f: _is_cut(f) and f["num_ids"] and not f["num_bad"],
        "The head is cut over {num_shards} ranks with {rows_per_rank} rows each. All {num_ids} ids lie below {rows_per_rank}, so the "
        "load succeeds, "
        "but {num_other_ranks} of {num_shards} ranks take rows of other tokens, and the gathered scores are {num_shards} times as wide "
        "as the map.",
        "The gather happens to find rows on every rank: on rank r row t is token r * rows + t. The scores of all ranks are then gathered "
        "and the "
        "winner's column, up to n * H, indexes a map of H ids: the first draft step fails with an index out of range.",
        (
            WORKER + " (init_lm_head, draft)",
            "observed with SGLang 0.5.23 on CPU: index 430 is out of bounds for dimension 0 with size 256",
        ),
        ("vocab_size", "num_shards", "rows_per_rank", "num_ids", "max_id"),
        Change("Leave the map out, or use one rank. Without the map:", NO_MAP),
    ),
    Rule(
        "sglang-map-cut-head-unknown",
        "a token map with a head that is cut over ranks, and one of the two is not here to look at",
        "error",
        lambda f: _is_cut(f) and f["num_ids"] is None,
        "The head is cut over {num_shards} ranks with {rows_per_rank} rows each, and SGLang indexes a rank's rows with the map's global "
        "ids, "
        "which cannot be right for any map. The map itself could not be looked at: {map_problem}.",
        "Without the map's file the first bad id is not known, but no map works with a cut head: ids past the shard fail at load, and a "
        "map whose "
        "ids all lie in the first shard fails at the first draft step.",
        (ISSUE + "4328",),
        ("vocab_size", "num_shards", "rows_per_rank"),
        Change("Leave the map out, or use one rank. Without the map:", NO_MAP),
    ),
    Rule(
        "sglang-map-layout-unknown",
        "a token map with several ranks, and where the head lies is not known",
        "warning",
        lambda f: _cuts(f) and f["tp_size"] > 1 and f["num_shards"] is None,
        "The launch uses {tp_size} ranks, and how the head is cut could not be found out: {layout_problem}. "
        "If it is cut over ranks, the map's global ids index a shard of it.",
        "Whether the map works depends on the rows that each rank has, which is a property of the model's family, its vocabulary size "
        "and the "
        "parallel options. Without config.json, or for a family that is in no table, only the danger can be named.",
        (ISSUE + "4328",),
        ("tp_size", "attn_dp_size"),
        Change("Give the model as a local folder to know for certain. What works in every case is the launch without the map:", NO_MAP),
    ),
    Rule(
        "sglang-map-gathered-head",
        "whole heads whose scores are gathered all the same",
        "warning",
        lambda f: _cuts(f) and f["is_gathered"],
        "Every rank has the whole tied head, but without --enable-dp-lm-head the scores of {tp_size} ranks are still gathered: with a "
        "map of "
        "{num_ids} ids they are {wide} columns, and columns past the map's end have no id.",
        "A tied head lies where its embedding lies, which under attention data parallelism may be on every rank. The logits processor "
        "decides about "
        "gathering without looking at that. With the full vocabulary the superfluous columns are cut off; with a map they are candidates.",
        ("sglang 0.5.23: srt/layers/logits_processor.py",),
        ("tp_size", "num_ids", "wide"),
        Change("Say that heads are per attention group:", {"enable_dp_lm_head": True}),
    ),
    Rule(
        "sglang-map-past-vocabulary",
        "ids of the token map are past the target's vocabulary",
        "error",
        lambda f: _cuts(f) and f["num_past_vocab"],
        "{num_past_vocab} of {num_ids} ids of the map are at or past the vocabulary size {vocab_size} (largest: {max_id}): "
        "the map belongs to another model.",
        "A map is made for one tokenizer. Ids past the vocabulary fail or read padding; ids below it name other tokens, and acceptance "
        "falls.",
        (WORKER + " (init_lm_head)",),
        ("num_ids", "num_past_vocab", "max_id", "vocab_size"),
        _BUILD,
    ),
    Rule(
        "sglang-map-eagle3",
        "EAGLE3 ignores the token map",
        "warning",
        lambda f: f["map"] and f["algorithm"] == "EAGLE3",
        "EAGLE3 ignores --speculative-token-map: its hot vocabulary is the d2t table of the draft's checkpoint.",
        "An EAGLE3 draft has a head of its own with draft_vocab_size rows and a table from draft ids to target ids. SGLang logs one "
        "warning and goes on "
        "without the map, so a smaller or better map changes nothing.",
        (WORKER + " (init_token_map)",),
        ("map", "draft_vocab_size"),
        Change("Leave it out:", NO_MAP),
    ),
    Rule(
        "sglang-map-standalone",
        "STANDALONE reads the token map and never cuts the head",
        "error",
        lambda f: f["map"] and f["algorithm"] == "STANDALONE",
        "STANDALONE reads the map but keeps the draft model's full head: column numbers of the full vocabulary then index a map of "
        "{num_ids} ids, "
        "and the first draft step fails.",
        "StandaloneDraftWorker overrides init_lm_head with nothing, while the draft loop still translates columns with the map.",
        ("sglang 0.5.23: srt/speculative/standalone_worker_v2.py", "observed with SGLang 0.5.23 on CPU: dies at the first draft step"),
        ("num_ids", "draft_vocab"),
        Change("Leave the map out:", NO_MAP),
        since="0.5.5",
    ),
    Rule(
        "sglang-map-ignored",
        "the token map has no effect with this algorithm",
        "warning",
        lambda f: f["map"] and not f["uses_map"] and f["algorithm"] not in ("EAGLE3", "STANDALONE"),
        "--speculative-token-map has no effect: {why_ignored} never looks at it, and nothing says so.",
        "Only the single-layer EAGLE worker (EAGLE and NEXTN) cuts the head by the map. NGRAM has no head; the multi-layer MTP, DFLASH, "
        "DSPARK, UNO and "
        "frozen-KV workers have their own code; without an algorithm nothing drafts. None of them warns.",
        ("sglang 0.5.23: srt/speculative/multi_layer_eagle_worker_v2.py, ngram_worker.py, frozen_kv_mtp_worker_v2.py", HOOK),
        ("algorithm", "map"),
        Change("Leave it out:", NO_MAP),
    ),
    Rule(
        "sglang-map-rejection",
        "rejection sampling is refused with a token map",
        "error",
        lambda f: _cuts(f) and f["rejection"] and f["num_ids"] != f["vocab_size"],
        "--speculative-use-rejection-sampling needs one vocabulary for draft and target, and the map makes the draft's {num_ids} of "
        "{vocab_size}: "
        "a ValueError, raised only after both models are loaded.",
        "The draft's probabilities are over the map and the kernel wants them over the target's vocabulary. hothead scatters them (q = 0 "
        "outside the "
        "hot set), where the rule stays exact.",
        (WORKER + " (alloc_memory_pool)",),
        ("num_ids", "vocab_size"),
        Change(
            "Use one of the two. With the map:", {"speculative_use_rejection_sampling": None, "speculative_use_block_verification": None}
        ),
        since="0.5.15",
    ),
    Rule(
        "sglang-map-quantized-head",
        "the token map indexes a quantized head",
        "error",
        lambda f: _cuts(f) and f["head_is_packed"],
        "The target's head is quantized ({head_format}), and SGLang cuts only a tensor called weight: rows and scales no longer belong "
        "together, "
        "or there is no weight to cut.",
        "init_lm_head clones lm_head.weight and indexes it. Packed formats have qweight or weight_packed instead, and FP8 or INT8 heads "
        "have scales "
        "per row that stay in the full order.",
        ("https://github.com/vllm-project/vllm/issues/53104", WORKER + " (init_lm_head)"),
        ("head_format", "num_ids"),
        Change("Leave the map out, or use a checkpoint whose head is not quantized. Without the map:", NO_MAP),
    ),
    Rule(
        "sglang-map-not-torch",
        "SGLang cannot read this token map's format",
        "error",
        lambda f: f["map"] and f["uses_map"] and f["map_format"] and not f["map_is_torch"],
        "The map's format is {map_format}, and SGLang opens it with torch.load(weights_only=True), which reads a saved list or tensor of "
        "ids only.",
        "FR-Spec's maps are lists of ids written by torch.save. Other formats fail in the unpickler, after both models are loaded.",
        ("sglang 0.5.23: srt/speculative/spec_utils.py (load_token_map)",),
        ("map_format", "num_ids"),
        Run("Convert it, and use that:", "hothead map convert {map_path} --to sglang -o {new_map}", {"speculative_token_map": "{new_map}"}),
    ),
    Rule(
        "sglang-map-unreadable",
        "the token map cannot be read",
        "error",
        lambda f: f["map"] and f["uses_map"] and f["map_problem_is_fatal"] and not _is_cut(f),
        "The map {map_path} cannot be used: {map_problem}.",
        "SGLang reads the map after both models are loaded; a missing file is taken for a repository of the hub, whose whole snapshot is "
        "fetched.",
        ("sglang 0.5.23: srt/speculative/spec_utils.py (load_token_map)",),
        ("map_path",),
        lambda f: Change("Did you mean this one?", {"speculative_token_map": "{near_map}"}) if f["near_map"] else _BUILD,
    ),
    Rule(
        "sglang-map-relative",
        "a relative path of a token map",
        "note",
        lambda f: f["map"] and f["map_is_relative"],
        "The map's path is relative: here it is {map_path}, on the machine of the launch it is what the working directory there makes of "
        "it. "
        "Where there is none, SGLang takes it for a file of a hub repository.",
        "load_token_map looks for the path in the working directory of the process and downloads from the hub otherwise.",
        ("sglang 0.5.23: srt/speculative/spec_utils.py (load_token_map)",),
        ("map_path",),
        Change("Give it as an absolute path:", {"speculative_token_map": "{map_path}"}),
    ),
)
