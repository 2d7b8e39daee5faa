"""Options of an SGLang launch that contradict each other or do nothing: a table. A new row needs a test."""

from __future__ import annotations

from hothead.preflight.foreign.rule import Change, Rule
from hothead.preflight.foreign.sglang_places import HOOK, NO_DRAFTING

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
        (HOOK + " (_handle_eagle_family)",),
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
        (HOOK + " (_handle_eagle_family)",),
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
        (HOOK + " (_handle_eagle_family)",),
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
        (HOOK + " (_handle_eagle_family)",),
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
        (HOOK,),
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
        (HOOK,),
        ("algorithm",),
        Change("Without drafting:", NO_DRAFTING),
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
        (HOOK,),
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
        (HOOK + " (_resolve_speculative_algorithm_alias)",),
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
