"""What people paste, as a program with its arguments: shell quoting, line ends, assignments, wrappers and containers taken off."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

_WRAPPERS = {"sudo", "nohup", "exec", "time", "env", "command", "nice", "stdbuf", "setsid", "numactl", "taskset", "uv", "run", "poetry"}
_CONTAINERS = {"docker", "podman", "nerdctl"}
_PYTHON = ("python", "python3", "pypy")
_SHELL_ENDS = {"|", "||", "&&", ";", "&", ">", ">>", "2>&1", "2>", "&>", "<"}
_SGLANG_IMAGES = ("lmsysorg/sglang",)
_VLLM_IMAGES = ("vllm/vllm-openai",)
_LLAMA_IMAGES = ("ggml-org/llama.cpp", "ggerganov/llama.cpp")
LLAMA_PROGRAMS = {
    "llama-server": "server",
    "llama-cli": "cli",
    "llama-speculative": "speculative",
    "llama-speculative-simple": "speculative",
    "llama-lookup": "lookup",
    "llama-completion": "completion",
    "main": "cli",
    "server": "server",
}


@dataclass(frozen=True)
class Pasted:
    """engine: "sglang", "vllm", "llama.cpp" or "" where none was found. program: such as "serve" or "server".

    prefix: the words before arguments, to write the launch again. argv: its arguments. env: assignments found on the way.
    notes: what was taken off.
    """

    engine: str
    program: str
    prefix: tuple[str, ...]
    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    problem: str = ""
    notes: tuple[str, ...] = ()


def read_pasted(command: Sequence[str]) -> Pasted:
    """Never raises: what cannot be read is a `problem`."""
    words, problem = _words(command)
    notes: list[str] = []
    end = next((index for index, word in enumerate(words) if word in _SHELL_ENDS), None)
    if end is not None:
        notes.append(f"everything from {words[end]!r} on belongs to the shell and was left out")
        words = words[:end]
    env: dict[str, str] = {}
    at = _skip_wrappers(words, 0, env)
    if at < len(words) and _base(words[at]) in _CONTAINERS and "run" in words[at + 1 : at + 4]:
        return _container(words, at, env, problem, notes)
    return _program(words, at, env, problem, notes)


def _words(command: Sequence[str]) -> tuple[list[str], str]:
    words = [str(word) for word in command]
    if len(words) == 1 and any(space in words[0] for space in " \n\t"):
        text = words[0].strip()
        text = text.removeprefix("$ ").removeprefix("> ").replace("\\\r\n", " ").replace("\\\n", " ")
        try:
            return shlex.split(text, comments="\n" in text), ""
        except ValueError as error:
            return text.split(), f"the command cannot be split as a shell would: {error}"
    # A backslash before the end of a line arrives as a word of its own when the text was pasted in one line.
    return [word for word in words if word.strip("\\\r\n \t") or word == ""], ""


def _base(word: str) -> str:
    return os.path.basename(word.rstrip("/")).removesuffix(".exe")  # noqa: PTH119


def _assignment(word: str) -> bool:
    name, equals, _ = word.partition("=")
    return bool(equals) and name.isidentifier()


def _skip_wrappers(words: list[str], at: int, env: dict[str, str]) -> int:
    while at < len(words):
        word = words[at]
        if _assignment(word):
            name, _, value = word.partition("=")
            env[name] = value
        elif _base(word) in _WRAPPERS:
            while at + 1 < len(words) and words[at + 1].startswith("-") and not _is_engine(words, at + 1):
                at += 1
        elif (word == "export" and at + 1 < len(words)) or word.isdigit() or (word.startswith("-") and not _is_engine(words, at)):
            pass
        else:
            break
        at += 1
    return at


def _is_engine(words: list[str], at: int) -> bool:
    return _start(words, at) is not None


def _start(words: list[str], at: int) -> tuple[str, str, int] | None:
    """(engine, program, number of words) if an engine's program starts here."""
    base = _base(words[at])
    following = words[at + 1] if at + 1 < len(words) else ""
    if base.startswith(_PYTHON):
        rest = at + 1
        while rest < len(words) and words[rest] in ("-u", "-O", "-B", "-s", "-I"):
            rest += 1
        if rest + 1 < len(words) and words[rest] == "-m":
            module, count = words[rest + 1], rest + 2 - at
            if module in ("sglang.launch_server", "sglang"):
                more = module == "sglang" and rest + 2 < len(words) and words[rest + 2] == "serve"
                return "sglang", "serve" if more else "launch_server", count + more
            if module.startswith("vllm.entrypoints"):
                if module.endswith("cli.main"):
                    more = rest + 2 < len(words) and words[rest + 2] == "serve"
                    return "vllm", "serve", count + more
                return "vllm", "api_server", count
        elif rest < len(words) and words[rest].endswith("launch_server.py"):
            return "sglang", "launch_server", rest + 1 - at
        elif rest < len(words) and words[rest].endswith("api_server.py"):
            return "vllm", "api_server", rest + 1 - at
        return None
    if base == "sglang" and following == "serve":
        return "sglang", "serve", 2
    if base == "vllm" and following == "serve":
        return "vllm", "serve", 2
    if base in LLAMA_PROGRAMS and (base.startswith("llama-") or "/" in words[at] or at == 0):
        return "llama.cpp", LLAMA_PROGRAMS[base], 1
    if base == "llama" and following in ("serve", "cli"):
        return "llama.cpp", {"serve": "server", "cli": "cli"}[following], 2
    return None


def _program(words: list[str], at: int, env: dict[str, str], problem: str, notes: list[str]) -> Pasted:
    found = _start(words, at) if at < len(words) else None
    if found is None:
        shown = " ".join(words[at : at + 3]) or "nothing"
        return Pasted("", "", tuple(words), (), env, problem or f"no engine's program was found in the command (it starts with {shown!r})")
    engine, program, count = found
    return Pasted(engine, program, tuple(words[: at + count]), tuple(words[at + count :]), env, problem, tuple(notes))


def _container(words: list[str], at: int, env: dict[str, str], problem: str, notes: list[str]) -> Pasted:
    """The program inside `docker run`, or the image's own one; `-e NAME=VALUE` are its assignments."""
    for index in range(at, len(words)):
        if words[index] in ("-e", "--env") and index + 1 < len(words) and _assignment(words[index + 1]):
            name, _, value = words[index + 1].partition("=")
            env[name] = value
        elif words[index].startswith("--env=") and _assignment(words[index][6:]):
            name, _, value = words[index][6:].partition("=")
            env[name] = value
    notes.append("paths are looked for outside the container")
    start = next((index for index in range(at + 2, len(words)) if _is_engine(words, index)), None)
    if start is not None:
        return _program(words, start, env, problem, notes)
    for images, engine, program in (
        (_VLLM_IMAGES, "vllm", "api_server"),
        (_LLAMA_IMAGES, "llama.cpp", "server"),
        (_SGLANG_IMAGES, "sglang", "launch_server"),
    ):
        for index in range(at + 2, len(words)):
            if any(image in words[index] for image in images) and not words[index].startswith("-"):
                return Pasted(engine, program, tuple(words[: index + 1]), tuple(words[index + 1 :]), env, problem, tuple(notes))
    return Pasted("", "", tuple(words), (), env, problem or "no engine's program was found in the container's command")
