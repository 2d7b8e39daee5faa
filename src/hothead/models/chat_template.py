"""Messages to prompt text by a model's own Jinja chat template, with the helpers and limits that templates are written for.

Templates come with models, so they are rendered in Jinja's immutable sandbox, and see plain data only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from hothead.errors import PromptError, TokenizerError


class ChatTemplate:
    """One compiled template. special_tokens: bos_token, eos_token, ... as the template's variables. where: the model's name in messages."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], where: str) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)
        self._where = where
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TokenizerError(f"The chat template of {where} has a syntax error in line {error.lineno}: {error.message}.") from error

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        """The prompt text. Raises PromptError when the template refuses the messages, TokenizerError when it fails by itself."""
        try:
            plain = json.loads(json.dumps([{key: value for key, value in message.items() if value is not None} for message in messages]))
            return self._template.render(messages=plain, add_generation_prompt=add_generation_prompt, **self._special_tokens)
        except _RefusedError as error:
            raise PromptError(f"The chat template of {self._where} refuses these messages: {error}") from error
        except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise TokenizerError(
                f"The chat template of {self._where} cannot be rendered: {error}.",
                f"The messages' roles are: {roles}.",
                advice="Give --raw prompts, or messages with 'role' and 'content' only.",
            ) from error


class _RefusedError(jinja2.TemplateError):
    """`raise_exception` was called by the template."""


class _GenerationBlocks(jinja2.ext.Extension):
    """`{% generation %} ... {% endgeneration %}` marks the assistant's part for training; here it is plain text."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own protocol)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    return environment


def _to_json(value: object, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False) -> str:
    # Jinja's own filter escapes HTML characters, which would change the prompt
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> None:
    raise _RefusedError(message)


def _now(layout: str) -> str:
    return datetime.now().strftime(layout)
