"""Tokenizers: folder, GGUF and transformers agree; streamed text is never taken back; chat templates render as in transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from hothead.errors import PromptError, TokenizerError
from hothead.models.chat_template import ChatTemplate
from hothead.models.tokenizer import StreamDecoder, Tokenizer

TEXTS = [
    "Hello, world!  It's 2024;  we've 1 234 things.",
    "  leading and trailing  \n\n\ttabs\r\n",
    "Grüße aus Köln — naïve café, 東京の天気, 🙂👩‍👩‍👧, ﷺ",
    "<|im_start|>user\nhi<|im_end|>",
    "",
    "x  5",
    "e\u0301 combining",
]
CORPUS = [*TEXTS, "the quick brown fox jumps over the lazy dog " * 3, "we've it's you'll 1234 567 naïve Köln"] * 4
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_level(pre: str = "gpt-2") -> tokenizers.Tokenizer:
    """A small byte-level BPE, trained here, with a pre-tokenizer as in the models' own tokenizer.json."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    bytes_step = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre == "smollm":
        backend.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([tokenizers.pre_tokenizers.Digits(individual_digits=True), bytes_step])
    else:
        backend.pre_tokenizer = bytes_step
    backend.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=420, special_tokens=SPECIAL, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def sentence_piece() -> tokenizers.Tokenizer:
    """A small BPE with byte fallback, as Llama 2's tokenizer.json is written."""
    model = tokenizers.models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>")
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Prepend("\u2581"), tokenizers.normalizers.Replace(" ", "\u2581")]
    )
    backend.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace("\u2581", " "),
            tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Fuse(),
            tokenizers.decoders.Strip(" ", 1, 0),
        ]
    )
    special = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)]]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=380, special_tokens=special[:3], show_progress=False)
    backend.train_from_iterator(["the quick brown fox it's over we've " * 4], trainer)
    content = json.loads(backend.to_str())
    words = [token for token in content["model"]["vocab"] if token not in special]
    content["model"]["vocab"] = {token: token_id for token_id, token in enumerate([*special, *words])}
    for token in content["added_tokens"]:
        token["id"] = special.index(token["content"])
    return tokenizers.Tokenizer.from_str(json.dumps(content))


