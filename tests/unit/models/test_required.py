"""Tokens that shape a turn are in every map: all end tokens, what the template emits or names, tools included."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.tiny import CHAT_TEMPLATE, make_model, make_tokenizer
from tokenizers import AddedToken

from hothead.models.required import required_token_ids
from hothead.models.tokenizer import Tokenizer


@pytest.mark.case(13)
def test_every_end_token_of_the_model(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2, 7]}))
    tokenizer = Tokenizer.load(folder)
    assert set(tokenizer.end_token_ids) == {0, 2, 7}
    assert set(required_token_ids(tokenizer)) == {0, 1, 2, 7}  # 1 begins every turn


def test_an_end_token_past_the_tokenizer_stays_out(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model")
    size = Tokenizer.load(folder).vocab_size
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, size]}))
    assert size not in required_token_ids(Tokenizer.load(folder))


@pytest.mark.case(13)
def test_tool_tokens_and_pieced_together_ones() -> None:
    backend = make_tokenizer()
    backend.add_tokens(["<tool_call>", "</tool_call>"])
    backend.add_special_tokens(["<|assistant|>", "<|unused|>", AddedToken(" ", special=True)])
    template = (
        CHAT_TEMPLATE
        + "{% for m in messages %}{% if m.tool_calls %}<tool_call>{{ m.tool_calls | tojson }}</tool_call>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|' + 'assistant' + '|>' }}{% endif %}"
    )
    tokenizer = Tokenizer(backend, {"eos_token": "<|im_end|>"}, template, "tiny")
    texts = {tokenizer.backend.id_to_token(token_id) for token_id in required_token_ids(tokenizer)}
    assert {"<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<|assistant|>"} <= texts
    assert "<|unused|>" not in texts


def test_a_template_that_refuses_roles_still_gives_its_tokens() -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}<|im_start|>{{ m.content }}{% endfor %}"
    )
    tokenizer = Tokenizer(make_tokenizer(), {"eos_token": "<|im_end|>"}, template, "tiny")
    assert set(required_token_ids(tokenizer)) == {1, 2}


def test_bytes_on_request() -> None:
    tokenizer = Tokenizer(make_tokenizer(), {}, None, "tiny")
    assert required_token_ids(tokenizer) == []
    found = required_token_ids(tokenizer, has_bytes=True)
    assert len(found) == 256
    assert all(len(tokenizer.backend.id_to_token(token_id)) == 1 for token_id in found)


def test_a_bare_tokenizer_file(tmp_path: Path) -> None:
    make_tokenizer().save(str(tmp_path / "my.json"))
    tokenizer = Tokenizer.load(tmp_path / "my.json")
    assert tokenizer.end_token_ids == ()
    assert tokenizer.encode("the fox") == make_tokenizer().encode("the fox").ids
