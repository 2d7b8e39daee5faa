"""The corpus options of `map build` and `map coverage` carried out: counts from files, with progress, and counts that lie in files."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hothead.cli import notes
from hothead.config.corpus import CorpusConfig
from hothead.errors import DataError

if TYPE_CHECKING:
    from hothead.corpus.counting import CorpusCounts, Report
    from hothead.models.tokenizer import Tokenizer
    from hothead.vocab.count import TokenCounts

_LINE_S = 10.0


def count(config: CorpusConfig, tokenizer_path: Path, by: str | None = None, checkpoint: Path | None = None) -> CorpusCounts | None:
    """Counts of --corpus by domain; None without one."""
    if not config.corpus:
        return None
    from hothead.corpus.counting import count_corpus
    from hothead.corpus.files import find_files
    from hothead.corpus.worker import CountSettings

    files = find_files(config.corpus, None if config.corpus_format == "auto" else config.corpus_format)  # type: ignore[arg-type]
    settings = CountSettings(tokenizer_path, config.counted, config.field, by)  # type: ignore[arg-type]
    if checkpoint is not None and checkpoint.exists():
        notes.note(f"goes on with the run that was interrupted ({checkpoint}).")
    start_s = time.monotonic()
    with _progress(len(files)) as show:
        try:
            counted = count_corpus(files, settings, num_workers=config.num_workers, checkpoint=checkpoint, on_progress=show)
        except KeyboardInterrupt:
            if checkpoint is not None and checkpoint.exists():
                notes.line("what was counted is kept: the same command goes on from here.")
            raise
    if not counted.is_cut:
        notes.note("this tokenizer does not cut text at spaces, so every text was encoded whole (slower).")
    total, seconds = counted.total, time.monotonic() - start_s
    num_tokens = int(total.counts.sum())
    notes.line(
        f"counted {num_tokens:,} tokens of {total.num_documents:,} texts in {len(files):,} {'file' if len(files) == 1 else 'files'}: "
        f"{seconds:.1f} s, {num_tokens / seconds:,.0f} tokens/s"
    )
    return counted


def load_counts(config: CorpusConfig, tokenizer: Tokenizer) -> list[TokenCounts]:
    """The counts of --counts files. Raises DataError for those of another tokenizer."""
    from hothead.vocab.count import TokenCounts

    found = []
    for path in config.counts:
        counts = TokenCounts.load(path)
        if counts.vocab_size != tokenizer.vocab_size or counts.tokenizer_fingerprint not in ("", tokenizer.fingerprint):
            raise DataError(
                f"the counts in '{path}' are of another tokenizer.",
                f"They have {counts.vocab_size} token ids (tokenizer {counts.tokenizer_fingerprint[:12] or 'unknown'}), "
                f"{tokenizer.source} has {tokenizer.vocab_size} (tokenizer {tokenizer.fingerprint[:12]}).",
                advice="Give the model that they were counted with: --model.",
            )
        found.append(counts)
    return found


@contextmanager
def _progress(num_files: int) -> Iterator[Callable[[Report], None]]:
    """A bar on a terminal, else a line now and then."""
    if not sys.stderr.isatty():
        yield _Lines(num_files).show
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("counting"), BarColumn(), DownloadColumn(), TextColumn("{task.fields[speed]}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("counting", total=None, speed="")

        def show(report: Report) -> None:
            # Compressed files hold more than their size says.
            total = max(report.total_bytes, report.num_bytes) or None
            bar.update(task, completed=report.num_bytes, total=total, speed=_speed(report))

        yield show


class _Lines:
    def __init__(self, num_files: int) -> None:
        self._num_files = num_files
        self._last_s = 0.0

    def show(self, report: Report) -> None:
        if report.seconds - self._last_s >= _LINE_S:
            self._last_s = report.seconds
            where = f"file {report.num_files + 1} of {self._num_files}"
            notes.line(f"counting: {report.num_bytes / 1e6:,.0f} MB read, {where}, {_speed(report)}")


def _speed(report: Report) -> str:
    speed = f"{report.num_new_bytes / max(report.seconds, 1e-9) / 1e6:.1f} MB/s"
    return speed if report.tokens_per_s is None else f"{speed}, {report.tokens_per_s:,.0f} tokens/s"
