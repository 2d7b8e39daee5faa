"""Counts do not depend on processes, blocks, interruptions or kills; what cannot be counted is named by file and line."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.support.tiny import CHAT_TEMPLATE, TEXT, make_tokenizer

from hothead.corpus import counting, files
from hothead.corpus.counting import CorpusCounts, Report, count_corpus
from hothead.corpus.files import find_files
from hothead.corpus.worker import BlockCounter, CountSettings
from hothead.errors import DataError
from hothead.models.tokenizer import Tokenizer


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    make_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE}))
    return folder


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A text file and a file of chats in two domains."""
    monkeypatch.setattr(files, "BLOCK_BYTES", 2000)
    text, chats = tmp_path / "text.txt", tmp_path / "chats.jsonl"
    text.write_text("\ufeff" + (TEXT + "12  numbers\n\nand\tlines é 漢字\n") * 100, encoding="utf-8")
    with chats.open("w") as file:
        for number in range(300):
            answer = {"role": "assistant", "content": TEXT[number % 40 :]}
            row = {"source": "ab"[number % 2], "messages": [{"role": "user", "content": "the fox?"}, answer]}
            file.write(json.dumps(row) + "\n")
    return [str(text), str(chats)]


def counted(model: Path, corpus: list[str], **options: object) -> CorpusCounts:
    by = options.pop("by", None)
    settings = CountSettings(model, by=by)  # type: ignore[arg-type]
    return count_corpus(find_files(corpus), settings, **options)  # type: ignore[arg-type]


def plain_counts(model: Path, corpus: list[str]) -> np.ndarray:
    """By definition: every text encoded whole."""
    tokenizer = Tokenizer.load(model)
    texts = [Path(corpus[0]).read_text(encoding="utf-8-sig")]
    texts += [json.loads(line)["messages"][1]["content"] + "<|im_end|>" for line in Path(corpus[1]).read_text().splitlines()]
    ids = np.concatenate([tokenizer.encode(text, add_special_tokens=False) for text in texts])
    return np.bincount(ids, minlength=tokenizer.vocab_size)


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_counts_are_those_of_the_tokenizer(model: Path, corpus: list[str], num_workers: int) -> None:
    result = counted(model, corpus, num_workers=num_workers)
    assert (result.total.counts == plain_counts(model, corpus)).all()
    assert result.total.num_documents == 301
    assert result.num_bytes == sum(Path(name).stat().st_size for name in corpus)
    assert result.is_cut


def test_domains(model: Path, corpus: list[str]) -> None:
    result = counted(model, corpus, num_workers=2, by="source")
    assert set(result.domains) == {corpus[0], "a", "b"}
    assert result.domains["a"].num_documents == 150
    assert (result.total.counts == plain_counts(model, corpus)).all()
    assert set(counted(model, corpus, num_workers=0, by="file").domains) == set(corpus)


