"""What goes wrong with SGLang launches: a table. A new row needs a test in tests/unit/preflight/foreign."""

from __future__ import annotations

from hothead.preflight.foreign.facts import Facts
from hothead.preflight.foreign.rule import Change, Rule, Run

_WORKER = "sglang 0.5.23: srt/speculative/eagle_worker_v2.py"
_HOOK = "sglang 0.5.23: srt/arg_groups/speculative_hook.py"
_NO_MAP = {"speculative_token_map": None}
_NO_DRAFTING = {
    "speculative_algorithm": None,
    "speculative_draft_model_path": None,
    "speculative_token_map": None,
    "speculative_num_steps": None,
    "speculative_eagle_topk": None,
    "speculative_num_draft_tokens": None,
    "speculative_use_rejection_sampling": None,
}
_ISSUE = "https://github.com/sgl-project/sglang/issues/"
_PULL = "https://github.com/sgl-project/sglang/pull/"


def _cuts(facts: Facts) -> bool:
    """The map is used: the target's head is indexed with it."""
    return bool(facts["uses_map"] and facts["map"])


def _is_cut(facts: Facts) -> bool:
    return _cuts(facts) and (facts["num_shards"] or 1) > 1


def _can_be_whole(facts: Facts) -> bool:
    return bool(facts["head_follows_attention"]) and not facts["is_tied"]


_WITHOUT = Change("Leave the map out, or give all its work to one rank (it works with tp_size 1). Without the map:", _NO_MAP)
_WHOLE_HEADS = Change(
    "Give every rank a whole head with full attention data parallelism, or leave the map out. With whole heads:",
    {"dp_size": None, "enable_dp_attention": None, "attn_dp_size": "{tp_size}", "enable_dp_lm_head": True},
)

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
            _ISSUE + "4328",
            "https://github.com/Ascend/sglang/pull/1133",
            _WORKER + " (init_lm_head)",
            "sglang 0.5.23: srt/layers/vocab_parallel_embedding.py",
        ),
        ("vocab_size", "num_shards", "rows_per_rank", "num_ids", "num_bad", "first_bad_id", "first_bad_index", "max_id"),
        lambda f: _WHOLE_HEADS if _can_be_whole(f) else _WITHOUT,
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
            _WORKER + " (init_lm_head, draft)",
            "observed with SGLang 0.5.23 on CPU: index 430 is out of bounds for dimension 0 with size 256",
        ),
        ("vocab_size", "num_shards", "rows_per_rank", "num_ids", "max_id"),
        Change("Leave the map out, or use one rank. Without the map:", _NO_MAP),
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
        (_ISSUE + "4328",),
        ("vocab_size", "num_shards", "rows_per_rank"),
        Change("Leave the map out, or use one rank. Without the map:", _NO_MAP),
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
        (_ISSUE + "4328",),
        ("tp_size", "attn_dp_size"),
        Change("Give the model as a local folder to know for certain. What works in every case is the launch without the map:", _NO_MAP),
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
        (_WORKER + " (init_lm_head)",),
        ("num_ids", "num_past_vocab", "max_id", "vocab_size"),
        Run(
            "Build one for this model, and use it:",
            "hothead map build --model {model} --size {num_ids} -o {new_map}",
            {"speculative_token_map": "{new_map}"},
        ),
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
        (_WORKER + " (init_token_map)",),
        ("map", "draft_vocab_size"),
        Change("Leave it out:", _NO_MAP),
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
        Change("Leave the map out:", _NO_MAP),
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
        ("sglang 0.5.23: srt/speculative/multi_layer_eagle_worker_v2.py, ngram_worker.py, frozen_kv_mtp_worker_v2.py", _HOOK),
        ("algorithm", "map"),
        Change("Leave it out:", _NO_MAP),
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
        (_WORKER + " (alloc_memory_pool)",),
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
        ("https://github.com/vllm-project/vllm/issues/53104", _WORKER + " (init_lm_head)"),
        ("head_format", "num_ids"),
        Change("Leave the map out, or use a checkpoint whose head is not quantized. Without the map:", _NO_MAP),
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
        Run("Build one, and use it:", "hothead map build --model {model} -o {new_map}", {"speculative_token_map": "{new_map}"}),
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

