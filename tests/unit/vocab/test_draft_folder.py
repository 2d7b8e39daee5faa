"""The folder of a draft model is read as it comes: which file has the map, and what its config.json makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from hothead.errors import HotMapError
from hothead.vocab.formats.encodings import as_mask, as_offsets
from hothead.vocab.formats.registry import read_stored_map
from hothead.vocab.token_map import TokenMap

V = 50
IDS = np.array([1, 2, 5, 6, 7, 20, 49])
HEAD = np.zeros((7, 4), np.float32)

pytestmark = pytest.mark.filterwarnings("ignore:token map")


def write_shards(folder: Path) -> None:
    safetensors.numpy.save_file({"lm_head.weight": HEAD}, folder / "model-00001-of-00002.safetensors")
    safetensors.numpy.save_file({"d2t": as_offsets(IDS)}, folder / "model-00002-of-00002.safetensors")
    weight_map = {"lm_head.weight": "model-00001-of-00002.safetensors", "d2t": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


WRITERS: dict[str, Any] = {
    "hothead": lambda folder: TokenMap(IDS, None, V).save(folder / "token_map.safetensors"),
    "numpy": lambda folder: TokenMap(IDS, None, V).save(folder, "numpy"),
    "safetensors": lambda folder: safetensors.numpy.save_file(
        {"d2t": as_offsets(IDS), "t2d": as_mask(IDS, V), "lm_head.weight": HEAD}, folder / "model.safetensors"
    ),
    "torch": lambda folder: torch.save(
        {"d2t": torch.tensor(as_offsets(IDS)), "lm_head.weight": torch.zeros(7, 4)}, folder / "pytorch_model.bin"
    ),
    "shards": write_shards,
}


def write_config(folder: Path, **values: Any) -> None:
    (folder / "config.json").write_text(json.dumps(values))


@pytest.mark.parametrize("name", WRITERS)
def test_the_map_of_a_folder(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path)
    assert TokenMap.load(tmp_path).token_ids.tolist() == IDS.tolist()
    write_config(tmp_path, draft_vocab_size=7, vocab_size=V)
    assert TokenMap.load(tmp_path).vocab_size == V
    write_config(tmp_path, draft_vocab_size=7, transformer_layer_config={"vocab_size": V})  # speculators
    assert TokenMap.load(tmp_path).vocab_size == V


def test_a_map_of_our_own_goes_before_the_checkpoint(tmp_path: Path) -> None:
    WRITERS["safetensors"](tmp_path)
    TokenMap(np.array([9, 3]), np.array([2, 1])).save(tmp_path / "token_map.safetensors")
    stored, format_name = read_stored_map(tmp_path)
    assert (np.asarray(stored.token_ids).tolist(), format_name) == ([9, 3], "hothead")


def test_the_vocabulary_of_the_configuration_excludes_a_reading(tmp_path: Path) -> None:
    safetensors.numpy.save_file({"d2t": np.array([3, 9, 12])}, tmp_path / "model.safetensors")
    with pytest.raises(HotMapError, match=r"model\.safetensors: its d2t can be read in two ways"):
        TokenMap.load(tmp_path)
    write_config(tmp_path, vocab_size=13)
    assert TokenMap.load(tmp_path).token_ids.tolist() == [3, 9, 12]


@pytest.mark.case(7)
def test_a_cut_head_without_its_table_is_refused_with_its_sizes(tmp_path: Path) -> None:
    """A head of 7 rows whose tokens are unknown would be used for the ids 0 to 6: acceptance near zero, healthy server."""
    write_config(tmp_path, draft_vocab_size=7, vocab_size=V)
    safetensors.numpy.save_file({"lm_head.weight": HEAD}, tmp_path / "model.safetensors")
    with pytest.raises(HotMapError, match=r"without hothead's token map(.|\n)*the head has 7 of 50 tokens"):
        TokenMap.load(tmp_path)
    safetensors.numpy.save_file({"lm_head.weight": HEAD, "d2t": np.zeros(7, np.int64)}, tmp_path / "model.safetensors")
    with pytest.raises(HotMapError, match=r"7 zeros: a table that was never filled(.|\n)*the head has 7 of 50 tokens"):
        TokenMap.load(tmp_path)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ('{"draft_vocab_size": 8, "vocab_size": 50}', "its table names 7 tokens, and config.json says draft_vocab_size 8"),
        ('{"vocab_size": 51}', "its mask t2d is over 50 token ids, and the vocabulary has 51"),
        ("[1]", "holds a list instead of a table"),
        ("{", "cannot be read as JSON"),
        ("[" * 100_000, "cannot be read as JSON"),
    ],
)
def test_a_configuration_that_contradicts_the_table(tmp_path: Path, config: str, said: str) -> None:
    WRITERS["safetensors"](tmp_path)
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(HotMapError, match=said):
        TokenMap.load(tmp_path)


@pytest.mark.parametrize(
    ("index", "said"),
    [
        ({"weight_map": {"d2t": "../other.safetensors"}}, "which is not in the folder"),
        ({"weight_map": {"d2t": "gone.safetensors"}}, "which is not in the folder"),
        ({"weight_map": {"d2t": 3}}, "d2t lies in 3"),
        ({"weight_map": {"norm": "x"}}, "none of the 1 tensors"),
        ({"weight_map": []}, "no usable weight_map"),
        ({}, "no usable weight_map"),
    ],
)
def test_a_damaged_index(tmp_path: Path, index: dict[str, Any], said: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(HotMapError, match=said):
        TokenMap.load(tmp_path)


def test_a_folder_without_a_map_names_what_could_be_one(tmp_path: Path) -> None:
    (tmp_path / "map.pt").touch()
    with pytest.raises(HotMapError, match=r"the folder has none of token_map\.safetensors, d2t\.npy"):
        TokenMap.load(tmp_path)
