from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hothead.vocab.token_map import TokenMap

if TYPE_CHECKING:
    from tests.unit.cli.conftest import CommandLine


def test_inspect_says_what_a_map_holds(hothead: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "map.safetensors"
    token_map = TokenMap(np.array([5, 2, 9]), np.array([30, 20, 0]), 10, 1, {"corpus": "letters"}, "abc")
    token_map.save(path)
    done = hothead("map", "inspect", str(path), "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out) == {
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
    }
    text = hothead("map", "inspect", str(path)).out
    assert "first_token_ids:       5 2 9\n" in text
    assert "provenance:\n  corpus: letters\n" in text


def test_what_is_no_map_is_refused(hothead: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "map.safetensors").write_bytes(b"no map at all")
    for name in ("map.safetensors", "missing.safetensors"):
        done = hothead("map", "inspect", str(tmp_path / name))
        assert (done.code, done.out) == (2, "")
        assert "Error: " in done.err
        assert "Traceback" not in done.err
