"""Launch lines of other engines with what must be said about them.

Made from public reports and documentation: options kept, names and paths replaced by the folders of `tests.support.launches`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["no", "warning", "fine"]


@dataclass(frozen=True)
class Line:
    """One launch. finds: every error and warning, by id, with numbers that it must show. also: ids of notes and passed checks.

    has_oracle: whether the command is one that a machine without accelerator can resolve, so that SGLang itself is asked.
    """

    name: str
    engine: str
    command: str
    verdict: Verdict
    finds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    also: tuple[str, ...] = ()
    has_oracle: bool = True
    version: str | None = None


_SG = "python3 -m sglang.launch_server "
_EAGLE = "--speculative-algorithm EAGLE --speculative-draft-model-path eagle "
_EAGLE3 = "--speculative-algorithm EAGLE3 --speculative-draft-model-path eagle3 "
_MAP = "--speculative-token-map maps/llama-32k.pt "
_QWEN = "--speculative-algorithm EAGLE --speculative-draft-model-path eagle --speculative-token-map maps/qwen-32k.pt "

SGLANG = (
    Line("plain", "sglang", _SG + "--model-path llama --tp-size 4 --host 0.0.0.0 --port 30000", "fine"),
    Line(
        "published: 248077 over 2",
        "sglang",
        _SG + "--model-path qwen-248k --tp 2 " + _QWEN,
        "no",
        {
            "sglang-map-past-shard": {
                "rows_per_rank": 124064,
                "num_shards": 2,
                "vocab_size": 248077,
                "first_bad_id": 248076,
                "first_bad_index": 1,
                "num_bad": 1,
            }
        },
        ("sglang-map-relative",),
    ),
    Line(
        "published: 128256 over 4",
        "sglang",
        _SG + "--model-path llama --tp-size 4 " + _EAGLE + _MAP,
        "no",
        {
            "sglang-map-past-shard": {
                "rows_per_rank": 32064,
                "num_shards": 4,
                "num_ids": 32768,
                "num_bad": 24048,
                "first_bad_id": 128255,
                "max_id": 128255,
            }
        },
    ),
    Line("published: one rank, 248077", "sglang", _SG + "--model-path qwen-248k " + _QWEN, "fine", also=("sglang-map-past-shard",)),
    Line("published: one rank, 128256", "sglang", _SG + "--model-path llama " + _EAGLE + _MAP, "fine", also=("sglang-map-past-shard",)),
    Line(
        "published: EAGLE3 with the map",
        "sglang",
        _SG + "--model-path llama --tp-size 4 " + _EAGLE3 + _MAP,
        "warning",
        {"sglang-map-eagle3": {"draft_vocab_size": 32000}},
    ),
    Line(
        "published: full attention DP and dp_lm_head",
        "sglang",
        _SG + "--model-path llama --tp-size 4 --dp-size 4 --enable-dp-attention --enable-dp-lm-head " + _EAGLE + _MAP,
        "fine",
        also=("sglang-map-past-shard",),
    ),
    Line(
        "full attention DP in the new spelling",
        "sglang",
        "sglang serve llama --tp-size 4 --attn-dp-size 4 --enable-dp-lm-head " + _EAGLE + _MAP,
        "fine",
        also=("sglang-map-past-shard",),
    ),
    Line(
        "full attention DP without dp_lm_head",
        "sglang",
        _SG + "--model-path llama --tp-size 4 --dp-size 4 --enable-dp-attention " + _EAGLE + _MAP,
        "no",
        {"sglang-map-past-shard": {"rows_per_rank": 32064}},
    ),
    Line(
        "half attention DP and dp_lm_head",
        "sglang",
        _SG + "--model-path llama --tp-size 8 --dp-size 4 --enable-dp-attention --enable-dp-lm-head " + _EAGLE + _MAP,
        "no",
        {"sglang-map-past-shard": {"rows_per_rank": 64128, "num_shards": 2}},
    ),
    Line(
        "full attention DP, a family that always follows tp",
        "sglang",
        _SG + "--model-path qwen-248k --tp-size 2 --dp-size 2 --enable-dp-attention --enable-dp-lm-head " + _QWEN,
        "no",
        {"sglang-map-past-shard": {"rows_per_rank": 124064}},
    ),
    Line(
        "full attention DP, a tied head",
        "sglang",
        _SG + "--model-path llama-tied --tp-size 4 --dp-size 4 --enable-dp-attention --enable-dp-lm-head " + _EAGLE + _MAP,
        "no",
        {"sglang-map-past-shard": {"rows_per_rank": 32064}},
    ),
    Line(
        "a tied head that is whole and gathered",
        "sglang",
        _SG + "--model-path qwen3-tied --tp-size 2 --dp-size 2 --enable-dp-attention " + _EAGLE + _MAP,
        "warning",
        {"sglang-map-gathered-head": {"tp_size": 2, "wide": 65536}},
    ),
    Line(
        "all ids in the first shard",
        "sglang",
        _SG + "--model-path llama --tp-size 4 --speculative-algorithm EAGLE --speculative-draft-model-path eagle "
        "--speculative-token-map maps/first-shard.pt",
        "no",
        {"sglang-map-inside-first-shard": {"rows_per_rank": 32064, "max_id": 31999, "num_shards": 4}},
    ),
    Line(
        "FR-Spec's example, two ranks",
        "sglang",
        _SG + "--model llama --speculative-algorithm EAGLE --speculative-draft-model-path eagle --speculative-num-steps 5 "
        "--speculative-eagle-topk 8 --speculative-num-draft-tokens 64 " + _MAP + "--mem-fraction 0.7 --tp 2 --dtype bfloat16",
        "no",
        {"sglang-map-past-shard": {"rows_per_rank": 64128, "num_shards": 2}},
    ),
    Line(
        "NEXTN on DeepSeek with a map",
        "sglang",
        _SG + "--model-path deepseek --tp 8 --speculative-algorithm NEXTN --speculative-num-steps 1 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 2 --trust-remote-code " + _MAP,
        "no",
        {"sglang-map-past-shard": {"rows_per_rank": 16160, "num_shards": 8, "vocab_size": 129280}},
        ("sglang-nextn", "sglang-bundled-draft"),
    ),
    Line(
        "NEXTN on DeepSeek, the draft comes with it",
        "sglang",
        _SG + "--model-path deepseek --tp 8 --speculative-algorithm NEXTN --trust-remote-code",
        "fine",
        also=("sglang-nextn", "sglang-bundled-draft"),
    ),
    Line(
        "DeepSeek without its draft layers",
        "sglang",
        _SG + "--model-path deepseek-no-mtp --tp 8 --speculative-algorithm EAGLE",
        "no",
        {"sglang-no-mtp-weights": {"num_mtp_layers": 0}},
    ),
    Line(
        "multi-layer MTP with a map",
        "sglang",
        _SG + "--model-path mimo --tp 4 --speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 4 " + _MAP,
        "warning",
        {"sglang-map-ignored": {"algorithm": "EAGLE"}},
        ("sglang-bundled-draft",),
        has_oracle=False,
    ),
    Line(
        "multi-layer MTP, as EAGLE",
        "sglang",
        _SG + "--model-path step --tp 4 " + _EAGLE + _MAP,
        "warning",
        {"sglang-map-ignored": {"algorithm": "EAGLE"}},
    ),
    Line(
        "multi-layer MTP, as NEXTN: one layer, and the map is used",
        "sglang",
        _SG + "--model-path step --tp 4 --speculative-algorithm NEXTN --speculative-draft-model-path eagle " + _MAP,
        "no",
        {"sglang-map-past-shard": {"rows_per_rank": 32064}},
        ("sglang-nextn",),
    ),
    Line(
        "multi-layer EAGLE said",
        "sglang",
        _SG + "--model-path llama --enable-multi-layer-eagle " + _EAGLE + _MAP,
        "warning",
        {"sglang-map-ignored": {}},
    ),
    Line(
        "NGRAM with a map",
        "sglang",
        _SG + "--model-path llama --speculative-algorithm NGRAM --speculative-num-draft-tokens 16 " + _MAP,
        "warning",
        {"sglang-map-ignored": {"algorithm": "NGRAM"}},
    ),
    Line("a map and no algorithm", "sglang", _SG + "--model-path llama " + _MAP, "warning", {"sglang-map-ignored": {}}),
    Line(
        "STANDALONE with a map",
        "sglang",
        _SG + "--model-path llama --speculative-algorithm STANDALONE --speculative-draft-model-path small " + _MAP,
        "no",
        {"sglang-map-standalone": {"num_ids": 32768, "draft_vocab": 128256}},
    ),
    Line(
        "STANDALONE", "sglang", _SG + "--model-path llama --speculative-algorithm STANDALONE --speculative-draft-model-path small", "fine"
    ),
    Line(
        "STANDALONE, unequal vocabularies",
        "sglang",
        _SG + "--model-path llama --speculative-algorithm STANDALONE --speculative-draft-model-path small-32k",
        "no",
        {"sglang-standalone-vocabulary": {"vocab_size": 128256, "draft_vocab": 32000}},
    ),
    Line(
        "STANDALONE and attention DP",
        "sglang",
        _SG
        + "--model-path llama --tp 2 --dp 2 --enable-dp-attention --speculative-algorithm STANDALONE --speculative-draft-model-path small",
        "no",
        {"sglang-attention-dp-draft": {"attn_dp_size": 2}},
    ),
    Line(
        "NGRAM and attention DP",
        "sglang",
        _SG + "--model-path llama --tp 2 --attn-dp-size 2 --speculative-algorithm NGRAM",
        "no",
        {"sglang-attention-dp-draft": {"algorithm": "NGRAM"}},
    ),
    Line(
        "a map and rejection sampling",
        "sglang",
        _SG + "--model-path llama --speculative-use-rejection-sampling --speculative-num-steps 3 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 4 " + _EAGLE + _MAP,
        "no",
        {"sglang-map-rejection": {"num_ids": 32768, "vocab_size": 128256}},
    ),
    Line(
        "rejection sampling with a tree",
        "sglang",
        _SG + "--model-path llama --speculative-use-rejection-sampling --speculative-num-steps 3 --speculative-eagle-topk 4 "
        "--speculative-num-draft-tokens 8 " + _EAGLE,
        "no",
        {"sglang-rejection-options": {"eagle_topk": 4}},
    ),
    Line(
        "rejection sampling with Llama's own defaults",
        "sglang",
        _SG + "--model-path llama --speculative-use-rejection-sampling " + _EAGLE,
        "no",
        {"sglang-rejection-options": {"eagle_topk": 4}},
    ),
    Line(
        "rejection sampling with STANDALONE",
        "sglang",
        _SG
        + "--model-path llama --speculative-use-rejection-sampling --speculative-algorithm STANDALONE --speculative-draft-model-path small",
        "no",
        {"sglang-rejection-options": {}},
    ),
    Line(
        "a quantized head",
        "sglang",
        _SG + "--model-path llama-gptq " + _EAGLE + _MAP,
        "no",
        {"sglang-map-quantized-head": {"head_format": "qweight, scales"}},
        has_oracle=False,
    ),
    Line(
        "a map in text",
        "sglang",
        _SG + "--model-path llama " + _EAGLE + "--speculative-token-map maps/llama-32k.txt",
        "no",
        {"sglang-map-not-torch": {"map_format": "text", "num_ids": 32768}},
    ),
    Line(
        "a map of numpy",
        "sglang",
        _SG + "--model-path llama " + _EAGLE + "--speculative-token-map maps/llama-32k.npy",
        "no",
        {"sglang-map-not-torch": {"map_format": "numpy"}},
    ),
    Line(
        "a broken map",
        "sglang",
        _SG + "--model-path llama " + _EAGLE + "--speculative-token-map maps/broken.pt",
        "no",
        {"sglang-map-unreadable": {}},
    ),
    Line(
        "a mistyped map",
        "sglang",
        _SG + "--model-path llama " + _EAGLE + "--speculative-token-map maps/llama-23k.pt",
        "no",
        {"sglang-map-unreadable": {}},
    ),
    Line(
        "a map of the hub",
        "sglang",
        _SG + "--model-path llama " + _EAGLE + "--speculative-token-map thunlp/some-eagle/freq_32768.pt",
        "fine",
    ),
    Line(
        "a map of the hub and two ranks",
        "sglang",
        _SG + "--model-path llama --tp 2 " + _EAGLE + "--speculative-token-map thunlp/some-eagle/freq_32768.pt",
        "no",
        {"sglang-map-cut-head-unknown": {"rows_per_rank": 64128}},
    ),
    Line(
        "a map of another model",
        "sglang",
        _SG + "--model-path llama " + _EAGLE + "--speculative-token-map maps/past.pt",
        "no",
        {"sglang-map-past-vocabulary": {"num_past_vocab": 1, "max_id": 130000, "vocab_size": 128256}},
    ),
    Line(
        "a family in no table",
        "sglang",
        _SG + "--model-path strange --tp 2 " + _EAGLE + _MAP,
        "warning",
        {"sglang-map-layout-unknown": {"tp_size": 2}},
        has_oracle=False,
    ),
    Line(
        "a target that is not here",
        "sglang",
        _SG + "--model-path meta-llama/Some-8B --tp 2 --speculative-algorithm EAGLE --speculative-draft-model-path org/draft " + _MAP,
        "warning",
        {"sglang-map-layout-unknown": {"tp_size": 2}},
        ("sglang-files",),
        has_oracle=False,
    ),
    Line(
        "a mistyped target",
        "sglang",
        _SG + "--model-path ./lama --tp 2",
        "warning",
        {"sglang-model-missing": {}},
        has_oracle=False,
    ),
    Line(
        "EAGLE3 without a draft, Llama",
        "sglang",
        _SG + "--model-path llama --speculative-algorithm EAGLE3",
        "no",
        {"sglang-no-draft-path": {"algorithm": "EAGLE3"}},
    ),
    Line(
        "EAGLE3 without a draft, Qwen2",
        "sglang",
        _SG + "--model-path qwen2-152k --speculative-algorithm EAGLE3",
        "no",
        {"sglang-no-draft-path": {}},
    ),
    Line("EAGLE without a draft", "sglang", _SG + "--model-path llama --speculative-algorithm EAGLE", "no", {"sglang-no-draft-path": {}}),
    Line(
        "an EAGLE3 draft as EAGLE",
        "sglang",
        _SG + "--model-path llama --tp 8 --speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 4 --speculative-draft-model-path eagle3",
        "no",
        {"sglang-draft-is-eagle3": {"draft_arch": "LlamaForCausalLMEagle3"}},
    ),
    Line(
        "an EAGLE draft as EAGLE3",
        "sglang",
        _SG + "--model-path llama --speculative-algorithm EAGLE3 --speculative-draft-model-path eagle",
        "no",
        {"sglang-draft-is-eagle": {"draft_arch": "LlamaForCausalLMEagle"}},
    ),
    Line(
        "a draft of another width",
        "sglang",
        _SG + "--model-path llama --speculative-algorithm EAGLE --speculative-draft-model-path eagle-wide",
        "no",
        {"sglang-hidden-size": {"hidden_size": 64, "draft_hidden": 128}},
    ),
    Line("EAGLE3", "sglang", _SG + "--model-path llama --tp 2 " + _EAGLE3, "fine"),
    Line(
        "d2t missing",
        "sglang",
        _SG + "--model-path llama --speculative-algorithm EAGLE3 --speculative-draft-model-path eagle3-no-d2t",
        "no",
        {"sglang-d2t-missing": {"draft_vocab_size": 32000, "vocab_size": 128256}},
    ),
    Line(
        "d2t all zeros",
        "sglang",
        _SG + "--model-path llama --speculative-algorithm EAGLE3 --speculative-draft-model-path eagle3-zero",
        "no",
        {"sglang-d2t-zero": {"draft_vocab_size": 32000}},
    ),
    Line(
        "d2t of absolute ids",
        "sglang",
        _SG + "--model-path llama --speculative-algorithm EAGLE3 --speculative-draft-model-path eagle3-absolute",
        "no",
        {"sglang-d2t-range": {"d2t_max": 159995, "vocab_size": 128256}},
    ),
    Line(
        "d2t of another size",
        "sglang",
        _SG + "--model-path llama --speculative-algorithm EAGLE3 --speculative-draft-model-path eagle3-rows",
        "no",
        {"sglang-d2t-rows": {"d2t_rows": 32000, "draft_vocab_size": 16000}},
    ),
    Line(
        "a draft without its head",
        "sglang",
        _SG + "--model-path llama --speculative-algorithm EAGLE3 --speculative-draft-model-path eagle3-no-head",
        "no",
        {"sglang-eagle3-head-missing": {"draft_vocab_size": 32000}},
    ),
    Line(
        "a tied EAGLE3 draft",
        "sglang",
        _SG + "--model-path llama --speculative-algorithm EAGLE3 --speculative-draft-model-path eagle3-tied",
        "no",
        {"sglang-tied-draft": {"draft_vocab_size": 32000}},
    ),
    Line(
        "a tied EAGLE draft",
        "sglang",
        _SG + "--model-path llama --speculative-algorithm EAGLE --speculative-draft-model-path eagle-tied",
        "no",
        {"sglang-tied-draft": {}},
    ),
    Line(
        "a draft window shorter than the target's",
        "sglang",
        _SG + "--model-path llama-33k --tp 8 --speculative-algorithm EAGLE3 --speculative-draft-model-path eagle3-short "
        "--speculative-num-steps 3 --speculative-eagle-topk 2 --speculative-num-draft-tokens 4",
        "warning",
        {"sglang-draft-context": {"draft_context": 2048, "context": 32768}},
    ),
    Line(
        "a draft window that is kept",
        "sglang",
        _SG + "--model-path llama-33k --context-length 2048 --speculative-algorithm EAGLE3 --speculative-draft-model-path eagle3-short",
        "fine",
    ),
    Line(
        "topk 1 and another number of draft tokens",
        "sglang",
        _SG + "--model-path llama " + _EAGLE3 + "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 16",
        "warning",
        {"sglang-draft-tokens-adjusted": {"num_draft_tokens_before": 16, "num_draft_tokens": 4, "num_steps": 3}},
    ),
    Line(
        "more draft tokens than nodes",
        "sglang",
        _SG + "--model-path llama " + _EAGLE3 + "--speculative-num-steps 1 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16",
        "warning",
        {"sglang-tree-too-large": {"max_nodes": 5, "num_draft_tokens": 16}},
    ),
    Line(
        "steps without topk",
        "sglang",
        _SG + "--model-path llama " + _EAGLE3 + "--speculative-num-steps 3",
        "no",
        {"sglang-incomplete-draft-options": {"num_steps_given": 3}},
    ),
    Line(
        "topk without steps",
        "sglang",
        _SG + "--model-path llama " + _EAGLE3 + "--speculative-eagle-topk 4 --speculative-num-draft-tokens 8",
        "no",
        {"sglang-incomplete-draft-options": {"eagle_topk_given": 4, "num_draft_tokens_given": 8}},
    ),
    Line(
        "a beginning that means several options",
        "sglang",
        "CUDA_VISIBLE_DEVICES=0,1,3,7 python -m sglang.launch_server --model llama --port 9001 --tensor-parallel-size 4 "
        "--speculative-algo EAGLE --speculative-draft eagle --speculative-num-steps 5 --speculative-eagle-topk 8 "
        "--speculative-num-draft-tokens 64 --mem-fraction 0.7 --disable-cuda-graph",
        "no",
        {"sglang-arguments": {}, "sglang-no-draft-path": {}},
    ),
    Line(
        "vLLM's options",
        "sglang",
        _SG + "--model-path llama --speculative-model small --tensor-parallel-size 1 --num-speculative-tokens 3 --use-v2-block-manager",
        "no",
        {"sglang-option-unknown": {}},
    ),
    Line(
        "underscores",
        "sglang",
        _SG + "--model_path llama --tp_size 2",
        "no",
        {"sglang-option-unknown": {}, "sglang-arguments": {}},
    ),
    Line(
        "repeated options",
        "sglang",
        _SG + "--model-path=qwen3 --tp=8 --model-path=llama --tp-size=1 " + _EAGLE + _MAP,
        "fine",
        also=("sglang-map-past-shard",),
    ),
    Line("a config file", "sglang", "sglang serve --config launch.yaml " + _MAP, "no", {"sglang-map-past-shard": {"rows_per_rank": 32064}}),
    Line("a config file, and the command wins", "sglang", "sglang serve --config launch.yaml --tp-size 1 " + _MAP, "fine"),
    Line(
        "--config=FILE",
        "sglang",
        _SG + "--model-path llama --config=launch.yaml",
        "warning",
        {"sglang-config-equals": {}},
    ),
    Line(
        "a container",
        "sglang",
        "docker run --gpus all --shm-size 32g -p 30000:30000 -v ~/.cache/huggingface:/root/.cache/huggingface --env HF_TOKEN=x --ipc=host "
        "lmsysorg/sglang:latest python3 -m sglang.launch_server --model-path llama --tp 4 --host 0.0.0.0 " + _EAGLE + _MAP,
        "no",
        {"sglang-map-past-shard": {"rows_per_rank": 32064}},
        ("sglang-command",),
    ),
    Line(
        "pasted with line ends",
        "sglang",
        "SGLANG_ENABLE_SPEC_V2=1 python3 -m sglang.launch_server \\\n  --model-path llama \\\n  --tp 4 \\\n  " + _EAGLE + "\\\n  " + _MAP,
        "no",
        {"sglang-map-past-shard": {}},
    ),
    Line(
        "attention DP that does not divide",
        "sglang",
        _SG + "--model-path llama --tp 8 --dp 3 --enable-dp-attention",
        "no",
        {"sglang-parallel-sizes": {"tp_size": 8, "attn_dp_size": 3}},
    ),
    Line(
        "replicas and attention DP",
        "sglang",
        _SG + "--model-path llama --tp 4 --dp 2 --attn-dp-size 2",
        "no",
        {"sglang-parallel-sizes": {"dp_size": 2, "attn_dp_size": 2}},
    ),
    Line(
        "dp_lm_head alone",
        "sglang",
        _SG + "--model-path llama --tp 4 --enable-dp-lm-head",
        "warning",
        {"sglang-dp-lm-head-off": {"tp_size": 4}},
    ),
    Line(
        "dp_lm_head with replicas",
        "sglang",
        _SG + "--model-path llama --tp 4 --dp-size 2 --enable-dp-lm-head",
        "no",
        {"sglang-dp-lm-head": {"dp_size": 2}},
    ),
    Line(
        "drafting options and no algorithm",
        "sglang",
        _SG + "--model-path llama --speculative-draft-model-path eagle",
        "warning",
        {"sglang-no-algorithm": {}},
    ),
    Line(
        "a mistyped algorithm",
        "sglang",
        _SG + "--model-path llama --speculative-algorithm EAGEL --speculative-draft-model-path eagle",
        "no",
        {"sglang-algorithm-unknown": {"algorithm_given": "EAGEL"}},
    ),
    Line(
        "DFLASH without a draft",
        "sglang",
        _SG + "--model-path llama --speculative-algorithm DFLASH",
        "no",
        {"sglang-refused": {}},
        has_oracle=False,
    ),
    Line(
        "an option of a later version",
        "sglang",
        _SG + "--model-path llama --attn-dp-size 1",
        "no",
        {"sglang-option-unknown": {}},
        version="0.5.5",
        has_oracle=False,
    ),
    Line(
        "an earlier version, the same gather",
        "sglang",
        _SG + "--model-path llama --tp 4 " + _EAGLE + _MAP,
        "no",
        {"sglang-map-past-shard": {"rows_per_rank": 32064}},
        version="0.5.5",
        has_oracle=False,
    ),
    Line("no program", "sglang", "torchrun train.py --tp 4", "no", {"sglang-command": {}}, has_oracle=False),
    Line("another engine's program", "sglang", "vllm serve llama", "no", {"sglang-command": {}}, has_oracle=False),
    Line("a value that is no number", "sglang", _SG + "--model-path llama --tp two", "no", {"sglang-arguments": {}}),
    Line("a word too many", "sglang", _SG + "--model-path llama --enable-metrics yes", "no", {"sglang-arguments": {}}),
)

_VL = "vllm serve llama "

VLLM = (
    Line("plain", "vllm", _VL + "-tp 2 --max-model-len 8k", "fine"),
    Line(
        "a draft model of another vocabulary",
        "vllm",
        "vllm serve qwen2-152k --tensor-parallel-size 4 --speculative-config "
        """'{"model": "qwen2-small", "num_speculative_tokens": 5, "draft_tensor_parallel_size": 1}'""",
        "no",
        {"vllm-vocabulary": {"vocab_size": 152064, "draft_vocab": 151936}},
        ("vllm-found-method",),
    ),
    Line(
        "a draft model of the same vocabulary",
        "vllm",
        _VL + """--speculative_config '{"method": "draft_model", "model": "small", "num_speculative_tokens": 5}'""",
        "fine",
        also=("vllm-vocabulary",),
    ),
    Line(
        "heterogeneous vocabularies allowed",
        "vllm",
        _VL + """-sc '{"method": "draft_model", "model": "small-32k", "num_speculative_tokens": 5, "use_heterogeneous_vocab": true}'""",
        "fine",
    ),
    Line(
        "dotted keys",
        "vllm",
        _VL + "--speculative-config.method draft_model --speculative-config.model small-32k --speculative-config.num_speculative_tokens=3",
        "no",
        {"vllm-vocabulary": {"vocab_size": 128256, "draft_vocab": 32000}},
    ),
    Line("a config file", "vllm", _VL + "--config vllm.yaml", "no", {"vllm-vocabulary": {"draft_vocab": 32000}}),
    Line("short options", "vllm", _VL + "--spec-method eagle3 --spec-model eagle3 --spec-tokens 3", "fine"),
    Line(
        "the same thing twice",
        "vllm",
        _VL + """--spec-method eagle3 --speculative-config '{"method": "eagle3", "model": "eagle3", "num_speculative_tokens": 3}'""",
        "no",
        {"vllm-config-doubled": {}},
    ),
    Line(
        "EAGLE3", "vllm", _VL + """-tp 2 --speculative-config '{"method":"eagle3","model":"eagle3","num_speculative_tokens":3}'""", "fine"
    ),
    Line(
        "d2t missing",
        "vllm",
        _VL + """--speculative-config '{"method": "eagle3", "model": "eagle3-no-d2t", "num_speculative_tokens": 3}'""",
        "no",
        {"vllm-d2t-missing": {"draft_vocab_size": 32000, "vocab_size": 128256}},
    ),
    Line(
        "EAGLE3 without a model",
        "vllm",
        _VL + """--speculative-config '{"method": "eagle3", "num_speculative_tokens": 3}'""",
        "no",
        {"vllm-no-draft-model": {"method": "eagle3"}},
    ),
    Line(
        "no number of tokens",
        "vllm",
        _VL + """--speculative-config '{"method": "eagle3", "model": "eagle3"}'""",
        "no",
        {"vllm-tokens-missing": {}},
    ),
    Line(
        "an EAGLE3 draft as eagle",
        "vllm",
        _VL + """--speculative-config '{"method": "eagle", "model": "eagle3", "num_speculative_tokens": 3}'""",
        "no",
        {"vllm-draft-is-eagle3": {}},
    ),
    Line(
        "tensor_parallel_size in the wrong place",
        "vllm",
        _VL
        + """-tp 2 --speculative-config '{"method": "eagle3", "model": "eagle3", "num_speculative_tokens": 3,"tensor_parallel_size": 1}'""",
        "no",
        {"vllm-tp-key": {}},
    ),
    Line(
        "a draft on 2 of 4 ranks",
        "vllm",
        _VL + """-tp 4 -sc '{"method": "eagle3", "model": "eagle3", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 2}'""",
        "no",
        {"vllm-draft-tp": {"draft_tp_size": 2, "tp_size": 4}},
    ),
    Line(
        "SGLang's map",
        "vllm",
        _VL + "--speculative-token-map maps/llama-32k.pt",
        "no",
        {"vllm-option-unknown": {}},
    ),
    Line(
        "a token map as a key",
        "vllm",
        _VL + """--speculative-config '{"method": "eagle3", "model": "eagle3", "num_speculative_tokens": 3, "token_map": "x.pt"}'""",
        "no",
        {"vllm-config-unknown-key": {"unknown_key": "token_map"}},
    ),
    Line(
        "options of earlier versions",
        "vllm",
        "python -m vllm.entrypoints.openai.api_server --model llama --seed 42 -tp 1 --speculative_model small --num_speculative_tokens 5 "
        "--gpu_memory_utilization 0.8",
        "no",
        {"vllm-option-renamed": {}},
    ),
    Line(
        "n-grams of earlier versions",
        "vllm",
        _VL + "--speculative-model [ngram] --num-speculative-tokens 5 --ngram-prompt-lookup-max 4",
        "no",
        {"vllm-option-renamed": {}},
    ),
    Line(
        "n-grams",
        "vllm",
        _VL + """--speculative-config '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}'""",
        "fine",
    ),
    Line(
        "quotes lost to a shell",
        "vllm",
        _VL + "--speculative-config '{method: eagle3, model: eagle3}'",
        "no",
        {"vllm-config-broken": {}},
    ),
    Line(
        "MTP under its old name",
        "vllm",
        """vllm serve deepseek -tp 8 --speculative-config '{"method": "deepseek_mtp", "num_speculative_tokens": 1}'""",
        "fine",
        also=("vllm-method-deprecated",),
    ),
    Line(
        "MTP without draft layers",
        "vllm",
        _VL + """--speculative-config '{"method": "mtp", "num_speculative_tokens": 1}'""",
        "no",
        {"vllm-no-mtp": {}},
    ),
    Line(
        "SGLang's method",
        "vllm",
        _VL + """--speculative-config '{"method": "nextn", "num_speculative_tokens": 1}'""",
        "no",
        {"vllm-method-unknown": {"method": "nextn"}},
    ),
    Line(
        "a draft window shorter than the target's",
        "vllm",
        """vllm serve llama-33k --speculative-config '{"method": "eagle3", "model": "eagle3-short", "num_speculative_tokens": 3}'""",
        "warning",
        {"vllm-draft-context": {"draft_context": 2048, "context": 32768}},
    ),
    Line(
        "a draft window that is kept",
        "vllm",
        """vllm serve llama-33k --max-model-len 2048 -sc '{"method": "eagle3", "model": "eagle3-short", "num_speculative_tokens": 3}'""",
        "fine",
    ),
    Line(
        "a container",
        "vllm",
        "docker run --runtime nvidia --gpus all -p 8000:8000 --ipc=host vllm/vllm-openai:latest --model llama --tensor-parallel-size 2 "
        """--speculative-config '{"method": "eagle", "model": "eagle-wide", "num_speculative_tokens": 2}'""",
        "no",
        {"vllm-hidden-size": {"hidden_size": 64, "draft_hidden": 128}},
    ),
)

_LL = "llama-server -m target.gguf "

LLAMA_CPP = (
    Line("plain", "llama.cpp", _LL + "-ngl 99 -c 4096 -fa on --host 0.0.0.0 --port 8080", "fine"),
    Line(
        "a draft that stays off",
        "llama.cpp",
        _LL + "-md draft.gguf -ngl 99 -ngld 99 --spec-draft-n-max 8 --spec-draft-n-min 2 -c 8192",
        "no",
        {"llama-cpp-off": {}},
    ),
    Line("a draft", "llama.cpp", _LL + "-md draft.gguf --spec-type draft-simple -ngld 99", "fine", also=("llama-cpp-off",)),
    Line("a draft with more padding", "llama.cpp", _LL + "-md draft-padded.gguf --spec-type draft-simple", "fine"),
    Line(
        "a vocabulary that is too different",
        "llama.cpp",
        _LL + "-md draft-larger.gguf --spec-type draft-simple",
        "no",
        {"llama-cpp-vocabulary-size": {"vocab_size": 400, "draft_vocab": 600, "vocab_difference": 200, "max_difference": 128}},
    ),
    Line("the first tokens may differ", "llama.cpp", _LL + "-md draft-first.gguf --spec-type draft-simple", "fine"),
    Line(
        "a token that differs",
        "llama.cpp",
        _LL + "--model-draft draft-token.gguf --spec-type draft-simple",
        "no",
        {"llama-cpp-vocabulary-token": {"first_differing_id": 77}},
    ),
    Line(
        "tokenizers of two kinds",
        "llama.cpp",
        _LL + "-md draft-spm.gguf --spec-type draft-simple",
        "no",
        {"llama-cpp-vocabulary-kind": {"target_vocab_type": "gpt2", "draft_vocab_type": "llama"}},
    ),
    Line(
        "another first token",
        "llama.cpp",
        _LL + "-md draft-bos.gguf --spec-type draft-simple",
        "no",
        {"llama-cpp-bos-eos": {"draft_bos": "3", "target_bos": "1"}},
    ),
    Line(
        "the names of earlier builds",
        "llama.cpp",
        "llama-server -m target.gguf -md draft.gguf --spec-type draft-simple -ngl 999 -ngld 999 --draft-max 3 -t 1 -fa on",
        "no",
        {"llama-cpp-removed": {}},
    ),
    Line("a flag that never was", "llama.cpp", _LL + "--draft-model draft.gguf", "no", {"llama-cpp-option-unknown": {}}),
    Line("values with =", "llama.cpp", _LL + "--ctx-size=4096", "no", {"llama-cpp-arguments": {}}),
    Line("underscores", "llama.cpp", "llama-server --model target.gguf --ctx_size 4096", "fine"),
    Line("a type without a draft", "llama.cpp", _LL + "--spec-type draft-eagle3", "no", {"llama-cpp-no-draft": {}}),
    Line("draft-mtp without draft layers", "llama.cpp", _LL + "--spec-type draft-mtp", "no", {"llama-cpp-no-nextn": {}}),
    Line(
        "a mistyped type",
        "llama.cpp",
        _LL + "-md draft.gguf --spec-type simple",
        "no",
        {"llama-cpp-type-unknown": {"unknown_type": "simple"}},
    ),
    Line("a DFlash draft is recognised", "llama.cpp", _LL + "-md draft-dflash.gguf", "fine", also=("llama-cpp-inferred",)),
    Line("n-grams", "llama.cpp", _LL + "--spec-type ngram-mod --spec-ngram-mod-n-match 24", "fine"),
    Line(
        "numbers without a draft",
        "llama.cpp",
        _LL + "--spec-draft-n-max 16",
        "warning",
        {"llama-cpp-numbers-without-draft": {"n_max": 16}},
    ),
    Line(
        "the least above the most",
        "llama.cpp",
        _LL + "-md draft.gguf --spec-type draft-simple --spec-draft-n-min 5 --spec-draft-n-max 3",
        "no",
        {"llama-cpp-minimum": {"n_min": 5, "n_max": 3}},
    ),
    Line(
        "a draft window shorter than the target's",
        "llama.cpp",
        _LL + "-md draft-short.gguf --spec-type draft-simple",
        "warning",
        {"llama-cpp-draft-context": {"draft_context": 2048, "context": 8192}},
    ),
    Line(
        "options from the environment",
        "llama.cpp",
        "LLAMA_ARG_MODEL=target.gguf LLAMA_ARG_SPEC_DRAFT_MODEL=draft.gguf ./build/bin/llama-server --port 8081",
        "no",
        {"llama-cpp-off": {}},
    ),
    Line("an option of another program", "llama.cpp", "llama-cli -m target.gguf --port 8080", "no", {"llama-cpp-option-unknown": {}}),
    Line("given twice", "llama.cpp", _LL + "-c 2048 -c 4096", "warning", {"llama-cpp-arguments": {}}),
    Line("a file that is not there", "llama.cpp", "llama-server -m models/targett.gguf", "warning", {"llama-cpp-model-missing": {}}),
)

LINES = SGLANG + VLLM + LLAMA_CPP
