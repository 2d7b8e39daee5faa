"""Tokens that no hot vocabulary may lack, whatever a corpus says: those that end or shape a turn of the model's own chat format."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hothead.errors import HotheadError
from hothead.models.tokenizer import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_CALL = {"type": "function", "id": "call_000000", "function": {"name": "f", "arguments": {"x": 1}}}
_SAMPLE_CHATS: tuple[tuple[Mapping[str, Any], ...], ...] = (
    ({"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}),
    ({"role": "system", "content": "s"}, {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}),
    (
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [_CALL]},
        {"role": "tool", "name": "f", "tool_call_id": "call_000000", "content": "1"},
        {"role": "assistant", "content": "y"},
    ),
)


def required_token_ids(tokenizer: Tokenizer, *, has_bytes: bool = False) -> list[int]:
    """Ascending ids: every end token, every added token that the chat template emits or names (tool tokens included), and with has_bytes
    every token that is one single byte."""
    vocab_size = tokenizer.vocab_size
    required = {token_id for token_id in tokenizer.end_token_ids if token_id < vocab_size}
    added = {token_id: token.content for token_id, token in tokenizer.backend.get_added_tokens_decoder().items()}
    source = tokenizer.chat_template or ""
    required |= {token_id for token_id, text in added.items() if text.strip() and text in source}
    for text in _rendered_samples(tokenizer):
        required |= set(tokenizer.encode(text, add_special_tokens=False)) & added.keys()
    if has_bytes:
        required |= set(_byte_token_ids(tokenizer))
    return sorted(required)


def _rendered_samples(tokenizer: Tokenizer) -> Iterator[str]:
    if not tokenizer.has_chat_template:
        return
    for chat in _SAMPLE_CHATS:
        try:
            yield tokenizer.render_chat(chat, add_generation_prompt=True)
        except HotheadError:
            continue  # a template may refuse a system message or tools: then it emits nothing for them


def _byte_token_ids(tokenizer: Tokenizer) -> Iterator[int]:
    """<0x00>..<0xFF> of SentencePiece vocabularies, else the 256 characters that stand for bytes in byte-level ones."""
    tokens = tokenizer.token_ids_by_text
    spelled = [token_id for token, token_id in tokens.items() if _BYTE_TOKEN.fullmatch(token)]
    if spelled:
        yield from spelled
        return
    from tokenizers.pre_tokenizers import ByteLevel

    yield from (tokens[character] for character in ByteLevel.alphabet() if character in tokens)