def write_folder(folder: Path, backend: tokenizers.Tokenizer, **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    names = {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>", "chat_template": CHATML, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names}))
    return folder


def write_gguf(path: Path, backend: tokenizers.Tokenizer, pre: str = "gpt-2", num_unused: int = 0, **changes: Any) -> Path:
    """The same tokenizer as a GGUF file, merges written for byte-level ones and scores for the others."""
    content = json.loads(backend.to_str())
    tokens = sorted(content["model"]["vocab"], key=content["model"]["vocab"].__getitem__)
    special = {token["content"] for token in content["added_tokens"]}
    is_byte_level = "<s>" not in special
    types = [2 if token == "<unk>" else 3 if token in special else 6 if token.startswith("<0x") else 1 for token in tokens]
    tokens += [f"[PAD{number}]" for number in range(num_unused)]
    types += [5] * num_unused
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(changes.get("model", "gpt2" if is_byte_level else "llama"))
    writer.add_token_list(tokens)
    writer.add_token_types(changes.get("types", types))
    if is_byte_level:
        writer.add_tokenizer_pre(pre)
        writer.add_token_merges(changes.get("merges", [" ".join(merge) for merge in content["model"]["merges"]]))
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_chat_template(CHATML)
    else:
        rank = {left + right: number for number, (left, right) in enumerate(content["model"]["merges"])}
        writer.add_token_scores([-float(rank.get(token, 10**4)) for token in tokens])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_add_bos_token(bool(changes.get("add_bos", True)))
    for name, value in changes.get("flags", {}).items():
        writer.add_bool(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(write_folder(tmp_path_factory.mktemp("small"), byte_level()))


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(write_gguf(tmp_path_factory.mktemp("pieces") / "m.gguf", sentence_piece()))


@pytest.mark.parametrize("text", TEXTS)
def test_a_folder_tokenizes_as_transformers_does(tmp_path: Path, text: str) -> None:
    import transformers

    folder = write_folder(tmp_path / "model", byte_level())
    ours, reference = Tokenizer.load(folder), transformers.AutoTokenizer.from_pretrained(str(folder))
    assert ours.encode(text) == reference(text)["input_ids"]
    assert ours.decode(ours.encode(text), skip_special_tokens=False) == text == reference.decode(ours.encode(text))
    messages = [{"role": "user", "content": text}]
    assert ours.render_chat(messages) == reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert ours.apply_chat_template(messages) == reference.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]


@pytest.mark.parametrize("pre", ["gpt-2", "smollm"])
def test_a_gguf_file_tokenizes_as_its_folder(tmp_path: Path, pre: str) -> None:
    backend = byte_level(pre)
    folder = Tokenizer.load(write_folder(tmp_path / "model", backend))
    file = Tokenizer.load(write_gguf(tmp_path / "m.gguf", backend, pre, num_unused=5))
    for text in TEXTS:
        assert file.encode(text) == folder.encode(text)
    assert file.fingerprint == folder.fingerprint
    assert (file.vocab_size, file.bos_token_id, file.eos_token_id) == (folder.vocab_size, 1, 2)
    assert file.special_token_ids == folder.special_token_ids == {0, 1, 2}
    assert file.render_chat([{"role": "user", "content": "hi"}]) == folder.render_chat([{"role": "user", "content": "hi"}])


def test_single_digits_make_a_difference(tmp_path: Path) -> None:
    backend = byte_level("smollm")
    plain = Tokenizer.load(write_gguf(tmp_path / "plain.gguf", backend, "gpt-2"))
    digits = Tokenizer.load(write_gguf(tmp_path / "digits.gguf", backend, "smollm"))
    assert plain.encode("x  5") != digits.encode("x  5")


def test_a_sentence_piece_gguf_file_tokenizes_as_its_folder(tmp_path: Path, pieces: Tokenizer) -> None:
    backend = sentence_piece()
    for text in ["the quick brown fox", "Köln 東京 🙂", " it's  we've", "</s> the"]:
        assert pieces.encode(text, add_special_tokens=False) == backend.encode(text, add_special_tokens=False).ids
        assert pieces.encode(text) == [1, *backend.encode(text, add_special_tokens=False).ids]
        assert pieces.decode(pieces.encode(text)) == backend.decode(backend.encode(text).ids)
    without = Tokenizer.load(write_gguf(tmp_path / "m.gguf", backend, add_bos=False))
    assert without.encode("the")[0] != 1


def test_begin_and_end_tokens_where_the_file_says_so(tmp_path: Path) -> None:
    flags = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    tokenizer = Tokenizer.load(write_gguf(tmp_path / "m.gguf", byte_level(), flags=flags))
    assert tokenizer.encode("hi") == [1, *tokenizer.encode("hi", add_special_tokens=False), 2]
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])[:2] != [1, 1]


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2", "tekken"])
def test_other_cutting_rules_keep_every_character(tmp_path: Path, pre: str) -> None:
    tokenizer = Tokenizer.load(write_gguf(tmp_path / "m.gguf", byte_level(), pre))
    for text in TEXTS[:-1]:
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=False) == text


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"pre": "qwen9"}, "'qwen9'.*tokenizer.ggml.pre"),
        ({"model": "bert"}, "'bert'"),
        ({"merges": ["a b c"]}, "unusable merges"),
        ({"merges": ["zzzz yyyy"]}, "damaged"),
        ({"types": [1, 1]}, "and 2 token types"),
    ],
)
def test_unusable_gguf_tokenizers(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(TokenizerError, match=expected):
        Tokenizer.load(write_gguf(tmp_path / "m.gguf", byte_level(), **changes))


def test_a_gguf_file_without_tokenizer(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_block_count(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(TokenizerError, match="no tokenizer"):
        Tokenizer.load(tmp_path / "m.gguf")


@pytest.mark.parametrize("content", [None, "{", "{}"])
def test_unusable_folders(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)


# Streaming


def streamed(tokenizer: Tokenizer, token_ids: list[int], skip_special_tokens: bool = True) -> str:
    decoder, text = StreamDecoder(tokenizer, skip_special_tokens), ""
    for count, token_id in enumerate(token_ids, start=1):
        text += decoder.push(token_id)
        assert tokenizer.decode(token_ids[:count], skip_special_tokens).startswith(text)
    text += decoder.finish()
    assert decoder.finish() == ""
    return text


@given(data=st.data(), skips=st.booleans())
@settings(max_examples=150, deadline=None)
def test_streamed_text_is_the_decoded_text(small: Tokenizer, pieces: Tokenizer, data: st.DataObject, skips: bool) -> None:
    for tokenizer in (small, pieces):
        token_ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=25))
        assert streamed(tokenizer, token_ids, skips) == tokenizer.decode(token_ids, skips)


@given(text=st.text(max_size=30))
@settings(max_examples=100, deadline=None)
def test_streamed_real_text(small: Tokenizer, pieces: Tokenizer, text: str) -> None:
    for tokenizer in (small, pieces):
        token_ids = tokenizer.encode(text)
        assert streamed(tokenizer, token_ids) == tokenizer.decode(token_ids)


def test_half_a_character_is_held_back(small: Tokenizer) -> None:
    token_ids = small.encode("\u9f98")  # in no corpus text: one token per byte
    assert len(token_ids) == 3
    decoder = StreamDecoder(small)
    assert [decoder.push(token_id) for token_id in token_ids] == ["", "", "\u9f98"]
    decoder = StreamDecoder(small)
    assert decoder.push(token_ids[0]) == ""
    assert decoder.finish() == "\ufffd"


# Vocabulary


def test_vocabulary_and_fingerprint(small: Tokenizer, tmp_path: Path) -> None:
    assert small.vocab_size == len(small.token_ids_by_text)
    assert len(small.fingerprint) == 64
    backend = byte_level()
    backend.add_tokens(["<tool>"])
    other = Tokenizer.load(write_folder(tmp_path / "other", backend))
    assert other.vocab_size == small.vocab_size + 1
    assert other.fingerprint != small.fingerprint


def test_token_texts(small: Tokenizer) -> None:
    assert small.token_text(small.encode(" the")[0]) == " the"
    assert small.token_text(1) == "<|im_start|>"
    assert "\ufffd" not in small.token_text(small.encode("\u9f98")[0])
    assert small.token_text(10**6) == "<no token 1000000>"


def test_padding_rows_of_a_head_give_no_text(small: Tokenizer) -> None:
    assert small.decode([*small.encode("the"), small.vocab_size + 7]) == "the"


# Chat templates


@pytest.mark.parametrize(
    "template",
    [
        CHATML,
        "{{ bos_token }}{% for m in messages %}{{ m | tojson }}{{ m['content'] | trim }}{% endfor %}{{ eos_token }}",
        "{%- for m in messages %}\n    {%- if loop.index0 == 1 %}{% break %}{% endif %}\n  {{ m.content }}\n{%- endfor %}\n",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }} {{ strftime_now('%Y') }}",
        "{% for m in messages %}{% generation %}{{ m['content'] }}{% endgeneration %}{% endfor %}",
        "{{ messages | tojson(indent=2) }}{% if tools is defined and tools %}x{% endif %}",
    ],
)
def test_templates_render_as_in_transformers(template: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [{"role": "user", "content": " <b>Hi</b> & é ", "name": None}, {"role": "assistant", "content": "Yes"}]
    without_none = [{key: value for key, value in message.items() if value is not None} for message in messages]
    (expected,), _ = render_jinja_template(
        conversations=[without_none], chat_template=template, add_generation_prompt=True, bos_token="<s>", eos_token="</s>"
    )
    assert ChatTemplate(template, {"bos_token": "<s>", "eos_token": "</s>"}, "tiny").render(messages) == expected


def test_a_template_that_refuses_or_fails_says_so() -> None:
    with pytest.raises(PromptError, match="roles must alternate"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}", {}, "tiny").render([{"role": "user", "content": "x"}])
    with pytest.raises(TokenizerError, match="syntax error in line 2"):
        ChatTemplate("\n{% if %}", {}, "tiny")
    with pytest.raises(TokenizerError, match="cannot be rendered"):
        ChatTemplate("{{ messages[0].missing.deeper }}", {}, "tiny").render([{"role": "user", "content": "x"}])
    with pytest.raises(TokenizerError, match="cannot be rendered"):
        ChatTemplate("{{ ''.__class__.__mro__ }}{{ messages.append(1) }}", {}, "tiny").render([{"role": "user", "content": "x"}])


def test_where_a_folders_template_comes_from(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", byte_level(), chat_template=None)
    tokenizer = Tokenizer.load(folder)
    assert not tokenizer.has_chat_template
    with pytest.raises(TokenizerError, match="no chat template"):
        tokenizer.render_chat([])
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    assert Tokenizer.load(write_folder(folder, byte_level(), chat_template=named)).render_chat([]) == "plain"
    (folder / "chat_template.jinja").write_text("file")
    assert Tokenizer.load(folder).render_chat([]) == "file"
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(TokenizerError, match="none is named 'default'"):
        Tokenizer.load(write_folder(folder, byte_level(), chat_template=named[:1]))


def test_special_tokens_written_as_tables(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", byte_level(), eos_token={"content": "<|endoftext|>", "special": True})
    assert Tokenizer.load(folder).eos_token_id == 0


# The default model


@pytest.mark.real_model
def test_the_default_models_tokenizer(default_model: Path) -> None:
    tokenizer = Tokenizer.load(default_model)
    assert (tokenizer.vocab_size, tokenizer.eos_token_id) == (49152, 2)
    assert tokenizer.fingerprint.startswith("e079c56b30fbfd0d")
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == text
    assert tokenizer.render_chat([{"role": "user", "content": "hi"}]).endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    rng = np.random.default_rng(0)
    for _ in range(50):
        token_ids = rng.integers(0, tokenizer.vocab_size, 30).tolist()
        assert streamed(tokenizer, token_ids) == tokenizer.decode(token_ids)


@pytest.mark.real_model
@pytest.mark.slow
def test_the_default_model_tokenizes_as_transformers_does(default_model: Path) -> None:
    import transformers

    ours = Tokenizer.load(default_model)
    reference = transformers.AutoTokenizer.from_pretrained(str(default_model.parent), gguf_file=default_model.name)
    # transformers passes over tokenizer.ggml.pre: its cut differs where digits follow several spaces
    steps = [tokenizers.pre_tokenizers.Digits(individual_digits=True), tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)]
    reference.backend_tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(steps)
    for text in [*CORPUS[:12], Path(__file__).read_text(encoding="utf-8")]:
        assert ours.encode(text) == reference(text)["input_ids"]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": TEXTS[0]}]
    assert ours.apply_chat_template(messages) == reference.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
