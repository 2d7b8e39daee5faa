"""Every format of other programs is read as they mean it, told apart by content, and refused where it can be read in two ways."""

from __future__ import annotations

import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch

from hothead.errors import HotMapError, OutputError
from hothead.vocab.formats.encodings import as_mask, as_offsets
from hothead.vocab.formats.registry import FORMATS, losses, read_stored_map
from hothead.vocab.formats.stored import MAX_FILE_BYTES
from hothead.vocab.token_map import TokenMap

V = 50
IDS = np.array([1, 2, 5, 6, 7, 20, 49])
OFFSETS, MASK = as_offsets(IDS), as_mask(IDS, V)


def write_gguf(path: Path, values: np.ndarray, **fields: list[str]) -> None:
    writer = gguf.GGUFWriter(path, "eagle3")
    for key, value in fields.items():
        writer.add_array(key.replace("__", "."), value)
    writer.add_tensor("output.weight", np.zeros((4, 8), np.float32))
    writer.add_tensor("d2t", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def npy_bytes(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


WRITERS: dict[str, Any] = {
    "pair": lambda path: safetensors.numpy.save_file({"d2t": OFFSETS, "t2d": MASK}, path),
    "pair of a checkpoint": lambda path: safetensors.numpy.save_file(
        {"d2t": OFFSETS.astype(np.int32), "t2d": MASK, "lm_head.weight": np.zeros((7, 4), np.float32)}, path
    ),
    "mask of bytes": lambda path: safetensors.numpy.save_file({"d2t": OFFSETS, "t2d": MASK.astype(np.uint8)}, path),
    "absolute with mask": lambda path: safetensors.numpy.save_file({"d2t": IDS, "t2d": MASK}, path),
    "offsets alone": lambda path: safetensors.numpy.save_file({"d2t": OFFSETS}, path),
    "torch dict": lambda path: torch.save({"d2t": torch.tensor(OFFSETS), "t2d": torch.tensor(MASK)}, path),
    "torch dict with others": lambda path: torch.save({"d2t": torch.tensor(OFFSETS), "t2d": torch.tensor(MASK), "epoch": 3}, path),
    "gguf": lambda path: write_gguf(path, IDS),
    "gguf int32": lambda path: write_gguf(path, IDS.astype(np.int32)),
    "npy list": lambda path: path.write_bytes(npy_bytes(IDS)),
    "torch list": lambda path: torch.save(IDS.tolist(), path),
    "torch tensor": lambda path: torch.save(torch.tensor(IDS), path),
    "text": lambda path: path.write_text("# hot\n" + "\n".join(map(str, IDS))),
    "json list": lambda path: path.write_text(json.dumps(IDS.tolist())),
    "wrapped json list": lambda path: path.write_text("[" + ",\n".join(f"{a}, {b}" for a, b in IDS[:6].reshape(3, 2)) + f",\n{IDS[6]}]"),
    "text in a row": lambda path: path.write_text("\ufeff" + " ".join(map(str, IDS)), encoding="utf-8"),
}


@pytest.mark.filterwarnings("ignore:token map")
@pytest.mark.parametrize("name", WRITERS)
def test_what_others_write_is_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / "some.file"
    WRITERS[name](path)
    token_map = TokenMap.load(path)
    assert token_map.token_ids.tolist() == IDS.tolist()
    if "pair" in name or "mask" in name or "dict" in name:
        assert token_map.vocab_size == V


@pytest.mark.filterwarnings("ignore:token map")
class DraftHead(torch.nn.Module):
    """The tensors of a draft head as its checkpoint has them, the head itself larger than what is read of a file."""

    def __init__(self, num_columns: int) -> None:
        super().__init__()
        self.lm_head = torch.nn.Linear(num_columns, len(IDS), bias=False, dtype=torch.bfloat16)
        self.register_buffer("d2t", torch.tensor(OFFSETS))
        self.register_buffer("t2d", torch.tensor(MASK))


@pytest.mark.filterwarnings("ignore:token map")
def test_two_tables_of_a_large_checkpoint_cost_no_more_than_they_have(tmp_path: Path) -> None:
    head = DraftHead(6 << 20)
    torch.save(head.state_dict(), tmp_path / "pytorch_model.bin")
    safetensors.torch.save_file(head.state_dict(), tmp_path / "model.safetensors")
    for name in ("pytorch_model.bin", "model.safetensors"):
        path = tmp_path / name
        assert path.stat().st_size > MAX_FILE_BYTES
        tracemalloc.start()
        try:
            stored, format_name = read_stored_map(path)
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()
        assert (np.asarray(stored.token_ids).tolist(), stored.vocab_size, format_name) == (IDS.tolist(), V, "eagle3")


@pytest.mark.filterwarnings("ignore:token map")
def test_a_checkpoint_of_parameters_below_a_prefix(tmp_path: Path) -> None:
    tensors = {f"model.{name}": tensor for name, tensor in DraftHead(2).state_dict().items()}
    torch.save({**tensors, "norm": torch.nn.Parameter(torch.ones(3, 3))}, tmp_path / "x")
    assert TokenMap.load(tmp_path / "x").token_ids.tolist() == IDS.tolist()
    safetensors.torch.save_file(tensors, tmp_path / "x")
    assert TokenMap.load(tmp_path / "x").token_ids.tolist() == IDS.tolist()
    safetensors.torch.save_file({**tensors, "other.d2t": torch.tensor(OFFSETS)}, tmp_path / "x")
    with pytest.raises(HotMapError, match=r"it has 2 tensors d2t: model\.d2t, other\.d2t"):
        TokenMap.load(tmp_path / "x")


@pytest.mark.filterwarnings("ignore:token map")
def test_the_pair_of_numpy_files(tmp_path: Path) -> None:
    np.save(tmp_path / "d2t.npy", OFFSETS)
    np.save(tmp_path / "t2d.npy", MASK)
    for path in (tmp_path, tmp_path / "d2t.npy", tmp_path / "t2d.npy"):
        token_map = TokenMap.load(path)
        assert (token_map.token_ids.tolist(), token_map.vocab_size) == (IDS.tolist(), V)


def test_a_file_without_order_says_so(tmp_path: Path) -> None:
    WRITERS["pair"](tmp_path / "x")
    with pytest.warns(UserWarning, match="ascending order, not in order of frequency"):
        TokenMap.load(tmp_path / "x")
    safetensors.numpy.save_file({"t2d": MASK}, tmp_path / "x")
    with pytest.warns(UserWarning, match="no order of frequency"):
        assert TokenMap.load(tmp_path / "x").token_ids.tolist() == IDS.tolist()


@pytest.mark.case(6)
def test_two_readings_are_both_shown_and_one_can_be_chosen(tmp_path: Path) -> None:
    path = tmp_path / "x"
    safetensors.numpy.save_file({"d2t": np.array([3, 9, 12])}, path)
    with pytest.raises(HotMapError) as caught:
        TokenMap.load(path)
    assert "can be read in two ways" in caught.value.what
    assert caught.value.details == ("absolute: token ids 3, 9, 12", "offset: token ids 3, 10, 14")
    assert "--encoding" in caught.value.advice
    with pytest.warns(UserWarning, match="order"):
        assert TokenMap.load(path, encoding="absolute").token_ids.tolist() == [3, 9, 12]
    with pytest.warns(UserWarning, match="order"):
        assert TokenMap.load(path, encoding="offset").token_ids.tolist() == [3, 10, 14]
    with pytest.warns(UserWarning, match="order"):  # a known vocabulary excludes one of the two
        assert TokenMap.load(path, vocab_size=13).token_ids.tolist() == [3, 9, 12]


@pytest.mark.case(6, 7)
def test_a_table_that_was_never_filled_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    safetensors.numpy.save_file({"d2t": np.zeros(32, np.int64)}, path)
    with pytest.raises(HotMapError, match="32 zeros: a table that was never filled"):
        TokenMap.load(path)
    with pytest.raises(HotMapError, match="never filled"):
        TokenMap.load(path, vocab_size=100)
    with pytest.warns(UserWarning, match="order"):
        assert TokenMap.load(path, encoding="offset").token_ids.tolist() == list(range(32))
    with pytest.warns(UserWarning, match="order"):  # the whole vocabulary: zeros are right
        assert len(TokenMap.load(path, vocab_size=32)) == 32
    safetensors.numpy.save_file({"d2t": np.zeros(2, np.int64), "t2d": np.zeros(5, np.bool_)}, path)
    with pytest.raises(HotMapError, match="t2d marks no token"):
        TokenMap.load(path)


@pytest.mark.parametrize(
    ("tensors", "options", "said"),
    [
        ({"d2t": OFFSETS + 1, "t2d": MASK}, {}, "name different tokens in every reading"),
        ({"d2t": OFFSETS, "t2d": MASK}, {"encoding": "absolute"}, "cannot be read as absolute ids: .* repeat another"),
        ({"d2t": OFFSETS, "t2d": MASK}, {"vocab_size": 7}, "its mask t2d is over 50 token ids, and the vocabulary has 7"),
        ({"d2t": OFFSETS.reshape(1, -1)}, {}, r"must be a list \(1-D\), but it has the shape"),
        ({"d2t": OFFSETS.astype(np.float32)}, {}, "must hold integers or booleans, but it holds F32"),
        ({"d2t": MASK}, {}, "d2t must hold integers, but it holds bool"),
        ({"t2d": np.arange(9)}, {}, "its mask t2d must hold booleans, but it holds int64"),
        ({"d2t": np.array([-5, -5, -9])}, {}, "cannot be read in either way"),
        ({"d2t": OFFSETS}, {"encoding": "mask"}, "it has no mask t2d"),
        ({"d2t": np.zeros(0, np.int64)}, {}, "that is not empty"),
        ({"lm_head.weight": np.zeros(3)}, {}, "without hothead's token map"),
    ],
)
def test_pairs_that_cannot_be(tmp_path: Path, tensors: dict[str, np.ndarray], options: dict[str, Any], said: str) -> None:
    safetensors.numpy.save_file(tensors, tmp_path / "x")
    with pytest.raises(HotMapError, match=said):
        TokenMap.load(tmp_path / "x", **options)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("1\n2\nthree\n", "line 3 holds 'three', which is no token id"),
        ("1\n2.5\n", "line 2 holds '2.5'"),
        ("# nothing\n", "without any number"),
        ("1\n1\n", "occurs twice"),
        ("5 -1", "are negative"),
        ("5 100\n7 90\n", "it is a table: line 1 holds several numbers"),
        ("5\n7\n9,90\n", "it is a table: line 3"),
        ("[[1, 2], [3, 4]]", "line 1 has a list inside a list"),
        ("[1, 2]\n[3, 4]", "line 2 has a list inside a list or behind one"),
        ("1 2 [3]", "behind one"),
        ("[1, 2] 3", "line 1 goes on behind the end of its list"),
        ("[1, 2,", "ends inside its list"),
        ("1\ufffd", "which is no token id"),
        ("99999999999999999999", "line 1 holds '99999999999999999999'"),
    ],
)
def test_text_that_is_no_map(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "x.txt").write_text(content)
    with pytest.raises(HotMapError, match=said):
        TokenMap.load(tmp_path / "x.txt")


