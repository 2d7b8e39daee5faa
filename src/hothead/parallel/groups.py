"""What a rank can do together with the others: sum, gather, broadcast, wait. Each collective is counted.

On a CPU a collective costs 0.2-0.6 ms whatever its size, so a step pays for their number; `num_collectives` and `num_bytes` say what it
paid.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.distributed as dist

from hothead.errors import RankError

# Newer torch renamed the gather into one tensor and warns about the old name.
_gather_flat: Callable[..., object] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class RankGroup(Protocol):
    """The ranks that hold one model together, seen from one of them.

    Every method is called by all ranks of the group in the same order, with tensors of the same shape and dtype: float32, bfloat16,
    float16, int32, int64 or uint8. num_collectives: calls that reached other ranks so far. num_bytes: payload of those calls (a gather
    counts its whole result).
    """

    rank: int
    size: int
    num_collectives: int
    num_bytes: int
    is_alike: bool
    """Whether all ranks compute the same bits from the same inputs: one host, one build, the same number of threads."""

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over ranks, in place, also returned; the same bits on every rank."""
        ...

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """[*shape] -> [P, *shape], same on every rank."""
        ...

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> torch.Tensor:
        """The source rank's values, in place, also returned."""
        ...

    def barrier(self) -> None:
        """Return when every rank has called it."""
        ...


class SingleRank:
    """The group of one rank: nothing to exchange, nothing counted."""

    rank = 0
    size = 1
    num_collectives = 0
    num_bytes = 0
    is_alike = True

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.unsqueeze(0)

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> torch.Tensor:
        return tensor

    def barrier(self) -> None:
        return None


class ProcessGroupRanks:
    """The ranks of a torch.distributed process group (gloo or nccl); None is the default group of this process.

    Raises RankError when a collective fails, as it does when another rank died.
    """

    is_alike = False

    def __init__(self, process_group: dist.ProcessGroup | None = None) -> None:
        self.rank = dist.get_rank(process_group)
        self.size = dist.get_world_size(process_group)
        self.num_collectives = 0
        self.num_bytes = 0
        self._process_group = process_group

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        dense = tensor.contiguous()
        self._call("all_reduce", dense.nbytes, lambda: dist.all_reduce(dense, group=self._process_group))
        return tensor if dense is tensor else tensor.copy_(dense)

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        gathered = tensor.new_empty((self.size, *tensor.shape))
        flat, dense = gathered.view(-1), tensor.contiguous().view(-1)
        self._call("all_gather", gathered.nbytes, lambda: _gather_flat(flat, dense, group=self._process_group))
        return gathered

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> torch.Tensor:
        dense = tensor.contiguous()
        self._call("broadcast", dense.nbytes, lambda: dist.broadcast(dense, group=self._process_group, group_src=source))
        return tensor if dense is tensor else tensor.copy_(dense)

    def barrier(self) -> None:
        self._call("barrier", 0, lambda: dist.barrier(group=self._process_group))

    def _call(self, name: str, num_bytes: int, collective: Callable[[], object]) -> None:
        self.num_collectives += 1
        self.num_bytes += num_bytes
        try:
            collective()
        except RuntimeError as error:
            raise RankError(
                f"{name} failed on rank {self.rank} of {self.size}.",
                f"torch.distributed says: {str(error).strip().splitlines()[0]}",
                advice="Look at the first error of the other ranks: a rank that died takes the others with it.",
            ) from error
