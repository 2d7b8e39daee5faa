"""What one JSON record holds: plain text, a chat, a response, or token ids. Shapes are known by their keys.

| shape | keys |
|---|---|
| chat | `messages` or `conversation(s)`: objects with `role` and `content`, or `from` and `value` (ShareGPT) |
| prompt and response | `prompt`, `instruction` (+ `input`), `question` or `query`, with `response`, `completion`, `output`, `answer` or
`chosen` |
| response log | `choices` as OpenAI-style servers write them, also below `response` or `response.body`; a request's `messages` beside it |
| plain text | `text`, `content` or `document` |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hothead.errors import DataError

_CHAT_KEYS = ("messages", "conversations", "conversation")
_PROMPT_KEYS = ("prompt", "instruction", "question", "query")
_RESPONSE_KEYS = ("response", "completion", "output", "answer", "chosen")
_TEXT_KEYS = ("text", "content", "document")
_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant", "chatgpt": "assistant", "function": "tool"}


@dataclass(frozen=True)
class PlainText:
    """All of it counts, whatever is asked for."""

    text: str


@dataclass(frozen=True)
class Chat:
    """Messages as chat templates take them: role and content at least."""

    messages: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Response:
    """What a model answered to something that is not there."""

    text: str


@dataclass(frozen=True)
class TokenIds:
    """Counted as they are."""

    token_ids: tuple[int, ...]


Part = PlainText | Chat | Response | TokenIds


def parts_of(record: Any, field: str | None = None) -> list[Part]:
    """What counts in a record. field: dotted path of the one value to take, instead of looking for a known shape. Raises DataError."""
    if field is not None:
        return _of_value(value_at(record, field), field)
    if isinstance(record, str):
        return [PlainText(record)]
    if not isinstance(record, Mapping):
        raise DataError(f"it holds a {type(record).__name__}, not an object or text.")
    if (log := _choices(record)) is not None:
        return log
    for key in _CHAT_KEYS:
        if isinstance(record.get(key), list):
            return [Chat(_messages(record[key], key))]
    for prompt_key in _PROMPT_KEYS:
        for response_key in _RESPONSE_KEYS:
            if _is_some(record.get(prompt_key)) and _is_some(record.get(response_key)):
                return [_pair(record, prompt_key, response_key)]
    for key in _TEXT_KEYS:
        if isinstance(record.get(key), str):
            return [PlainText(record[key])]
    raise DataError(
        f"no text was found in it (keys: {', '.join(map(str, list(record)[:12])) or 'none'}).",
        advice="Name the key that holds the text: --field NAME (a dotted path for nested ones).",
    )


def value_at(record: Any, path: str) -> Any:
    """The value at a dotted path; a number picks an entry of a list. Raises DataError with the keys that are there."""
    value = record
    for step in path.split("."):
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            there = f"keys: {', '.join(map(str, list(value)[:12]))}" if isinstance(value, Mapping) else f"it is a {type(value).__name__}"
            raise DataError(f"it has no '{path}' ('{step}' is not there; {there}).", advice="Give the path of a key that every record has.")
    return value


def _of_value(value: Any, field: str) -> list[Part]:
    if isinstance(value, str):
        return [PlainText(value)]
    if isinstance(value, list) and value:
        if all(isinstance(item, int) and not isinstance(item, bool) for item in value):
            return [TokenIds(tuple(value))]
        if all(isinstance(item, str) for item in value):
            return [PlainText(item) for item in value]
        if all(isinstance(item, Mapping) for item in value):
            return [Chat(_messages(value, field))]
    if value is None or value == []:
        return []
    raise DataError(f"'{field}' is a {type(value).__name__}, not text, a list of texts, messages or token ids.")


def _choices(record: Mapping[str, Any]) -> list[Part] | None:
    """The answers in a server's log, None if this is none."""
    answer: Any = record.get("response", record)
    if isinstance(answer, Mapping) and isinstance(answer.get("body"), Mapping):
        answer = answer["body"]
    if not isinstance(answer, Mapping) or not isinstance(answer.get("choices"), list):
        return None
    request: Any = record.get("request", record)
    if isinstance(request, Mapping) and isinstance(request.get("body"), Mapping):
        request = request["body"]
    asked = request.get("messages") if isinstance(request, Mapping) else None
    parts: list[Part] = []
    for choice in answer["choices"]:
        if not isinstance(choice, Mapping):
            raise DataError(f"a choice of its 'choices' is a {type(choice).__name__}, not an object.")
        message = choice.get("message")
        if isinstance(message, Mapping):
            if isinstance(asked, list):
                parts.append(Chat((*_messages(asked, "messages"), *_messages([{"role": "assistant", **message}], "message"))))
            else:
                parts.append(Response(_content(message.get("content"), "content")))
        elif isinstance(choice.get("text"), str):
            parts.append(Response(choice["text"]))
        else:
            raise DataError(
                "a choice of its 'choices' has neither 'message' nor 'text'.", advice="Log whole responses, not streamed pieces."
            )
    return parts


def _pair(record: Mapping[str, Any], prompt_key: str, response_key: str) -> Chat:
    prompt, response = record[prompt_key], record[response_key]
    if isinstance(prompt, list):
        asked = list(_messages(prompt, prompt_key))
    else:
        extra = record.get("input") if prompt_key == "instruction" else None
        text = _content(prompt, prompt_key) + (f"\n\n{extra}" if isinstance(extra, str) and extra else "")
        asked = [{"role": "user", "content": text}]
    if isinstance(response, list):
        answered = [message for message in _messages(response, response_key) if message["role"] == "assistant"][-1:]
    else:
        answered = [{"role": "assistant", "content": _content(response, response_key)}]
    return Chat((*asked, *answered))


def _messages(values: Sequence[Any], key: str) -> tuple[Mapping[str, Any], ...]:
    messages = []
    for number, value in enumerate(values, start=1):
        role = value.get("role", value.get("from")) if isinstance(value, Mapping) else None
        if not isinstance(role, str):
            raise DataError(
                f"message {number} of its '{key}' has no role.", advice="A message has 'role' and 'content', or 'from' and 'value'."
            )
        others = {name: item for name, item in value.items() if name not in ("role", "from", "content", "value")}
        content = value["content"] if "content" in value else value.get("value")
        messages.append({**others, "role": _ROLES.get(role, role), "content": _content(content, "content")})
    return tuple(messages)


def _content(value: Any, key: str) -> str:
    """Text, or the text parts of a list of parts; '' for None (a message that only calls tools)."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(part, Mapping) for part in value):
        return "".join(part["text"] for part in value if isinstance(part.get("text"), str))
    raise DataError(f"its '{key}' is a {type(value).__name__}, not text.")


def _is_some(value: Any) -> bool:
    return isinstance(value, str | list) and bool(value)