DRAFT_RULES = (
    Rule(
        "sglang-no-draft-path",
        "no draft is given, and the target has none inside",
        "error",
        lambda f: (
            f["algorithm"] in ("EAGLE", "EAGLE3", "STANDALONE")
            and f["draft"] is None
            and (f["algorithm"] == "EAGLE3" or f["has_draft_layers"] is False)
        ),
        "{algorithm} has no --speculative-draft-model-path, and {target_arch} has no draft of its own that it would use: the target is "
        "loaded a second time "
        "as its own draft.",
        "SGLang falls back to the target's path. EAGLE3 then fails with an AttributeError (set_embed, hot_token_id) after loading the "
        "target twice; EAGLE and "
        "STANDALONE draft with the whole target, which costs more than it saves.",
        (_ISSUE + "36528", "sglang 0.5.23: srt/configs/model_config.py (from_server_args)"),
        ("algorithm",),
        Change("Give a draft with --speculative-draft-model-path FOLDER (hothead train makes one). Without drafting:", _NO_DRAFTING),
    ),
    Rule(
        "sglang-bundled-draft",
        "the target has its draft inside",
        "note",
        lambda f: f["algorithm"] == "EAGLE" and f["has_draft_layers"] and (f["draft_is_target"] or f["draft"] is None),
        "{target_arch} has draft layers of its own; they are loaded from the target's checkpoint.",
        "Targets with multi-token prediction layers are loaded a second time with their configuration turned into that of the draft "
        "layers. "
        "EAGLE and NEXTN both use them.",
        (_HOOK + " (_handle_eagle_family)", "sglang 0.5.23: srt/configs/model_config.py (_config_draft_model)"),
        ("algorithm", "num_mtp_layers"),
    ),
    Rule(
        "sglang-no-mtp-weights",
        "the target's configuration has no draft layers",
        "error",
        lambda f: f["algorithm"] == "EAGLE" and f["has_draft_layers"] and f["draft"] in (None, f["model"]) and f["num_mtp_layers"] == 0,
        "{target_arch} models can have draft layers, but this one says it has 0 of them: there is nothing to draft with.",
        "Quantized or converted checkpoints often leave the multi-token prediction layers out. The draft then has missing weights.",
        (_HOOK,),
        ("num_mtp_layers",),
        Change("Without drafting:", _NO_DRAFTING),
    ),
    Rule(
        "sglang-draft-is-eagle3",
        "an EAGLE3 draft under the algorithm EAGLE",
        "error",
        lambda f: f["algorithm"] == "EAGLE" and f["draft_is_eagle3"],
        "The draft is an EAGLE3 head ({draft_arch}) and the algorithm is EAGLE: it gets one hidden state where it wants three, its "
        "fusion layer is skipped "
        "without a word, and nothing is ever accepted.",
        "EAGLE mode does not capture the three intermediate hidden states. The dimension check in the draft's forward happens to pass, "
        "so the server is "
        "healthy with an accept length of 1.00.",
        (_PULL + "21272",),
        ("draft_arch",),
        Change("Say EAGLE3 (which ignores a token map):", {"speculative_algorithm": "EAGLE3", **_NO_MAP}),
    ),
    Rule(
        "sglang-draft-is-eagle",
        "an EAGLE draft under the algorithm EAGLE3",
        "error",
        lambda f: f["algorithm"] == "EAGLE3" and f["draft_is_eagle"],
        "The draft is an EAGLE head ({draft_arch}) and the algorithm is EAGLE3, which gives it three hidden states and asks it for a d2t "
        "table it does not have.",
        "EAGLE and EAGLE3 heads have different inputs. The wrong one fails while models are joined, after both are loaded.",
        (_WORKER + " (init_lm_head)",),
        ("draft_arch",),
        Change("Say EAGLE:", {"speculative_algorithm": "EAGLE"}),
    ),
    Rule(
        "sglang-hidden-size",
        "draft and target have different hidden sizes",
        "error",
        lambda f: f["algorithm"] == "EAGLE" and f["draft_is_eagle"] and f.differ("hidden_size", "draft_hidden"),
        "The target's hidden size is {hidden_size}, the draft's {draft_hidden}: the draft was made for another target.",
        "An EAGLE head shares the target's embedding and head, so its width must be the target's. (EAGLE3 heads may differ: they have a "
        "fusion layer.)",
        (_PULL + "4716",),
        ("hidden_size", "draft_hidden"),
        Change("Use this target's own draft. Without drafting:", _NO_DRAFTING),
    ),
    Rule(
        "sglang-standalone-vocabulary",
        "STANDALONE needs equal vocabularies",
        "error",
        lambda f: f["algorithm"] == "STANDALONE" and f.differ("vocab_size", "draft_vocab"),
        "STANDALONE needs draft and target to have one vocabulary size, and they have {draft_vocab} and {vocab_size}: a ValueError once "
        "both are loaded.",
        "The two numbers are rows of the heads, padding included, so models of one family with different padding are refused although "
        "their "
        "tokenizers agree.",
        (
            "sglang 0.5.23: srt/speculative/standalone_worker_v2.py (_validate_vocab_compatibility)",
            "https://github.com/vllm-project/vllm/issues/5203",
        ),
        ("vocab_size", "draft_vocab"),
        Change("Use a draft with {vocab_size} rows. Without drafting:", _NO_DRAFTING),
    ),
    Rule(
        "sglang-d2t-missing",
        "a reduced draft vocabulary without a table of its tokens",
        "error",
        lambda f: f["algorithm"] == "EAGLE3" and f["d2t"] == "missing" and f.more("vocab_size", "draft_vocab_size"),
        "The draft's head has {draft_vocab_size} rows for a vocabulary of {vocab_size}, and its checkpoint has no d2t tensor: "
        "row i is taken for token i, and next to nothing is accepted.",
        "Without d2t the draft ids are used as they come. The first tokens of a vocabulary are bytes and rare pieces, so acceptance is "
        "near zero "
        "while the server looks healthy.",
        ("https://github.com/NVIDIA-NeMo/Automodel/issues/2447", "sglang 0.5.23: srt/models/llama_eagle3.py (load_weights)"),
        ("draft_vocab_size", "vocab_size"),
        Change("Use a draft that was exported with its table (hothead train writes it). Without drafting:", _NO_DRAFTING),
    ),
    Rule(
        "sglang-d2t-zero",
        "the table of a reduced draft vocabulary is all zeros",
        "error",
        lambda f: f["algorithm"] == "EAGLE3" and f["d2t"] == "zero" and f.more("vocab_size", "draft_vocab_size"),
        "The draft's d2t table of {draft_vocab_size} entries is all zeros: as offsets they mean tokens 0 to {draft_vocab_size} - 1, "
        "which is what an exporter writes that never filled it.",
        "d2t holds offsets: target id = draft id + d2t[draft id]. All zeros is a valid table of the first tokens, and in practice a "
        "table nobody filled.",
        ("https://github.com/SafeAILab/EAGLE/issues/222",),
        ("draft_vocab_size", "vocab_size"),
        Change("Use a draft that was exported with its table. Without drafting:", _NO_DRAFTING),
    ),
    Rule(
        "sglang-d2t-range",
        "the table of a reduced draft vocabulary leaves the target's vocabulary",
        "error",
        lambda f: f["algorithm"] == "EAGLE3" and f["d2t"] == "range",
        "The draft's d2t table, read as offsets, gives ids up to {d2t_max} for a vocabulary of {vocab_size}: it holds absolute ids, or "
        "belongs to another model.",
        "d2t[i] is added to i. A table of absolute ids gives ids that are too large, and the gather of scores fails or names other tokens.",
        ("https://github.com/SafeAILab/EAGLE/issues/222", "sglang 0.5.23: srt/models/llama_eagle3.py (load_weights)"),
        ("d2t_max", "vocab_size", "draft_vocab_size"),
        Change("Use a draft whose table holds offsets. Without drafting:", _NO_DRAFTING),
    ),
    Rule(
        "sglang-d2t-rows",
        "the table of a reduced draft vocabulary and draft_vocab_size disagree",
        "error",
        lambda f: f["algorithm"] == "EAGLE3" and f.differ("d2t_rows", "draft_vocab_size"),
        "The draft's d2t table has {d2t_rows} entries, and its configuration says draft_vocab_size = {draft_vocab_size}.",
        "Scores have draft_vocab_size columns and each needs an entry of the table.",
        ("https://github.com/sgl-project/SpecForge/issues/602",),
        ("d2t_rows", "draft_vocab_size"),
        Change("Use a draft whose files belong together. Without drafting:", _NO_DRAFTING),
    ),
    Rule(
        "sglang-eagle3-head-missing",
        "the draft declares a head of its own and ships none",
        "error",
        lambda f: f["algorithm"] == "EAGLE3" and f["draft_has_head"] is False and f["draft_vocab_size"] and not f["draft_is_tied"],
        "The draft declares a head of {draft_vocab_size} rows (draft_vocab_size) and its checkpoint has no lm_head.weight: "
        "the head keeps random numbers, and nothing is accepted.",
        "Missing weights are not an error there. With draft_vocab_size left out of the configuration the target's head is used instead.",
        (_ISSUE + "27908",),
        ("draft_vocab_size",),
        Change("Use a complete draft. Without drafting:", _NO_DRAFTING),
    ),
    Rule(
        "sglang-tied-draft",
        "the draft's head is tied",
        "error",
        lambda f: (
            f["algorithm"] in ("EAGLE", "EAGLE3")
            and f["draft_is_tied"]
            and (f["draft_is_eagle"] or f["draft_is_eagle3"])
            and (f["algorithm"] == "EAGLE" or f.more("vocab_size", "draft_vocab_size"))
        ),
        "The draft's configuration says tie_word_embeddings = true, copied from the target: {tied_trouble}.",
        "For EAGLE the embedding and the head are one parameter, which is deleted twice when the target's are put in: an AttributeError. "
        "For EAGLE3 with a "
        "reduced vocabulary the head becomes the embedding with the target's rows, and the scores no longer fit the table.",
        (_ISSUE + "33964", "https://github.com/vllm-project/speculators/issues/74", "sglang 0.5.23: srt/models/llama_eagle3.py"),
        ("draft_vocab_size", "vocab_size"),
        Run(
            "A draft's head is its own: write tie_word_embeddings = false into its config.json.",
            "sed -i -E 's/(\"tie_word_embeddings\": *)true/\\1false/' {draft_config}",
        ),
    ),
    Rule(
        "sglang-draft-context",
        "the draft's context window is shorter than the target's",
        "warning",
        lambda f: f["algorithm"] in ("EAGLE", "EAGLE3", "STANDALONE") and f.more("context", "draft_context"),
        "The draft was trained for {draft_context} positions and the launch allows {context}: past {draft_context} drafts are seldom "
        "accepted.",
        "Acceptance falls to nothing behind the draft's window, and with some rotary caches positions past it are read out of bounds.",
        (_ISSUE + "6783", "https://github.com/vllm-project/vllm/issues/57941"),
        ("draft_context", "context"),
        Change("Allow no more than the draft can follow, or take longer requests without drafting:", {"context_length": "{draft_context}"}),
    ),
    Rule(
        "sglang-precision",
        "a quantized target with a draft of another precision",
        "warning",
        lambda f: (
            f["algorithm"] in ("EAGLE", "EAGLE3")
            and f["quantization_given"]
            and f["draft_quantization_given"] is None
            and f["draft_quantization"] is None
            and f["draft_known"]
        ),
        "--quantization {quantization_given} is meant for the target, and the draft inherits it although its checkpoint is not quantized.",
        "Draft heads are small and sensitive; in one report an FP8 target with a half-precision draft head accepted nothing.",
        ("https://github.com/vllm-project/vllm/issues/9534", _HOOK),
        ("quantization_given",),
        Change("Say that the draft is as it is:", {"speculative_draft_model_quantization": "unquant"}),
    ),
)

