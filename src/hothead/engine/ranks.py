"""How ranks come to life, find each other and die together.

`tp_size` N on one machine: this process is rank 0 and starts the others. Under torchrun the processes exist already, on one host or
several. Either way each runs the same core; only rank 0 has requests. A rank that dies takes the others down: its closed sockets wake
whoever waits for it, rank 0 watches its children, and a child that loses rank 0 ends itself.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from hothead.engine.control import STOP, Control
from hothead.errors import OptionError, RankError
from hothead.parallel.groups import ProcessGroupRanks, RankGroup, SingleRank
from hothead.parallel.shared_memory import SharedMemoryRanks, open_channels

IDLE_TIMEOUT = timedelta(days=365)
"""The control group waits for the next request for as long as it takes."""
COLLECTIVE_TIMEOUT = timedelta(minutes=10)
GRACE_S = 3.0
"""Between asking a process to end and killing it."""


class Ranks:
    """This process's place among the ranks. `control` is None at tp_size 1."""

    def __init__(self, group: RankGroup, control: Control | None, watch: ChildWatch | None = None) -> None:
        self.group = group
        self.control = control
        self.watch = watch

    @property
    def is_leader(self) -> bool:
        return self.group.rank == 0

    def guard(self, error: Exception) -> Exception:
        """What to raise for an error out of a step: a RankError where a rank's death is behind it."""
        if self.group.size == 1:
            return error
        died = self.watch.first_death(GRACE_S) if self.watch else None
        if died is not None:
            return died
        if "onnection" in str(error) or isinstance(error, dist.DistError):
            return RankError(
                f"Rank {self.group.rank} lost another rank: the connection closed.",
                str(error).splitlines()[0],
                advice="See that rank's own output.",
            )
        return error

    def close(self, *, is_clean: bool = True) -> None:
        """End the other ranks and the process group. Safe to call twice.

        is_clean False: rank 0 left in the middle of a step, so the others may wait in another collective than the one that says stop.
        """
        if self.control is not None and self.is_leader and is_clean and (self.watch is None or self.watch.all_alive):
            with contextlib.suppress(RuntimeError, RankError):
                self.control.send(STOP)
        if self.watch is not None:
            self.watch.close(is_clean=is_clean)
        self.control = None
        if not is_clean:
            return  # leaving the process group would wait for the others
        if dist.is_initialized():
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()


def join_ranks(
    tp_size: int,
    device: torch.device,
    follow: Callable[[Ranks], None],
    num_threads: int | None,
    *,
    uses_shared_memory: bool = True,
) -> Ranks:
    """Ranks of this process, with all others started and connected, through shared memory where they are on one host and may.

    follow: what a started rank runs until it returns; must be picklable (it goes to new processes). Raises OptionError if torchrun's
    process count is not tp_size, RankError if a rank cannot be started.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1
    if world_size > 1:
        if tp_size != world_size:
            raise OptionError(
                f"--tp-size is {tp_size}, but torchrun started {world_size} processes.",
                advice=f"Say --tp-size {world_size}, or start {tp_size}.",
            )
        set_threads(num_threads, int(os.environ.get("LOCAL_WORLD_SIZE", world_size)))
        if device.type == "cuda":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        dist.init_process_group(_backend(device), init_method="env://", timeout=COLLECTIVE_TIMEOUT)
        return _connected(device, uses_shared_memory)
    if tp_size > 1 and dist.is_initialized():
        raise OptionError(
            f"An engine with {tp_size} ranks cannot start: this process belongs to a group of ranks already.",
            advice="Close the other engine first, or give each its own process.",
        )
    if tp_size == 1:
        set_threads(num_threads, 1)
        return Ranks(SingleRank(), None)
    set_threads(num_threads, tp_size)
    return _start_children(tp_size, device, follow, num_threads, uses_shared_memory)


def set_threads(num_threads: int | None, num_local_ranks: int) -> None:
    """CPU threads of this rank: as asked, else an equal share of the cores that this process may use."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(num_threads or max(1, available // num_local_ranks))


def _start_children(
    tp_size: int, device: torch.device, follow: Callable[[Ranks], None], num_threads: int | None, uses_shared_memory: bool
) -> Ranks:
    _use_loopback()
    store = TCPStore("127.0.0.1", 0, tp_size, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=120))
    context = multiprocessing.get_context("spawn")
    children: list[SpawnProcess] = []
    pipes: list[Connection] = []
    watch = ChildWatch(children, pipes)
    try:
        for rank in range(1, tp_size):
            ours, theirs = context.Pipe()
            child = context.Process(
                target=_child_main,
                args=(rank, tp_size, store.port, device, follow, num_threads, uses_shared_memory, theirs),
                name=f"hothead-rank-{rank}",
                daemon=True,
            )
            with _main_module_hidden():
                child.start()
            theirs.close()
            children.append(child)
            pipes.append(ours)
        watch.start()
        dist.init_process_group(_backend(device), store=store, rank=0, world_size=tp_size, timeout=COLLECTIVE_TIMEOUT)
        return _connected(device, uses_shared_memory, watch)
    except BaseException as error:
        died = watch.first_death(0.5) if isinstance(error, RuntimeError) else None
        watch.close(is_clean=False)
        if died is not None:
            raise died from error
        raise


