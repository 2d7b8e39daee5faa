"""`map size` from the command line with a drafter that is assumed or was run before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.support.tiny import make_model

from hothead.models.tokenizer import Tokenizer
from hothead.vocab.token_map import TokenMap

if TYPE_CHECKING:
    from tests.unit.cli.conftest import CommandLine


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def token_map(tmp_path: Path) -> Path:
    path = tmp_path / "map.safetensors"
    TokenMap(np.arange(110, 310)[::-1].copy(), np.arange(200, 0, -1)).save(path)
    return path


def test_an_assumed_drafter(hothead: CommandLine, model: Path, token_map: Path, tmp_path: Path) -> None:
    times = tmp_path / "times.json"
    times.write_text('{"20": 0.001, "100": 0.002, "200": 0.03}')
    arguments = ["map", "size", str(token_map), "--model", str(model), "--tokens-per-step", "2.5", "--step-ms", "20"]
    done = hothead(*arguments, "--head-times", str(times), "--json", "--plot", str(tmp_path / "size.png"))
    assert done.code == 0, done.err
    answer = json.loads(done.out)
    assert [row["size"] for row in answer["rows"]] == [20, 100, 200]
    assert answer["best_size"] == 100
    assert answer["rows"][2]["tokens_per_step"] == pytest.approx(2.5)
    assert answer["rows"][2]["tokens_per_s"] == pytest.approx(2.5 / 0.05)
    assert "the map's own counts" in done.err
    assert (tmp_path / "size.png").read_bytes().startswith(b"\x89PNG")
    text = hothead(*arguments, "--head-times", str(times)).out
    assert "Use --hot-size 100." in text
    assert "tokens/s = tokens per step / (step without head + head)" in text


@pytest.mark.case(17)
def test_the_full_head_can_be_best(hothead: CommandLine, model: Path, token_map: Path, tmp_path: Path) -> None:
    vocab_size = Tokenizer.load(model).vocab_size
    times, corpus = tmp_path / "times.csv", tmp_path / "text.txt"
    times.write_text(f"20,0.001\n{vocab_size},0.001\n")
    corpus.write_text("the quick brown fox jumps over the lazy dog and drinks " * 5)
    arguments = ["map", "size", str(token_map), "--model", str(model), "--tokens-per-step", "2.5", "--step-ms", "20"]
    done = hothead(*arguments, "--head-times", str(times), "--corpus", str(corpus))
    assert done.code == 0, done.err
    assert "The full head is best: use no map (--map none)." in done.out
    assert f"{vocab_size} (full)" in done.out


def test_a_run_that_was_kept_and_times_measured_here(hothead: CommandLine, model: Path, token_map: Path, tmp_path: Path) -> None:
    run, times = tmp_path / "run.jsonl", tmp_path / "times.json"
    stage_s = {"draft": 0.1, "draft_head": 0.04, "verify": 0.4, "other": 0.0}
    run.write_text(json.dumps({"token_ids": [305, 306, 307, 308], "step_sizes": [3, 1], "stage_s": stage_s}))
    arguments = ["map", "size", str(token_map), "--model", str(model), "--run", str(run), "--sizes", "50,200"]
    done = hothead(*arguments, "--write-head-times", str(times), "--json")
    assert done.code == 0, done.err
    rows = json.loads(done.out)["rows"]
    assert rows[1]["head_ms"] == pytest.approx(20)  # what the run's own head took in a step
    assert rows[1]["tokens_per_step"] == pytest.approx(2.0)
    assert set(json.loads(times.read_text())) == {"50", "200"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tokens-per-step", "2", "--step-ms", "20", "--corpus", "SPACES"], "No token of the corpus is in the token map"),
        (["--sizes", "1,x"], "is no list of hot sizes"),
        (["--sizes", "100000"], "is more than the"),
        (["--tokens-per-step", "2"], "--tokens-per-step and --step-ms go together"),
        (["--tokens-per-step", "9", "--step-ms", "20"], "cannot come from 5 draft steps"),
        (["--run", "missing"], "the run 'missing' cannot be read"),
        (["--run", "x", "--prompts", "y"], "has no effect: no run is made here"),
        (["--run-hot-size", "5"], "has no effect without --run"),
        (["--tokens-per-step", "2", "--step-ms", "20", "--head-times", "TIMES", "--sizes", "7"], "has no time for the hot size 7"),
    ],
)
def test_bad_usage(hothead: CommandLine, model: Path, token_map: Path, tmp_path: Path, arguments: list[str], said: str) -> None:
    (tmp_path / "times").write_text('{"20": 0.001}')
    (tmp_path / "spaces").write_text("!!!")
    places = {"TIMES": str(tmp_path / "times"), "SPACES": str(tmp_path / "spaces")}
    given = [places.get(argument, argument) for argument in arguments]
    done = hothead("map", "size", str(token_map), "--model", str(model), *given)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_a_map_without_counts_needs_a_corpus(hothead: CommandLine, model: Path, tmp_path: Path) -> None:
    TokenMap(np.arange(200)).save(tmp_path / "map.pt")
    done = hothead("map", "size", str(tmp_path / "map.pt"), "--model", str(model))
    assert done.code == 2
    assert "has no counts" in done.err
    done = hothead("map", "size", "--model", str(model))
    assert done.code == 2
    assert "No token map ships for" in done.err