OPTION_RULES = (
    Rule(
        "sglang-draft-tokens-adjusted",
        "the number of draft tokens is changed silently",
        "warning",
        lambda f: (
            f["algorithm"] in ("EAGLE", "EAGLE3", "STANDALONE")
            and f["eagle_topk"] == 1
            and f.differ("num_draft_tokens_before", "num_draft_tokens")
        ),
        "With --speculative-eagle-topk 1 the draft is a chain of {num_steps} steps, and --speculative-num-draft-tokens "
        "{num_draft_tokens_before} "
        "becomes {num_draft_tokens} (steps + 1).",
        "A chain has one node per step and the token it starts from; the option is overwritten with a warning in the log.",
        (_HOOK + " (_handle_eagle_family)",),
        ("num_steps", "eagle_topk", "num_draft_tokens_before", "num_draft_tokens"),
        Change("Say what is used:", {"speculative_num_draft_tokens": "{num_draft_tokens}"}),
    ),
    Rule(
        "sglang-draft-tokens-missing",
        "a tree without a number of draft tokens",
        "error",
        lambda f: (
            f["algorithm"] in ("EAGLE", "EAGLE3", "STANDALONE")
            and (f["eagle_topk"] or 0) > 1
            and f["num_steps"]
            and f["num_draft_tokens"] is None
        ),
        "--speculative-eagle-topk {eagle_topk} draws a tree, and --speculative-num-draft-tokens does not say how many of its nodes are "
        "checked.",
        "Only the three options together, or none of them, have defaults.",
        (_HOOK + " (_handle_eagle_family)",),
        ("num_steps", "eagle_topk"),
        Change("Say how many, for example:", {"speculative_num_draft_tokens": "{nodes}"}),
    ),
    Rule(
        "sglang-tree-too-large",
        "more draft tokens than the tree has nodes",
        "warning",
        lambda f: (
            (f["eagle_topk"] or 0) > 1 and f["algorithm"] in ("EAGLE", "EAGLE3", "STANDALONE") and f.more("num_draft_tokens", "max_nodes")
        ),
        "{num_draft_tokens} draft tokens are asked for, and a tree of {num_steps} steps with {eagle_topk} candidates each has at most "
        "{max_nodes} nodes.",
        "The first step gives topk candidates and every later one topk times topk; the choice is made among those.",
        ("sglang 0.5.23: srt/speculative/eagle_utils.py",),
        ("num_draft_tokens", "num_steps", "eagle_topk", "max_nodes"),
        Change("Ask for no more than there are:", {"speculative_num_draft_tokens": "{max_nodes}"}),
    ),
    Rule(
        "sglang-incomplete-draft-options",
        "the numbers of the draft are given in part",
        "error",
        lambda f: f["refusal_id"] in ("steps", "topk"),
        "SGLang stops at: {refusal}.",
        "An assertion without a message: the three numbers have defaults only together (3, 1, 4; for Llama and Grok 5, 4, 8).",
        (_HOOK + " (_handle_eagle_family)",),
        ("num_steps_given", "eagle_topk_given", "num_draft_tokens_given"),
        Change(
            "Give all three:",
            {
                "speculative_num_steps": "{steps_or_default}",
                "speculative_eagle_topk": "{topk_or_default}",
                "speculative_num_draft_tokens": "{tokens_or_default}",
            },
        ),
    ),
    Rule(
        "sglang-rejection-options",
        "rejection sampling with options that it does not have",
        "error",
        lambda f: f["refusal_id"] in ("rejection-algorithm", "rejection-topk"),
        "SGLang refuses {refusal}.",
        "Its rejection kernel takes a chain (topk 1) of EAGLE or EAGLE3 drafts.",
        (_HOOK + " (_handle_eagle_family)",),
        ("eagle_topk",),
        Change("Without it:", {"speculative_use_rejection_sampling": None, "speculative_use_block_verification": None}),
        since="0.5.15",
    ),
    Rule(
        "sglang-parallel-sizes",
        "the parallel sizes contradict each other",
        "error",
        lambda f: f["refusal_id"] in ("sizes", "replicas", "attn-dp", "attn-cp"),
        "SGLang refuses the launch: {refusal}.",
        "Attention data parallelism cuts the tp_size ranks into groups of one size; replicas (--dp-size) cannot be combined with it.",
        ("sglang 0.5.23: srt/arg_groups/parallel_hook.py (handle_data_parallelism)",),
        ("tp_size", "dp_size", "attn_dp_size", "attn_cp_size"),
        Change(
            "Use one attention group:",
            {"dp_size": None, "attn_dp_size": None, "attn_cp_size": None, "enable_dp_attention": None, "enable_dp_lm_head": None},
        ),
    ),
    Rule(
        "sglang-dp-lm-head",
        "--enable-dp-lm-head without attention data parallelism",
        "error",
        lambda f: f["refusal_id"] == "dp-lm-head",
        "--enable-dp-lm-head with {dp_size} replicas and no attention data parallelism: an assertion fails.",
        "The option cuts heads over attention groups, of which there is one.",
        ("sglang 0.5.23: srt/arg_groups/overrides.py (_dp_lm_head_validation)",),
        ("dp_size", "attn_dp_size"),
        Change("Leave it out:", {"enable_dp_lm_head": None}),
    ),
    Rule(
        "sglang-dp-lm-head-off",
        "--enable-dp-lm-head has no effect with one data-parallel rank",
        "warning",
        lambda f: f["dp_lm_head_given"] and f["dp_size"] == 1 and f["attn_dp_size"] == 1 and not f["refusal"],
        "--enable-dp-lm-head is switched off, since there is one data-parallel rank: the head is cut over all {tp_size} ranks.",
        "Resolution resets the option without a word.",
        ("sglang 0.5.23: srt/arg_groups/overrides.py (_data_parallelism_defaults)",),
        ("tp_size",),
        Change("Leave it out:", {"enable_dp_lm_head": None}),
    ),
    Rule(
        "sglang-attention-dp-draft",
        "this algorithm does not work with attention data parallelism",
        "error",
        lambda f: f["refusal_id"] == "attention-dp-draft",
        "SGLang refuses {refusal} (attn_dp_size {attn_dp_size}).",
        "Their workers do not keep the ranks of the attention groups in step.",
        (_HOOK,),
        ("algorithm", "attn_dp_size"),
        Change(
            "Without attention data parallelism:",
            {"enable_dp_attention": None, "attn_dp_size": None, "dp_size": None, "enable_dp_lm_head": None},
        ),
    ),
    Rule(
        "sglang-refused",
        "SGLang refuses the launch while it resolves its arguments",
        "error",
        lambda f: f["refusal_id"] in ("gemma4", "draft-path"),
        "SGLang refuses {refusal}.",
        "Said by its own resolution, before anything is loaded.",
        (_HOOK,),
        ("algorithm",),
        Change("Without drafting:", _NO_DRAFTING),
    ),
    Rule(
        "sglang-algorithm-unknown",
        "an unknown algorithm",
        "error",
        lambda f: f["algorithm"] and f["algorithm_is_unknown"],
        "'{algorithm_given}' is no speculative algorithm of this version ({nearest_algorithms}).",
        "Plugins can register more; without one the launch stops at its resolution.",
        ("sglang 0.5.23: srt/speculative/spec_info.py",),
        ("algorithm_given",),
        Change("Use one of those, for example:", {"speculative_algorithm": "{nearest_algorithm}"}),
    ),
    Rule(
        "sglang-no-algorithm",
        "options of drafting without an algorithm",
        "warning",
        lambda f: f["algorithm"] is None and f["drafting_options"] and not f["map"],
        "No --speculative-algorithm is given, so {drafting_options} have no effect: nothing is drafted.",
        "The server starts and runs without speculation.",
        (_HOOK,),
        ("drafting_options",),
        Change("Say which, for example:", {"speculative_algorithm": "{likely_algorithm}"}),
    ),
    Rule(
        "sglang-nextn",
        "NEXTN is EAGLE",
        "note",
        lambda f: f["algorithm_given"] == "NEXTN",
        "NEXTN is another name of {algorithm} here.",
        "Since multi-token prediction layers are drafted with by the same worker, the name is replaced at resolution.",
        (_HOOK + " (_resolve_speculative_algorithm_alias)",),
        ("algorithm",),
    ),
    Rule(
        "sglang-config-equals",
        "--config=FILE is not read",
        "warning",
        lambda f: f["config_equals"],
        "--config={config_equals} is parsed and then ignored: only `--config FILE` in two words is read.",
        "The config file is merged before arguments are parsed, by looking for the word --config.",
        ("sglang 0.5.23: srt/server_args.py (prepare_server_args)",),
        (),
        Change("In two words:", {"config": "{config_equals}"}),
    ),
)

SGLANG_RULES = MAP_RULES + DRAFT_RULES + OPTION_RULES
