"""From a configuration to a running core on this rank: device, dtype, target, drafter, cache, scheduler, in the order in which each needs
the last."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from hothead.config.engine import NONE, EngineConfig
from hothead.draft.catalog import DRAFTERS, head_algorithm, network_config
from hothead.draft.context import DraftContext, DraftPlan
from hothead.engine.core import EngineCore
from hothead.engine.kv_cache import KVCache
from hothead.engine.memory import cache_slots
from hothead.engine.scheduler import Scheduler
from hothead.engine.target import Target
from hothead.errors import ModelNotFoundError, OptionError
from hothead.models.attention import KVPool
from hothead.models.catalog import resolve_model
from hothead.models.config import ModelConfig
from hothead.models.config_files import load_config
from hothead.models.decoder import Decoder
from hothead.models.weights import open_weights
from hothead.models.weights.accounting import account
from hothead.parallel.groups import RankGroup
from hothead.parallel.partition import HeadSplit

DTYPES = {"bf16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True, slots=True)
class CorePlan:
    """What rank 0 found out before any rank was started; the same on every rank."""

    config: EngineConfig
    model_path: Path
    draft: DraftPlan
    num_token_ids: int
    eos_token_ids: frozenset[int]


def resolve_device(config: EngineConfig) -> torch.device:
    """auto: CUDA where torch has it (untested), else the CPU."""
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if config.device.startswith("cuda") and not torch.cuda.is_available():
        raise OptionError(f"{config.said('device')}: this torch has no CUDA device.", advice="Use --device cpu.")
    return torch.device(config.device)


def resolve_dtype(config: EngineConfig, model: ModelConfig) -> torch.dtype:
    """auto: as the checkpoint has it, bf16 for quantized and float16 ones."""
    if config.dtype != "auto":
        return DTYPES[config.dtype]
    return torch.float32 if model.torch_dtype == "float32" else torch.bfloat16


def check_launch(config: EngineConfig, model: ModelConfig) -> None:
    """What can be refused before ranks are started and weights are read. Raises OptionError."""
    HeadSplit(model.num_heads, model.num_kv_heads, config.tp_size)
    if config.context_length is not None and config.context_length > model.context_length:
        raise OptionError(
            f"{config.said('context_length')} is longer than the context window of {model.source}: {model.context_length} tokens.",
            advice=f"Give at most {model.context_length}.",
        )


def resolve_draft_path(config: EngineConfig, shipped: Path | None) -> Path | None:
    """The draft head's folder: given, or shipped for this target, or none; with STANDALONE the draft model's folder or file."""
    given = config.speculative_draft_model_path
    if config.speculative_algorithm == "STANDALONE":
        return None if given is None else resolve_model(given, config.cache_dir).path
    if config.is_plain or given == NONE or config.speculative_algorithm == "NGRAM":
        return None
    if given is None:
        # A head that ships drafts only by the algorithm that it was made for.
        is_wanted = shipped is not None and config.speculative_algorithm in ("auto", head_algorithm(shipped))
        return shipped if is_wanted else None
    path = Path(given).expanduser()
    if not path.exists():
        raise ModelNotFoundError(f"No draft head at {path}: no such file or folder.", advice="Give the folder of the head to --draft.")
    return path


def build_core(plan: CorePlan, group: RankGroup) -> EngineCore:
    """Load this rank's part of everything."""
    config = plan.config
    model = load_config(plan.model_path)
    device = resolve_device(config)
    dtype = resolve_dtype(config, model)
    shape = plan.draft.shape
    context_length = config.context_length or model.context_length
    source = open_weights(plan.model_path)
    try:
        account(source, model.tensor_shapes(), has_tied_head=model.tie_word_embeddings)
        decoder = Decoder.load(model, source, group, dtype, device, context_length)
        num_slots = _least(group, cache_slots(config, decoder, context_length, shape, _draft_bytes_per_slot(plan.draft, decoder)), device)
        context = DraftContext(config, plan.draft, decoder, source, num_slots, context_length, plan.num_token_ids)
        drafter = DRAFTERS[plan.draft.algorithm](context)
        drafter.draws = config.verification == "rejection"
    finally:
        source.close()
    pool = decoder.new_pool(num_slots)
    cache = KVCache(pool, config.block_size)
    scheduler = Scheduler(
        cache,
        max_concurrency=config.max_concurrency,
        max_prefill_tokens=config.chunked_prefill_size,
        context_length=context_length,
        max_tree_nodes=shape.num_nodes,
        num_scratch_slots=max(shape.num_nodes, drafter.num_scratch_slots),
        eos_token_ids=plan.eos_token_ids,
        forget=drafter.forget,
    )
    return EngineCore(scheduler, drafter, Target(decoder, pool, plan.draft.feature_layers), cache, group)


def _draft_bytes_per_slot(draft: DraftPlan, target: Decoder) -> int:
    """Of the drafter's own keys and values on this rank: all heads, since small networks may run whole on each rank."""
    if draft.path is None:
        return 0
    network = network_config(draft.algorithm, draft.path)
    return KVPool.bytes_per_slot(network.num_layers, network.num_kv_heads, network.head_dim, target.dtype)


def _least(group: RankGroup, value: int, device: torch.device) -> int:
    """The smallest number of all ranks, on every rank."""
    return int(group.all_gather(torch.tensor([value], dtype=torch.int64, device=device)).min())
