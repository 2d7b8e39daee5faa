"""Collectives of ranks on one host through memory that all of them have mapped: a few microseconds where sockets take hundreds.

Each rank owns a counter and two buffers. In its n-th collective it waits until every counter has reached n - 1, copies its part into its
buffer n mod 2, sets its counter to n, waits for the counters of those whose parts it needs, and reads them. A rank that writes buffer
n mod 2 again has seen all counters at n + 1, so everyone has left collective n.

That a counter is seen after the part it announces holds on processors that keep stores in order, which is asked before (`is_possible`);
elsewhere, between hosts, and for parts larger than a buffer, torch.distributed stays in use.
"""

from __future__ import annotations

import mmap
import os
import platform
import secrets
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from hothead.errors import RankError
from hothead.parallel.groups import RankGroup

BUFFER_BYTES = 1 << 20
_FOLDER = Path("/dev/shm")
_ORDERED_STORES = ("x86_64", "AMD64")
_LINE_BYTES = 64
"""Counters lie on cache lines of their own."""
_NUM_SPINS = 2000
_YIELD_S = 3e-3
"""Giving way for this long before sleeping: a rank that sleeps wakes late, and would send the rank that waits for it to sleep in turn."""
_FIRST_SLEEP_S, _LONGEST_SLEEP_S = 50e-6, 5e-3
_LIFE_CHECK_S = 0.2
_MAX_VIEWS = 256
"""Sizes whose views are kept; a step has a dozen, messages can have any."""


