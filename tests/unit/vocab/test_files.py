"""Token map files: what is written is read back, what is no token map is named, nothing is half-written, nothing is run."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from hothead.errors import HotMapError, OutputError
from hothead.vocab.formats import registry
from hothead.vocab.token_map import TokenMap

IDS = [70000, 3, 300, 12, 0]


def example() -> TokenMap:
    return TokenMap(np.array(IDS), np.array([9, 8, 7, 6, 0]), 80000, 1, {"corpus": "chäts", "date": "today"}, "9f2c1a")


def test_our_format_keeps_everything(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "map.safetensors"
    example().save(path)
    loaded = TokenMap.load(path)
    assert loaded == example()
    assert loaded.provenance == example().provenance
    assert [entry.name for entry in path.parent.iterdir()] == ["map.safetensors"]
    plain = TokenMap(np.array(IDS))
    plain.save(path)
    assert TokenMap.load(str(path)) == plain


def test_a_header_length_that_looks_like_a_pickle(tmp_path: Path) -> None:
    path = tmp_path / "map.safetensors"
    for padding in range(256):
        token_map = TokenMap(np.array(IDS), provenance={"padding": "x" * padding})
        token_map.save(path)
        if path.read_bytes()[0] == 0x80:
            assert TokenMap.load(path) == token_map
            return
    raise AssertionError("no such length")


@pytest.mark.case(16)
def test_one_ranked_file_serves_every_size(tmp_path: Path) -> None:
    example().save(tmp_path / "map.safetensors")
    loaded = TokenMap.load(tmp_path / "map.safetensors")
    assert loaded.head(2).token_ids.tolist() == IDS[:2]
    assert loaded.for_coverage(0.5).token_ids.tolist() == IDS[:2]


def test_the_list_that_sglang_reads(tmp_path: Path) -> None:
    path = tmp_path / "map.pt"
    example().save(path)
    assert torch.load(path, weights_only=True) == IDS
    assert TokenMap.load(path).token_ids.tolist() == IDS


@pytest.mark.parametrize(
    "content",
    [
        IDS,
        tuple(IDS),
        torch.tensor(IDS),
        torch.tensor(IDS, dtype=torch.int32),
        torch.tensor([1, *IDS, 2])[1:-1],
        torch.tensor(IDS).repeat_interleave(2)[::2],
        list(range(70000))[::-1],
    ],
)
def test_what_torch_saves_is_read_as_torch_reads_it(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "map.bin"
    torch.save(content, path)
    assert TokenMap.load(path).token_ids.tolist() == list(map(int, torch.load(path, weights_only=True)))


def test_the_format_before_torch_1_6(tmp_path: Path) -> None:
    path = tmp_path / "map.pt"
    torch.save(IDS, path, _use_new_zipfile_serialization=False)
    assert TokenMap.load(path).token_ids.tolist() == IDS
    torch.save(torch.tensor(IDS), path, _use_new_zipfile_serialization=False)
    with pytest.raises(HotMapError, match=r"record '.*' is missing(.|\n)*before torch 1.6"):
        TokenMap.load(path)


class Hostile:
    def __reduce__(self) -> Any:
        return os.system, ("touch run.txt",)


@pytest.mark.case(29)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (torch.zeros(3), "must be integers, but they are float32"),
        (torch.zeros(3, dtype=torch.bfloat16), "BFloat16Storage"),
        (torch.zeros(2, 3, dtype=torch.int64), r"shape \[2, 3\]"),
        (torch.ones(5, dtype=torch.bool), r"booleans \(5 of 5 true\)"),
        (torch.tensor([4, -1]), r"negative \(first: -1 at hot index 1\)"),
        ([4, 4], "token id 4 occurs twice"),
        ([4, 1.0], r"hot index 1 is 1.0 \(float\)"),
        ([4, False], r"hot index 1 is False \(bool\)"),
        ([[4]], "of type list"),
        ([], "no token ids"),
        ([4, 2**70], "must fit 64 bits"),
        ({"ids": torch.arange(3)}, "it holds a dict with the keys ids"),
        ({"d2t": torch.arange(3)}, "its d2t can be read in two ways"),
        ("text", "it holds a str"),
        (None, "it holds a NoneType"),
        (torch.arange(3).to_sparse(), "_rebuild_sparse_tensor"),
        (np.arange(3), "numpy"),
    ],
)
def test_other_content_is_refused_by_name(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "map.pt"
    torch.save(content, path)
    with pytest.raises(HotMapError, match=message) as refused:
        TokenMap.load(path)
    assert "map.pt" in str(refused.value)


def test_code_in_a_file_is_named_and_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(Hostile(), "zip.pt")
    torch.save([Hostile()], "old.pt", _use_new_zipfile_serialization=False)
    Path("plain.pt").write_bytes(pickle.dumps(Hostile()))
    Path("protocol0.pt").write_bytes(b"\x80\x02cposix\nsystem\n(S'touch run.txt'\ntR.")
    for name, message in (
        ("zip.pt", "posix.system"),
        ("old.pt", "posix.system"),
        ("plain.pt", "posix.system"),
        ("protocol0.pt", "posix.system"),
    ):
        with pytest.raises(HotMapError, match=message):
            TokenMap.load(name)
    assert not Path("run.txt").exists()


def archive(program: bytes, records: dict[str, bytes] | None = None, compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        file.writestr("archive/data.pkl", program)
        for key, record in (records or {}).items():
            file.writestr(f"archive/data/{key}", record)
    return buffer.getvalue()


def tensor_program(size: bytes, stride: bytes) -> bytes:
    """The pickle of a 1-D int64 tensor over the record '0', with any size and stride."""
    storage = b"(X\x07\x00\x00\x00storagectorch\nLongStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02tQ"
    return b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00" + size + b"\x85" + stride + b"\x85\x89}tR."


DEEP = b"\x80\x02)" + b"2\x86" * 200 + b"."  # t = (t, t), 200 times: 2**200 leaves when printed or hashed
ONE, HUGE = b"K\x01", b"\x8a\x08" + (2**60).to_bytes(8, "little")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK",
        b"\x80\x02",
        b"\x80\x02]q\x00(K\x01K\x02e.",  # a pickled list, but not from torch
        archive(b"\x80\x02]q\x00(K\x01K\x02"),  # no end
        archive(b"\x80\x02a."),
        archive(b"\x80\x02."),
        archive(b"\x80\x02K\x01K\x02e."),
        archive(b"\x80\x02h\x05."),
        archive(b"\x80\x02X\xff\xff\xff\x7fabc."),  # text of 2 GiB in a file of some bytes
        archive(b"\x80\x02]r\xff\xff\xff\xff."),  # memo entry 2**32 - 1
        archive(b"\x80\x02\x8b\xff\xff\xff\x7f."),  # an integer of 2 GiB
        archive(b"\x80\x02]" + b"\x8b\x10\x27\x00\x00" + b"\x7f" * 10000 + b"a."),  # an integer of 10,000 bytes
        archive(DEEP),
        archive(DEEP[:-1] + b"Q."),
        archive(b"\x80\x02}" + DEEP[2:-1] + b"K\x01s."),
        archive(b"\x80\x02]" + DEEP[2:-1] + b"a."),
        archive(b"\x80\x02]" + b"]" * 100000 + b"a" * 100000 + b"."),
        archive(b"\x80\x02].", compression=zipfile.ZIP_DEFLATED),
        archive(b"\x80\x02K\x01}b."),  # attributes of a number
        archive(b"\x80\x02}b."),
        archive(b"\x80\x02" + b"N0" * 2**21 + b"."),
        archive(b"\x80\x02]" + b"K\x01a" * 10 + b"." + b" " * 2**24),
        archive(tensor_program(HUGE, ONE), {"0": b"\0" * 16}),
        archive(tensor_program(HUGE, b"K\x00"), {"0": b"\0" * 16}),  # a stride of 0 repeats one number 2**60 times
        archive(tensor_program(ONE, ONE), {"1": b"\0" * 16}),
        archive(tensor_program(ONE, ONE), {"0": b"\0" * 13}),
        (2**60).to_bytes(8, "little") + b'{"a": 1}',
        (8).to_bytes(8, "little") + b"{\xff\xff\xff\xff\xff\xff}",
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        b"<!DOCTYPE html>",
        b"1\n2\nx\n",
    ],
)
def test_damaged_and_hostile_files_are_only_a_token_map_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "map.pt"
    path.write_bytes(data)
    with pytest.raises(HotMapError, match=r"map\.pt"):
        TokenMap.load(path)


def test_the_hand_made_tensor_is_a_good_one(tmp_path: Path) -> None:
    (tmp_path / "map.pt").write_bytes(archive(tensor_program(b"K\x02", ONE), {"0": np.array([5, 4]).tobytes()}))
    assert TokenMap.load(tmp_path / "map.pt").token_ids.tolist() == [5, 4]


def test_entries_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    """An archive whose directory lists one record many times unpacks to more than it holds."""
    record = b"\0" * 4096
    whole = archive(tensor_program(ONE, ONE), {"0": record, "1": b""})
    path = tmp_path / "map.pt"
    # point the second record at the first one's size
    start = whole.rindex(b"PK\x01\x02")
    size = len(record).to_bytes(4, "little")
    path.write_bytes(whole[: start + 20] + size + size + whole[start + 28 :])
    with pytest.raises(HotMapError, match="cannot be read"):
        TokenMap.load(path)


def rewrite(path: Path, tensors: dict[str, np.ndarray], **changes: str | None) -> None:
    """Our example with other tensors or metadata; None drops an entry."""
    data = path.read_bytes()
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    metadata = {key: value for key, value in {**metadata, **changes}.items() if value is not None}
    path.write_bytes(safetensors.numpy.save({**safetensors.numpy.load(data), **tensors}, metadata))


@pytest.mark.parametrize(
    ("tensors", "changes", "message"),
    [
        ({"token_ids": np.array([1, 2, 3, 4, 5])}, {}, "its token_ids are not the ones it was written with"),
        ({"counts": np.array([1, 2, 3, 4, 5])}, {}, "its counts are not the ones it was written with"),
        ({}, {"token_ids_sha256": None}, "sha256 differs"),
        ({"token_ids": np.array([1.0, 2.0])}, {}, "must be integers, but they are float64"),
        ({"token_ids": np.array([True])}, {}, "booleans"),
        ({}, {"format": None}, r"without hothead's token map \(tensors: counts, token_ids\)"),
        ({}, {"format_version": "2"}, r"format version is 2; this hothead reads 1 to 1\.\n  Upgrade"),
        ({}, {"format_version": "new"}, "damaged"),
        ({}, {"vocab_size": "100"}, "past the vocabulary size 100"),
        ({}, {"vocab_size": "-1"}, "past the vocabulary size -1"),
        ({}, {"num_fillers": "9"}, "cannot have 9 fillers"),
        ({}, {"provenance": "[1]"}, "provenance is not a JSON object"),
        ({}, {"provenance": "{"}, "damaged"),
    ],
)
def test_a_file_of_ours_that_was_changed_is_refused(
    tmp_path: Path, tensors: dict[str, np.ndarray], changes: dict[str, str | None], message: str
) -> None:
    path = tmp_path / "map.safetensors"
    example().save(path)
    rewrite(path, tensors, **changes)
    with pytest.raises(HotMapError, match=message):
        TokenMap.load(path)


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "llama3-32k.safetensors").touch()
    for asked, message in (
        (tmp_path / "llama-32k.safetensors", r"no token map at '.*llama-32k.safetensors'\.\n  Did you mean llama3-32k.safetensors\?"),
        (tmp_path / "zzz", r"The folder has llama3-32k.safetensors\."),
        (tmp_path / "nowhere" / "map.pt", r"The folder '.*nowhere' does not exist"),
        (tmp_path, "the folder has none of token_map.safetensors, d2t.npy"),
        (Path("/dev/zero"), "is not a file"),
        (tmp_path / "a\0b", "no token map at"),
    ):
        with pytest.raises(HotMapError, match=message):
            TokenMap.load(asked)


def test_a_file_over_the_limit_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example().save(tmp_path / "map.safetensors")
    monkeypatch.setattr(registry, "MAX_FILE_BYTES", 100)
    with pytest.raises(HotMapError, match=r"is too large: \d+ bytes, and at most 100 are read"):
        TokenMap.load(tmp_path / "map.safetensors")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "map.safetensors"
    example().save(path)

    def no_space(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", no_space)
    with pytest.raises(OutputError, match=r"cannot be written: No space left on device"):
        example().head(2).save(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["map.safetensors"]
    assert TokenMap.load(path) == example()
    with pytest.raises(OutputError, match="cannot be written"):
        example().save(path / "below a file.safetensors")
