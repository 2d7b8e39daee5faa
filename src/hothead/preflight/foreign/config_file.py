"""`--config FILE` as SGLang and vLLM read it: a YAML table becomes options in front of the command's own, which win."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hothead.preflight.foreign.options import Option
from hothead.preflight.foreign.paths import located

_MAX_BYTES = 2**20


def merge_sglang(argv: Sequence[str], known: Mapping[str, Option], folder: Path) -> tuple[list[str], list[str]]:
    """(arguments, errors). After `ConfigArgumentMerger` of SGLang 0.5.23."""
    at = list(argv).index("--config")
    rest = [*argv[:at], *argv[at + 2 :]]
    if list(argv).count("--config") > 1:
        return rest, ["more than one --config is given, and only one is allowed"]
    table, error = _read(argv, at, folder)
    if error:
        return rest, [error]
    words: list[str] = []
    errors: list[str] = []
    for key, value in table.items():
        name = f"--{key}"
        option = known.get(name.replace("_", "-"))
        if isinstance(value, bool) and option is not None and option.nargs == 0 and not option.negative:
            words += [name] if value else []
        elif option is not None and option.negative:
            errors.append(f"the config file sets {key}, which it may not: only options with one value or none can be there")
        else:
            words += _words(name, str(value).lower() if isinstance(value, bool) else value)
    # A key with underscores becomes an option with underscores, which argparse does not know.
    return words + rest, errors


def merge_vllm(argv: Sequence[str], known: Mapping[str, Option], folder: Path, has_subcommand: bool) -> tuple[list[str], list[str]]:
    """(arguments, errors). The model of `vllm serve MODEL` stays in front. After `_pull_args_from_config` of vLLM 0.33.0."""
    at = list(argv).index("--config")
    rest = [*argv[:at], *argv[at + 2 :]]
    table, error = _read(argv, at, folder)
    if error:
        return rest, [error]
    words: list[str] = []
    for key, value in table.items():
        name = f"--{key}"
        if isinstance(value, bool):
            negative = f"--no-{key}"
            words += [name] if value else [negative] if negative.replace("_", "-") in known else []
        else:
            words += _words(name, value)
    if has_subcommand and rest and not rest[0].startswith("-"):
        words = _without_model(words)  # the command's own model wins, and is positional
        return [rest[0], *words, *rest[1:]], []
    return words + rest, []


def _without_model(words: list[str]) -> list[str]:
    return words[: (at := words.index("--model"))] + words[at + 2 :] if "--model" in words else words


def _words(name: str, value: Any) -> list[str]:
    if isinstance(value, list):
        return [name, *map(str, value)] if value else []
    return [name, json.dumps(value, default=str) if isinstance(value, dict) else str(value)]


def _read(argv: Sequence[str], at: int, folder: Path) -> tuple[dict[str, Any], str]:
    import yaml

    if at + 1 >= len(argv):
        return {}, "no file follows --config"
    path = located(argv[at + 1], folder)
    if path.suffix.lower() not in (".yaml", ".yml"):
        return {}, f"the config file must be YAML (.yaml or .yml), not {path.suffix or 'without a suffix'}"
    try:
        if path.stat().st_size > _MAX_BYTES:
            return {}, f"the config file {path} is larger than {_MAX_BYTES} bytes"
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        return {}, f"the config file {path} cannot be read: {error.strerror}"
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return {}, f"the config file {path} is not YAML: {str(error).splitlines()[0][:120] if str(error) else type(error).__name__}"
    if content is None:
        return {}, ""
    if not isinstance(content, dict):
        return {}, f"the config file {path} holds a {type(content).__name__} instead of a table"
    return {str(key): value for key, value in content.items()}, ""