class Channel:
    """One sequence of collectives over one stretch of shared memory. pids: of all ranks, to notice one that died."""

    def __init__(self, memory: mmap.mmap, offset: int, rank: int, pids: Sequence[int]) -> None:
        self._rank, self._size, self._pids = rank, len(pids), pids
        counters = memoryview(memory)[offset : offset + self._size * _LINE_BYTES].cast("q")
        self._counters = counters[:: _LINE_BYTES // 8]
        start = offset + self._size * _LINE_BYTES
        self._buffers = [
            [
                torch.frombuffer(memory, dtype=torch.uint8, count=BUFFER_BYTES, offset=start + number * BUFFER_BYTES)
                for number in range(parity * self._size, (parity + 1) * self._size)
            ]
            for parity in (0, 1)
        ]
        self._views: dict[tuple[torch.dtype, int], list[list[torch.Tensor]]] = {}
        self._number = 0

    @staticmethod
    def num_bytes(size: int) -> int:
        """Of the memory for `size` ranks."""
        return size * _LINE_BYTES + 2 * size * BUFFER_BYTES

    def exchange(self, part: torch.Tensor | None, dtype: torch.dtype, numel: int, sources: Sequence[int]) -> list[torch.Tensor]:
        """Publish this rank's part (None for nothing) -> the parts [numel] of the sources, to be read before the next call.

        Raises RankError when a rank died.
        """
        self._number += 1
        number = self._number
        views = self._views_of(dtype, numel)[number & 1]
        self._wait(range(self._size), number - 1)
        if part is not None:
            views[self._rank].copy_(part)
        self._counters[self._rank] = number
        self._wait(sources, number)
        return [views[source] for source in sources]

    def _views_of(self, dtype: torch.dtype, numel: int) -> list[list[torch.Tensor]]:
        if (dtype, numel) not in self._views:
            num_bytes = numel * dtype.itemsize
            if len(self._views) >= _MAX_VIEWS:
                self._views.clear()
            self._views[dtype, numel] = [[buffer[:num_bytes].view(dtype) for buffer in buffers] for buffers in self._buffers]
        return self._views[dtype, numel]

    def _wait(self, sources: Sequence[int], number: int) -> None:
        """Until their counters have reached a number: spinning first, then giving way, then asleep."""
        counters = self._counters
        for source in sources:
            for _ in range(_NUM_SPINS):
                if counters[source] >= number:
                    break
            else:
                self._wait_long(source, number)

    def _wait_long(self, source: int, number: int) -> None:
        counters = self._counters
        end_s = time.monotonic() + _YIELD_S
        while time.monotonic() < end_s:
            if counters[source] >= number:
                return
            os.sched_yield()
        sleep_s = _FIRST_SLEEP_S
        next_check_s = time.monotonic() + _LIFE_CHECK_S
        while counters[source] < number:
            time.sleep(sleep_s)
            sleep_s = min(2 * sleep_s, _LONGEST_SLEEP_S)
            if time.monotonic() >= next_check_s:
                next_check_s = time.monotonic() + _LIFE_CHECK_S
                dead = [rank for rank, pid in enumerate(self._pids) if not _is_alive(pid)]
                if dead and counters[source] < number:
                    raise RankError(
                        f"Rank {self._rank} lost rank {dead[0]}: its process {self._pids[dead[0]]} is gone.",
                        advice="Look at that rank's own output.",
                    )


class SharedMemoryRanks:
    """A RankGroup over a channel; parts that do not fit a buffer take the plain group."""

    is_alike = True

    def __init__(self, plain: RankGroup, channel: Channel) -> None:
        self.rank, self.size = plain.rank, plain.size
        self.num_collectives = 0
        self.num_bytes = 0
        self._plain = plain
        self._channel = channel
        self._all = tuple(range(self.size))

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.nbytes > BUFFER_BYTES:
            return self._counted(self._plain.all_reduce(tensor), tensor.nbytes)
        first, second, *others = self._channel.exchange(tensor.reshape(-1), tensor.dtype, tensor.numel(), self._all)
        # Every rank adds in the same order: the same bits everywhere.
        flat = tensor.view(-1) if tensor.is_contiguous() else torch.empty_like(first)
        torch.add(first, second, out=flat)
        for other in others:
            flat += other
        if not tensor.is_contiguous():
            tensor.copy_(flat.view(tensor.shape))
        return self._counted(tensor, tensor.nbytes)

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.nbytes > BUFFER_BYTES:
            return self._counted(self._plain.all_gather(tensor), tensor.nbytes * self.size)
        parts = self._channel.exchange(tensor.reshape(-1), tensor.dtype, tensor.numel(), self._all)
        return self._counted(torch.stack(parts).view(self.size, *tensor.shape), tensor.nbytes * self.size)

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> torch.Tensor:
        if tensor.nbytes > BUFFER_BYTES:
            return self._counted(self._plain.broadcast(tensor, source), tensor.nbytes)
        is_source = self.rank == source
        parts = self._channel.exchange(
            tensor.reshape(-1) if is_source else None, tensor.dtype, tensor.numel(), () if is_source else (source,)
        )
        if not is_source:
            tensor.copy_(parts[0].view(tensor.shape))
        return self._counted(tensor, tensor.nbytes)

    def barrier(self) -> None:
        self._channel.exchange(None, torch.uint8, 0, self._all)
        self.num_collectives += 1

    def _counted(self, result: torch.Tensor, num_bytes: int) -> torch.Tensor:
        self.num_collectives += 1
        self.num_bytes += num_bytes
        return result


def open_channels(plain: RankGroup, num_channels: int) -> list[Channel] | None:
    """Channels between all ranks of the default process group; None, on every rank alike, where they are not on one host or cannot share
    memory."""
    host = f"{socket.gethostname()} {_boot_id()}"
    about: list[tuple[str, int, bool] | None] = [None] * plain.size
    dist.all_gather_object(about, (host, os.getpid(), is_possible()))
    known = [one for one in about if one is not None]
    assert len(known) == plain.size, about
    if len({name for name, _, _ in known}) > 1 or not all(can for _, _, can in known):
        return None
    num_bytes = num_channels * Channel.num_bytes(plain.size)
    path = _make(num_bytes) if plain.rank == 0 else None
    paths: list[str | None] = [path]
    dist.broadcast_object_list(paths, src=0)
    memory = None if paths[0] is None else _map(paths[0], num_bytes)
    opened: list[bool | None] = [None] * plain.size
    dist.all_gather_object(opened, memory is not None)
    if path is not None:
        Path(path).unlink(missing_ok=True)  # it lives as long as someone has it mapped, and never longer
    if not all(opened) or memory is None:
        return None
    pids = [pid for _, pid, _ in known]
    return [Channel(memory, number * Channel.num_bytes(plain.size), plain.rank, pids) for number in range(num_channels)]


def is_possible() -> bool:
    """Whether this machine keeps stores in order and has a folder in memory."""
    return platform.machine() in _ORDERED_STORES and _FOLDER.is_dir() and hasattr(os, "sched_yield")


def _make(num_bytes: int) -> str | None:
    """A new file of zeros in memory; None where there is no room for it."""
    path = _FOLDER / f"hothead-{os.getpid()}-{secrets.token_hex(8)}"
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, num_bytes)
        finally:
            os.close(descriptor)
    except OSError:
        path.unlink(missing_ok=True)
        return None
    return str(path)


def _map(path: str, num_bytes: int) -> mmap.mmap | None:
    try:
        descriptor = os.open(path, os.O_RDWR)
        try:
            return mmap.mmap(descriptor, num_bytes)
        finally:
            os.close(descriptor)
    except OSError:
        return None


def _boot_id() -> str:
    """Tells containers and machines of one name apart."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + str(Path("/proc/self/ns/ipc").readlink())
    except OSError:
        return ""


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