@pytest.mark.case(29)
@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.zeros((2, 2), np.int64), r"shape \[2, 2\]"),
        (np.array([1.5]), "it holds float64, not integers"),
        (np.array([True, False]), "booleans"),
        (np.array([None, 1], object), "it holds object, not integers"),
        (np.array(["a"]), "it holds <U1, not integers"),
    ],
)
def test_numpy_arrays_that_are_no_map(tmp_path: Path, values: np.ndarray, said: str) -> None:
    np.save(tmp_path / "x.npy", values, allow_pickle=True)
    with pytest.raises(HotMapError, match=said):
        TokenMap.load(tmp_path / "x.npy")


def test_a_numpy_file_that_claims_more_than_it_has(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, IDS)
    path.write_bytes(path.read_bytes().replace(b"(7,)", b"(9" + b"9" * 12 + b",)", 1)[:200])
    with pytest.raises(HotMapError, match="cannot be read"):
        TokenMap.load(path)


def test_gguf_files_that_are_no_map(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    write_gguf(path, IDS.astype(np.float32))
    with pytest.raises(HotMapError, match="must hold integers, but it holds F32"):
        TokenMap.load(path)
    write_gguf(path, np.array([[1, 2], [3, 4]]))
    with pytest.raises(HotMapError, match=r"must be a list \(1-D\)"):
        TokenMap.load(path)
    write_gguf(path, IDS, tokenizer__ggml__tokens=["a"] * 30)
    with pytest.raises(HotMapError, match="1 of 7 are at or past the vocabulary size 30"):
        TokenMap.load(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(HotMapError, match="is truncated"):
        TokenMap.load(path)


def full_map() -> TokenMap:
    return TokenMap(np.array([40, 3, 30, 7]), np.array([9, 5, 2, 0]), V, 1, {"corpus": "chats"}, "ab" * 32)


@pytest.mark.filterwarnings("ignore:token map")
@pytest.mark.parametrize("name", FORMATS)
def test_a_written_map_is_read_back_with_what_the_format_keeps(tmp_path: Path, name: str) -> None:
    path = tmp_path / "new" / "map"
    original = full_map()
    original.save(path, name)
    stored, found = read_stored_map(path)
    assert found == name
    loaded = TokenMap.of_stored(stored, "map")
    lost = losses(original.stored, name)
    assert (loaded.token_ids.tolist() == original.token_ids.tolist()) == ("order of frequency" not in lost)
    assert sorted(loaded.token_ids.tolist()) == sorted(original.token_ids.tolist())
    assert (loaded.counts is None) == ("counts" in lost)
    assert (loaded.vocab_size is None) == ("vocabulary size" in lost)
    assert (loaded.tokenizer_fingerprint == "") == ("provenance and fingerprints" in lost)
    if not lost:
        assert loaded == original
    again = tmp_path / "again"
    loaded.save(again, "text")
    assert sorted(TokenMap.load(again).token_ids.tolist()) == [3, 7, 30, 40]


def test_formats_with_a_mask_need_the_vocabulary(tmp_path: Path) -> None:
    for name in ("eagle3", "numpy"):
        with pytest.raises(HotMapError, match="--vocab-size"):
            TokenMap(np.array([3, 1])).save(tmp_path / "x", name)
        with pytest.raises(HotMapError, match="one entry for each of the 1000000000000 tokens"):
            TokenMap(np.array([3, 1]), None, 10**12).save(tmp_path / "x", name)
    assert not list(tmp_path.iterdir())


def test_other_engines_read_what_is_written(tmp_path: Path) -> None:
    original = full_map()
    original.save(tmp_path / "map.pt", "sglang")
    assert torch.load(tmp_path / "map.pt", weights_only=True) == [40, 3, 30, 7]
    original.save(tmp_path / "pair", "eagle3")
    pair = safetensors.numpy.load_file(tmp_path / "pair")
    assert (np.arange(4) + pair["d2t"]).tolist() == np.flatnonzero(pair["t2d"]).tolist() == [3, 7, 30, 40]
    original.save(tmp_path / "map.gguf", "gguf")
    reader = gguf.GGUFReader(tmp_path / "map.gguf")
    assert [tensor.data.tolist() for tensor in reader.tensors if tensor.name == "d2t"] == [[40, 3, 30, 7]]


@pytest.mark.filterwarnings("ignore:token map 'x.pt'")
def test_a_mask_is_only_read_as_one_where_it_is_called_so(tmp_path: Path) -> None:
    torch.save(torch.tensor(MASK), tmp_path / "x.pt")
    with pytest.raises(HotMapError, match=r"booleans(.|\n)*--encoding mask"):
        TokenMap.load(tmp_path / "x.pt")
    token_map = TokenMap.load(tmp_path / "x.pt", encoding="mask")
    assert (token_map.token_ids.tolist(), token_map.vocab_size) == (IDS.tolist(), V)
    with pytest.raises(HotMapError, match="its vocabulary has 50 token ids, not 51"):
        TokenMap.load(tmp_path / "x.pt", encoding="mask", vocab_size=51)


def test_a_list_that_would_be_one_as_offsets_says_so(tmp_path: Path) -> None:
    torch.save(torch.tensor(OFFSETS), tmp_path / "x.pt")
    with pytest.raises(HotMapError, match=r"occurs twice(.|\n)*as offsets \(--encoding offset\) it has the token ids 1, 2, 5, 6, 7, 20"):
        TokenMap.load(tmp_path / "x.pt")
    assert TokenMap.load(tmp_path / "x.pt", encoding="offset").token_ids.tolist() == IDS.tolist()
    write_gguf(tmp_path / "x.gguf", OFFSETS)  # absolute is what the format says
    with pytest.raises(HotMapError, match=r"as absolute ids: 3 of 7 repeat(.|\n)*offset: token ids 1, 2, 5(.|\n)*Say --encoding offset"):
        TokenMap.load(tmp_path / "x.gguf")


@pytest.mark.parametrize("suffix", [".npy", ".pt", ".txt"])
def test_a_vocabulary_size_that_the_caller_gives_is_kept_and_checked(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    if suffix == ".npy":
        np.save(path, np.array([4, 2, 9]))
    else:
        TokenMap(np.array([4, 2, 9])).save(path, {".pt": "sglang", ".txt": "text"}[suffix])
    assert TokenMap.load(path).vocab_size is None
    assert TokenMap.load(path, vocab_size=10).vocab_size == 10
    with pytest.raises(HotMapError, match=r"1 of 3 token ids is at or past the vocabulary size 9 \(first: id 9 at hot index 2\)"):
        TokenMap.load(path, vocab_size=9)


def test_one_of_the_numpy_files_alone(tmp_path: Path) -> None:
    np.save(tmp_path / "d2t.npy", np.array([3, 9, 12]))
    with pytest.raises(HotMapError, match="can be read in two ways"):  # never as a list only because the mask is missing
        TokenMap.load(tmp_path / "d2t.npy")
    (tmp_path / "d2t.npy").unlink()
    np.save(tmp_path / "t2d.npy", MASK)
    with pytest.warns(UserWarning, match="no order of frequency"):
        assert TokenMap.load(tmp_path / "t2d.npy").token_ids.tolist() == IDS.tolist()


def test_two_files_are_not_written_under_the_name_of_one(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="the format numpy is two files"):
        full_map().save(tmp_path / "map.npy", "numpy")
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot be written"):
        full_map().save(tmp_path / "file", "numpy")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (MASK, "holds 7 zeros: a table that was never filled.\n  Its t2d marks 7 other tokens: 1, 2, 5(.|\n)*say --encoding mask"),
        (np.ones(V, bool), "Its t2d marks 50 other tokens(.|\n)*Fetch the checkpoint again"),
    ],
)
def test_a_table_that_was_never_filled_beside_a_mask(tmp_path: Path, mask: np.ndarray, said: str) -> None:
    path = tmp_path / "x"
    safetensors.numpy.save_file({"d2t": np.zeros(7, np.int64), "t2d": mask}, path)
    with pytest.raises(HotMapError, match=said):
        TokenMap.load(path)
    with pytest.warns(UserWarning, match="order"):
        assert TokenMap.load(path, encoding="mask").token_ids.tolist() == np.flatnonzero(mask).tolist()


@pytest.mark.case(6)
def test_offsets_that_are_all_zero_are_right_where_the_mask_marks_the_first_tokens(tmp_path: Path) -> None:
    path = tmp_path / "x"
    safetensors.numpy.save_file({"d2t": np.zeros(7, np.int64), "t2d": np.arange(V) < 7}, path)
    with pytest.warns(UserWarning, match="order"):
        assert TokenMap.load(path).token_ids.tolist() == list(range(7))
    with pytest.raises(HotMapError, match="holds 7 zeros"):
        TokenMap.load(path, encoding="absolute")
