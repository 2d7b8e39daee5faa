"""How rank 0 tells the other ranks what to do: one small broadcast per step, a second one only when there is news."""

from __future__ import annotations

import pickle
from typing import Any

import torch
import torch.distributed as dist

STOP = None
"""Message that ends the other ranks."""


class Control:
    """Rank 0 sends, the others receive in the same order. group: a process group of its own, whose time-out allows for idle hours."""

    def __init__(self, group: dist.ProcessGroup, rank: int) -> None:
        self._group = group
        self.rank = rank

    def send(self, message: list[Any] | None) -> None:
        """A list of commands to carry out before the next step ([] for a plain step), or STOP."""
        payload = b"" if message == [] else pickle.dumps(message)
        self._broadcast(torch.tensor([len(payload)], dtype=torch.int64))
        if payload:
            self._broadcast(torch.frombuffer(bytearray(payload), dtype=torch.uint8))

    def receive(self) -> list[Any] | None:
        header = torch.zeros(1, dtype=torch.int64)
        self._broadcast(header)
        num_bytes = int(header)
        if num_bytes == 0:
            return []
        payload = torch.empty(num_bytes, dtype=torch.uint8)
        self._broadcast(payload)
        message: list[Any] | None = pickle.loads(payload.numpy().tobytes())
        return message

    def _broadcast(self, tensor: torch.Tensor) -> None:
        dist.broadcast(tensor, src=0, group=self._group)
