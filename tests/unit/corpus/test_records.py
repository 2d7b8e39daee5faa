"""Every common shape of a record is recognised, and what is none is refused by its keys."""

from __future__ import annotations

from typing import Any

import pytest

from hothead.corpus.records import Chat, PlainText, Response, TokenIds, parts_of
from hothead.errors import DataError

USER = {"role": "user", "content": "q"}
ASSISTANT = {"role": "assistant", "content": "a"}
CHAT = [Chat((USER, ASSISTANT))]


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ("just text", [PlainText("just text")]),
        ({"text": "t"}, [PlainText("t")]),
        ({"messages": [USER, ASSISTANT]}, CHAT),
        ({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}, CHAT),
        ({"prompt": "q", "response": "a"}, CHAT),
        ({"prompt": "q", "completion": "a"}, CHAT),
        ({"question": "q", "answer": "a"}, CHAT),
        ({"instruction": "q", "input": "", "output": "a"}, CHAT),
        ({"instruction": "q", "input": "more", "output": "a"}, [Chat(({"role": "user", "content": "q\n\nmore"}, ASSISTANT))]),
        ({"prompt": [USER], "chosen": [USER, ASSISTANT]}, CHAT),
        ({"choices": [{"message": ASSISTANT}]}, [Response("a")]),
        ({"choices": [{"text": "a"}, {"text": "b"}]}, [Response("a"), Response("b")]),
        ({"response": {"choices": [{"message": ASSISTANT}]}, "messages": [USER]}, CHAT),
        ({"request": {"messages": [USER]}, "response": {"choices": [{"message": ASSISTANT}]}}, CHAT),
        ({"custom_id": "1", "response": {"status_code": 200, "body": {"choices": [{"message": ASSISTANT}]}}}, [Response("a")]),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}, {"type": "image_url"}]}, ASSISTANT]}, CHAT),
        ({"choices": [{"message": {"content": None}}]}, [Response("")]),
    ],
)
def test_known_shapes(record: Any, expected: list[object]) -> None:
    assert parts_of(record) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("t", [PlainText("t")]),
        (["t", "u"], [PlainText("t"), PlainText("u")]),
        ([1, 2], [TokenIds((1, 2))]),
        ([USER, ASSISTANT], CHAT),
        (None, []),
        ([], []),
    ],
)
def test_a_named_field(value: Any, expected: list[object]) -> None:
    assert parts_of({"a": {"b": [None, {"c": value}]}}, "a.b.1.c") == expected


@pytest.mark.parametrize(
    ("record", "field", "said"),
    [
        ({"body": "t", "id": 1}, None, "keys: body, id"),
        ([1], None, "list"),
        (7, None, "int"),
        ({"a": {"b": 1}}, "a.c", "keys: b"),
        ({"a": 1}, "a.b", "it is a int"),
        ({"a": 1}, "a", "is a int"),
        ({"a": [1, "x"]}, "a", "is a list"),
        ({"messages": [{"content": "q"}]}, None, "message 1 of its 'messages' has no role"),
        ({"messages": [{"role": "user", "content": 7}]}, None, "is a int, not text"),
        ({"choices": [{"delta": {}}]}, None, "neither 'message' nor 'text'"),
        ({"choices": ["x"]}, None, "is a str"),
    ],
)
def test_what_holds_no_text_is_refused(record: Any, field: str | None, said: str) -> None:
    with pytest.raises(DataError) as caught:
        parts_of(record, field)
    assert said in str(caught.value)


def test_tool_calls_stay_with_their_message() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "x"}]}
    (chat,) = parts_of({"messages": [USER, call]})
    assert isinstance(chat, Chat)
    assert chat.messages[1] == {"role": "assistant", "content": "", "tool_calls": [{"id": "x"}]}
