"""Files are found by name, folder and pattern; blocks put together give the file back, from any place on."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from hothead.corpus import files
from hothead.corpus.files import CorpusFile, find_files, read_blocks
from hothead.errors import DataError, OptionError

LINES = [json.dumps({"text": f"line {number} " + "word " * (number % 50)}) for number in range(3000)]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BLOCK_BYTES", 10_000)


def folder_of(tmp_path: Path, **contents: bytes) -> Path:
    for name, content in contents.items():
        path = tmp_path / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path


def test_a_folder_gives_its_text_files(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, b_dot_txt=b"b", a_dot_md=b"a", sub__c_dot_jsonl=b"{}", picture_dot_png=b"\x89PNG\0", _dot_hidden=b"h")
    found = find_files([str(folder)])
    assert [(Path(one.name).name, one.kind) for one in found] == [("a.md", "text"), ("b.txt", "text"), ("c.jsonl", "jsonl")]


def test_a_pattern_and_a_name_give_a_file_once(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, a_dot_txt=b"a", sub__b_dot_txt=b"b", c_dot_json=b"[]")
    found = find_files([str(folder / "a.txt"), f"{folder}/**/*.txt"])
    assert [Path(one.name).name for one in found] == ["a.txt", "b.txt"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.jsonl.gz", "jsonl"), ("a.ndjson", "jsonl"), ("a.JSON", "json"), ("a.parquet", "parquet"), ("a", "text"), ("a.py.zst", "text")],
)
def test_kind_follows_from_the_suffix(tmp_path: Path, name: str, kind: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    assert find_files([str(tmp_path / name)])[0].kind == kind
    assert find_files([str(tmp_path / name)], "text")[0].kind == "text"


@pytest.mark.parametrize(
    ("name", "said"),
    [("chats.jsnl", "chats.jsonl"), ("*.rst", "no file matches"), ("missing/x.txt", "there is no file"), ("empty", "no file with text")],
)
def test_a_name_that_stands_for_nothing(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "chats.jsonl").write_bytes(b"{}")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError) as caught:
        find_files([str(tmp_path / name)])
    assert said in str(caught.value)


def packed(data: bytes, how: str) -> bytes:
    return {"plain": lambda: data, "gzip": lambda: gzip.compress(data), "zstd": lambda: zstandard.compress(data)}[how]()


@pytest.mark.parametrize("how", ["plain", "gzip", "zstd"])
@pytest.mark.parametrize("kind", ["text", "jsonl"])
def test_blocks_are_the_file_and_can_start_anywhere(tmp_path: Path, how: str, kind: Any) -> None:
    data = "\n".join(LINES).encode()
    path = tmp_path / "corpus"
    path.write_bytes(packed(data, how))
    file = CorpusFile(str(path), kind, len(data))
    blocks = list(read_blocks(file))
    assert len(blocks) > 10
    assert b"".join(block.data for block in blocks if isinstance(block.data, bytes)) == data
    for index in (1, 7, len(blocks) - 1):
        before = blocks[index - 1]
        rest = list(read_blocks(file, before.next_position, blocks[index].first_line))
        assert rest == blocks[index:]
    assert list(read_blocks(file, blocks[-1].next_position)) == []
    if kind == "jsonl":
        assert all(isinstance(block.data, bytes) and block.data.endswith((b"\n", b"}")) for block in blocks)
        assert blocks[3].first_line == 1 + b"".join(block.data for block in blocks[:3]).count(b"\n")  # type: ignore[misc]


def test_text_without_spaces_is_cut_at_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes("漢字漢字\n".encode() * 5000)
    blocks = list(read_blocks(CorpusFile(str(path), "text")))
    assert len(blocks) > 3
    assert b"".join(block.data for block in blocks if isinstance(block.data, bytes)) == path.read_bytes()


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_RECORD_BYTES", 50_000)
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"a" * 200_000)
    with pytest.raises(DataError, match="line 1 goes on for more than"):
        list(read_blocks(CorpusFile(str(path), "jsonl")))


def records_in(file: CorpusFile, position: int = 0) -> list[Any]:
    return [record for block in read_blocks(file, position) for record in block.data]


@pytest.mark.parametrize("text", ["[%s]", " [ %s ] ", "%s"])
def test_json_files(tmp_path: Path, text: str) -> None:
    records = [json.loads(line) for line in LINES]
    path = tmp_path / "x.json"
    path.write_text(text % (",\n " if "[" in text else "\n").join(LINES), encoding="utf-8-sig")
    file = CorpusFile(str(path), "json")
    assert records_in(file) == records
    assert records_in(file, 1200) == records[1200:]


@pytest.mark.parametrize("text", ['[{"a": 1}, {"a": ', '[{"a": 1} {"b"}]', "{not json}", '[{"a": 1}'])
def test_broken_json(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(DataError, match="is not JSON"):
        records_in(CorpusFile(str(path), "json"))


def test_parquet(tmp_path: Path) -> None:
    records = [{"text": f"text {number}", "source": {"name": "a"}} for number in range(1300)]
    path = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), path)
    file = find_files([str(path)])[0]
    assert records_in(file) == records
    assert records_in(file, 1000) == records[1000:]
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(DataError, match="Parquet"):
        records_in(file)


@pytest.mark.parametrize("how", ["gzip", "zstd"])
def test_a_cut_off_archive(tmp_path: Path, how: str) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(packed("\n".join(LINES).encode(), how)[:-200])
    with pytest.raises(DataError, match="cannot be read"):
        list(read_blocks(CorpusFile(str(path), "text")))


@pytest.mark.parametrize(("module", "name", "kind"), [("pyarrow.parquet", "x.parquet", "parquet"), ("datasets", "dataset:a/b", "dataset")])
def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, module: str, name: str, kind: Any) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(OptionError, match="pip install"):
        list(read_blocks(CorpusFile(name, kind)))


def test_datasets_are_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    module = ModuleType("datasets")

    def load_dataset(path: str, config: str | None, *, split: str, streaming: bool) -> list[dict[str, str]]:
        asked.append((path, config, split, streaming))
        if path == "a/missing":
            raise FileNotFoundError("not there")
        return [{"text": "x"}]

    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    for name in ("a/b", "a/b@test", "a/b/c@test"):
        (file,) = find_files([f"dataset:{name}"])
        assert records_in(file) == [{"text": "x"}]
    assert asked == [("a/b", None, "train", True), ("a/b", None, "test", True), ("a/b", "c", "test", True)]
    with pytest.raises(DataError, match="not there"):
        records_in(find_files(["dataset:a/missing"])[0])
