"""What goes wrong with llama.cpp launches: a table. A new row needs a test in tests/unit/preflight/foreign."""

from __future__ import annotations

from hothead.preflight.foreign.facts import Facts
from hothead.preflight.foreign.rule import Change, Rule

_COMMON = "ggml-org/llama.cpp@0c1e57098: common/"
_ISSUE = "https://github.com/ggml-org/llama.cpp/issues/"
_NO_DRAFT = {
    "spec_draft_model": None,
    "spec_draft_hf": None,
    "spec_type": None,
    "spec_draft_ngl": None,
    "spec_draft_n_max": None,
    "spec_draft_n_min": None,
}
_NGRAM = {**_NO_DRAFT, "spec_type": "ngram-simple"}


def _is_simple(facts: Facts) -> bool:
    """Only the independent draft model is compared with the target's vocabulary, when it is used or would be."""
    return facts["has_draft"] and facts["active_types"] in (None, "draft-simple")


LLAMA_CPP_RULES = (
    Rule(
        "llama-cpp-off",
        "a draft is loaded and never used",
        "error",
        lambda f: f["has_draft"] and f["active_types"] is None and not f["unknown_type"] and f["draft_problem"] is None,
        "The draft is loaded, and speculation stays off: --spec-type is none by default, and nothing in the draft's file says otherwise.",
        "Only DFlash, DSpark and MTP drafts are recognised by their files. For any other the type has to be given; without it the server "
        "loads the draft "
        "into memory, generates without it, and says nothing.",
        (_ISSUE + "25345", _COMMON + "arg.cpp, speculative.cpp (common_speculative_init)"),
        (),
        Change("Say what kind of draft it is:", {"spec_type": "{likely_type}"}),
        fine_when=lambda f: f["has_draft"] and f["active_types"] and not f["vocab_trouble"],
        fine="Speculation is on: {active_types}.",
    ),
    Rule(
        "llama-cpp-no-draft",
        "a type of speculation that needs a draft, and none is given",
        "error",
        lambda f: f["needs_draft"] and not f["has_draft"],
        "--spec-type {needs_draft} needs a draft model (-md FILE): without one the server runs and drafts nothing.",
        "draft-simple fails to start its context, the others are left out; the server logs it and goes on without speculation.",
        (_COMMON + "speculative.cpp (common_speculative_init)", "ggml-org/llama.cpp@0c1e57098: tools/server/server-context.cpp"),
        ("types",),
        Change("Give the draft with -md FILE. Drafting from the prompt needs none:", _NGRAM),
    ),
    Rule(
        "llama-cpp-type-unknown",
        "an unknown type of speculation",
        "error",
        lambda f: f["unknown_type"],
        "--spec-type has no '{unknown_type}' (known: {nearest_types}).",
        "The argument's handler throws, and the program leaves.",
        (_COMMON + "speculative.cpp",),
        ("unknown_type",),
        Change("For example:", {"spec_type": "{likely_type}"}),
    ),
    Rule(
        "llama-cpp-vocabulary-size",
        "the vocabularies differ by more than 128 tokens",
        "error",
        lambda f: _is_simple(f) and f.more("vocab_difference", "max_difference"),
        "The target has {vocab_size} tokens and the draft {draft_vocab}: a difference of {vocab_difference}, and at most "
        "{max_difference} are allowed.",
        "The server says that the vocabularies are not compatible and goes on without speculation. The rule is on tokens, not rows of "
        "the head.",
        (_COMMON + "speculative.cpp (SPEC_VOCAB_MAX_SIZE_DIFFERENCE)", "https://github.com/LostRuins/koboldcpp/issues/2325"),
        ("vocab_size", "draft_vocab", "vocab_difference", "max_difference"),
        Change("Use a draft of the target's family. Drafting from the prompt needs none:", _NGRAM),
    ),
    Rule(
        "llama-cpp-vocabulary-token",
        "a token differs between the vocabularies",
        "error",
        lambda f: _is_simple(f) and f["first_differing_id"] is not None and not f.more("vocab_difference", "max_difference"),
        "Token {first_differing_id} is {target_token} in the target and {draft_token} in the draft (compared from id {first_compared} on).",
        "Every token from id 5 to the end of the shorter vocabulary must have the same text. llama.cpp prints which one differs only at "
        "debug level, and "
        "goes on without speculation.",
        (_COMMON + "speculative.cpp (SPEC_VOCAB_CHECK_START_TOKEN_ID)", "https://github.com/LostRuins/koboldcpp/issues/2325"),
        ("first_differing_id", "vocab_size", "draft_vocab"),
        Change("Use a draft of the target's family. Drafting from the prompt needs none:", _NGRAM),
    ),
    Rule(
        "llama-cpp-vocabulary-kind",
        "the tokenizers are of different kinds",
        "error",
        lambda f: _is_simple(f) and f.differ("target_vocab_type", "draft_vocab_type"),
        "The target's tokenizer is {target_vocab_type}, the draft's {draft_vocab_type}.",
        "Kinds (byte-level BPE, SentencePiece, ...) must be equal before tokens are compared at all.",
        (_COMMON + "speculative.cpp (common_speculative_are_compatible)",),
        ("target_vocab_type", "draft_vocab_type"),
        Change("Use a draft of the target's family. Drafting from the prompt needs none:", _NGRAM),
    ),
    Rule(
        "llama-cpp-bos-eos",
        "the first or last tokens of a text differ",
        "error",
        lambda f: _is_simple(f) and (f["bos_differs"] or f["eos_differs"]),
        "Draft and target begin or end a text differently: bos {draft_bos} and {target_bos}, eos {draft_eos} and {target_eos}, or one of "
        "them adds it and "
        "the other does not.",
        "Such drafts are refused, although only the first token of a prompt is concerned. A draft's file can be given the target's fields.",
        (_COMMON + "speculative.cpp (common_speculative_are_compatible)", _ISSUE + "10455"),
        ("draft_bos", "target_bos", "draft_eos", "target_eos"),
        Change("Use a draft converted with the target's settings. Drafting from the prompt needs none:", _NGRAM),
    ),
    Rule(
        "llama-cpp-no-nextn",
        "draft-mtp for a target without draft layers",
        "error",
        lambda f: "draft-mtp" in (f["active_types"] or "") and f["has_nextn"] is False and not f["has_draft"],
        "--spec-type draft-mtp takes the draft from the target, whose file has no nextn layers.",
        "Many converted files leave the multi-token prediction layers out.",
        (_COMMON + "speculative.cpp",),
        (),
        Change("Drafting from the prompt needs none:", _NGRAM),
    ),
    Rule(
        "llama-cpp-removed",
        "an option that has been removed",
        "error",
        lambda f: f["removed"] and f["renamed_dest"],
        "{removed} has been removed: {removed_says}. The program leaves.",
        "The names of the draft's numbers changed when n-gram drafting got its own.",
        (_COMMON + "arg.cpp (removed params)",),
        (),
        lambda f: Change("Under its new name:", {f["removed_dest"]: None, f["renamed_dest"]: "{removed_value}"}),
    ),
    Rule(
        "llama-cpp-minimum",
        "the least number of draft tokens is above the most",
        "error",
        lambda f: f["active_types"] and f.more("n_min", "n_max"),
        "--spec-draft-n-min {n_min} is more than --spec-draft-n-max {n_max}: no draft is ever long enough.",
        "Drafts shorter than the least number are thrown away.",
        (_COMMON + "speculative.cpp",),
        ("n_min", "n_max"),
        Change("For example:", {"spec_draft_n_min": "0"}),
    ),
    Rule(
        "llama-cpp-numbers-without-draft",
        "numbers of a draft and no draft",
        "warning",
        lambda f: f["has_draft_numbers"] and not f["has_draft"] and f["active_types"] is None and not f["unknown_type"],
        "--spec-draft-... options are given, and neither a draft nor --spec-type: they have no effect.",
        "Speculation is off by default.",
        (_COMMON + "arg.cpp",),
        ("n_max", "n_min"),
        Change(
            "Drafting from the prompt needs no model:", {"spec_type": "ngram-simple", "spec_draft_n_max": None, "spec_draft_n_min": None}
        ),
    ),
    Rule(
        "llama-cpp-draft-context",
        "the draft's context window is shorter than the target's",
        "warning",
        lambda f: f["has_draft"] and f.more("context", "draft_context"),
        "The draft was trained for {draft_context} positions and the launch allows {context}: past {draft_context} drafts are seldom "
        "accepted.",
        "The draft's context is made as long as the target's, whatever the draft was trained for.",
        (_COMMON + "common.cpp", "https://github.com/sgl-project/sglang/issues/6783"),
        ("draft_context", "context"),
        Change("Allow no more than the draft can follow:", {"ctx_size": "{draft_context}"}),
    ),
    Rule(
        "llama-cpp-inferred",
        "the kind of speculation was found in the draft's file",
        "note",
        lambda f: f["type_was_inferred"],
        "No --spec-type is given: the draft's file says {active_types}.",
        "Only the first part of a split file is looked at.",
        (_COMMON + "speculative.cpp (common_speculative_types_from_gguf)",),
        (),
    ),
)
