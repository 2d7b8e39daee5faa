"""Which text of a record's part is counted: of a chat the assistant's, as the model would have written it, end token included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from hothead.corpus.records import Chat, Part, PlainText, Response, TokenIds
from hothead.models.tokenizer import Tokenizer

Counted = Literal["responses", "all"]


class CountedText:
    """Turns parts into texts to count."""

    def __init__(self, tokenizer: Tokenizer, counted: Counted) -> None:
        self._tokenizer = tokenizer
        self._counts_all = counted == "all"
        self._end = tokenizer.special_tokens.get("eos_token", "")

    def of(self, part: Part) -> Iterator[str]:
        """The texts to count; token ids are not text and give none. Raises PromptError, TokenizerError from the chat template."""
        if isinstance(part, PlainText):
            yield part.text
        elif isinstance(part, Response):
            yield part.text + self._end
        elif isinstance(part, Chat):
            yield from self._of_chat(part.messages)
        else:
            assert isinstance(part, TokenIds), part

    def _of_chat(self, messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        if not self._tokenizer.has_chat_template:
            for message in messages:
                if self._counts_all or message["role"] == "assistant":
                    yield message["content"] + self._end
            return
        if self._counts_all:
            yield self._tokenizer.render_chat(messages, add_generation_prompt=False)
            return
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                yield self._response(messages[: index + 1])

    def _response(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The last message as the model writes it after the prompt that the messages before it make."""
        content: str = messages[-1]["content"]
        before = self._tokenizer.render_chat(messages[:-1], add_generation_prompt=True) if len(messages) > 1 else None
        whole = self._tokenizer.render_chat(messages, add_generation_prompt=False)
        if before is not None and whole.startswith(before):
            written = whole[len(before) :]
        else:
            # The template changes earlier turns or opens the assistant's turn otherwise: from where the content stands.
            start = whole.rfind(content.strip())
            written = whole[start:] if content.strip() and start >= 0 else content
        # What templates put behind the end of a turn is not written by the model.
        end = written.rfind(self._end) if self._end else -1
        return written[: end + len(self._end)] if end >= 0 and not written[end + len(self._end) :].strip() else written
