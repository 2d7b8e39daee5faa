"""How many KV slots the cache gets."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from hothead.config.engine import EngineConfig
from hothead.draft.base import TreeShape
from hothead.errors import OptionError
from hothead.models.attention import KVPool
from hothead.models.decoder import Decoder

MEMORY_SHARE = 0.4
"""Share of the memory that is free once the weights are loaded; the rest is for activations and for everybody else."""


def cache_slots(config: EngineConfig, decoder: Decoder, context_length: int, shape: TreeShape, draft_bytes_per_slot: int) -> int:
    """Slots, a multiple of the block size: as asked, else what all concurrent requests could need at most, else what memory allows.

    draft_bytes_per_slot: of the drafter's own keys and values, which lie at the same slots. Raises OptionError when there is no room for a
    single request.
    """
    num_scratch = shape.num_steps * shape.topk + shape.num_draft_tokens
    if config.max_total_tokens is not None:
        num_least = -(-(num_scratch + 2) // config.block_size) * config.block_size
        if config.max_total_tokens < num_least:
            raise OptionError(
                f"{config.said('max_total_tokens')} leaves no room for a request: a draft takes up to {num_scratch} slots, in blocks of "
                f"{config.block_size}.",
                advice=f"Give at least {num_least}, or a smaller tree.",
            )
        return config.max_total_tokens // config.block_size * config.block_size
    num_wanted = config.max_concurrency * (context_length + num_scratch + config.block_size)
    own = KVPool.bytes_per_slot(decoder.config.num_layers, decoder.num_local_kv_heads, decoder.config.head_dim, decoder.dtype)
    bytes_per_slot = own + draft_bytes_per_slot
    num_local_ranks = decoder.group.size if decoder.device.type == "cpu" else 1
    available_bytes = int(free_bytes(decoder.device) * MEMORY_SHARE) // num_local_ranks
    num_slots = min(num_wanted, available_bytes // bytes_per_slot) // config.block_size * config.block_size
    if num_slots < config.block_size:
        raise OptionError(
            "There is no memory for the KV cache.",
            f"One block of {config.block_size} tokens takes {config.block_size * bytes_per_slot / 2**20:.1f} MiB; "
            f"{available_bytes / 2**20:.1f} MiB may be used.",
            advice="Free memory, or use a smaller --block-size or a smaller model.",
        )
    return num_slots


def free_bytes(device: torch.device) -> int:
    """Memory that a new allocation could get on this device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
