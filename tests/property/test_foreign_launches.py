"""Anything at all as a command, a configuration or a map: an answer, never a traceback, in less than two seconds of the processor."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.importing import load_module
from tests.support.launches import make_launch_files

from hothead.preflight.foreign import ENGINES, judge
from hothead.preflight.foreign.options import load_table

LINES = load_module(Path(__file__).resolve().parents[1] / "unit" / "preflight" / "foreign" / "launches.py").LINES
NAMES = {engine: sorted(load_table(engine).known(load_table(engine).version)) for engine in ENGINES}
PROGRAMS = {"sglang": ["sglang", "serve"], "vllm": ["vllm", "serve"], "llama.cpp": ["llama-server"]}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    (
        *("architectures", "vocab_size", "hidden_size", "tie_word_embeddings", "max_position_embeddings", "draft_vocab_size"),
        *("text_config", "quantization_config", "num_nextn_predict_layers", "rope_scaling", "model_type", "compression_config"),
    )
)


@pytest.fixture(scope="module", autouse=True)
def _files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = make_launch_files(tmp_path_factory.mktemp("fuzz") / "files")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("HF_HOME", str(folder / "cache"))
        yield folder


def answered(engine: str, command: Sequence[str]) -> None:
    start = time.process_time()
    report = judge(engine, command)
    assert time.process_time() - start < 2
    for finding in report.findings:
        assert finding.what
        json.dumps(dict(finding.numbers))
    json.dumps(dict(report.launch))


@settings(max_examples=60)
@given(st.sampled_from(ENGINES), st.lists(st.text(max_size=12), max_size=5))
def test_any_words(engine: str, words: list[str]) -> None:
    answered(engine, words)
    answered(engine, [*PROGRAMS[engine], *words])


@settings(max_examples=250)
@given(st.data())
def test_lines_with_anything_in_them(data: st.DataObject) -> None:
    """Known lines with words dropped, doubled, replaced by names of options, by numbers and by rubbish."""
    line = data.draw(st.sampled_from(LINES))
    words = line.command.split()
    word = st.one_of(
        st.sampled_from(NAMES[line.engine]),
        st.sampled_from(
            ["-1", "0", "99999999999999999999999", "{}", "[]", "null", "'", "--", "\0", "\ud800", "/", ".", "~", "a" * 300, "=", "--="]
        ),
        st.text(max_size=10),
        JSON.map(json.dumps),
    )
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(words)))
        kind = data.draw(st.sampled_from(["drop", "double", "replace", "insert"]))
        if kind == "insert" or at == len(words):
            words.insert(at, data.draw(word))
        elif kind == "drop":
            del words[at]
        elif kind == "double":
            words.insert(at, words[at])
        else:
            words[at] = data.draw(word)
    answered(line.engine, words)
    answered(line.engine, [" ".join(words)])


@settings(max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(KEYS, JSON, max_size=8), st.binary(max_size=60), st.sampled_from(["EAGLE", "EAGLE3", "STANDALONE"]))
def test_any_configuration_and_header(config: dict[str, object], header: bytes, algorithm: str) -> None:
    folder = Path("any")
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    (folder / "any.pt").write_bytes(header)
    (folder / "any.gguf").write_bytes(b"GGUF\x03\x00\x00\x00" + header)
    for target, draft in (("any", "eagle"), ("llama", "any"), ("any", "any")):
        command = ["sglang", "serve", target, "--tp", "2", "--speculative-algorithm", algorithm, "--speculative-draft-model-path", draft]
        answered("sglang", [*command, "--speculative-token-map", "any/any.pt"])
        answered("vllm", ["vllm", "serve", target, "--spec-method", "eagle3", "--spec-model", draft, "--spec-tokens", "2"])
    answered("llama.cpp", ["llama-server", "-m", "target.gguf", "-md", "any/any.gguf", "--spec-type", "draft-simple"])


@settings(max_examples=60)
@given(JSON)
def test_any_speculative_config(config: object) -> None:
    answered("vllm", ["vllm", "serve", "llama", "--speculative-config", json.dumps(config)])


@settings(max_examples=60)
@given(
    st.one_of(
        st.text(max_size=60),
        JSON.map(json.dumps),
        st.dictionaries(st.sampled_from(["tp-size", "model-path", "lora-paths", "x"]), JSON).map(json.dumps),
    )
)
def test_any_config_file(text: str) -> None:
    Path("any.yaml").write_text(text, encoding="utf-8", errors="replace")
    answered("sglang", ["sglang", "serve", "--config", "any.yaml"])
    answered("vllm", ["vllm", "serve", "llama", "--config", "any.yaml"])