def test_a_full_counter_is_emptied(model: Path, corpus: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hothead.corpus.worker.MAX_PIECES", 5)
    assert (counted(model, corpus, num_workers=0).total.counts == plain_counts(model, corpus)).all()


@pytest.mark.case(15)
def test_the_fingerprint_is_of_the_content(model: Path, corpus: list[str]) -> None:
    first = counted(model, corpus, num_workers=0)
    assert counted(model, corpus, num_workers=2).fingerprint == first.fingerprint
    with Path(corpus[1]).open("a") as file:
        file.write('{"text": "more"}\n')
    assert counted(model, corpus, num_workers=0).fingerprint != first.fingerprint


def test_an_interrupted_run_goes_on(model: Path, corpus: list[str], tmp_path: Path) -> None:
    checkpoint = tmp_path / "state"
    whole = counted(model, corpus, num_workers=0)
    num_reports = 0

    def interrupt(report: Report) -> None:
        nonlocal num_reports
        num_reports += 1
        if num_reports == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        counted(model, corpus, num_workers=2, checkpoint=checkpoint, on_progress=interrupt)
    assert checkpoint.exists()
    reports: list[Report] = []
    result = counted(model, corpus, num_workers=2, checkpoint=checkpoint, on_progress=reports.append)
    assert (result.total.counts, result.fingerprint) == (pytest.approx(whole.total.counts), whole.fingerprint)
    assert result.total.num_documents == whole.total.num_documents
    assert reports[0].num_bytes > 19 * 1500
    assert not checkpoint.exists()


def test_a_killed_run_goes_on(model: Path, corpus: list[str], tmp_path: Path, source_path: dict[str, str]) -> None:
    checkpoint = tmp_path / "state"
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom hothead.corpus import files\nfiles.BLOCK_BYTES = 2000\n"
        "from hothead.corpus.counting import count_corpus\nfrom hothead.corpus.worker import CountSettings\n"
        "count_corpus(files.find_files(sys.argv[3:]), CountSettings(Path(sys.argv[1])), num_workers=0, checkpoint=Path(sys.argv[2]),\n"
        "    checkpoint_s=0.05, on_progress=lambda report: time.sleep(0.02))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(model), str(checkpoint), *corpus], env=source_path)
    deadline = time.monotonic() + 60
    while not checkpoint.exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    reports: list[Report] = []
    result = counted(model, corpus, num_workers=0, checkpoint=checkpoint, on_progress=reports.append)
    assert reports[0].num_bytes > reports[0].num_new_bytes, "it began anew"
    assert (result.total.counts == plain_counts(model, corpus)).all()


@pytest.mark.case(15)
def test_a_checkpoint_of_another_run_is_refused(model: Path, corpus: list[str], tmp_path: Path) -> None:
    checkpoint = tmp_path / "state"

    def interrupt(report: Report) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        counted(model, corpus, num_workers=0, checkpoint=checkpoint, on_progress=interrupt)
    with pytest.raises(DataError, match="another run"):
        counted(model, corpus[:1], num_workers=0, checkpoint=checkpoint)
    checkpoint.write_bytes(b"rubbish")
    with pytest.raises(DataError, match="is not the checkpoint"):
        counted(model, corpus, num_workers=0, checkpoint=checkpoint)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{not json}", "line 241 is not JSON"),
        (b'{"a": 1}', "line 241: no text was found in it (keys: a)"),
        (b"\xff\xfe", "line 241 is not JSON"),
        (b"[" * 100_000, "line 241 is not JSON"),
    ],
)
def test_a_bad_line_is_named(model: Path, corpus: list[str], num_workers: int, line: bytes, said: str) -> None:
    path = Path(corpus[1])
    lines = path.read_bytes().splitlines()
    lines[240] = line
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(DataError) as caught:
        counted(model, corpus, num_workers=num_workers)
    assert "chats.jsonl" in str(caught.value)
    assert said in str(caught.value)


def test_bytes_that_are_no_text_are_named(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"one\ntwo\n" + "é".encode("latin-1") + b" three")
    with pytest.raises(DataError, match="line 3 is not UTF-8 text"):
        counted(model, [str(path)], num_workers=0)


def test_token_ids_of_another_tokenizer_are_refused(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"ids": [1, 2]}\n{"ids": [1, 5000]}\n')
    with pytest.raises(DataError, match="line 2: token id 5000 is outside"):
        count_corpus(find_files([str(path)]), CountSettings(model, field="ids"), num_workers=0)
    path.write_text('{"ids": [1, 2]}\n{"ids": [1, 5]}\n')
    result = count_corpus(find_files([str(path)]), CountSettings(model, field="ids"), num_workers=0)
    assert result.total.counts[:6].tolist() == [0, 2, 1, 0, 0, 1]


def test_a_corpus_without_tokens_is_refused(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "q"}]}\n')
    with pytest.raises(DataError, match="no token to count"):
        counted(model, [str(path)], num_workers=0)


def test_a_process_that_dies_is_reported(model: Path, corpus: list[str]) -> None:
    others = set(multiprocessing.active_children())

    def kill(report: Report) -> None:
        for process in set(multiprocessing.active_children()) - others:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)

    with pytest.raises(DataError, match="ended by itself"):
        counted(model, corpus, num_workers=2, on_progress=kill)
    assert set(multiprocessing.active_children()) <= others


def test_texts_are_encoded_whole_where_they_cannot_be_cut(model: Path, corpus: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "is_cuttable", lambda backend: False)
    result = counted(model, corpus[1:], num_workers=0)
    assert not result.is_cut
    assert result.total.counts.sum() == total_in_pieces(model, corpus[1])


def total_in_pieces(model: Path, name: str) -> int:
    settings = CountSettings(model, is_cuttable=True)
    counter = BlockCounter(settings, Tokenizer.load(model))
    for block in files.read_blocks(find_files([name])[0]):
        counter.add(block)
    return int(sum(counts.counts.sum() for counts in counter.take().values()))
