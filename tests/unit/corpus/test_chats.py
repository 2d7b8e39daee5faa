"""Of a chat, what counts is what the model would have written: content and end token, without what the template adds."""

from __future__ import annotations

import pytest
from tests.support.tiny import CHAT_TEMPLATE, make_tokenizer

from hothead.corpus.chats import CountedText
from hothead.corpus.records import Chat, PlainText, Response, TokenIds
from hothead.models.tokenizer import Tokenizer

THINKING_IS_CUT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] if loop.last else m['content'].split('</think>')[-1] }}"
    "<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OPENS_A_THOUGHT = CHAT_TEMPLATE.replace("<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>\n{% endif %}")
CHAT = Chat(
    (
        {"role": "user", "content": "the fox"},
        {"role": "assistant", "content": "runs"},
        {"role": "user", "content": "and the dog"},
        {"role": "assistant", "content": "sleeps\n"},
    )
)


def tokenizer(template: str | None) -> Tokenizer:
    return Tokenizer(make_tokenizer(), {"eos_token": "<|im_end|>"}, template, "tiny")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (CHAT_TEMPLATE, ["runs<|im_end|>", "sleeps\n<|im_end|>"]),
        (THINKING_IS_CUT, ["runs<|im_end|>", "sleeps\n<|im_end|>"]),
        (OPENS_A_THOUGHT, ["runs<|im_end|>", "sleeps\n<|im_end|>"]),
        (None, ["runs<|im_end|>", "sleeps\n<|im_end|>"]),
    ],
)
def test_assistant_turns_count(template: str | None, expected: list[str]) -> None:
    assert list(CountedText(tokenizer(template), "responses").of(CHAT)) == expected


def test_everything_counts_when_asked_for() -> None:
    own = tokenizer(CHAT_TEMPLATE)
    assert list(CountedText(own, "all").of(CHAT)) == [own.render_chat(CHAT.messages, add_generation_prompt=False)]
    assert len(list(CountedText(tokenizer(None), "all").of(CHAT))) == 4


def test_other_parts() -> None:
    text = CountedText(tokenizer(CHAT_TEMPLATE), "responses")
    assert list(text.of(PlainText("a"))) == ["a"]
    assert list(text.of(Response("a"))) == ["a<|im_end|>"]
    assert list(text.of(TokenIds((1,)))) == []
    assert list(text.of(Chat(({"role": "user", "content": "q"},)))) == []
    assert list(text.of(Chat(({"role": "assistant", "content": "a"},)))) == ["a<|im_end|>"]