def _child_main(
    rank: int,
    tp_size: int,
    port: int,
    device: torch.device,
    follow: Callable[[Ranks], None],
    num_threads: int | None,
    uses_shared_memory: bool,
    pipe: Connection,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal group: rank 0 decides what it means
    threading.Thread(target=_end_with_parent, args=(pipe,), daemon=True).start()
    try:
        _use_loopback()
        set_threads(num_threads, tp_size)
        if device.type == "cuda":
            torch.cuda.set_device(rank % torch.cuda.device_count())
        store = TCPStore("127.0.0.1", port, tp_size, is_master=False, timeout=timedelta(seconds=120))
        dist.init_process_group(_backend(device), store=store, rank=rank, world_size=tp_size, timeout=COLLECTIVE_TIMEOUT)
        follow(_connected(device, uses_shared_memory))
        dist.destroy_process_group()
    except BaseException as error:
        with contextlib.suppress(OSError):
            pipe.send("".join(traceback.format_exception(error)).strip())
        # Not sys.exit: a thread of the process group may be stuck waiting for a rank that is gone.
        sys.stderr.flush()
        os._exit(1)


def _end_with_parent(pipe: Connection) -> None:
    """Rank 0 never writes to this pipe: it becomes readable when rank 0 is gone, however it went."""
    with contextlib.suppress(EOFError, OSError):
        pipe.recv()
    time.sleep(GRACE_S)  # a clean end closes the process group first
    os._exit(1)


class ChildWatch:
    """Watches started ranks; the first that dies unasked takes the others with it."""

    def __init__(self, children: list[SpawnProcess], pipes: list[Connection]) -> None:
        self._children = children
        self._pipes = pipes
        self._died = threading.Event()
        self._death: RankError | None = None
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def all_alive(self) -> bool:
        return self._death is None and all(child.is_alive() for child in self._children)

    def first_death(self, wait_s: float) -> RankError | None:
        """The rank that died first, waiting a little for the news: a closed socket is noticed before an exit code."""
        self._died.wait(wait_s)
        return self._death

    def close(self, *, is_clean: bool = True) -> None:
        """Wait for the children to end, then make them."""
        self._is_closing = True
        deadline = time.monotonic() + (GRACE_S if is_clean and self._death is None else 0.0)
        for child in self._children:
            child.join(max(0.0, deadline - time.monotonic()))
        _end(self._children)
        for pipe in self._pipes:
            pipe.close()

    def _run(self) -> None:
        ranks = {child.sentinel: (rank, child) for rank, child in enumerate(self._children, start=1)}
        ended = multiprocessing.connection.wait(list(ranks))
        if self._is_closing:
            return
        time.sleep(0.1)  # several may fall together; the one with an exit code of its own explains more
        rank, child = min((ranks[sentinel] for sentinel in ended if isinstance(sentinel, int)), key=lambda pair: pair[0])
        child.join(1.0)
        self._death = RankError(f"Rank {rank} died: {_how(child.exitcode)}.", *self._report(rank), advice="The other ranks were ended.")
        _end(self._children)
        self._died.set()

    def _report(self, rank: int) -> list[str]:
        pipe = self._pipes[rank - 1]
        with contextlib.suppress(EOFError, OSError):
            if pipe.poll():
                return str(pipe.recv()).splitlines()[-6:]
        return []


def _end(children: list[SpawnProcess]) -> None:
    for child in children:
        if child.is_alive():
            child.terminate()
    deadline = time.monotonic() + GRACE_S
    for child in children:
        child.join(max(0.0, deadline - time.monotonic()))
        if child.is_alive():
            child.kill()
            child.join()


def _how(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-exit_code).name}"
    return f"exit code {exit_code}"


def _connected(device: torch.device, uses_shared_memory: bool, watch: ChildWatch | None = None) -> Ranks:
    data_group = dist.group.WORLD
    assert data_group is not None
    data: RankGroup = ProcessGroupRanks(data_group)
    control: RankGroup = ProcessGroupRanks(dist.new_group(backend="gloo", timeout=IDLE_TIMEOUT))
    if uses_shared_memory and device.type == "cpu" and (channels := open_channels(data, 2)) is not None:
        data, control = SharedMemoryRanks(data, channels[0]), SharedMemoryRanks(control, channels[1])
    return Ranks(data, Control(control), watch)


def _backend(device: torch.device) -> str:
    return "nccl" if device.type == "cuda" else "gloo"


def _use_loopback() -> None:
    """Ranks of one machine talk over loopback: a host name that does not resolve is no reason to fail."""
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


@contextlib.contextmanager
def _main_module_hidden() -> Iterator[None]:
    """A started process would run the caller's main script again; ranks need nothing from it."""
    main = sys.modules["__main__"]
    saved = {name: getattr(main, name) for name in ("__file__", "__spec__") if hasattr(main, name)}
    try:
        if hasattr(main, "__file__"):
            del main.__file__
        main.__spec__ = None
        yield
    finally:
        for name, value in saved.items():
            setattr(main, name, value)
