"""Counting a corpus: read this file first.

One process reads (`files.py`) and deals blocks out; the others turn them into texts (`records.py`, `chats.py`) and count their tokens
(`worker.py`, `chunks.py`). From time to time all counts are collected and written down with the place that was reached
(`checkpoint.py`), so that a killed run goes on from there. Memory does not grow with the corpus.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import TracebackType

from hothead.corpus.checkpoint import Place, Progress, read_checkpoint, write_checkpoint
from hothead.corpus.chunks import is_cuttable
from hothead.corpus.files import STDIN, Block, CorpusFile, read_blocks
from hothead.corpus.worker import BlockCounter, CountSettings, DomainCounts, run_worker
from hothead.errors import DataError, HotheadError
from hothead.models.tokenizer import Tokenizer

CHECKPOINT_S = 20.0
_FIRST_COLLECTION_S = 2.0
"""After this, counts are collected for the first time, so that progress can be told in tokens."""
_WAITING_BLOCKS = 2
"""Blocks that lie ready for each process."""
_SMALL_CORPUS_BYTES = 4 << 20
"""Up to here, starting processes costs more than they save."""


@dataclass(frozen=True)
class Report:
    """How far it is. num_bytes: read so far, uncompressed, num_new_bytes of them by this run; total_bytes: of all files as they lie there;
    tokens_per_s: None until counts were collected once."""

    num_bytes: int
    num_new_bytes: int
    total_bytes: int
    num_files: int
    seconds: float
    tokens_per_s: float | None


@dataclass(frozen=True)
class CorpusCounts:
    """domains: counts by domain ("" where none was asked for). fingerprint: of everything that was read, in order."""

    domains: dict[str, DomainCounts]
    fingerprint: str
    num_bytes: int
    is_cut: bool

    @property
    def total(self) -> DomainCounts:
        """All domains together."""
        first, *others = self.domains.values()
        total = DomainCounts(first.counts, first.num_documents)
        for other in others:
            total.add(other)
        return total


def count_corpus(
    files: Sequence[CorpusFile],
    settings: CountSettings,
    *,
    num_workers: int | None = None,
    checkpoint: Path | None = None,
    on_progress: Callable[[Report], None] | None = None,
    checkpoint_s: float = CHECKPOINT_S,
) -> CorpusCounts:
    """Token counts of a corpus, by domain.

    num_workers: None is one per core, 0 counts in this process. checkpoint: a file that keeps what was counted every checkpoint_s seconds
    and when this is interrupted; it is continued if it is there and is of the same corpus, and removed at the end.
    Raises DataError (file and line), OptionError, OutputError.
    """
    tokenizer = Tokenizer.load(settings.tokenizer_path)
    is_cut = is_cuttable(tokenizer.backend)
    settings = CountSettings(settings.tokenizer_path, settings.counted, settings.field, settings.by, is_cut)
    job = _fingerprint_of_job(files, settings, tokenizer.fingerprint)
    if any(file.name == STDIN for file in files):
        checkpoint = None  # what came through a pipe cannot be read again
    progress = read_checkpoint(checkpoint, job) if checkpoint is not None else None
    progress = progress or Progress({}, Place(), "", 0)
    if num_workers is None:
        total_bytes = sum(file.num_bytes for file in files)
        num_workers = 0 if 0 < total_bytes < _SMALL_CORPUS_BYTES else len(os.sched_getaffinity(0))
    with _Workers(settings, tokenizer, num_workers) as workers:
        _count_blocks(_Run(files, workers, progress, checkpoint, job, checkpoint_s, on_progress))
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    if not any(counts.counts.any() for counts in progress.domains.values()):
        raise DataError(
            f"the corpus has no token to count ({len(files)} files, {progress.num_bytes} bytes).",
            advice="Only assistant turns of chats are counted; --count all takes everything.",
        )
    return CorpusCounts(progress.domains, progress.fingerprint, progress.num_bytes, is_cut)


@dataclass
class _Run:
    """What `_count_blocks` works with."""

    files: Sequence[CorpusFile]
    workers: _Workers
    progress: Progress
    checkpoint: Path | None
    job: str
    checkpoint_s: float
    on_progress: Callable[[Report], None] | None

    def collect(self, place: Place) -> None:
        """Take all counts of the blocks before `place`, and write them down."""
        for domain, counts in self.workers.take():
            if domain in self.progress.domains:
                self.progress.domains[domain].add(counts)
            else:
                self.progress.domains[domain] = counts
        self.progress.place = place
        if self.checkpoint is not None:
            write_checkpoint(self.progress, self.checkpoint, self.job)

    @property
    def tokens_per_byte(self) -> float | None:
        """Of what was collected so far; None before that."""
        num_tokens = sum(int(counts.counts.sum()) for counts in self.progress.domains.values())
        return num_tokens / self.progress.num_bytes if num_tokens and self.progress.num_bytes else None


def _count_blocks(run: _Run) -> None:
    progress, place = run.progress, run.progress.place
    start_s = time.monotonic()
    next_collection_s = start_s + min(_FIRST_COLLECTION_S, run.checkpoint_s)
    num_bytes_before = progress.num_bytes
    tokens_per_byte = run.tokens_per_byte
    total_bytes = sum(file.num_bytes for file in run.files)
    try:
        for block, place_after in _blocks_from(run.files, place):
            run.workers.add(block)
            place = place_after
            progress.num_bytes += len(block.data) if isinstance(block.data, bytes) else 0
            progress.fingerprint = _chained(progress.fingerprint, block)
            now_s = time.monotonic()
            if now_s >= next_collection_s:
                run.collect(place)
                tokens_per_byte = run.tokens_per_byte
                next_collection_s = now_s + run.checkpoint_s
            if run.on_progress is not None:
                num_new_bytes, seconds = progress.num_bytes - num_bytes_before, now_s - start_s
                tokens_per_s = None if tokens_per_byte is None else tokens_per_byte * num_new_bytes / max(seconds, 1e-9)
                run.on_progress(Report(progress.num_bytes, num_new_bytes, total_bytes, place.file_index, seconds, tokens_per_s))
    except KeyboardInterrupt:
        if run.checkpoint is not None:
            run.collect(place)
        raise
    run.collect(place)


def _blocks_from(files: Sequence[CorpusFile], place: Place) -> Iterator[tuple[Block, Place]]:
    """Blocks, each with the place behind it."""
    for index in range(place.file_index, len(files)):
        position, line = (place.position, place.line) if index == place.file_index else (0, 1)
        for block in read_blocks(files[index], position, line):
            lines = block.data.count(b"\n") if isinstance(block.data, bytes) else 0
            yield block, Place(index, block.next_position, block.first_line + lines)


def _fingerprint_of_job(files: Sequence[CorpusFile], settings: CountSettings, tokenizer_fingerprint: str) -> str:
    """Two runs with the same one count the same."""
    digest = hashlib.sha256(repr((settings.counted, settings.field, settings.by, tokenizer_fingerprint)).encode())
    for file in files:
        digest.update(repr((file.name, file.kind, file.num_bytes, file.stamp)).encode())
    return digest.hexdigest()


def _chained(fingerprint: str, block: Block) -> str:
    data = block.data if isinstance(block.data, bytes) else repr(block.data).encode()
    return hashlib.sha256(fingerprint.encode() + hashlib.sha256(data).digest()).hexdigest()


class _Workers:
    """Counting processes, or this one where there are none."""

    def __init__(self, settings: CountSettings, tokenizer: Tokenizer, num_workers: int) -> None:
        self._settings = settings
        self._here = BlockCounter(settings, tokenizer) if num_workers == 0 else None
        self._num_workers = num_workers
        self._processes: dict[Connection, SpawnProcess] = {}
        self._num_waiting: dict[Connection, int] = {}

    def __enter__(self) -> _Workers:
        context = multiprocessing.get_context("spawn")
        for _ in range(self._num_workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=run_worker, args=(self._settings, theirs), daemon=True)
            process.start()
            theirs.close()
            self._processes[ours] = process
            self._num_waiting[ours] = 0
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for connection, process in self._processes.items():
            if error is not None:
                process.terminate()
            connection.close()
        for process in self._processes.values():
            process.join()

    def add(self, block: Block) -> None:
        """Give a block to the process that has least to do; waits while all have enough."""
        if self._here is not None:
            self._here.add(block)
            return
        while min(self._num_waiting.values()) >= _WAITING_BLOCKS:
            self._receive()
        connection = min(self._num_waiting, key=lambda one: self._num_waiting[one])
        self._send(connection, block)
        self._num_waiting[connection] += 1

    def take(self) -> Iterator[tuple[str, DomainCounts]]:
        """Counts of all blocks that were given."""
        if self._here is not None:
            yield from self._here.take().items()
            return
        while any(self._num_waiting.values()):
            self._receive()
        for connection in self._processes:
            self._send(connection, None)
        for connection in self._processes:
            counts = self._answer(connection)
            assert isinstance(counts, dict), counts
            yield from counts.items()

    def _receive(self) -> None:
        """Wait for answers to blocks."""
        busy = [connection for connection, number in self._num_waiting.items() if number]
        for connection in deque(wait(busy)):
            assert isinstance(connection, Connection)
            self._answer(connection)
            self._num_waiting[connection] -= 1

    def _send(self, connection: Connection, block: Block | None) -> None:
        try:
            connection.send(block)
        except OSError as error:
            self._answer(connection)
            raise self._died(connection) from error

    def _answer(self, connection: Connection) -> object:
        try:
            answer = connection.recv()
        except (EOFError, OSError) as error:
            raise self._died(connection) from error
        if isinstance(answer, HotheadError):
            raise answer
        return answer

    def _died(self, connection: Connection) -> DataError:
        process = self._processes[connection]
        process.join(5)
        return DataError(
            f"a counting process ended by itself (exit code {process.exitcode}).",
            "A negative number is a signal; -9 usually means that memory ran out.",
            advice="Start it again: it goes on where it was. Use fewer processes with --num-workers 1.",
        )
