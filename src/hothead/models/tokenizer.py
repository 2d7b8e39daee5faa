"""Text to token ids and back, chat templates, and text that streams without ever being taken back.

The `tokenizers` library is used directly: a folder's tokenizer.json, or one made from a GGUF file, loads in 0.3 s where importing
transformers and converting takes 7 s.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from hothead.errors import TokenizerError
from hothead.files.gguf_header import GgufHeader, read_gguf_header
from hothead.files.json_table import read_json_table
from hothead.models.chat_template import ChatTemplate
from hothead.models.gguf_tokenizer import gguf_tokenizer_json

_REPLACEMENT = "\ufffd"
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_TEMPLATE_VARIABLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class Tokenizer:
    """A model's tokenizer. Load with `Tokenizer.load`."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special_tokens: Mapping[str, str],
        chat_template: str | None,
        source: str,
        end_token_ids: Sequence[int] = (),
    ) -> None:
        """special_tokens: bos_token, eos_token, ... to token text. source: the model's name in messages. end_token_ids: every token that
        the model's files name as an end of text or turn."""
        self.backend = backend
        self.special_tokens = dict(special_tokens)
        self.source = source
        self.bos_token_id = self._id_of("bos_token")
        self.eos_token_id = self._id_of("eos_token")
        own_end = () if self.eos_token_id is None else (self.eos_token_id,)
        self.end_token_ids = tuple(dict.fromkeys((*end_token_ids, *own_end)))
        self._chat_template = None if chat_template is None else ChatTemplate(chat_template, special_tokens, source)

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """From a Hugging Face folder, a `.gguf` file, or a tokenizer.json (with what lies beside it). Raises TokenizerError."""
        path = Path(path)
        if path.suffix == ".gguf":
            return _load_gguf(read_gguf_header(path))
        if path.is_file():
            return _load_folder(path.parent, path)
        return _load_folder(path, path / "tokenizer.json")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids. add_special_tokens: put the model's begin (and end) token around the text where its tokenizer does so."""
        return list(self.backend.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of token ids; bytes that are no UTF-8 become U+FFFD. Ids without a token (padding rows of a head) give no text."""
        return self.backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    @property
    def has_chat_template(self) -> bool:
        return self._chat_template is not None

    @property
    def chat_template(self) -> str | None:
        """The template's source."""
        return None if self._chat_template is None else self._chat_template.source

    def render_chat(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> str:
        """Prompt text of a chat, up to where the assistant is to begin. Raises PromptError, TokenizerError."""
        if self._chat_template is None:
            raise TokenizerError(f"{self.source} has no chat template.", advice="Give plain prompts with --raw.")
        return self._chat_template.render(messages, add_generation_prompt=add_generation_prompt)

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> list[int]:
        """Token ids of a chat. The template writes the begin token itself where one is wanted, so none is added here."""
        return self.encode(self.render_chat(messages, add_generation_prompt), add_special_tokens=False)

    @cached_property
    def token_ids_by_text(self) -> dict[str, int]:
        """Every token, added ones included, in the tokenizer's own spelling (a space is written as another character)."""
        return self.backend.get_vocab(with_added_tokens=True)

    @cached_property
    def vocab_size(self) -> int:
        """Real vocabulary: one more than the highest token id. A head may have more rows; those are padding."""
        return max(self.token_ids_by_text.values()) + 1

    @cached_property
    def special_token_ids(self) -> frozenset[int]:
        """Tokens that stand for no text, such as begin, end and turn marks."""
        return frozenset(token_id for token_id, token in self.backend.get_added_tokens_decoder().items() if token.special)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over every (token, id); equal for equal vocabularies, whatever file they came from. 16 digits are enough to show."""
        digest = hashlib.sha256()
        for token, token_id in sorted(self.token_ids_by_text.items(), key=lambda item: item[1]):
            digest.update(f"{token_id}\0{token}\0".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    def token(self, token_id: int) -> str:
        """A token in the tokenizer's own spelling, "" for an id without one."""
        return self.backend.id_to_token(token_id) or ""

    def token_text(self, token_id: int) -> str:
        """What one token looks like, for tables: its text with visible spaces, or its own spelling where it is no text."""
        token = self.backend.id_to_token(token_id)
        if token is None:
            return f"<no token {token_id}>"
        text = self.backend.decode([token_id], skip_special_tokens=False)
        return token if not text or _REPLACEMENT in text else text

    def is_byte_token(self, token_id: int) -> bool:
        """Whether a token is one raw byte of a SentencePiece vocabulary; runs of them are decoded as one."""
        token = self.backend.id_to_token(token_id)
        return token is not None and _BYTE_TOKEN.fullmatch(token) is not None

    def _id_of(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self.backend.token_to_id(token)


class StreamDecoder:
    """Incremental decoding of one text: what `push` returns is final, and all of it with `finish` equals `decode` of all tokens.

    Text whose last character may still change (an incomplete UTF-8 sequence, a run of byte tokens) is held back.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skips_special = skip_special_tokens
        self._token_ids: list[int] = []
        """Tokens from the last place where text was handed out before the one handed out last: enough context for a decoder that treats
        the beginning of a text differently."""
        self._num_released = 0
        """How many of them have been handed out."""
        self._is_in_byte_run = False

    def push(self, token_id: int) -> str:
        """New final text, "" while there is none."""
        self._token_ids.append(token_id)
        if not self._gives_nothing(token_id):
            self._is_in_byte_run = self._tokenizer.is_byte_token(token_id)
        text = self._new_text()
        if not text or text.endswith(_REPLACEMENT) or self._is_in_byte_run:
            return ""
        self._token_ids = self._token_ids[self._num_released :]
        self._num_released = len(self._token_ids)
        return text

    def finish(self) -> str:
        """What was held back, as it stands."""
        text = self._new_text()
        self._num_released = len(self._token_ids)
        return text

    def _gives_nothing(self, token_id: int) -> bool:
        """Such a token does not even end a run of byte tokens."""
        is_skipped = self._skips_special and token_id in self._tokenizer.special_token_ids
        return is_skipped or self._tokenizer.backend.id_to_token(token_id) is None

    def _new_text(self) -> str:
        released = self._tokenizer.decode(self._token_ids[: self._num_released], self._skips_special)
        return self._tokenizer.decode(self._token_ids, self._skips_special)[len(released) :]


def _load_folder(folder: Path, file: Path) -> Tokenizer:
    config = _read_json(folder / "tokenizer_config.json")
    special_map = {**_read_json(folder / "special_tokens_map.json"), **config}
    special = {name: text for name in _TEMPLATE_VARIABLES if (text := _token_text(special_map.get(name))) is not None}
    if file.is_file():
        try:
            backend = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises plain Exception
            raise TokenizerError(f"{file} cannot be read: {error}.", advice="Fetch the model again.") from error
    else:
        backend = _convert_with_transformers(folder)
    backend.no_truncation()
    backend.no_padding()
    return Tokenizer(backend, special, _folder_template(folder, config), folder.name, _folder_end_token_ids(folder))


def _folder_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """chat_template.jinja, else the one in tokenizer_config.json; of several named ones, "default"."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, Mapping)}
        template = named.get("default")
        if template is None:
            raise TokenizerError(
                f"{folder.name} has {len(named)} chat templates and none is named 'default'.", f"Named: {', '.join(map(str, named))}."
            )
    return template if isinstance(template, str) else None


def _folder_end_token_ids(folder: Path) -> list[int]:
    """Of generation_config.json and config.json, where one id or a list may stand."""
    found: list[int] = []
    for name in ("generation_config.json", "config.json"):
        value = _read_json(folder / name).get("eos_token_id")
        found += [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, int) and one >= 0]
    return found


def _convert_with_transformers(folder: Path) -> tokenizers.Tokenizer:
    """For older folders with tokenizer.model or vocab.json and merges.txt only."""
    found = [name for name in ("tokenizer.model", "vocab.json", "merges.txt") if (folder / name).is_file()]
    if not found:
        raise TokenizerError(f"{folder} has no tokenizer.json.", advice="Fetch it, or give a folder that has one.")
    try:
        from transformers import AutoTokenizer

        backend = AutoTokenizer.from_pretrained(str(folder)).backend_tokenizer
    except Exception as error:  # whatever the conversion trips over, the user needs the one file
        raise TokenizerError(
            f"{folder} has no tokenizer.json, and {', '.join(found)} cannot be converted: {error}",
            advice="Fetch the model's tokenizer.json.",
        ) from error
    assert isinstance(backend, tokenizers.Tokenizer), type(backend)
    return backend


def _load_gguf(header: GgufHeader) -> Tokenizer:
    try:
        backend = tokenizers.Tokenizer.from_str(gguf_tokenizer_json(header))
    except TokenizerError:
        raise
    except Exception as error:  # the library raises plain Exception
        raise TokenizerError(f"The tokenizer in {header.path.name} is damaged: {error}.", advice="Fetch the model again.") from error
    tokens = header.fields["tokenizer.ggml.tokens"]
    special = {}
    for variable, key in (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")):
        token_id = header.fields.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None and token_id < len(tokens):
            special[variable] = tokens[token_id]
    ends = (header.fields.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom"))
    end = [token_id for token_id in ends if token_id is not None and token_id < len(tokens)]
    template = header.fields.get("tokenizer.chat_template")
    return Tokenizer(backend, special, template if isinstance(template, str) and template else None, header.path.name, end)


def _token_text(value: object) -> str | None:
    """A special token is written as text or as a table with `content`."""
    content = value.get("content") if isinstance(value, Mapping) else value
    return content if isinstance(content, str) else None


def _read_json(file: Path) -> dict[str, Any]:
    return read_json_table(file, TokenizerError) if file.is_file() else {}
