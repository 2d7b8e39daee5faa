"""How one rank multiplies by its part of a weight: the plain road and a packed one that is faster for few rows on a CPU.

The packed road hands the weight to oneDNN once, in the blocked layout that its kernels read; every later call skips the reordering that a
plain call pays each time. It is taken for bfloat16 on a CPU whose oneDNN has native bfloat16. Both roads accumulate in float32.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

NUM_ROWS_HINT = 16
"""Row count that the packed layout is chosen for: a verify step scores about this many tokens."""


class Linear:
    """y = x @ weight.T + bias with a frozen weight.

    weight: [O, I]. bias: [O] or None. `is_packed=False` keeps the plain road; None takes the packed one where it exists.
    The weight itself is kept only on the plain road, so that packing does not double the memory.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None, *, is_packed: bool | None = None) -> None:
        self.num_outputs, self.num_inputs = weight.shape
        self.bias = bias
        if is_packed is None:
            is_packed = can_pack(weight)
        self.is_packed = is_packed
        self.dtype = weight.dtype
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), NUM_ROWS_HINT) if is_packed else weight

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        """inputs: [N, I] -> [N, O] in the weight's dtype."""
        if self.is_packed:
            packed: torch.Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self._weight, self.bias, "none", [], "")
            return packed
        return F.linear(inputs, self._weight, self.bias)

    def first_rows(self, num_rows: int) -> Linear:
        """The same for the first output rows; nothing is copied on the plain road."""
        weight = self._weight.to_dense() if self.is_packed else self._weight
        return Linear(weight[:num_rows], None if self.bias is None else self.bias[:num_rows], is_packed=self.is_packed and num_rows > 0)


def can_pack(weight: torch.Tensor) -> bool:
    """Whether the packed road exists for this weight: bfloat16, on a CPU, with oneDNN's native bfloat16 kernels in this build."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and min(weight.shape) > 0
        and torch._C._has_mkldnn
        and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )
