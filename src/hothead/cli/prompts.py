"""Where prompts come from: arguments, a JSONL file or standard input; and how they become token ids."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hothead.errors import DataError, PromptError

STANDARD_INPUT = "-"
ROLES = ("system", "user", "assistant", "tool")

Message = dict[str, Any]


class ChatTokenizer(Protocol):
    """What is needed of a tokenizer here."""

    @property
    def has_chat_template(self) -> bool: ...

    def encode(self, text: str) -> list[int]: ...

    def apply_chat_template(self, messages: list[Message]) -> list[int]: ...


@dataclass(frozen=True)
class Prompt:
    """Text to continue or answer, or the messages of a chat; exactly one of the two. source: 'prompt 1' or 'FILE line 7'."""

    source: str
    text: str | None = None
    messages: tuple[Message, ...] | None = None

    @property
    def title(self) -> str:
        """The prompt on one line."""
        text = self.text if self.text is not None else str((self.messages or ({},))[-1].get("content"))
        line = " ".join(text.split())
        return line if len(line) <= 70 else line[:67] + "..."


def from_arguments(texts: Sequence[str]) -> list[Prompt]:
    """Prompts given on the command line. Raises PromptError for an empty one."""
    prompts = [Prompt(f"prompt {number}", text=text) for number, text in enumerate(texts, start=1)]
    for prompt in prompts:
        if not (prompt.text or "").strip():
            raise PromptError(f"{prompt.source.capitalize()} is empty.", advice="Give some text.")
        _check_unicode(prompt.text or "", prompt.source.capitalize())
    return prompts


def from_file(name: str) -> list[Prompt]:
    """Prompts of a JSONL file, or of standard input for '-'. Raises DataError with the number of the first bad line."""
    label = "standard input" if name == STANDARD_INPUT else name
    try:
        data = sys.stdin.buffer.read() if name == STANDARD_INPUT else Path(name).read_bytes()
    except OSError as error:
        raise DataError(f"Cannot read the prompts file {name}: {error.strerror}.") from error
    prompts = list(_parse_lines(data, label))
    if not prompts:
        raise DataError(f"{label} holds no prompt.", advice=_FORMAT_ADVICE)
    return prompts


def encode(prompt: Prompt, tokenizer: ChatTokenizer, chat: bool | None, system: str | None) -> list[int]:
    """Token ids of a prompt. chat None: the chat template where there is one. A system message of the prompt itself wins over `system`."""
    is_chat = tokenizer.has_chat_template if chat is None else chat
    if prompt.messages is not None and not is_chat:
        why = "--raw was given" if chat is False else "this model has no chat template"
        raise PromptError(f"{prompt.source} has messages, and {why}.", advice="Give 'prompt' instead of 'messages'.")
    if system is not None and not is_chat:
        raise PromptError("--system needs a chat template, and this model has none.", advice="Put the text into the prompt.")
    if not is_chat:
        assert prompt.text is not None, prompt
        return tokenizer.encode(prompt.text)
    messages = list(prompt.messages) if prompt.messages is not None else [{"role": "user", "content": prompt.text}]
    if system is not None and not has_system(prompt):
        messages.insert(0, {"role": "system", "content": system})
    return tokenizer.apply_chat_template(messages)


def has_system(prompt: Prompt) -> bool:
    """Whether a prompt brings a system message of its own."""
    return prompt.messages is not None and prompt.messages[0]["role"] == "system"


_FORMAT_ADVICE = 'Each line is an object such as {"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]}.'


def _parse_lines(data: bytes, label: str) -> Iterator[Prompt]:
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        where = f"{label} line {number}"
        try:
            line = raw.decode("utf-8").strip()
            if not line:
                continue
            record = json.loads(line)
        except UnicodeDecodeError as error:
            raise DataError(f"{where} is not UTF-8 text (byte {error.start} of the line).") from error
        except json.JSONDecodeError as error:
            raise DataError(f"{where} is not JSON: {error.msg} at column {error.colno}.", advice=_FORMAT_ADVICE) from error
        except RecursionError as error:
            raise DataError(f"{where} is not usable JSON: it is nested too deeply.", advice=_FORMAT_ADVICE) from error
        yield _parse_record(record, where)


def _parse_record(record: Any, where: str) -> Prompt:
    if not isinstance(record, dict):
        raise DataError(f"{where} holds a {type(record).__name__}, not an object.", advice=_FORMAT_ADVICE)
    found = [key for key in ("prompt", "messages") if key in record]
    if len(found) != 1:
        what = "both 'prompt' and 'messages'" if found else f"neither 'prompt' nor 'messages' (keys: {_listed(record)})"
        raise DataError(f"{where} has {what}.", advice=_FORMAT_ADVICE)
    if "prompt" in record:
        text = record["prompt"]
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"{where}: 'prompt' must be text that is not empty, not {_shown(text)}.", advice=_FORMAT_ADVICE)
        _check_unicode(text, where)
        return Prompt(where, text=text)
    messages = record["messages"]
    if not isinstance(messages, list) or not messages:
        raise DataError(f"{where}: 'messages' must be a list that is not empty, not {_shown(messages)}.", advice=_FORMAT_ADVICE)
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in ROLES or not isinstance(message.get("content"), str):
            raise DataError(
                f"{where}: message {index + 1} of {len(messages)} is {_shown(message)}.",
                advice=f"A message has a 'role' ({', '.join(ROLES)}) and a 'content' that is text.",
            )
        _check_unicode(message["content"], where)
    return Prompt(where, messages=tuple(messages))


def _check_unicode(text: str, where: str) -> None:
    """Half of a surrogate pair (an argument that is not UTF-8, a cut JSON escape) stands for no character, and no tokenizer takes it."""
    bad = next((place for place, character in enumerate(text) if "\ud800" <= character <= "\udfff"), None)
    if bad is not None:
        raise DataError(f"{where} is not Unicode text: character {bad + 1} is half of a surrogate pair.", advice="Give text in UTF-8.")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
