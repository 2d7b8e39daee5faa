"""What the tables of SGLang's rules share: where things were read, and changes that several rules advise."""

from __future__ import annotations

WORKER = "sglang 0.5.23: srt/speculative/eagle_worker_v2.py"
HOOK = "sglang 0.5.23: srt/arg_groups/speculative_hook.py"
NO_MAP = {"speculative_token_map": None}
NO_DRAFTING = {
    "speculative_algorithm": None,
    "speculative_draft_model_path": None,
    "speculative_token_map": None,
    "speculative_num_steps": None,
    "speculative_eagle_topk": None,
    "speculative_num_draft_tokens": None,
    "speculative_use_rejection_sampling": None,
}
ISSUE = "https://github.com/sgl-project/sglang/issues/"
PULL = "https://github.com/sgl-project/sglang/pull/"
