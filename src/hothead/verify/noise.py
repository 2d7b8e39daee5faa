"""The noise that turns argmax into sampling: Gumbel values that depend on (seed, position, token id) and on nothing else.

argmax(log p + noise) over the vocabulary is a draw from p. The noise is computed from a counter, not drawn from a generator: the drafter,
the target and every rank compute it for just the token ids that they hold, and all see the same values, whatever the batch, the order or
the split of the ids.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

import torch
from torch import Tensor

from hothead.config.sampling import SamplingParams

_BLOCK_ELEMENTS = 1 << 16
"""Elements hashed at a time: two scratch buffers of this size stay in the second-level cache."""

_UINT64 = (1 << 64) - 1
_LARGEST_BELOW_ONE = 1.0 - 2.0**-24


def gumbel(seeds: Sequence[int] | Tensor, positions: Sequence[int] | Tensor, token_ids: Tensor) -> Tensor:
    """Gumbel noise for every (row, token id).

    seeds: [N], any integers, taken modulo 2^64. positions: [N], the index in its sequence of the token that is being chosen.
    token_ids: [R] integers below 2^32 -> [N, R] float32, on the device of token_ids, between -2.9 and 22.9.
    """
    noise, row_of = distinct_gumbel(seeds, positions, token_ids)
    if noise.shape[0] == len(row_of):
        return noise
    return noise.index_select(0, torch.tensor(row_of, dtype=torch.int64, device=noise.device))


def distinct_gumbel(seeds: Sequence[int] | Tensor, positions: Sequence[int] | Tensor, token_ids: Tensor) -> tuple[Tensor, list[int]]:
    """The same noise with equal rows kept once: tree nodes at one depth share seed and position.

    Returns noise [U, R] float32 for the U distinct (seed, position) pairs in order of first appearance, and for each of the N rows the
    index of its noise.
    """
    assert token_ids.ndim == 1, token_ids.shape
    pairs = list(zip(_as_ints(seeds), _as_ints(positions), strict=True))
    index_of = {pair: index for index, pair in enumerate(dict.fromkeys(pairs))}
    words = torch.tensor([key_words(seed, position) for seed, position in index_of], dtype=torch.int64, device=token_ids.device)
    words = _wrap_int32(words).view(-1, 2)
    scattered = _scatter(token_ids)  # [R]
    noise = torch.empty(len(index_of), token_ids.numel(), dtype=torch.float32, device=token_ids.device)
    num_rows = max(1, _BLOCK_ELEMENTS // max(1, token_ids.numel()))
    for start in range(0, len(index_of), num_rows):
        block = slice(start, start + num_rows)
        _fill(noise[block], words[block], scattered)
    return noise, [index_of[pair] for pair in pairs]


def key_words(seed: int, position: int) -> tuple[int, int]:
    """Two 32-bit words that stand for (seed, position): splitmix64's finalizer over the seed, then over the result and the position."""
    state = _mix64((seed + 0x9E3779B97F4A7C15) & _UINT64)
    state = _mix64((state + position * 0xD1342543DE82EF95) & _UINT64)
    return state >> 32, state & 0xFFFFFFFF


def derived_seed(seed: int, *words: int) -> int:
    """The seed of a stream of its own: independent of the seed's own noise and of every other choice of words. 64 bits."""
    state = _mix64((seed + 0x9E3779B97F4A7C15) & _UINT64)
    for word in words:
        state = _mix64((state + (word + 1) * 0x2545F4914F6CDD1D) & _UINT64)
    return state


def uniform(seed: int, position: int) -> float:
    """One number in (0, 1) for (seed, position): 53 bits, never 0."""
    first, second = key_words(seed, position)
    return ((first << 21 | second >> 11) + 0.5) * 2.0**-53


def resolve_seed(sampling: SamplingParams, request_id: str) -> int:
    """The seed of a request: its own, or 63 random bits.

    Call it once per request and on one rank, and keep the answer (a preempted request must go on with the same noise): without a seed of
    its own, every call gives another one. The request id goes into the hash so that requests differ even where the system's randomness
    repeats, as in copies of a machine's snapshot.
    """
    if sampling.seed is not None:
        return sampling.seed
    digest = hashlib.blake2b(request_id.encode(), digest_size=8, key=os.urandom(32)).digest()
    return int.from_bytes(digest, "little") >> 1


def _as_ints(values: Sequence[int] | Tensor) -> list[int]:
    if isinstance(values, Tensor):
        return [int(value) for value in values.tolist()]
    return [int(value) for value in values]


def _mix64(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _UINT64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _UINT64
    return value ^ (value >> 31)


def _wrap_int32(values: Tensor) -> Tensor:
    """Unsigned 32-bit values held in int64 -> the int32 with the same bits."""
    return torch.where(values >= 1 << 31, values - (1 << 32), values).to(torch.int32)


def _scatter(token_ids: Tensor) -> Tensor:
    """A key-free mix of the token ids, done once for all rows: neighbours land far apart before the key comes in.  [R] -> [R] int32."""
    mixed = _wrap_int32(token_ids.to(torch.int64))
    scratch = torch.empty_like(mixed)
    _xor_shift_right(mixed, 16, scratch)
    mixed.mul_(0x7FEB352D)
    _xor_shift_right(mixed, 15, scratch)
    mixed.mul_(0x846CA68B - (1 << 32))
    _xor_shift_right(mixed, 16, scratch)
    return mixed


def _fill(noise: Tensor, words: Tensor, scattered: Tensor) -> None:
    """Hash keys and token ids, and write the noise.  noise: [n, R], words: [n, 2] int32, scattered: [R] int32."""
    bits = scattered + words[:, :1]  # [n, R], wraps around
    scratch = torch.empty_like(bits)
    _xor_shift_right(bits, 17, scratch)
    bits.mul_(0xED5AD4BB - (1 << 32))
    _xor_shift_right(bits, 11, scratch)
    bits.mul_(0xAC4C1B51 - (1 << 32))
    bits.bitwise_xor_(words[:, 1:])
    _xor_shift_right(bits, 15, scratch)
    bits.mul_(0x31848BAB)
    _xor_shift_right(bits, 14, scratch)
    _write_gumbel(noise, bits)


def _write_gumbel(noise: Tensor, bits: Tensor) -> None:
    """Uniform bits [n, R] int32, read as unsigned, -> Gumbel values into noise [n, R] float32."""
    noise.copy_(bits.view(torch.uint32))
    # -v with v = (bits + 0.5) / 2^32. A small v keeps its full relative precision, and small v are the large noise values that decide.
    noise.mul_(-(2.0**-32)).sub_(2.0**-33).clamp_(min=-_LARGEST_BELOW_ONE)
    noise.log1p_().neg_()  # exponentially distributed
    noise.log_().neg_()


def _xor_shift_right(bits: Tensor, shift: int, scratch: Tensor) -> None:
    """bits ^= bits >>> shift, in place. The mask makes torch's arithmetic shift a logical one."""
    torch.bitwise_right_shift(bits, shift, out=scratch)
    scratch.bitwise_and_((1 << (32 - shift)) - 1)
    bits.bitwise_xor_(scratch)
