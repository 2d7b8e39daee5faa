"""Options of `hothead train eagle` and `hothead train eagle3`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hothead.config.option import Options, option
from hothead.errors import OptionError

DEFAULT_BUDGET_MINUTES = 55.0


@dataclass(frozen=True)
class TrainConfig(Options):
    """What to train on, for how long, and with which optimiser: what all kinds of heads share."""

    model_path: str = option(
        "smollm2-135m-instruct", flags=("--model-path", "--model"), help="Target model: a catalog name, a folder, a .gguf file or a hub id."
    )
    output: Path = option(
        Path("eagle-head"), flags=("--output", "-o"), help="Folder for the draft head, its token map, checkpoints and cached features."
    )
    responses: Path | None = option(
        None,
        flags=("--responses",),
        help="JSONL file of the target's own responses: prompt_token_ids and response_token_ids on each line.",
        metavar="FILE",
    )
    prompts: Path | None = option(
        None, flags=("--prompts",), help="JSONL file of prompts (`prompt`), which the target answers before training.", metavar="FILE"
    )
    max_response_tokens: int = option(
        256, flags=("--max-response-tokens",), help="Longest response that the target writes to a prompt.", ge=2
    )
    max_length: int = option(1024, flags=("--max-length",), help="Tokens of prompt and response that are used; longer ones are cut.", ge=4)
    num_held_out: int = option(64, flags=("--num-held-out",), help="Responses that are kept for evaluation.", ge=1)
    hot_size: int = option(8192, flags=("--hot-size",), help="Size of the hot vocabulary that the head is trained over.", ge=1)
    token_map: Path | None = option(
        None, flags=("--token-map", "--map"), help="Token map to train over (default: counted on the responses).", metavar="FILE"
    )
    budget_minutes: float | None = option(
        None, flags=("--budget-minutes",), help="Train for this long (default: 55); the learning rate falls to zero over it.", gt=0.0
    )
    num_steps: int | None = option(
        None, flags=("--num-steps",), help="Train for so many optimiser steps (instead of --budget-minutes).", ge=1
    )
    num_unrolled: int = option(
        3, flags=("--num-unrolled",), help="Draft steps that are unrolled in training, each on the head's own features.", ge=1, le=8
    )
    depth_decay: float = option(
        0.8, flags=("--depth-decay",), help="Weight of each unrolled step relative to the one before.", gt=0.0, le=1.0
    )
    hard_label_share: float = option(
        0.0,
        flags=("--hard-label-share",),
        help="Share of the cross-entropy that goes to the target's own choice; the rest goes to its distribution.",
        ge=0.0,
        le=1.0,
    )
    batch_tokens: int = option(2048, flags=("--batch-tokens",), help="Response tokens in one optimiser step.", ge=64)
    learning_rate: float = option(1e-3, flags=("--learning-rate",), help="Peak learning rate.", gt=0.0)
    warmup_steps: int = option(150, flags=("--warmup-steps",), help="Optimiser steps until the peak learning rate.", ge=0)
    weight_decay: float = option(0.02, flags=("--weight-decay",), help="AdamW's weight decay.", ge=0.0)
    max_gradient_norm: float = option(1.0, flags=("--max-gradient-norm",), help="Gradients are scaled down to this norm.", gt=0.0)
    checkpoint_minutes: float = option(
        4.0, flags=("--checkpoint-minutes",), help="Time between checkpoints, each with an evaluation.", gt=0.0
    )
    dtype: str = option("auto", flags=("--dtype",), help="Arithmetic of matrix products.", choices=("auto", "bf16", "float32"))
    seed: int = option(0, flags=("--seed",), help="Seed of initial weights and data order.", ge=0)
    num_threads: int | None = option(None, flags=("--threads",), help="CPU threads (default: all cores).", ge=1)

    @property
    def budget_s(self) -> float:
        """Seconds of training where no number of steps is given."""
        return 60 * (DEFAULT_BUDGET_MINUTES if self.budget_minutes is None else self.budget_minutes)

    def check(self) -> None:
        if self.responses is not None and self.prompts is not None:
            raise OptionError(
                f"{self.said('responses')} and {self.said('prompts')} exclude each other.",
                advice="Give the responses, or prompts that the target answers first.",
            )
        if self.budget_minutes is not None and self.num_steps is not None:
            raise OptionError(f"{self.said('budget_minutes')} and {self.said('num_steps')} exclude each other.", advice="Give one of them.")
        if self.max_length + self.num_unrolled > self.batch_tokens:
            raise OptionError(
                f"A response of {self.said('max_length')} does not fit a batch of {self.said('batch_tokens')} with "
                f"{self.num_unrolled} rows of padding.",
                advice=f"Use {self.label('batch_tokens')} {self.max_length + self.num_unrolled} or more.",
            )


@dataclass(frozen=True)
class TrainEagleConfig(TrainConfig):
    """Of `hothead train eagle`."""

    feature_weight: float = option(
        0.1, flags=("--feature-weight",), help="Weight of the feature regression beside the cross-entropy.", ge=0.0
    )


@dataclass(frozen=True)
class TrainEagle3Config(TrainConfig):
    """Of `hothead train eagle3`."""

    output: Path = option(
        Path("eagle3-head"), flags=("--output", "-o"), help="Folder for the draft head, its token map and checkpoints of the training."
    )
    num_unrolled: int = option(
        4, flags=("--num-unrolled",), help="Draft steps that are unrolled in training, each on the head's own output.", ge=1, le=8
    )
    later_share: float = option(
        0.5,
        flags=("--later-share",),
        help="Share of the positions from which the steps after the first are unrolled: a random choice in every batch.",
        gt=0.0,
        le=1.0,
    )
    cache_dir: Path | None = option(
        None,
        flags=("--cache-dir",),
        help="Folder for the target's features of every response, 8 bytes per token and hidden unit. Left out: computed in each step.",
        metavar="FOLDER",
    )
