"""What every layout of quantized weights offers: any rows and inputs of one module's weight, decoded as the library that defines it
does."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hothead.errors import CheckpointError
from hothead.models.quantization import WeightScheme
from hothead.models.weights.safetensors import SafetensorsWeights


class WeightLayout(Protocol):
    """The weight of one module. shape: [O, I]. Made with its checks: a missing or misshapen tensor raises CheckpointError."""

    shape: tuple[int, int]

    def read(self, rows: NDArray[np.int64], inputs: slice) -> torch.Tensor:
        """[n] row numbers, a slice of inputs with start and stop -> [n, C], bit for bit as a decoded whole has them."""
        ...


class Tensors:
    """The stored tensors of one module, by what follows its name."""

    def __init__(self, source: SafetensorsWeights, module: str, scheme: WeightScheme) -> None:
        self.source, self.module, self.scheme = source, module, scheme

    def has(self, name: str) -> bool:
        return f"{self.module}.{name}" in self.source.names()

    def shape(self, name: str) -> tuple[int, ...]:
        if not self.has(name):
            raise CheckpointError(
                f"{self.source.source}: {self.module} is stored as {self.scheme.label}, but its {name} is missing.",
                advice="Fetch the model again.",
            )
        return self.source.shape(f"{self.module}.{name}")

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        found = self.shape(name)
        if found != shape:
            raise CheckpointError(
                f"{self.source.source}: {self.module}.{name} is {list(found)} instead of {list(shape)}.",
                f"{self.module} is stored as {self.scheme.label}.",
                advice="Configuration and weights belong to different models, or the file is damaged.",
            )

    def read(self, name: str, rows: slice | NDArray[np.int64] | None = None, columns: slice | None = None) -> torch.Tensor:
        """As it is stored: integers stay integers."""
        self.shape(name)
        return self.source.read_raw(f"{self.module}.{name}", rows, columns)


def unpacked(words: torch.Tensor, first: int, count: int, num_bits: int) -> torch.Tensor:
    """Numbers of num_bits that lie in 32-bit words one after the other, lowest bits first: [n, W] int32 -> [n, count] int32, from `first`
    on.

    num_bits that do not divide 32 cross from one word to the next.
    """
    starts = (first + torch.arange(count)) * num_bits
    word, shift = starts // 32, starts % 32
    wide = words.long() & 0xFFFFFFFF
    low = wide[:, word] >> shift
    crosses = shift + num_bits > 32
    if bool(crosses.any()):
        low[:, crosses] |= wide[:, word[crosses] + 1] << (32 - shift[crosses])
    return (low & ((1 << num_bits) - 1)).int()


def word_range(inputs: slice, num_bits: int) -> tuple[slice, int]:
    """The words that hold these numbers, and the place of the first number in them."""
    first_word = inputs.start * num_bits // 32
    # A word holds a whole number of values only where num_bits divides 32; else start where one begins.
    while (first_word * 32) % num_bits:
        first_word -= 1
    return slice(first_word, -(-inputs.stop * num_bits // 32)), inputs.start - first_word * 32 // num_bits


def per_input(of_group: torch.Tensor, inputs: slice, group_size: int, first_group: int) -> torch.Tensor:
    """A number per group [n, G], groups from first_group on -> per input [n, C]."""
    return of_group[:, torch.arange(inputs.start, inputs.stop) // group_size - first_group]


def groups_of(inputs: slice, group_size: int) -> slice:
    """Groups in which these inputs lie."""
    return slice(inputs.start // group_size, -(-inputs.stop // group_size))
