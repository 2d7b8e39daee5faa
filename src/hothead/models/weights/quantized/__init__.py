"""A checkpoint with quantized weights as if it had plain ones: logical names and shapes outside, rows decoded when they are read."""

from __future__ import annotations

from hothead.models.weights.quantized.source import QuantizedWeights

__all__ = ["QuantizedWeights"]
