"""What cannot draft is refused before a weight is read or a rank is started: the map, the head, the draft model, the tree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.tiny import make_eagle, make_model

from hothead import Engine, EngineConfig
from hothead.engine import ranks
from hothead.errors import HotheadError
from hothead.models.decoder import Decoder
from hothead.vocab.token_map import TokenMap


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def eagle(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_eagle(tmp_path_factory.mktemp("eagle"), model)


@pytest.fixture(autouse=True)
def _nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(*_: object, **__: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(Decoder, "load", loaded)
    monkeypatch.setattr(ranks, "_start_children", loaded)


def save(folder: Path, values: Any, **fields: Any) -> str:
    path = folder / "map.pt"
    if isinstance(values, list):
        path.write_text("\n".join(map(str, values)))
    else:
        path = folder / "map.safetensors"
        TokenMap(values, **fields).save(path)
    return str(path)


@pytest.mark.case(12, 29, 31)
@pytest.mark.parametrize("tp_size", [1, 2])
@pytest.mark.parametrize(
    ("ids", "fields", "options", "said"),
    [
        ([1, 2, 2], {}, {}, "token id 2 occurs twice"),
        ([1, -2], {}, {}, "are negative"),
        ([1, 2.5], {}, {}, "line 2 holds '2.5'"),
        (np.array([1, 100_000]), {}, {}, "past the vocabulary size"),
        (np.arange(60), {"tokenizer_fingerprint": "ab" * 32, "sample": {5: "zebra"}}, {}, "token id 5 is 'zebra' in the map's"),
        (np.arange(60), {}, {"hot_size": 70}, "the token map has 60"),
        (np.arange(60), {}, {"hot_coverage": 0.5}, "the token map has no counts"),
        (np.arange(3), {}, {"speculative_eagle_topk": 4}, "cannot give the 4 candidates of a draft level"),
        (
            np.arange(60),
            {},
            {"speculative_num_steps": 2, "speculative_eagle_topk": 2, "speculative_num_draft_tokens": 40},
            "at most 7 tokens",
        ),
    ],
)
def test_maps_and_trees(
    model: Path, eagle: Path, tmp_path: Path, ids: Any, fields: dict[str, Any], options: dict[str, Any], said: str, tp_size: int
) -> None:
    options = {"speculative_token_map": save(tmp_path, ids, **fields), **options}
    with pytest.raises(HotheadError) as caught:
        Engine(EngineConfig(model_path=str(model), speculative_draft_model_path=str(eagle), tp_size=tp_size, **options))
    assert said in str(caught.value)


def test_heads_that_do_not_fit(model: Path, eagle: Path, tmp_path: Path) -> None:
    def refused(folder: Path) -> str:
        with pytest.raises(HotheadError) as caught:
            Engine(EngineConfig(model_path=str(model), speculative_draft_model_path=str(folder)))
        return str(caught.value)

    other = make_eagle(tmp_path / "wide", make_model(tmp_path / "other", hidden_size=96, head_dim=16))
    assert "Its hidden size is 96, the target's 48" in refused(other)
    half = tmp_path / "half"
    half.mkdir()
    (half / "config.json").write_text((eagle / "config.json").read_text())
    (half / "model.safetensors").write_bytes((eagle / "model.safetensors").read_bytes()[:-100])
    assert "half" in refused(half)
    (half / "config.json").write_text(json.dumps({**json.loads((eagle / "config.json").read_text()), "intermediate_size": 71}))
    (half / "model.safetensors").write_bytes((eagle / "model.safetensors").read_bytes())
    assert "instead of" in refused(half)


def test_draft_models_that_do_not_fit(model: Path, tmp_path: Path) -> None:
    with pytest.raises(HotheadError, match="STANDALONE needs a draft model"):
        Engine(EngineConfig(model_path=str(model), speculative_algorithm="STANDALONE"))
    with pytest.raises(HotheadError, match="There is no file or folder"):
        Engine(EngineConfig(model_path=str(model), speculative_algorithm="STANDALONE", speculative_draft_model_path="./missing"))
