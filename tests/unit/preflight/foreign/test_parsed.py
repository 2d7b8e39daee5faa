"""Parsers of command lines: against argparse itself, and what people paste."""

from __future__ import annotations

import argparse
import shlex
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hothead.preflight.foreign import judge
from hothead.preflight.foreign.options import Option, load_table, version_key
from hothead.preflight.foreign.parsed import parse_like_argparse, parse_like_llama_cpp
from hothead.preflight.foreign.pasted import read_pasted

KNOWN = load_table("sglang").known("0.5.23")


class Refused(Exception):
    pass


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Refused(message)


class Store(argparse.Action):
    """Whatever the option is: yes, no, or its words."""

    def __init__(self, option: Option, option_strings: list[str], dest: str, nargs: Any = None) -> None:
        super().__init__(option_strings, dest, nargs=nargs)
        self.option = option

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, option_string not in self.option.negative if self.nargs == 0 else values)


def real_parser() -> Parser:
    parser = Parser(add_help=False)
    for option in {id(option): option for option in KNOWN.values()}.values():
        names = [name for name in option.names if name in KNOWN]
        parser._add_action(Store(option, names, option.dest, option.nargs))
    return parser


REAL = real_parser()
NAMES = sorted(KNOWN)
WORDS = st.one_of(
    st.sampled_from(NAMES),
    st.sampled_from(
        ["--tp-size", "--tp", "--dp", "--speculative-algorithm", "--speculative-draft", "--enable-dp-lm-head", "--lora-paths", "-h"]
    ),
    st.sampled_from(
        [
            "1",
            "-1",
            "-1.5",
            "llama",
            "{}",
            '{"a": -1}',
            "-x",
            "--",
            "-",
            "",
            "a b",
            "--nothing",
            "--tp=4",
            "--tp-size=",
            "--enable-metrics=1",
        ]
    ),
    st.builds(lambda name, length: name[:length], st.sampled_from(NAMES), st.integers(3, 30)),
    st.text(st.characters(codec="ascii"), max_size=6),
)


@given(st.lists(WORDS, max_size=7))
def test_arguments_are_parsed_as_argparse_does(argv: list[str]) -> None:
    """Refused by both or by neither, and then with the same values (as text: types are checked elsewhere)."""
    parsed = parse_like_argparse(argv, KNOWN)
    ours_refused = bool(parsed.unknown) or any(
        one.startswith(("ambiguous", "unrecognized")) or "expected" in one or "ignored explicit" in one for one in parsed.errors
    )
    refusal, real = "", argparse.Namespace()
    try:
        real = REAL.parse_args(argv)
    except Refused as error:
        refusal = str(error)
    assert bool(refusal) == ours_refused, (refusal, parsed.errors, parsed.unknown)
    if refusal:
        return
    theirs = {name: value for name, value in vars(real).items() if value is not None}
    ours: dict[str, Any] = {}
    for used in parsed.used:
        option = used.option
        if option.nargs == 0:
            ours[option.dest] = used.typed not in option.negative
        elif option.nargs is None:
            ours[option.dest] = used.values[0]
        elif option.nargs != "?":
            ours[option.dest] = list(used.values)
        elif used.values:
            ours[option.dest] = used.values[0]
        else:
            ours.pop(option.dest, None)  # argparse stores the constant, which is None here
    assert ours == theirs


@pytest.mark.parametrize(
    ("text", "engine", "argv", "env"),
    [
        ("sglang serve llama", "sglang", ["llama"], {}),
        ("$ CUDA_VISIBLE_DEVICES=0,1 A=b python3 -m sglang.launch_server \\\n  --tp 2", "sglang", ["--tp", "2"],
         {"CUDA_VISIBLE_DEVICES": "0,1", "A": "b"}),
        ("sudo -E env X=1 nohup vllm serve m -tp 2 > log.txt 2>&1 &", "vllm", ["m", "-tp", "2"], {"X": "1"}),
        ("numactl --cpunodebind 0 /opt/llama.cpp/build/bin/llama-server -m x.gguf", "llama.cpp", ["-m", "x.gguf"], {}),
        ("docker run --gpus all -e A=1 --env=B=2 vllm/vllm-openai:v0.33.0 --model m", "vllm", ["--model", "m"], {"A": "1", "B": "2"}),
        ("docker run ghcr.io/ggml-org/llama.cpp:server -m x.gguf", "llama.cpp", ["-m", "x.gguf"], {}),
        ("uv run python -u -m vllm.entrypoints.openai.api_server --model m", "vllm", ["--model", "m"], {}),
        ("""vllm serve m --speculative-config '{"method": "ngram"}'""", "vllm", ["m", "--speculative-config", '{"method": "ngram"}'], {}),
        ("python sglang/launch_server.py --model-path 'a b'", "sglang", ["--model-path", "a b"], {}),
    ],
)  # fmt: skip
def test_what_people_paste(text: str, engine: str, argv: list[str], env: dict[str, str]) -> None:
    pasted = read_pasted([text])
    assert (pasted.engine, list(pasted.argv), dict(pasted.env)) == (engine, argv, env)
    if "\\\n" not in text and not text.startswith("$"):
        words = read_pasted(shlex.split(text))
        assert (words.engine, list(words.argv)) == (engine, argv)


def test_an_open_quote_is_said() -> None:
    report = judge("sglang", ["sglang serve 'llama"])
    assert "cannot be split" in report.findings[0].what


def test_llama_cpp_reads_the_environment_first_and_the_command_wins() -> None:
    known = load_table("llama.cpp").known("", "server")
    parsed = parse_like_llama_cpp(["--ctx_size", "4096"], known, {"LLAMA_ARG_CTX_SIZE": "2048", "LLAMA_ARG_MODEL": "x.gguf"})
    assert parsed.values["ctx_size"] == 4096
    assert parsed.values["model"] == "x.gguf"


def test_versions_are_compared_as_numbers() -> None:
    assert version_key("0.5.9") < version_key("0.5.10") < version_key("0.5.10.post1") < version_key("0.33.0")


def test_an_option_is_known_from_its_version_on() -> None:
    table = load_table("sglang")
    assert "--attn-dp-size" in table.known("0.5.23")
    assert "--attn-dp-size" not in table.known("0.5.5")
    assert "--speculative-token-map" in table.known("0.4.9.post6")


@pytest.mark.parametrize(
    ("command", "config"),
    [
        (
            "--speculative-config.method ngram --speculative-config.num_speculative_tokens 5",
            {"method": "ngram", "num_speculative_tokens": 5},
        ),
        (
            "--speculative_config.method=ngram --speculative_config.num_speculative_tokens=2",
            {"method": "ngram", "num_speculative_tokens": 2},
        ),
        ("--spec-method ngram --spec-tokens 4", {"method": "ngram", "num_speculative_tokens": 4}),
    ],
)
def test_vllm_s_ways_to_say_one_thing(command: str, config: dict[str, object]) -> None:
    launch = judge("vllm", ["vllm", "serve", "x/y", *shlex.split(command)]).launch
    assert {name: launch[name] for name in config} == config
