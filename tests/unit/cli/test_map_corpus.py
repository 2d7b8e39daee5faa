"""`map build`, `merge` and `coverage` from the command line: what comes out, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.support.tiny import CHAT_TEMPLATE, TEXT, make_tokenizer

from hothead.models.tokenizer import Tokenizer
from hothead.vocab.count import TokenCounts
from hothead.vocab.token_map import TokenMap

if TYPE_CHECKING:
    from tests.unit.cli.conftest import CommandLine


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "model"
    folder.mkdir()
    make_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2]}))
    return str(folder)


@pytest.fixture
def chats(tmp_path: Path) -> str:
    path = tmp_path / "chats.jsonl"
    rows = [
        {"source": "ab"[number % 2], "messages": [{"role": "user", "content": "why 123?"}, {"role": "assistant", "content": TEXT}]}
        for number in range(10)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def test_a_map_from_chats(hothead: CommandLine, tmp_path: Path, model: str, chats: str) -> None:
    path, counts_path = tmp_path / "out" / "map.safetensors", tmp_path / "counts"
    done = hothead("map", "build", "--model", model, "--corpus", chats, "-o", str(path), "--counts-output", str(counts_path))
    assert (done.code, done.out) == (0, f"{path}\n"), done.err
    assert "counted 270 tokens of 10 texts in 1 file: " in done.err
    token_map, tokenizer = TokenMap.load(path), Tokenizer.load(model)
    expected = np.bincount(tokenizer.encode(TEXT + "<|im_end|>"), minlength=tokenizer.vocab_size) * 10
    assert (TokenCounts.load(counts_path).counts == expected).all()
    assert token_map.tokenizer_fingerprint == tokenizer.fingerprint
    assert set(token_map.token_ids[:3].tolist()) == {0, 1, 2}, "end tokens and the tokens of the template come first"
    assert set(token_map.token_ids[3:].tolist()) == set(np.flatnonzero(expected)) - {0, 1, 2}
    assert (np.diff(token_map.counts[3:]) <= 0).all()  # type: ignore[index]
    assert token_map.provenance["corpus"] == chats
    assert len(token_map.provenance["corpus_fingerprint"]) == 64
    assert [entry.name for entry in path.parent.iterdir()] == ["map.safetensors"]


def test_all_of_a_chat_counts_when_asked_for(hothead: CommandLine, tmp_path: Path, model: str, chats: str) -> None:
    path = tmp_path / "map.safetensors"
    assert hothead("map", "build", "--model", model, "--corpus", chats, "--count", "all", "-o", str(path)).code == 0
    assert Tokenizer.load(model).encode("3")[0] in TokenMap.load(path).token_ids


@pytest.mark.case(13, 14)
def test_an_exact_size_is_filled_and_said(hothead: CommandLine, tmp_path: Path, model: str, chats: str) -> None:
    path = tmp_path / "map.safetensors"
    done = hothead("map", "build", "--model", model, "--corpus", chats, "--size", "200", "-o", str(path))
    token_map = TokenMap.load(path)
    assert (len(token_map), len(set(token_map.token_ids.tolist()))) == (200, 200)
    assert token_map.num_fillers > 0
    assert f"{token_map.num_fillers} of 200 token ids were never seen" in done.err


def test_a_share_chooses_the_size(hothead: CommandLine, tmp_path: Path, model: str, chats: str) -> None:
    path, counts_path = tmp_path / "map.safetensors", tmp_path / "counts"
    options = ["--model", model, "--corpus", chats, "-o", str(path), "--counts-output", str(counts_path)]
    assert hothead("map", "build", *options, "--coverage", "0.8").code == 0
    token_map, counts = TokenMap.load(path), TokenCounts.load(counts_path).counts
    assert token_map.coverage(counts) >= 0.8 > token_map.head(len(token_map) - 1).coverage(counts)


def test_counts_are_merged_by_weight_and_ranked(hothead: CommandLine, tmp_path: Path, model: str, chats: str) -> None:
    text = tmp_path / "text.txt"
    text.write_text("zzz ! ? " * 100)
    for name, corpus in (("a", chats), ("b", str(text))):
        options = ["-o", str(tmp_path / f"{name}.map"), "--counts-output", str(tmp_path / f"{name}.counts")]
        assert hothead("map", "build", "--model", model, "--corpus", corpus, *options).code == 0
    files = [str(tmp_path / "a.counts"), str(tmp_path / "b.counts")]
    done = hothead("map", "merge", *files, "--weights", "2", "0.5", "-o", str(tmp_path / "sum.counts"))
    assert done.code == 0, done.err
    a, b, total = (TokenCounts.load(tmp_path / f"{name}.counts") for name in ("a", "b", "sum"))
    assert (total.counts == 2 * a.counts + np.rint(b.counts / 2)).all()
    assert total.provenance["merged_from"] == "a.counts x 2, b.counts x 0.5"
    done = hothead("map", "build", "--model", model, "--counts", str(tmp_path / "sum.counts"), "-o", str(tmp_path / "sum.map"))
    assert done.code == 0, done.err
    assert TokenMap.load(tmp_path / "sum.map").counts.sum() == total.num_tokens  # type: ignore[union-attr]
    done = hothead("map", "merge", *files, "--weights", "2", "-o", str(tmp_path / "x"))
    assert (done.code, done.err.splitlines()[0]) == (2, "OptionError: --weights has 1 numbers for 2 files.")


@pytest.mark.case(17)
def test_coverage_by_domain_and_of_two_maps(hothead: CommandLine, tmp_path: Path, model: str, chats: str) -> None:
    small, large = tmp_path / "small.safetensors", tmp_path / "large.safetensors"
    for path, size in ((small, "12"), (large, "60")):
        assert hothead("map", "build", "--model", model, "--corpus", chats, "--size", size, "-o", str(path)).code == 0
    arguments = ["map", "coverage", str(small), str(large), "--model", model, "--corpus", chats, "--by", "source"]
    done = hothead(*arguments, "--json", "--plot", str(tmp_path / "picture.png"))
    assert done.code == 0, done.err
    rows = json.loads(done.out)
    assert set(rows["num_tokens"]) == {"a", "b", "all"}
    assert rows["num_tokens"]["a"] + rows["num_tokens"]["b"] == rows["num_tokens"]["all"]
    first, second = rows["maps"]
    assert second["hit_rate"]["all"]["60"] == 1.0 > first["hit_rate"]["all"]["12"] > 0.1
    assert second["misses"] == []
    assert first["misses"][0]["share"] > 0
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    text = hothead(*arguments, "--size", "8", "--size", "10").out
    assert "H = 8   H = 10" in text
    assert text.count("most frequent tokens that are not hot") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["build"], "There is nothing to count."),
        (["build", "--corpus", "CHATS", "--size", "9", "--coverage", "0.5"], "both choose the map's size"),
        (["build", "--corpus", "CHATS", "--size", "100000"], "a map of 100000 token ids cannot be built"),
        (["build", "--corpus", "CHATS.missing"], "there is no file or folder"),
        (["build", "--corpus", "CHATS", "--field", "nothing"], "line 1: it has no 'nothing'"),
        (["build", "--counts", "CHATS"], "is no counts file"),
        (["coverage", "MAP"], "There is no text to measure on."),
        (["coverage", "MAP", "--counts", "COUNTS", "--by", "x"], "has no effect on counts"),
        (["coverage", "MAP", "--corpus", "CHATS", "--by", "topic"], "it has no 'topic'"),
        (["coverage", "MAP", "--corpus", "CHATS", "--size", "999"], "a size of 999 was asked for"),
        (["coverage", "LARGE", "--corpus", "CHATS"], "does not fit target"),
        (["coverage", "MAP", "--corpus", "CHATS", "--plot", "x.doc"], "cannot be written as '.doc'"),
    ],
)
def test_what_cannot_be(hothead: CommandLine, tmp_path: Path, model: str, chats: str, arguments: list[str], said: str) -> None:
    places = {"CHATS": chats, "MAP": str(tmp_path / "map"), "COUNTS": str(tmp_path / "counts"), "LARGE": str(tmp_path / "large")}
    TokenMap(np.arange(30)).save(places["MAP"])
    TokenMap(np.array([5, 40_000])).save(places["LARGE"])
    tokenizer = Tokenizer.load(model)
    TokenCounts(tokenizer.vocab_size, np.ones(tokenizer.vocab_size, np.int64), tokenizer.fingerprint).save(places["COUNTS"])
    output = ["-o", str(tmp_path / "new")] if arguments[0] == "build" else []
    given = [places.get(argument, argument.replace("CHATS", chats)) for argument in arguments]
    done = hothead("map", given[0], *given[1:], "--model", model, *output)
    assert done.code == 2, done.out
    assert said in done.err
    assert not (tmp_path / "new").exists()


@pytest.mark.case(12, 15)
def test_a_map_of_another_tokenizer_is_refused_with_the_first_difference(
    hothead: CommandLine, tmp_path: Path, model: str, chats: str
) -> None:
    path, other = tmp_path / "map.safetensors", tmp_path / "other"
    assert hothead("map", "build", "--model", model, "--corpus", chats, "-o", str(path)).code == 0
    other.mkdir()
    text = (Path(model) / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(text.replace("<|im_start|>", "<|begin|>"))
    done = hothead("map", "coverage", str(path), "--model", str(other), "--corpus", chats)
    assert done.code == 2
    assert "was counted with another tokenizer than other has" in done.err
    assert "token id 1 is '<|im_start|>' in the map's and '<|begin|>' in this one" in done.err
    warnings = json.loads(hothead("map", "inspect", str(path), "--model", str(other), "--json").out)["warnings"]
    assert any("token id 1 is '<|im_start|>' in the map's and '<|begin|>'" in warning for warning in warnings)


def test_counts_of_another_tokenizer_are_refused(hothead: CommandLine, tmp_path: Path, model: str) -> None:
    TokenCounts(7, np.ones(7, np.int64), "f" * 64).save(tmp_path / "counts")
    done = hothead("map", "build", "--model", model, "--counts", str(tmp_path / "counts"), "-o", str(tmp_path / "map"))
    assert done.code == 2
    assert "are of another tokenizer" in done.err


def test_an_output_that_cannot_be_is_said_before_counting(hothead: CommandLine, tmp_path: Path, model: str, chats: str) -> None:
    done = hothead("map", "build", "--model", model, "--corpus", chats, "-o", str(tmp_path))
    assert done.code == 2
    assert "it is a folder" in done.err
    assert "counted" not in done.err
