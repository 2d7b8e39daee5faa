from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.support.tiny import CHAT_TEMPLATE, make_tokenizer

from hothead.vocab.token_map import TokenMap

if TYPE_CHECKING:
    from tests.unit.cli.conftest import CommandLine


@pytest.mark.case(4)
def test_inspect_says_what_a_map_holds(hothead: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "map.safetensors"
    token_map = TokenMap(np.array([5, 2, 9]), np.array([30, 20, 0]), 10, 1, {"corpus": "letters"}, "abc")
    token_map.save(path)
    done = hothead("map", "inspect", str(path), "--json")
    assert done.code == 0, done.err
    answer = json.loads(done.out)
    rows = answer.pop("rows_per_rank")
    assert rows[:3] == [{"tp_size": 1, "placement": name, "rows": [3]} for name in ("balanced", "replicated", "owner")]
    assert [entry["rows"] for entry in rows if entry["tp_size"] == 2] == [[2, 1], [3, 3], [3, 0]]
    assert answer == {
        "format": "hothead",
        "size": 3,
        "vocab_size": 10,
        "first_token_ids": [5, 2, 9],
        "lowest_token_id": 2,
        "highest_token_id": 9,
        "num_fillers": 1,
        "num_counted": 50,
        "fingerprint": token_map.fingerprint,
        "tokenizer_fingerprint": "abc",
        "provenance": {"corpus": "letters"},
        "coverage": {"3": 1.0},
        "tokens": {},
        "warnings": [
            "1 of 3 token ids were never seen and only fill up the size.",
            "kept with their owners, 2 of its 3 rows lie on one of 8 ranks (5.3 times the mean); the placement 'balanced' spreads them.",
        ],
    }
    text = hothead("map", "inspect", str(path), "--tp", "2").out
    assert "first_token_ids:       5 2 9\n" in text
    assert "provenance:\n  corpus: letters\n" in text
    assert ["2", "balanced", "2", "1", "1.33"] in [line.split() for line in text.splitlines()]


def test_inspect_shows_tokens_and_what_the_model_needs(hothead: CommandLine, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    make_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE}))
    path = tmp_path / "map.pt"
    space = make_tokenizer().encode(" the").ids[0]
    TokenMap(np.array([space, 1, 700])).save(path)
    done = hothead("map", "inspect", str(path), "--model", str(folder), "--json", "--plot", str(tmp_path / "map.png"))
    assert done.code == 0, done.err
    answer = json.loads(done.out)
    assert answer["format"] == "sglang"
    assert answer["tokens"]["top"][0] == {"token_id": space, "text": " the"}
    assert answer["tokens"]["missing"][0] == {"token_id": 0, "text": "<|endoftext|>"}
    assert answer["special_tokens_in"] == ["<|im_start|>"]
    assert answer["special_tokens_out"] == ["<|endoftext|>", "<|im_end|>"]
    assert answer["required_tokens_out"] == ["<|im_end|>"]
    warnings = "\n".join(answer["warnings"])
    assert "it has no counts" in warnings
    assert "1 of its token ids are past the" in warnings
    assert "tokens that end or shape a turn are not in it: <|im_end|>." in warnings
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


def test_convert_says_what_is_lost(hothead: CommandLine, tmp_path: Path) -> None:
    path, new = tmp_path / "map.safetensors", tmp_path / "new.pt"
    TokenMap(np.array([5, 2, 9]), np.array([30, 20, 0]), 10, 1, {"corpus": "letters"}, "abc").save(path)
    done = hothead("map", "convert", str(path), "--to", "sglang", "-o", str(new), "--size", "2")
    assert (done.code, done.out) == (0, f"{new}\n"), done.err
    assert "2 token ids, read as hothead, written as sglang" in done.err
    assert "Note: the format sglang does not keep: counts, vocabulary size, provenance and fingerprints." in done.err
    assert TokenMap.load(new).token_ids.tolist() == [5, 2]
    done = hothead("map", "convert", str(new), "--to", "eagle3", "-o", str(tmp_path / "pair"))
    assert done.code == 2
    assert "--vocab-size" in done.err
    done = hothead("map", "convert", str(new), "--to", "eagle3", "-o", str(tmp_path / "pair"), "--vocab-size", "10")
    assert done.code == 0, done.err
    assert "does not keep: order of frequency." in done.err
    done = hothead("map", "convert", str(tmp_path / "pair"), "--to", "text", "-o", str(tmp_path / "map.txt"))
    assert "Note: Its ids are in ascending order" in done.err
    assert (tmp_path / "map.txt").read_text() == "# token map: 2 token ids of a vocabulary of 10, most frequent first\n2\n5\n"


def test_a_list_with_its_vocabulary_shows_rows_and_a_missing_order(hothead: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "map.txt"
    path.write_text("2\n5\n9\n")
    answer = json.loads(hothead("map", "inspect", str(path), "--json").out)
    assert answer["rows_per_rank"] == []
    answer = json.loads(hothead("map", "inspect", str(path), "--json", "--vocab-size", "128", "--tp", "2").out)
    assert [entry["rows"] for entry in answer["rows_per_rank"]] == [[2, 1], [3, 3], [3, 0]]
    assert answer["warnings"][0] == "its ids are in ascending order, not in order of frequency, so a smaller hot size is no use."


def test_what_is_made_ours_says_what_it_was(hothead: CommandLine, tmp_path: Path) -> None:
    TokenMap(np.array([5, 2, 9])).save(tmp_path / "map.pt")
    done = hothead("map", "convert", str(tmp_path / "map.pt"), "--to", "hothead", "-o", str(tmp_path / "new"), "--vocab-size", "12")
    assert done.code == 0, done.err
    token_map = TokenMap.load(tmp_path / "new")
    assert (dict(token_map.provenance), token_map.vocab_size) == ({"converted_from": "map.pt (sglang)"}, 12)
    done = hothead("map", "convert", str(tmp_path / "new"), "--to", "hothead", "-o", str(tmp_path / "again"))
    assert (tmp_path / "again").read_bytes() == (tmp_path / "new").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["convert", "MAP"], "--to FORMAT and -o FILE"),
        (["convert", "MAP", "--to", "ggml", "-o", "x"], "is not one of hothead, sglang"),
        (["convert", "MAP", "--to", "text", "-o", "x", "--size", "7"], "the token map has 3"),
        (["convert", "MAP", "--to", "text", "-o", "x", "--encoding", "offset"], "its ids are absolute, not offset"),
        (["convert", "MAP", "--to", "text", "-o", "x", "--vocab-size", "11"], "its vocabulary has 10 token ids, not 11"),
        (["inspect", "MAP", "--tp", "1,x"], "is no list of tp_sizes"),
        (["inspect", "MAP", "--model", "./missing"], "There is no file or folder"),
    ],
)
def test_bad_usage(hothead: CommandLine, tmp_path: Path, arguments: list[str], said: str) -> None:
    TokenMap(np.array([5, 2, 9]), None, 10).save(tmp_path / "map")
    done = hothead("map", *(str(tmp_path / "map") if one == "MAP" else str(tmp_path / one) if one == "x" else one for one in arguments))
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert [entry.name for entry in tmp_path.iterdir()] == ["map"]


def test_what_is_no_map_is_refused(hothead: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "map.safetensors").write_bytes(b"no map at all")
    for name in ("map.safetensors", "missing.safetensors"):
        done = hothead("map", "inspect", str(tmp_path / name))
        assert (done.code, done.out) == (2, "")
        assert "Error: " in done.err
        assert "Traceback" not in done.err
