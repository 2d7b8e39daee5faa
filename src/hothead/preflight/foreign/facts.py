"""What is known of one launch, by name: what rules look at and messages show. A name that nobody filled is None: not known."""

from __future__ import annotations

from typing import Any


class Facts(dict[str, Any]):
    """Unknown names are None, so that a condition on something unknown does not hold."""

    def __missing__(self, name: str) -> Any:
        return None

    def more(self, left: str, right: str) -> bool:
        """Whether both are known and left is the larger."""
        first, second = self[left], self[right]
        return first is not None and second is not None and first > second

    def differ(self, left: str, right: str) -> bool:
        """Whether both are known and differ."""
        first, second = self[left], self[right]
        return first is not None and second is not None and first != second
