"""The tokenizer inside a GGUF file, built for the `tokenizers` library.

How text is cut before merging is not in the file, only its name (`tokenizer.ggml.pre`); the rules are those of the models' own
tokenizer.json files. An unknown name is refused: a near miss would tokenize almost right.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hothead.errors import TokenizerError, nearest
from hothead.files.gguf_header import GgufHeader

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5  # tokenizer.ggml.token_type
_SPACE = "\u2581"  # a space inside SentencePiece tokens

_LLAMA3_CUT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2_CUT = _LLAMA3_CUT.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN_CUT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class _Cut:
    """How byte-level BPE cuts text: by a pattern of its own (None: GPT-2's), with single digits first where has_single_digits."""

    pattern: str | None = None
    has_single_digits: bool = False
    is_normalized: bool = False  # Unicode NFC first
    ignores_merges: bool = False  # a piece that is a token stays whole
    adds_bos: bool = False  # where the file does not say


_GPT2 = _Cut()
_SINGLE_DIGITS = _Cut(has_single_digits=True)
_LLAMA3 = _Cut(_LLAMA3_CUT, ignores_merges=True, adds_bos=True)
_QWEN2 = _Cut(_QWEN2_CUT, is_normalized=True)
_CUTS: dict[str, _Cut] = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _Cut(_TEKKEN_CUT, ignores_merges=True, adds_bos=True),
}


def gguf_tokenizer_json(header: GgufHeader) -> str:
    """The content of a tokenizer.json. Raises TokenizerError for a missing, contradicting or unknown tokenizer."""
    fields, where = header.fields, header.path.name
    tokens: list[str] | None = fields.get("tokenizer.ggml.tokens")
    if not tokens:
        raise TokenizerError(f"{where} holds no tokenizer (tokenizer.ggml.tokens).", advice="Use another version of this model.")
    types: list[int] = fields.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    if len(types) != len(tokens):
        raise TokenizerError(f"{where} contradicts itself: {len(tokens)} tokens and {len(types)} token types.")
    kind = fields.get("tokenizer.ggml.model")
    if kind == "gpt2":
        parts = _byte_level(fields, tokens, types, where)
    elif kind == "llama":
        parts = _sentence_piece(fields, tokens, types, where)
    else:
        raise TokenizerError(
            f"{where} has a tokenizer of the kind {kind!r} (tokenizer.ggml.model), which is not implemented.", "Implemented: gpt2, llama."
        )
    added = [
        {"id": token_id, "content": token, "special": types[token_id] != _USER_DEFINED, **_PLAIN_ADDED}
        for token_id, token in enumerate(tokens)
        if types[token_id] in (_CONTROL, _USER_DEFINED) or (kind == "llama" and types[token_id] == _UNKNOWN)
    ]
    return json.dumps({"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, **parts})


_PLAIN_ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def _byte_level(fields: dict[str, Any], tokens: Sequence[str], types: Sequence[int], where: str) -> dict[str, Any]:
    """GPT-2's kind: merges of byte characters."""
    name = fields.get("tokenizer.ggml.pre", "default")
    if name not in _CUTS:
        raise TokenizerError(
            f"{where} cuts text by the rule {name!r} (tokenizer.ggml.pre), which is not implemented.",
            nearest(str(name), _CUTS),
            advice="Use the model's Hugging Face folder.",
        )
    cut = _CUTS[name]
    vocabulary = _vocabulary(tokens, types)
    merges = [merge.split(" ") for merge in fields.get("tokenizer.ggml.merges") or []]
    unusable = [merge for merge in merges if len(merge) != 2]
    if unusable or not merges:
        found = f"the first bad one is {unusable[0]!r}" if unusable else "there are none"
        raise TokenizerError(f"{where} has unusable merges (tokenizer.ggml.merges): {found}.")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": cut.pattern is None}
    steps: list[dict[str, Any]] = [byte_level]
    if cut.pattern is not None:
        steps.insert(0, {"type": "Split", "pattern": {"Regex": cut.pattern}, "behavior": "Isolated", "invert": False})
    if cut.has_single_digits:
        steps.insert(0, {"type": "Digits", "individual_digits": True})
    return {
        "normalizer": {"type": "NFC"} if cut.is_normalized else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": _template(fields, tokens, adds_bos=cut.adds_bos),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {**_PLAIN_BPE, "vocab": vocabulary, "merges": merges, "ignore_merges": cut.ignores_merges},
    }


def _sentence_piece(fields: dict[str, Any], tokens: Sequence[str], types: Sequence[int], where: str) -> dict[str, Any]:
    """SentencePiece BPE with byte fallback, as in Llama 2 and Mistral 7B: merges follow from the tokens' scores."""
    scores: list[float] = fields.get("tokenizer.ggml.scores") or []
    if len(scores) != len(tokens):
        raise TokenizerError(f"{where} contradicts itself: {len(tokens)} tokens and {len(scores)} scores (tokenizer.ggml.scores).")
    vocabulary = _vocabulary(tokens, types)
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN), None)
    has_prefix = bool(fields.get("tokenizer.ggml.add_space_prefix", True))
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if has_prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": _SPACE}, replace] if has_prefix else [replace]},
        "pre_tokenizer": None,
        "post_processor": _template(fields, tokens, adds_bos=True),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            **_PLAIN_BPE,
            "vocab": vocabulary,
            "merges": _merges_from_scores(vocabulary, dict(zip(tokens, scores, strict=True))),
            "unk_token": unknown,
            "fuse_unk": True,
            "byte_fallback": True,
        },
    }


_PLAIN_BPE: dict[str, Any] = {
    "type": "BPE",
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
}


def _vocabulary(tokens: Sequence[str], types: Sequence[int]) -> dict[str, int]:
    """Token -> id; entries that only fill the table up to its size (type unused) are no tokens."""
    return {token: token_id for token_id, token in enumerate(tokens) if types[token_id] != _UNUSED}


def _merges_from_scores(vocabulary: dict[str, int], scores: dict[str, float]) -> list[tuple[str, str]]:
    """Every pair of tokens that makes a token, best result first; equal results by the length of their parts, then by their ids."""
    found = []
    for token in vocabulary:
        splits = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        pairs = [(left, right) for left, right in splits if left in vocabulary and right in vocabulary]
        pairs.sort(key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]), reverse=True)
        found += [(scores[token], left, right) for left, right in pairs]
    found.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])), reverse=True)
    return [(left, right) for _, left, right in found]


def _template(fields: dict[str, Any], tokens: Sequence[str], *, adds_bos: bool) -> dict[str, Any] | None:
    """Tokens put around every text: the begin token, the end token, both or none."""
    bos, eos = fields.get("tokenizer.ggml.bos_token_id"), fields.get("tokenizer.ggml.eos_token_id")
    before = [int(bos)] if bos is not None and fields.get("tokenizer.ggml.add_bos_token", adds_bos) else []
    behind = [int(eos)] if eos is not None and fields.get("tokenizer.ggml.add_eos_token", False) else []
    if not before and not behind:
        return None
    text, second = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}
    single = [*_specials(before, tokens), text, *_specials(behind, tokens)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, second],
        "special_tokens": {
            tokens[token_id]: {"id": tokens[token_id], "ids": [token_id], "tokens": [tokens[token_id]]} for token_id in (*before, *behind)
        },
    }


def _specials(token_ids: Sequence[int], tokens: Sequence[str]) -> list[dict[str, Any]]:
    return [{"SpecialToken": {"id": tokens[token_id], "type_id": 0}} for token_id in token_ids]
