"""What the scheduler knows about one request while it lives."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hothead.records import Request


class Sequence:
    """A request's committed tokens and how far the cache has them. Mutable, owned by the scheduler."""

    def __init__(self, request: Request, context_length: int) -> None:
        assert request.sampling.seed is not None, request.request_id
        self.request = request
        self.seed = request.sampling.seed
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.max_tokens = min(self.num_prompt_tokens + request.sampling.max_tokens, context_length)
        """Committed tokens at which the request ends: its own limit, or the context's end."""
        self.num_cached = 0
        self.finish_reason: str | None = None
        self._tokens = np.empty(self.max_tokens, np.int64)
        self._tokens[: self.num_prompt_tokens] = request.prompt_token_ids
        self._num_tokens = self.num_prompt_tokens

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """Committed tokens: prompt, then emitted ones."""
        return self._tokens[: self._num_tokens]

    @property
    def num_pending(self) -> int:
        """Committed tokens that the target has not seen."""
        return self._num_tokens - self.num_cached

    @property
    def num_remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self.max_tokens - self._num_tokens

    def append(self, token_ids: tuple[int, ...], end_token_ids: frozenset[int]) -> tuple[int, ...]:
        """Commit tokens up to the first one that ends the request -> those committed; sets `finish_reason`."""
        for count, token_id in enumerate(token_ids, start=1):
            self._tokens[self._num_tokens] = token_id
            self._num_tokens += 1
            if token_id in end_token_ids:
                self.finish_reason = "stop"
            elif self._num_tokens == self.max_tokens:
                self.finish_reason = "length"
            if self.finish_reason is not None:
                return token_ids[:count]
        return token_ids
