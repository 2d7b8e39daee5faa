"""Token maps of any content: files give back what was written, broken files give one kind of error, rankings keep their promises."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hothead.errors import HotMapError
from hothead.vocab.formats.registry import FORMATS, KEPT, losses
from hothead.vocab.formats.text_map import is_text
from hothead.vocab.token_map import MAX_TOKEN_ID, TokenMap

VOCAB_SIZE = 60


@st.composite
def token_maps(draw: st.DrawFn, max_token_id: int = MAX_TOKEN_ID) -> TokenMap:
    token_ids = draw(st.lists(st.integers(0, max_token_id), min_size=1, max_size=40, unique=True))
    counts = draw(st.none() | st.lists(st.integers(0, 2**40), min_size=len(token_ids), max_size=len(token_ids)))
    return TokenMap(
        np.array(token_ids),
        None if counts is None else np.array(counts),
        draw(st.none() | st.just(max(token_ids) + 1)),
        draw(st.integers(0, len(token_ids))),
        draw(st.dictionaries(st.text(max_size=5), st.text(st.characters(codec="utf-8"), max_size=5), max_size=3)),
        draw(st.sampled_from(["", "9f2c1a"])),
    )


def saved(token_map: TokenMap, suffix: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"map{suffix}"
        token_map.save(path)
        return path.read_bytes()


def loaded(data: bytes) -> TokenMap:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        return TokenMap.load(file.name)


@given(token_maps())
def test_files_give_back_what_was_written(token_map: TokenMap) -> None:
    ours = loaded(saved(token_map, ".safetensors"))
    assert ours == token_map
    assert ours.provenance == token_map.provenance
    assert loaded(saved(token_map, ".pt")) == TokenMap(token_map.token_ids)
    for suffix in (".pt", ".safetensors"):
        assert saved(token_map, suffix) == saved(token_map, suffix)


@given(token_maps(max_token_id=400), st.sampled_from(sorted(FORMATS)))
def test_every_format_gives_back_what_it_keeps(token_map: TokenMap, name: str) -> None:
    token_map = token_map.with_vocab_size(401)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that an order is lost
        path = Path(folder) / "map"
        token_map.save(path, name)
        # A table can be ambiguous alone, but not what is written with its mask.
        again = TokenMap.load(path)
    kept = FORMATS[name].keeps
    assert sorted(again.token_ids.tolist()) == sorted(token_map.token_ids.tolist())
    assert again.token_ids.tolist() == (token_map.token_ids.tolist() if KEPT[0] in kept else sorted(token_map.token_ids.tolist()))
    assert again.vocab_size == (401 if KEPT[2] in kept else None)
    assert again == token_map or set(losses(token_map.stored, name)) == {what for what in KEPT if what not in kept} & _has(token_map)


def _has(token_map: TokenMap) -> set[str]:
    stored = token_map.stored
    is_there = (
        token_map.token_ids.tolist() != sorted(token_map.token_ids.tolist()),
        stored.counts is not None,
        stored.vocab_size is not None,
        bool(stored.provenance or stored.tokenizer_fingerprint),
        bool(stored.num_fillers),
    )
    return {what for what, is_one in zip(KEPT, is_there, strict=True) if is_one}


@given(token_maps(), st.sampled_from([".safetensors", ".pt"]), st.data())
def test_broken_files_give_only_a_token_map_error(token_map: TokenMap, suffix: str, data: st.DataObject) -> None:
    content = bytearray(saved(token_map, suffix))
    if data.draw(st.booleans(), "cut"):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    for _ in range(data.draw(st.integers(0, 6))):
        if content:
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        result = loaded(bytes(content))
    except HotMapError:
        return
    if suffix == ".safetensors":
        assert result.fingerprint == token_map.fingerprint  # a changed id cannot pass


@given(st.binary(max_size=300))
def test_noise_gives_only_a_token_map_error(content: bytes) -> None:
    for data in (content, b"\x80\x02" + content, b"PK\x03\x04" + content, len(content).to_bytes(8, "little") + b"{" + content):
        try:
            loaded(data)
        except HotMapError:
            continue
        assert is_text(data), data  # a number in a text file is a map of one token


@given(
    st.lists(st.integers(0, 5), min_size=VOCAB_SIZE, max_size=VOCAB_SIZE),
    st.sets(st.integers(0, VOCAB_SIZE - 1), max_size=5),
    st.integers(5, VOCAB_SIZE),
)
def test_a_ranking_is_exact_ordered_and_holds_what_must_be_in(counts: list[int], always_in: set[int], size: int) -> None:
    ranked = TokenMap.ranked(np.array(counts), always_in, size, VOCAB_SIZE)
    token_ids = ranked.token_ids.tolist()
    assert len(token_ids) == size
    assert set(token_ids[: len(always_in)]) == always_in
    rest = token_ids[len(always_in) :]
    assert rest == sorted(rest, key=lambda token_id: (-counts[token_id], token_id))
    assert ranked.num_fillers == sum(counts[token_id] == 0 for token_id in rest)
    outside = set(range(VOCAB_SIZE)) - set(token_ids)
    assert all(counts[out] <= counts[token_id] for out in outside for token_id in rest)


@given(token_maps(), st.data())
def test_prefixes_and_look_ups_agree_with_the_list(token_map: TokenMap, data: st.DataObject) -> None:
    token_ids = token_map.token_ids.tolist()
    size = data.draw(st.integers(1, len(token_ids)))
    cut = token_map.head(size)
    assert cut.token_ids.tolist() == token_ids[:size]
    assert cut.head(size) == cut
    wanted = data.draw(st.lists(st.sampled_from(token_ids) | st.integers(0, 100), max_size=20))
    assert cut.hot_index(wanted).tolist() == [token_ids.index(one) if one in token_ids[:size] else -1 for one in wanted]
