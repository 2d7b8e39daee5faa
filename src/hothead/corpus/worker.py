"""One counting process: blocks of a corpus in, counts by domain out."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hothead.corpus.chats import Counted, CountedText
from hothead.corpus.chunks import PieceCounter, WholeCounter
from hothead.corpus.files import Block
from hothead.corpus.records import TokenIds, parts_of, value_at
from hothead.errors import DataError, HotheadError
from hothead.models.tokenizer import Tokenizer

MAX_PIECES = 200_000
"""Distinct pieces that wait in one process: about 50 MB."""


BY_FILE = "file"
"""Value of `by` for which a file is a domain."""


@dataclass(frozen=True)
class CountSettings:
    """What is counted and how. field: path of the value in JSON records; by: path of the key that names a record's domain."""

    tokenizer_path: Path
    counted: Counted = "responses"
    field: str | None = None
    by: str | None = None
    is_cuttable: bool = True


@dataclass
class DomainCounts:
    """counts: [V] int64. num_documents: texts, chats or responses."""

    counts: npt.NDArray[np.int64]
    num_documents: int = 0

    def add(self, other: DomainCounts) -> None:
        self.counts = self.counts + other.counts
        self.num_documents += other.num_documents


class BlockCounter:
    """Counts blocks in this process."""

    def __init__(self, settings: CountSettings, tokenizer: Tokenizer) -> None:
        self._settings = settings
        self._tokenizer = tokenizer
        self._text = CountedText(tokenizer, settings.counted)
        self._counters: dict[str, PieceCounter | WholeCounter] = {}
        self._taken: dict[str, DomainCounts] = {}

    def add(self, block: Block) -> None:
        """Raises DataError with file and line for what cannot be counted."""
        if block.file.kind == "text":
            self._add_text(block)
        else:
            for line, record in _records(block):
                try:
                    self._add_record(block, record)
                except HotheadError as error:
                    raise DataError(f"'{block.file.name}' line {line}: {error.what}", *error.details, advice=error.advice) from error
        if sum(map(len, self._counters.values())) > MAX_PIECES:
            self._encode()

    def take(self) -> dict[str, DomainCounts]:
        """Counts by domain since the last call; the domain is "" where none is asked for."""
        self._encode()
        taken, self._taken = self._taken, {}
        return taken

    def _add_text(self, block: Block) -> None:
        assert isinstance(block.data, bytes), block.file
        try:
            text = block.data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = block.first_line + block.data[: error.start].count(b"\n")
            raise DataError(
                f"'{block.file.name}' line {line} is not UTF-8 text (byte {error.object[error.start]:#04x}).",
                advice="Convert it: iconv -t UTF-8.",
            ) from error
        domain = self._domain_of(block, None)
        self._counter(domain).add(text.removeprefix("\ufeff") if block.first_line == 1 else text)
        if block.first_line == 1:
            self._domain(domain).num_documents += 1

    def _add_record(self, block: Block, record: Any) -> None:
        domain = self._domain_of(block, record)
        for part in parts_of(record, self._settings.field):
            self._domain(domain).num_documents += 1
            if isinstance(part, TokenIds):
                self._add_token_ids(domain, part.token_ids)
            for text in self._text.of(part):
                self._counter(domain).add(text)

    def _domain_of(self, block: Block, record: Any) -> str:
        if self._settings.by is None:
            return ""
        return block.file.name if self._settings.by == BY_FILE or block.file.kind == "text" else str(value_at(record, self._settings.by))

    def _add_token_ids(self, domain: str, token_ids: tuple[int, ...]) -> None:
        lowest, highest = min(token_ids), max(token_ids)
        if lowest < 0 or highest >= self._tokenizer.vocab_size:
            raise DataError(
                f"token id {lowest if lowest < 0 else highest} is outside the vocabulary of {self._tokenizer.vocab_size} token ids.",
                advice="Count token ids with the tokenizer that made them.",
            )
        self._domain(domain).counts += np.bincount(token_ids, minlength=self._tokenizer.vocab_size)

    def _counter(self, domain: str) -> PieceCounter | WholeCounter:
        if domain not in self._counters:
            kind = PieceCounter if self._settings.is_cuttable else WholeCounter
            self._counters[domain] = kind(self._tokenizer.backend, self._tokenizer.vocab_size)
        return self._counters[domain]

    def _domain(self, domain: str) -> DomainCounts:
        return self._taken.setdefault(domain, DomainCounts(np.zeros(self._tokenizer.vocab_size, np.int64)))

    def _encode(self) -> None:
        for domain, counter in self._counters.items():
            self._domain(domain).counts += counter.take()


def run_worker(settings: CountSettings, connection: Connection) -> None:
    """Body of a counting process: answers every block with None, every None with its counts; ends when the pipe does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the first one decides what becomes of it
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        counter = BlockCounter(settings, Tokenizer.load(settings.tokenizer_path))
        while True:
            block = connection.recv()
            if block is None:
                connection.send(counter.take())
            else:
                counter.add(block)
                connection.send(None)
    except EOFError:
        return
    except HotheadError as error:
        connection.send(error)
    except MemoryError:
        connection.send(DataError("a counting process ran out of memory.", advice="Use fewer of them: --num-workers 1."))


def _records(block: Block) -> Iterator[tuple[int, Any]]:
    if isinstance(block.data, list):
        yield from enumerate(block.data, start=block.first_line)
        return
    for line, raw in enumerate(block.data.split(b"\n"), start=block.first_line):
        if raw.strip():
            try:
                yield line, json.loads(raw.removeprefix(b"\xef\xbb\xbf"))
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"'{block.file.name}' line {line} is not JSON: {error!s:.200}.",
                    advice="JSON lines hold one object a line; for plain text say --format text.",
                ) from error
