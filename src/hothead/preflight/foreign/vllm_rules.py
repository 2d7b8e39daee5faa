"""What goes wrong with vLLM launches: a table. A new row needs a test in tests/unit/preflight/foreign."""

from __future__ import annotations

from hothead.preflight.foreign.rule import Change, Rule

_CONFIG = "vllm 0.33.0: vllm/config/speculative.py"
_ISSUE = "https://github.com/vllm-project/vllm/issues/"
_OTHER_FORMS = {"spec_method": None, "spec_model": None, "spec_tokens": None}
_NO_DRAFTING = {"speculative_config": None, **_OTHER_FORMS}


def _with(config: str) -> dict[str, str | bool | None]:
    return {**_OTHER_FORMS, "speculative_config": "{" + config + "}"}


VLLM_RULES = (
    Rule(
        "vllm-config-broken",
        "--speculative-config cannot be read",
        "error",
        lambda f: f["config_problem"],
        "--speculative-config cannot be read: {config_problem}.",
        "Its value is one JSON table; a shell takes the quotes away unless the whole value is in single quotes.",
        ("vllm 0.33.0: vllm/engine/arg_utils.py",),
        (),
        Change("Write it in single quotes, or as dotted options. Without drafting:", _NO_DRAFTING),
    ),
    Rule(
        "vllm-config-doubled",
        "an option and a key of --speculative-config say the same thing",
        "error",
        lambda f: f["doubled"],
        "{doubled} are mutually exclusive.",
        "The short options --spec-method, --spec-model and --spec-tokens are the same keys.",
        ("vllm 0.33.0: vllm/engine/arg_utils.py (create_speculative_config)",),
        (),
        Change("Say it once:", _with("config_tokens")),
    ),
    Rule(
        "vllm-config-unknown-key",
        "an unknown key in --speculative-config",
        "error",
        lambda f: f["unknown_key"],
        "--speculative-config has no key '{unknown_key}' (nearest: {nearest_keys}).",
        "Keys are fields of SpeculativeConfig; an unknown one is refused when the configuration is made. vLLM has no option for a token "
        "map: its hot "
        "vocabulary is the d2t table of an EAGLE3 draft.",
        (_CONFIG,),
        ("unknown_key",),
        Change("Without it:", _with("known_config")),
    ),
    Rule(
        "vllm-method-unknown",
        "an unknown speculative method",
        "error",
        lambda f: f["method_is_unknown"],
        "'{method}' is no speculative method ({nearest_methods}).",
        "Methods are a closed list; STANDALONE and NEXTN are SGLang's names (draft_model and mtp here).",
        (_CONFIG,),
        ("method",),
        Change("Drafting from the prompt needs no model:", _with("config_ngram")),
    ),
    Rule(
        "vllm-method-deprecated",
        "a method under its old name",
        "note",
        lambda f: f["deprecated_method"],
        "The method {deprecated_method} is called mtp now.",
        "Every model's multi-token prediction is one method.",
        (_CONFIG,),
        ("deprecated_method",),
    ),
    Rule(
        "vllm-no-draft-model",
        "no draft model is given",
        "error",
        lambda f: f["speculates"] and f["needs_model"] and f["draft"] is None and not f["method_is_unknown"],
        "The method {method} needs a draft, and --speculative-config has no model.",
        "num_speculative_tokens was provided but without speculative model, says vLLM. Only ngram, suffix, mtp and dspark do without.",
        (_CONFIG + " (__post_init__)",),
        ("method",),
        Change('Add "model": "FOLDER" (hothead train makes a draft). Drafting from the prompt needs none:', _with("config_ngram")),
    ),
    Rule(
        "vllm-tokens-missing",
        "num_speculative_tokens is missing or no number above 0",
        "error",
        lambda f: (
            f["speculates"]
            and (
                f["tokens_bad"]
                or (not f["tokens_given"] and f["method"] not in ("suffix", "dspark") and (f["method"] != "mtp" or f["has_mtp"] is False))
            )
        ),
        "--speculative-config needs num_speculative_tokens, a number above 0.",
        "Only a draft with multi-token prediction layers (n_predict) has a default.",
        (_CONFIG + " (_verify_args)",),
        (),
        Change("For example:", _with("config_tokens")),
    ),
    Rule(
        "vllm-tokens-divide",
        "num_speculative_tokens is no multiple of the target's draft layers",
        "error",
        lambda f: (
            f["method"] == "mtp"
            and (f["n_predict"] or 0) > 1
            and f.more("num_speculative_tokens", "n_predict")
            and f["num_speculative_tokens"] % f["n_predict"]
        ),
        "num_speculative_tokens is {num_speculative_tokens}, which {n_predict} draft layers do not divide.",
        "The layers are used in turn.",
        (_CONFIG + " (__post_init__)",),
        ("num_speculative_tokens", "n_predict"),
        Change("For example:", _with("config_n_predict")),
    ),
    Rule(
        "vllm-mtp-reused",
        "one draft layer drafts several tokens",
        "note",
        lambda f: f["method"] == "mtp" and f["n_predict"] == 1 and (f["num_speculative_tokens"] or 0) > 1,
        "One draft layer is run {num_speculative_tokens} times; acceptance falls with each.",
        "vLLM warns of the same.",
        (_CONFIG,),
        ("num_speculative_tokens", "n_predict"),
    ),
    Rule(
        "vllm-no-mtp",
        "mtp for a target without draft layers",
        "error",
        lambda f: f["method"] == "mtp" and f["draft"] is None and f["target_known"] and f["has_mtp"] is False,
        "{target_arch} has no draft layers in its configuration, and the method is mtp.",
        "mtp takes the draft from the target's own checkpoint.",
        (_CONFIG + " (hf_config_override)",),
        (),
        Change("Drafting from the prompt needs none:", _with("config_ngram")),
    ),
    Rule(
        "vllm-vocabulary",
        "draft and target have different vocabulary sizes",
        "error",
        lambda f: f["method"] == "draft_model" and not f["heterogeneous"] and f.differ("vocab_size", "draft_vocab"),
        "The target's vocabulary has {vocab_size} rows and the draft's {draft_vocab}; vLLM wants them equal.",
        "The numbers are rows of the heads, padding included: models of one family with other padding are refused although their "
        "tokenizers agree. "
        "With use_heterogeneous_vocab drafts are made of the tokens that both have.",
        (_ISSUE + "5203", _ISSUE + "7252", _CONFIG + " (verify_equal_vocab_size_if_draft_model)"),
        ("vocab_size", "draft_vocab"),
        Change("Draft with the tokens that both have:", _with("config_heterogeneous")),
        fine_when=lambda f: (
            f["method"] == "draft_model" and not f["heterogeneous"] and f["vocab_size"] and f["vocab_size"] == f["draft_vocab"]
        ),
        fine="Draft and target have one vocabulary size, {vocab_size}.",
    ),
    Rule(
        "vllm-heterogeneous",
        "use_heterogeneous_vocab where it cannot be",
        "error",
        lambda f: f["heterogeneous"] and (f["method"] != "draft_model" or f["draft_sampling"] != "greedy"),
        "use_heterogeneous_vocab works with the method draft_model and greedy drafts only (here: {method}, {draft_sampling}).",
        "The intersection of two vocabularies constrains a whole draft model's scores.",
        (_CONFIG + " (_verify_args)",),
        ("method",),
        Change("Without drafting:", _NO_DRAFTING),
    ),
    Rule(
        "vllm-eagle-vocabulary",
        "the target's tokenizer and the draft's head do not belong together",
        "warning",
        lambda f: f["method"] in ("eagle", "eagle3") and f.differ("vocab_size", "draft_vocab"),
        "The draft was made for a vocabulary of {draft_vocab}, the target has {vocab_size}.",
        "An EAGLE draft reads the target's tokens through a table of its own size.",
        (_CONFIG,),
        ("vocab_size", "draft_vocab"),
        Change("Use this target's own draft. Without drafting:", _NO_DRAFTING),
    ),
    Rule(
        "vllm-hidden-size",
        "draft and target have different hidden sizes",
        "error",
        lambda f: f["method"] == "eagle" and f.differ("hidden_size", "draft_hidden"),
        "The target's hidden size is {hidden_size}, the draft's {draft_hidden}: the draft was made for another target.",
        "An EAGLE head reads the target's hidden states.",
        ("vllm 0.33.0: vllm/model_executor/models/llama_eagle.py",),
        ("hidden_size", "draft_hidden"),
        Change("Use this target's own draft. Without drafting:", _NO_DRAFTING),
    ),
    Rule(
        "vllm-draft-is-eagle3",
        "an EAGLE3 draft under another method",
        "error",
        lambda f: f["method"] in ("eagle", "draft_model") and f["draft_is_eagle3"],
        "The draft is an EAGLE3 head ({draft_arch}), and the method is {method}.",
        "The method is found in the draft's name (eagle-, eagle3) where it is not given, and taken as given otherwise.",
        (_CONFIG,),
        ("draft_arch",),
        Change("Say eagle3:", _with("config_eagle3")),
    ),
    Rule(
        "vllm-d2t-missing",
        "a reduced draft vocabulary without a table of its tokens",
        "error",
        lambda f: f["method"] == "eagle3" and f["d2t"] in ("missing", "zero") and f.more("vocab_size", "draft_vocab_size"),
        "The draft's head has {draft_vocab_size} rows for a vocabulary of {vocab_size}, and its d2t table is {d2t}: row i is taken for "
        "token i, and next to "
        "nothing is accepted.",
        "The table starts as zeros and keeps them where the checkpoint has none; the server is healthy and accepts nothing.",
        ("https://github.com/NVIDIA-NeMo/Automodel/issues/2447", "vllm 0.33.0: vllm/model_executor/models/llama_eagle3.py"),
        ("draft_vocab_size", "vocab_size"),
        Change("Use a draft that was exported with its table (hothead train writes it). Without drafting:", _NO_DRAFTING),
    ),
    Rule(
        "vllm-draft-tp",
        "draft_tensor_parallel_size is neither 1 nor the target's",
        "error",
        lambda f: f["draft_tp_size"] is not None and f["draft_tp_size"] not in (1, f["tp_size"]),
        "draft_tensor_parallel_size is {draft_tp_size}; it can be 1 or {tp_size}, the target's.",
        "Draft and target share ranks.",
        (_CONFIG + " (_verify_and_get_draft_tp)",),
        ("draft_tp_size", "tp_size"),
        Change("As the target:", _with("config_draft_tp")),
    ),
    Rule(
        "vllm-tp-key",
        "tensor_parallel_size in --speculative-config",
        "error",
        lambda f: f["tp_in_config"] is not None,
        "'tensor_parallel_size' is no key of --speculative-config; the draft's is draft_tensor_parallel_size.",
        "The field exists to say so.",
        (_CONFIG + " (_verify_args)",),
        (),
        Change("As the target:", _with("config_draft_tp")),
    ),
    Rule(
        "vllm-draft-context",
        "the draft's context window is shorter than the target's",
        "warning",
        lambda f: (
            f["method"] in ("draft_model", "eagle", "eagle3", "dflash")
            and f.more("context", "draft_context")
            and not f["draft_max_model_len"]
        ),
        "The draft was trained for {draft_context} positions and the launch allows {context}: past {draft_context} drafts are seldom "
        "accepted, "
        "and versions before 0.33 read the rotary cache out of bounds there.",
        "For EAGLE kinds with a plain rotary embedding 0.33.0 raises the draft's max_position_embeddings; others (yarn, dynamic, "
        "longrope) keep theirs. "
        "An independent draft model stops drafting there.",
        (_ISSUE + "57941", _ISSUE + "58080", _CONFIG + " (_maybe_override_draft_max_position_embeddings)"),
        ("draft_context", "context"),
        Change("Allow no more than the draft can follow:", {"max_model_len": "{draft_context}"}),
    ),
    Rule(
        "vllm-head-quantization",
        "draft_lm_head_quantization with a method that has no shared head",
        "error",
        lambda f: f["head_quantization"] and f["method"] not in ("eagle", "eagle3", "mtp"),
        "draft_lm_head_quantization is not supported for the method {method}.",
        "It quantizes the draft's copy of the target's head, which EAGLE and MTP drafts have.",
        (_CONFIG + " (_verify_args)",),
        ("method",),
        Change("Without it:", _with("config_plain_head")),
    ),
    Rule(
        "vllm-found-method",
        "the method was found out from the draft's name",
        "note",
        lambda f: f["method_was_found"] and f["speculates"] and f["draft"],
        "No method is given: from the draft's name vLLM takes {method}.",
        "Names with eagle-, eagle3, dflash or dspark are taken for those kinds, everything else for an independent model.",
        (_CONFIG,),
        ("method",),
    ),
)
