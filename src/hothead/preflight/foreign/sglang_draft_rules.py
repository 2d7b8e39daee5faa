"""Where a draft and an SGLang launch do not fit: a table. A new row needs a test."""

from __future__ import annotations

from hothead.preflight.foreign.rule import Change, Rule, Run
from hothead.preflight.foreign.sglang_places import HOOK, ISSUE, NO_DRAFTING, NO_MAP, PULL, WORKER

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
        (ISSUE + "36528", "sglang 0.5.23: srt/configs/model_config.py (from_server_args)"),
        ("algorithm",),
        Change("Give a draft with --speculative-draft-model-path FOLDER (hothead train makes one). Without drafting:", NO_DRAFTING),
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
        (HOOK + " (_handle_eagle_family)", "sglang 0.5.23: srt/configs/model_config.py (_config_draft_model)"),
        ("algorithm", "num_mtp_layers"),
    ),
    Rule(
        "sglang-no-mtp-weights",
        "the target's configuration has no draft layers",
        "error",
        lambda f: f["algorithm"] == "EAGLE" and f["has_draft_layers"] and f["draft"] in (None, f["model"]) and f["num_mtp_layers"] == 0,
        "{target_arch} models can have draft layers, but this one says it has 0 of them: there is nothing to draft with.",
        "Quantized or converted checkpoints often leave the multi-token prediction layers out. The draft then has missing weights.",
        (HOOK,),
        ("num_mtp_layers",),
        Change("Without drafting:", NO_DRAFTING),
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
        (PULL + "21272",),
        ("draft_arch",),
        Change("Say EAGLE3 (which ignores a token map):", {"speculative_algorithm": "EAGLE3", **NO_MAP}),
    ),
    Rule(
        "sglang-draft-is-eagle",
        "an EAGLE draft under the algorithm EAGLE3",
        "error",
        lambda f: f["algorithm"] == "EAGLE3" and f["draft_is_eagle"],
        "The draft is an EAGLE head ({draft_arch}) and the algorithm is EAGLE3, which gives it three hidden states and asks it for a d2t "
        "table it does not have.",
        "EAGLE and EAGLE3 heads have different inputs. The wrong one fails while models are joined, after both are loaded.",
        (WORKER + " (init_lm_head)",),
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
        (PULL + "4716",),
        ("hidden_size", "draft_hidden"),
        Change("Use this target's own draft. Without drafting:", NO_DRAFTING),
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
        Change("Use a draft with {vocab_size} rows. Without drafting:", NO_DRAFTING),
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
        Change("Use a draft that was exported with its table (hothead train writes it). Without drafting:", NO_DRAFTING),
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
        Change("Use a draft that was exported with its table. Without drafting:", NO_DRAFTING),
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
        Change("Use a draft whose table holds offsets. Without drafting:", NO_DRAFTING),
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
        Change("Use a draft whose files belong together. Without drafting:", NO_DRAFTING),
    ),
    Rule(
        "sglang-eagle3-head-missing",
        "the draft declares a head of its own and ships none",
        "error",
        lambda f: f["algorithm"] == "EAGLE3" and f["draft_has_head"] is False and f["draft_vocab_size"] and not f["draft_is_tied"],
        "The draft declares a head of {draft_vocab_size} rows (draft_vocab_size) and its checkpoint has no lm_head.weight: "
        "the head keeps random numbers, and nothing is accepted.",
        "Missing weights are not an error there. With draft_vocab_size left out of the configuration the target's head is used instead.",
        (ISSUE + "27908",),
        ("draft_vocab_size",),
        Change("Use a complete draft. Without drafting:", NO_DRAFTING),
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
        (ISSUE + "33964", "https://github.com/vllm-project/speculators/issues/74", "sglang 0.5.23: srt/models/llama_eagle3.py"),
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
        (ISSUE + "6783", "https://github.com/vllm-project/vllm/issues/57941"),
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
        ("https://github.com/vllm-project/vllm/issues/9534", HOOK),
        ("quantization_given",),
        Change("Say that the draft is as it is:", {"speculative_draft_model_quantization": "unquant"}),
    ),
)
