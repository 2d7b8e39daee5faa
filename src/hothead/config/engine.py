"""What an engine is started with. Flags keep SGLang's names where the meaning is the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hothead.config.check import check_engine
from hothead.config.option import Options, option

NONE = "none"
"""Value of --draft (plain decoding) and of --map (the draft head keeps the full vocabulary)."""


@dataclass(frozen=True)
class EngineConfig(Options):
    """Target, drafter, hot vocabulary, ranks and memory of one engine.

    None means "the engine decides"; what it decided is in its resolved configuration. Contradictions are refused when the record is made.
    """

    heading: ClassVar[str] = "Engine"

    model_path: str = option(
        "smollm2-135m-instruct",
        flags=("--model-path", "--model"),
        help="Target: a known name, a folder, a .gguf file or a hub id.",
        metavar="MODEL",
    )
    speculative_algorithm: str = option(
        "auto",
        flags=("--speculative-algorithm", "--algorithm"),
        help="How to draft. auto: EAGLE or EAGLE3 where a draft head is given or ships with hothead, else NGRAM. STANDALONE: a small model "
        "drafts. NONE is plain decoding.",
        choices=("auto", "EAGLE", "EAGLE3", "STANDALONE", "NGRAM", "NONE"),
    )
    speculative_draft_model_path: str | None = option(
        None,
        flags=("--speculative-draft-model-path", "--draft"),
        help="Draft head: a folder; with STANDALONE a model. 'none' is plain decoding. Left out: the head that ships for this target.",
        metavar="DRAFT",
    )
    speculative_token_map: str | None = option(
        None,
        flags=("--speculative-token-map", "--map"),
        help="Token map of the hot vocabulary; it cuts EAGLE3's reduced heads further. 'none': the draft head keeps all of its rows. "
        "Left out: the map that ships with it.",
        metavar="FILE",
    )
    speculative_num_steps: int | None = option(
        None, flags=("--speculative-num-steps",), help="Draft steps per verify step: the tree's depth.", ge=1
    )
    speculative_eagle_topk: int | None = option(
        None, flags=("--speculative-eagle-topk",), help="Branches per node of the token tree; 1 is a chain.", ge=1
    )
    speculative_num_draft_tokens: int | None = option(
        None,
        flags=("--speculative-num-draft-tokens",),
        help="Tokens that one verify step scores, the last committed one included: a chain has the number of draft steps + 1.",
        ge=2,
    )
    hot_size: int | None = option(None, flags=("--hot-size",), help="Use the first N tokens of the map.", ge=1, metavar="N")
    hot_coverage: float | None = option(
        None,
        flags=("--hot-coverage",),
        help="Use as many tokens of the map as cover this share of its counts.",
        gt=0.0,
        le=1.0,
        metavar="SHARE",
    )
    hot_placement: str = option(
        "auto",
        flags=("--hot-placement",),
        help="Which rank holds which hot row. balanced: every P-th one; replicated: all on each rank; owner: where the full head has them.",
        choices=("auto", "balanced", "replicated", "owner"),
    )
    hot_head_dtype: str = option(
        "auto",
        flags=("--hot-head-dtype",),
        help="How the draft head's rows are kept. auto: in the target's dtype. The text does not depend on it, speed and acceptance do.",
        choices=("auto", "float32", "bf16", "int8", "int4"),
        synonyms={"bfloat16": "bf16", "float": "float32", "fp32": "float32"},
    )
    verification: str = option(
        "auto",
        flags=("--verification",),
        help="How draft tokens of sampled requests are accepted; both ways are exact. coupled: where they equal the target's own choice; "
        "a seed gives the text of plain decoding. rejection: with probability min(1, p / q). auto: coupled.",
        choices=("auto", "coupled", "rejection"),
    )
    tp_size: int = option(1, flags=("--tp-size", "--tp"), help="Ranks that share the target's weights.", ge=1, metavar="P")
    dtype: str = option(
        "auto",
        flags=("--dtype",),
        help="Type of weights and activations. auto: as the checkpoint has it, bf16 for quantized and float16 ones.",
        choices=("auto", "bf16", "float32"),
        synonyms={"bfloat16": "bf16", "float": "float32", "fp32": "float32"},
    )
    device: str = option("auto", flags=("--device",), help="auto, cpu, cuda or cuda:N.")
    collectives: str = option(
        "auto",
        flags=("--collectives",),
        help="How ranks talk. auto: through shared memory where all are on one host and run on its CPU; torch: always torch.distributed.",
        choices=("auto", "torch"),
    )
    num_threads: int | None = option(
        None, flags=("--threads",), help="CPU threads per rank. Left out: the cores divided by the ranks.", ge=1
    )
    max_concurrency: int = option(
        16, flags=("--max-concurrency", "--max-running-requests"), help="Requests that run at the same time; more wait.", ge=1
    )
    max_total_tokens: int | None = option(
        None,
        flags=("--max-total-tokens",),
        help="Tokens in the KV cache over all requests. Left out: what the requests need and memory allows.",
        ge=1,
    )
    block_size: int = option(16, flags=("--block-size", "--page-size"), help="Tokens per KV block.", ge=1)
    chunked_prefill_size: int = option(512, flags=("--chunked-prefill-size",), help="Prompt tokens per step at most.", ge=1)
    context_length: int | None = option(
        None, flags=("--context-length",), help="Prompt and new tokens of one request at most. Left out: the target's own limit.", ge=1
    )
    cache_dir: str | None = option(
        None, flags=("--cache-dir",), help="Folder for downloaded models. Left out: the user's cache folder.", metavar="FOLDER"
    )

    def check(self) -> None:
        check_engine(self)

    @property
    def is_plain(self) -> bool:
        """Whether decoding without a drafter was asked for."""
        return self.speculative_algorithm == "NONE" or self.speculative_draft_model_path == NONE
