"""How rank 0 tells the other ranks what to do: one small broadcast per step, a second one only when there is news."""

from __future__ import annotations

import pickle
from typing import Any

import torch

from hothead.parallel.groups import RankGroup

STOP = None
"""Message that ends the other ranks."""


class Control:
    """Rank 0 sends, the others receive in the same order. group: one of its own, whose time-out allows for idle hours."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group
        self.rank = group.rank

    def send(self, message: list[Any] | None) -> None:
        """A list of commands to carry out before the next step ([] for a plain step), or STOP."""
        payload = b"" if message == [] else pickle.dumps(message)
        self._group.broadcast(torch.tensor([len(payload)], dtype=torch.int64))
        if payload:
            self._group.broadcast(torch.frombuffer(bytearray(payload), dtype=torch.uint8))

    def receive(self) -> list[Any] | None:
        header = torch.zeros(1, dtype=torch.int64)
        self._group.broadcast(header)
        num_bytes = int(header)
        if num_bytes == 0:
            return []
        payload = torch.empty(num_bytes, dtype=torch.uint8)
        self._group.broadcast(payload)
        message: list[Any] | None = pickle.loads(payload.numpy().tobytes())
        return message
