"""Which ranks share a head, and which rows each of them has: a function of model family, parallel configuration and tying, in one place.

The number of shards is not always tp_size. Under attention data parallelism every group of attn_tp_size = tp_size / dp_size ranks is a
replica of the attention layers, and with `--enable-dp-lm-head` the heads of some families are cut over that group instead of all ranks; a
tied head lies where its embedding lies. The tables say which family does what; they were read from the model files of SGLang 0.5.23.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from hothead.errors import HotMapError, ModelConfigError, OptionError, nearest
from hothead.parallel.partition import VocabShards


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


HEAD_FOLLOWS_ATTENTION = _names(
    "apertus arcee bailing_moe bailing_moe_linear deepseek_v2 deepseek_v3 deepseek_v4 exaone4 exaone_moe falcon_h1 glm4_moe "
    "glm4_moe_lite gpt_oss hunyuan_v4 kimi_k3 laguna llada2 llama longcat_flash mimo_v2 minimax_m3 mistral nemotron_h "
    "qwen2_moe qwen3 qwen3_5_text qwen3_moe qwen3_next qwen3_vl sarvam_moe sdar sdar_moe solar step3p5"
)
"""Families whose untied head is cut over the attention group with `--enable-dp-lm-head`; `mistral` runs as llama there."""

HEAD_FOLLOWS_TP = _names(
    "afmoe baichuan chatglm dbrx deepseek dots_ocr ernie45 exaone gemma3 gemma3n gemma4 glm4 gpt_j granite granitemoe grok "
    "hunyuan internlm2 kimi_linear lfm2 llama_eagle llama_eagle3 mamba2 mimo minicpm minicpm3 minimax_m2 mixtral mllama olmo "
    "olmo2 olmoe opt orion persimmon phi phi3_small phimoe qwen qwen2 qwen2_5_vl qwen2_eagle qwen2_vl stablelm starcoder2 "
    "whisper xverse"
)
"""Families whose untied head is always cut over all ranks."""

EMBEDDING_FOLLOWS_ATTENTION = _names("deepseek_v2 deepseek_v3 glm4_moe gpt_oss qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next")
"""Families whose embedding, and with it a tied head, is cut over the attention group as soon as attention is data parallel."""

Group = Literal["tensor parallel", "attention"]


@dataclass(frozen=True)
class ParallelConfig:
    """How a launch uses its ranks. Names as SGLang's flags. Raises OptionError for what contradicts itself."""

    tp_size: int = 1
    dp_size: int = 1
    enable_dp_attention: bool = False
    enable_dp_lm_head: bool = False

    def __post_init__(self) -> None:
        if self.tp_size < 1 or self.dp_size < 1:
            raise OptionError(f"--tp-size {self.tp_size} and --dp-size {self.dp_size} must be at least 1.")
        if self.enable_dp_attention and self.tp_size % self.dp_size:
            raise OptionError(
                f"--tp-size {self.tp_size} ranks cannot be cut into --dp-size {self.dp_size} groups of one size.",
                advice=f"Use a --dp-size that divides {self.tp_size}.",
            )
        if self.enable_dp_lm_head and not self.enable_dp_attention:
            raise OptionError("--enable-dp-lm-head needs --enable-dp-attention.", advice="Give both, or none.")

    @property
    def attn_tp_size(self) -> int:
        """Ranks of one replica of the attention layers."""
        return self.tp_size // self.dp_size if self.enable_dp_attention else self.tp_size

    @property
    def uses_dp_lm_head(self) -> bool:
        """One replica has nothing to follow: the flag is off then."""
        return self.enable_dp_lm_head and self.dp_size > 1


@dataclass(frozen=True)
class HeadLayout:
    """shards: rows of each rank of a group. group: which ranks share a row of logits. num_ranks: of the launch."""

    shards: VocabShards
    group: Group
    num_ranks: int

    @property
    def num_shards(self) -> int:
        return self.shards.num_shards

    @property
    def is_whole(self) -> bool:
        """Every rank has every row: gathering rows by token id is right, and no scores are exchanged."""
        return self.num_shards == 1

    def ranks_of(self, rank: int) -> range:
        """The ranks that hold the head together with this one; consecutive."""
        start = rank // self.num_shards * self.num_shards
        return range(start, start + self.num_shards)

    def shard_of(self, rank: int) -> int:
        """Which shard a rank has."""
        return rank % self.num_shards


def head_layout(family: str, parallel: ParallelConfig, num_rows: int, num_added: int = 0, *, is_tied: bool = False) -> HeadLayout:
    """family: name of the model file, as in the tables. num_rows: O, rows in the checkpoint; num_added: A, rows appended to them.

    Raises ModelConfigError for a family that is in no table, OptionError for a vocabulary that cannot be cut so.
    """
    known = HEAD_FOLLOWS_ATTENTION | HEAD_FOLLOWS_TP
    if family not in known:
        raise ModelConfigError(
            f"Where the head of the family {family!r} lies is not known.",
            nearest(family, known),
            advice="Look at its model file, and add it.",
        )
    if is_tied:
        follows = family in EMBEDDING_FOLLOWS_ATTENTION and parallel.enable_dp_attention
    else:
        follows = family in HEAD_FOLLOWS_ATTENTION and parallel.uses_dp_lm_head
    num_shards = parallel.attn_tp_size if follows else parallel.tp_size
    return HeadLayout(VocabShards(num_rows, num_added, num_shards), "attention" if follows else "tensor parallel", parallel.tp_size)


def validate_hot_token_ids_fit(hot_token_ids: npt.NDArray[np.integer], num_head_rows: int, shard: int | None = None) -> None:
    """For engines that gather head rows by global token id: raise HotMapError unless every id is a row of the head that is really there.

    num_head_rows: rows of the tensor in hand, which is a shard's where the head is cut. shard: whose, for the message.
    """
    bad = np.flatnonzero((hot_token_ids < 0) | (hot_token_ids >= num_head_rows))
    if len(bad):
        whose = "the head" if shard is None else f"shard {shard} of the head"
        raise HotMapError(
            f"{len(bad)} of {len(hot_token_ids)} hot token ids have no row in {whose}, which has {num_head_rows} rows.",
            f"The first is token id {hot_token_ids[bad[0]]} at hot index {bad[0]}.",
            advice="Deal the hot rows out over ranks by token id (balanced or replicated), use one rank, or leave the map out.",
        )
