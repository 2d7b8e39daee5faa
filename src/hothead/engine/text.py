"""From tokens to text, one request at a time: incremental decoding and stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Decode(Protocol):
    """Incremental decoding: text that later tokens cannot change."""

    def push(self, token_id: int) -> str: ...

    def finish(self) -> str: ...


class TextStream:
    """Text of one request as it grows, cut before the first stop string.

    Text that could still become the beginning of a stop string is held back, so what was handed out never has to be taken back.
    """

    def __init__(self, decoder: Decode, stop: Sequence[str]) -> None:
        self._decoder = decoder
        self._stop = tuple(stop)
        self._held = ""
        self.is_stopped = False
        """Whether a stop string was met; no text comes after that."""

    def push(self, token_ids: Sequence[int]) -> tuple[str, int]:
        """-> new text, and how many of the tokens count: all, or those up to the one that completed a stop string."""
        released = ""
        for count, token_id in enumerate(token_ids, start=1):
            released += self._release(self._decoder.push(token_id))
            if self.is_stopped:
                return released, count
        return released, len(token_ids)

    def finish(self) -> str:
        """Text that was held back, once no more tokens come."""
        if self.is_stopped:
            return ""
        released = self._release(self._decoder.finish())
        if not self.is_stopped:
            released, self._held = released + self._held, ""
        return released

    def _release(self, text: str) -> str:
        self._held += text
        found = [position for position in (self._held.find(stop) for stop in self._stop) if position >= 0]
        if found:
            released, self._held, self.is_stopped = self._held[: min(found)], "", True
            return released
        num_kept = max((_overlap(self._held, stop) for stop in self._stop), default=0)
        released, self._held = self._held[: len(self._held) - num_kept], self._held[len(self._held) - num_kept :]
        return released


def _overlap(text: str, stop: str) -> int:
    """Length of the longest beginning of `stop` with which `text` ends."""
    return next((length for length in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:length])), 0)
