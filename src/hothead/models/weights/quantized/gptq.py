"""AutoGPTQ's layout: the weight is stored transposed, neighbouring inputs in one int32 word; g_idx names each input's group.

value = scale * (stored - zero point), in the scale's type. The first form of the format stores zero points less one. Groups in order of
activation (desc_act) are what g_idx says. https://github.com/AutoGPTQ/AutoGPTQ
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from hothead.errors import CheckpointError
from hothead.models.weights.quantized.layouts import Tensors


class GptqWeight:
    """qweight [I * bits / 32, O] int32, qzeros [G, O * bits / 32] int32, scales [G, O], g_idx [I] int32."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors, num_bits = tensors, tensors.scheme.num_bits
        num_words, num_rows = tensors.shape("qweight")
        self.shape = (num_rows, num_words * 32 // num_bits)
        group_size = tensors.scheme.group_size or self.shape[1]
        num_groups = -(-self.shape[1] // group_size)
        tensors.check("scales", (num_groups, num_rows))
        tensors.check("qzeros", (num_groups, num_rows * num_bits // 32))
        self._group_of_input = torch.arange(self.shape[1]) // group_size
        if tensors.has("g_idx"):
            tensors.check("g_idx", (self.shape[1],))
            self._group_of_input = tensors.read("g_idx").long()
            if not 0 <= int(self._group_of_input.min()) <= int(self._group_of_input.max()) < num_groups:
                raise CheckpointError(f"{tensors.source.source}: {tensors.module}.g_idx names groups outside 0 to {num_groups - 1}.")

    def read(self, rows: NDArray[np.int64], inputs: slice) -> torch.Tensor:
        num_bits, module, source = self._tensors.scheme.num_bits, self._tensors.module, self._tensors.source
        per_word, mask = 32 // num_bits, (1 << num_bits) - 1
        first_word = inputs.start // per_word
        words = source.read_columns(f"{module}.qweight", slice(first_word, -(-inputs.stop // per_word)), rows).T  # [n, words]
        places = torch.arange(inputs.start, inputs.stop) - first_word * per_word
        stored = (words[:, places // per_word] >> (num_bits * (places % per_word)).int()) & mask
        groups = self._group_of_input[inputs]
        all_groups = slice(0, self._tensors.shape("scales")[0])
        zero_words = source.read_columns(f"{module}.qzeros", all_groups, rows // per_word).T  # [n, G]
        shifts = torch.from_numpy(num_bits * (rows % per_word)).int().unsqueeze(1)
        # Zero is stored as the highest number where one is taken away: the mask brings it back.
        zero_points = ((zero_words >> shifts) + self._tensors.scheme.zero_offset) & mask
        scale = source.read_columns(f"{module}.scales", all_groups, rows).T  # [n, G]
        values: torch.Tensor = scale[:, groups] * (stored - zero_points[:, groups]).to(torch.int16)
        return values
