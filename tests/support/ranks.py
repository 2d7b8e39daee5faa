"""Run a function on several ranks: real processes, a real gloo group.

def check(group: RankGroup, width: int) -> list[int]:     # a module-level function, so that it can be sent to a process return
group.all_gather(torch.tensor([group.rank])).flatten().tolist()

results = run_on_ranks(check, 3, 5)                       # one result per rank

Processes are started once and stay for later calls, since importing torch takes seconds; each call gets a new process group. One rank runs
here, without a process. Results and arguments are pickled.
"""

from __future__ import annotations

import atexit
import multiprocessing
import pickle
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hothead.errors import RankError
from hothead.parallel.groups import ProcessGroupRanks, SingleRank

TIMEOUT_S = 60.0
START_S = 120.0
GRACE_S = 2.0
"""After an error, how long the other ranks' answers are waited for."""


def run_on_ranks(function: Callable[..., Any], size: int, *args: Any, timeout_s: float = TIMEOUT_S) -> list[Any]:
    """function(group, *args) on ranks 0..size-1 -> their results. The first error of a rank is raised here, with that rank's traceback as a
    note.
    """
    if size == 1:
        return [function(SingleRank(), *args)]
    _workers.extend(_Worker() for _ in range(size - len(_workers)))
    workers = _workers[:size]
    for worker in workers:
        worker.wait_until_ready()
    with tempfile.TemporaryDirectory() as folder:
        for rank, worker in enumerate(workers):
            worker.send(pickle.dumps((function, args, rank, size, str(Path(folder) / "meeting"), timeout_s)))
        try:
            return _collect(workers, timeout_s)
        finally:
            if any(worker.is_busy for worker in workers):
                stop_ranks()  # they may wait for a rank that failed


def stop_ranks() -> None:
    """End all processes; a later call starts new ones."""
    while _workers:
        _workers.pop().stop()


def process_ids() -> list[int]:
    """Of the processes that stand ready."""
    return [worker.process.pid or 0 for worker in _workers]


class _Worker:
    """One process that carries out calls until it is stopped."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.is_ready = False
        self.is_busy = False

    def wait_until_ready(self) -> None:
        """Importing torch is not part of a call's time."""
        if not self.is_ready:
            if not self.connection.poll(START_S):
                raise TimeoutError(f"a process has not started after {START_S} s")
            self.receive()
            self.is_ready = True

    def send(self, call: bytes) -> None:
        self.is_busy = True
        self.connection.send_bytes(call)

    def receive(self) -> Any:
        answer = pickle.loads(self.connection.recv_bytes())
        self.is_busy = False
        return answer

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.process.close()
        self.connection.close()


_workers: list[_Worker] = []
atexit.register(stop_ranks)


def _collect(workers: list[_Worker], timeout_s: float) -> list[Any]:
    deadline = time.monotonic() + timeout_s
    results: dict[int, Any] = {}
    errors: dict[int, BaseException] = {}
    while len(results) + len(errors) < len(workers):
        waiting: dict[Any, int] = {
            worker.connection: rank for rank, worker in enumerate(workers) if rank not in results and rank not in errors
        }
        ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
        if not ready and errors:
            break
        if not ready:
            raise TimeoutError(f"ranks {sorted(waiting.values())} of {len(workers)} have not finished after {timeout_s} s")
        for rank in sorted(waiting[connection] for connection in ready):
            error, result = _receive(workers[rank], rank, len(workers))
            if error is None:
                results[rank] = result
            else:
                errors[rank] = error
                deadline = min(deadline, time.monotonic() + GRACE_S)
    if errors:
        # The rank that failed by itself says more than those whose collective failed in consequence.
        raise min(errors.items(), key=lambda item: (isinstance(item[1], RankError), item[0]))[1]
    return [results[rank] for rank in range(len(workers))]


def _receive(worker: _Worker, rank: int, size: int) -> tuple[BaseException | None, Any]:
    try:
        error, trace, result = worker.receive()
    except EOFError:
        worker.process.join()
        return ChildProcessError(f"rank {rank} of {size} died, exit code {worker.process.exitcode}"), None
    if error is not None:
        error.add_note(f"on rank {rank} of {size}:\n{trace}")
    return error, result


def _serve(connection: Connection) -> None:
    torch.set_num_threads(1)
    connection.send_bytes(pickle.dumps("ready"))
    while True:
        try:
            call = connection.recv_bytes()
        except EOFError:
            return
        connection.send_bytes(_answer(call))


def _answer(call: bytes) -> bytes:
    """Pickled (error, its traceback, result)."""
    try:
        function, args, rank, size, meeting, timeout_s = pickle.loads(call)
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s))
        try:
            group = ProcessGroupRanks()
            group.barrier()  # nobody leaves before everyone has come, nor while another rank still talks to it
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                result = function(ProcessGroupRanks(), *args)
            group.barrier()
        finally:
            dist.destroy_process_group()
        return pickle.dumps((None, "", result))
    except Exception as error:
        trace = traceback.format_exc()
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            error = RuntimeError(f"{type(error).__name__}: {error}")
        return pickle.dumps((error, trace, None))
