"""Cutting text changes no count, for every way of cutting text into pre-tokens that is in use; where it would, it is not done."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers

from hothead.corpus import chunks
from hothead.models.gguf_tokenizer import _CUTS, _LLAMA3_CUT

TEXT = "The quick brown fox doesn't jump over 12 lazy dogs; it sleeps.\n\n    def run(self):\n        return 1 / 2 # why?\n" * 5
ALPHABET = "".join(part for part in chunks._PROBE_PARTS) + "\x00\x01\x02"


def byte_level(*before: pre_tokenizers.PreTokenizer, normalizer: normalizers.Normalizer | None = None) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*before, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not before)])
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|end|>", "<tool>"], show_progress=False
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer


def split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def digits_first() -> tokenizers.Tokenizer:
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return tokenizer


PATTERNS = sorted({one.pattern for one in _CUTS.values() if one.pattern})
TOKENIZERS = {
    "gpt-2": byte_level(),
    "digits first": digits_first(),
    "normalized": byte_level(split(_LLAMA3_CUT), normalizer=normalizers.NFC()),
    **{f"pattern {number}": byte_level(split(pattern)) for number, pattern in enumerate(PATTERNS)},
}


def counted_whole(backend: tokenizers.Tokenizer, text: str) -> np.ndarray:
    return np.bincount(backend.encode(text, add_special_tokens=False).ids, minlength=backend.get_vocab_size())


@pytest.mark.parametrize("name", TOKENIZERS)
def test_known_tokenizers_can_be_cut(name: str) -> None:
    assert chunks.is_cuttable(TOKENIZERS[name])


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=st.text(st.sampled_from(ALPHABET), max_size=60))
def test_counts_are_those_of_the_whole_text(name: str, text: str) -> None:
    backend = TOKENIZERS[name]
    counter = chunks.PieceCounter(backend, backend.get_vocab_size())
    counter.add(text)
    assert (counter.take() == counted_whole(backend, text)).all()


def test_counts_add_up_over_texts_and_takes() -> None:
    backend = TOKENIZERS["gpt-2"]
    counter = chunks.PieceCounter(backend, backend.get_vocab_size())
    counter.add(TEXT)
    counter.add(TEXT)
    assert len(counter) > 10
    assert (counter.take() == 2 * counted_whole(backend, TEXT)).all()
    assert not counter.take().any()


@given(st.lists(st.sampled_from((*chunks._PROBE_PARTS, "\x00", "\x01", "\x02")), max_size=12).map("".join))
def test_the_fast_way_finds_the_same_pieces(text: str) -> None:
    backend = TOKENIZERS["gpt-2"]
    counter = chunks.PieceCounter(backend, backend.get_vocab_size())
    counter.add(text)
    assert counter._pieces == Counter(chunks.cut(text))
    assert "".join(chunks.cut(text)) == text


def test_tokens_across_spaces_are_noticed() -> None:
    merged = tokenizers.Tokenizer(models.BPE())
    merged.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n"), "isolated")
    merged.train_from_iterator(["the Word a Word the a "] * 50, trainers.BpeTrainer(vocab_size=100, show_progress=False))
    assert any(" " in token.strip() for token in merged.get_vocab()), "no such token: the test proves nothing"
    assert not chunks.is_cuttable(merged)


def test_a_prefix_before_every_text_is_noticed() -> None:
    metaspace = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    metaspace.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    metaspace.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=200, special_tokens=["<unk>"], show_progress=False))
    assert not chunks.is_cuttable(metaspace)


def test_an_added_token_with_a_space_is_noticed() -> None:
    backend = byte_level()
    backend.add_tokens(["the end"])
    assert not chunks.is_cuttable(backend)


def test_whole_counter_is_the_plain_way() -> None:
    backend = TOKENIZERS["gpt-2"]
    counter = chunks.WholeCounter(backend, backend.get_vocab_size())
    counter.add(TEXT)
    assert (counter.take() == counted_whole(backend, TEXT)).all()
    assert not counter.take().any()


def test_probes_hold_what_tokenizers_treat_differently() -> None:
    generator = random.Random(1)
    text = "".join(generator.choices(chunks._PROBE_PARTS, k=5000))
    for kind in (" ", "  ", "\n\n", "\t", "\r\n", "\u00a0", "/", "1"):
        assert kind in text
