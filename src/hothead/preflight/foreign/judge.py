"""Judge another engine's launch: parse it as that engine does, resolve it, look at the files that it names, apply the rules."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from hothead.errors import OptionError, nearest
from hothead.preflight.finding import CheckInfo, Finding
from hothead.preflight.foreign import llama_cpp, sglang, sglang_facts, vllm
from hothead.preflight.foreign.facts import Facts
from hothead.preflight.foreign.llama_cpp_rules import LLAMA_CPP_RULES
from hothead.preflight.foreign.model_facts import ModelFacts, find_model
from hothead.preflight.foreign.options import OptionTable, load_table, version_key
from hothead.preflight.foreign.parsed import Parsed
from hothead.preflight.foreign.pasted import Pasted, read_pasted
from hothead.preflight.foreign.report import ForeignReport, ParallelLaunch
from hothead.preflight.foreign.rule import Launch, Rule, info
from hothead.preflight.foreign.sglang_draft_rules import DRAFT_RULES
from hothead.preflight.foreign.sglang_map_rules import MAP_RULES
from hothead.preflight.foreign.sglang_option_rules import OPTION_RULES
from hothead.preflight.foreign.vllm_rules import VLLM_RULES

ENGINES = ("sglang", "vllm", "llama.cpp")
RULES: dict[str, tuple[Rule, ...]] = {"sglang": MAP_RULES + DRAFT_RULES + OPTION_RULES, "vllm": VLLM_RULES, "llama.cpp": LLAMA_CPP_RULES}

_PREFIX = {"sglang": ("sglang", "serve"), "vllm": ("vllm", "serve"), "llama.cpp": ("llama-server",)}
_PROGRAM = {"sglang": "launch_server", "vllm": "serve", "llama.cpp": "server"}
_SHOWN = {
    "sglang": "model target_arch family vocab_size algorithm_given algorithm multi_layer draft draft_arch num_steps eagle_topk "
    "num_draft_tokens rejection map map_path num_ids max_id tp_size dp_size attn_dp_size attn_tp_size enable_dp_lm_head num_shards "
    "rows_per_rank context draft_context draft_vocab_size",
    "vllm": "model target_arch vocab_size tp_size method draft draft_arch num_speculative_tokens draft_tp_size draft_vocab "
    "draft_vocab_size context draft_context n_predict",
    "llama.cpp": "program model draft types active_types n_max n_min context draft_context vocab_size draft_vocab",
}
"""Facts that a report shows, by engine."""

_GENERAL = (
    (
        "command",
        "the command could be read",
        "A launch line is split as a shell would, wrappers, assignments and containers are taken off, and the engine's program must be "
        "in it.",
    ),
    (
        "arguments",
        "the engine's own parser would accept the arguments",
        "Arguments are parsed as the engine parses them: argparse with its prefixes for SGLang and vLLM, exact names for llama.cpp. What "
        "it refuses "
        "ends the launch before anything is loaded.",
    ),
    (
        "option-unknown",
        "an option that this version does not have",
        "An option that is in no table of this version is said, with the nearest names: a mistyped option must not look like one that "
        "was obeyed.",
    ),
    (
        "option-renamed",
        "an option of an earlier version",
        "The option existed in earlier versions and has become a key of another one.",
    ),
    (
        "files",
        "a model that the command names is not here",
        "Without config.json only the command itself can be judged: sizes, families and vocabularies are unknown, and what depends on "
        "them is left out.",
    ),
    (
        "model-missing",
        "a path of the command does not exist",
        "A path that looks local and is not there would be taken for a hub id, and its snapshot fetched.",
    ),
    (
        "version",
        "the option table is of another version",
        "Names of options and defaults change between versions; the nearest version that was read is used.",
    ),
)


def _general_checks() -> tuple[CheckInfo, ...]:
    source = {"sglang": "sglang 0.5.23: srt/server_args.py", "vllm": "vllm 0.33.0: vllm/utils/argparse_utils.py"}
    source["llama.cpp"] = "ggml-org/llama.cpp@0c1e57098: common/arg.cpp"
    return tuple(
        CheckInfo(f"{_id(engine)}-{name}", engine, title, story, (source[engine],)) for engine in ENGINES for name, title, story in _GENERAL
    )


def _id(engine: str) -> str:
    return engine.replace(".", "-")


FOREIGN_CHECKS: tuple[CheckInfo, ...] = (
    *_general_checks(),
    *(info(rule, engine) for engine, rules in RULES.items() for rule in rules),
)
"""Every check of other engines' launches, one per id."""


def judge(engine: str, command: Sequence[str], *, version: str | None = None, allow_download: bool = False) -> ForeignReport:
    """What would become of this launch.

    engine: "sglang", "vllm" or "llama.cpp". command: as a shell gives it, or one pasted text. version: of the engine; None is the newest in
    the tables. allow_download: fetch configuration and tokenizer of a hub id that is not here. Paths are relative to the working directory.
    Raises OptionError for an engine that is not known, and nothing else.
    """
    if engine not in ENGINES:
        raise OptionError(f"the engine {engine!r} is not known.", nearest(engine, ENGINES), advice=f"Use one of {', '.join(ENGINES)}.")
    table = load_table(engine)
    pasted = _pasted(engine, command)
    findings: list[Finding] = []
    if pasted.problem or pasted.engine != engine:
        found = pasted.problem or f"the command starts {pasted.engine}, not {engine}"
        advice = (
            f"Ask for that engine: hothead check --engine {pasted.engine} -- {shlex.join(command)}" if pasted.engine else _example(engine)
        )
        findings.append(Finding(f"{_id(engine)}-command", "error", f"{found[0].upper()}{found[1:]}.", {}, advice))
        return ForeignReport(tuple(findings), {"engine": engine})
    judged = _version(table, version, findings)
    folder = Path.cwd()
    parsed = _PARSERS[engine](pasted, table, judged, folder)
    facts, layout, models = _GATHERERS[engine](parsed, pasted, folder, allow_download)
    launch = Launch(engine, judged, pasted.prefix, parsed, table.known(judged, pasted.program), facts, folder)
    facts["has_attn_dp_size"] = "--attn-dp-size" in launch.known
    findings += _argument_findings(launch, table, pasted)
    findings += _file_findings(engine, models)
    for rule in RULES[engine]:
        finding = rule.judge(launch) if rule.applies_to(judged) else None
        if finding is not None:
            findings.append(finding)
    for note in pasted.notes:
        findings.append(Finding(f"{_id(engine)}-command", "note", f"{note[0].upper()}{note[1:]}."))
    shown = {name: facts[name] for name in _SHOWN[engine].split() if isinstance(facts[name], str | int | float | bool)}
    return ForeignReport(tuple(findings), {"engine": engine, "version": judged, **shown}, layout)


def _pasted(engine: str, command: Sequence[str]) -> Pasted:
    pasted = read_pasted(command)
    words = [word for word in command if word]
    if not pasted.engine and words and words[0].startswith("-") and len(words) > 1:
        return Pasted(engine, _PROGRAM[engine], _PREFIX[engine], tuple(words))
    return pasted


def _example(engine: str) -> str:
    return f"Give the launch after two dashes: hothead check --engine {engine} -- {' '.join(_PREFIX[engine])} ..."


def _version(table: OptionTable, version: str | None, findings: list[Finding]) -> str:
    if version is None or version == table.version:
        return table.version
    if table.engine != "llama.cpp" and version_key(version) and version_key(version) < version_key(table.version):
        return version
    what = f"The tables are of {table.engine} {table.version}; {version} is judged by them."
    findings.append(Finding(f"{_id(table.engine)}-version", "note", what, {"version": version, "table_version": table.version}))
    return table.version


def _argument_findings(launch: Launch, table: OptionTable, pasted: Pasted) -> list[Finding]:
    engine, parsed = launch.engine, launch.parsed
    findings = []
    for name, near, at in parsed.unknown:
        other = table.elsewhere(name)
        if other is not None and other.now:
            continue
        where = ""
        if other is not None and (other.until or other.since):
            where = f" It was there until {other.until}." if other.until else f" It came with {other.since}."
        elif other is not None and other.programs:
            where = f" Other programs have it: {', '.join(f'llama-{program}' for program in other.programs)}."
        hint = f"Did you mean {' or '.join(near)}?" if near else "No option has a name like it; leave it out."
        findings.append(
            Finding(
                f"{_id(engine)}-option-unknown",
                "error",
                f"{name} is no option of {_program_name(engine, pasted)} {launch.version}; the launch ends there.{where}",
                {"option": name, "nearest": ", ".join(near)},
                f"{hint}\n    {_without_unknown(launch, name, near, at)}",
            )
        )
    renamed = [name for name, _, _ in parsed.unknown if (other := table.elsewhere(name)) is not None and other.now]
    if renamed and engine == "vllm":
        findings.append(_renamed_in_vllm(launch, table, renamed))
    for error in parsed.errors:
        if engine == "llama.cpp" and launch.facts["renamed_dest"] and "has been removed" in error:
            continue  # said with its new name by a rule
        findings.append(
            Finding(f"{_id(engine)}-arguments", "error", f"{error[0].upper()}{error[1:]}.", {}, _argument_advice(launch, error))
        )
    findings += [
        Finding(f"{_id(engine)}-arguments", "warning", f"{one[0].upper()}{one[1:]}.", {}, "Give it once.") for one in parsed.warnings
    ]
    return findings


def _program_name(engine: str, pasted: Pasted) -> str:
    return f"llama-{pasted.program}" if engine == "llama.cpp" else {"sglang": "SGLang", "vllm": "vLLM"}[engine]


def _argument_advice(launch: Launch, error: str) -> str:
    repaired = launch.parsed.repairs.get(error)
    if repaired is None:
        return "Correct the value; the engine says with --help what it takes."
    say = "Write the name in full, for example:" if error.startswith("ambiguous") else "As the engine reads it:"
    return f"{say}\n    {shlex.join([*launch.prefix, *repaired])}"


def _without_unknown(launch: Launch, name: str, near: Sequence[str], at: int) -> str:
    """The command with the nearest name in place of the unknown one, or without it and what follows it."""
    words = list(launch.parsed.argv)
    if near:
        words[at] = near[0] + words[at][len(name) :]
        return shlex.join([*launch.prefix, *words])
    stop = at + 1
    while stop < len(words) and not words[stop].startswith("-"):
        stop += 1
    return shlex.join([*launch.prefix, *words[:at], *words[stop:]])


def _renamed_in_vllm(launch: Launch, table: OptionTable, names: Sequence[str]) -> Finding:
    words, config = list(launch.parsed.argv), {}
    for name in names:
        option = table.elsewhere(name)
        at = next(index for index, word in enumerate(words) if word.partition("=")[0] == name)
        attached = words[at].partition("=")
        stop = at + 1 if attached[1] or at + 1 >= len(words) or words[at + 1].startswith("--") else at + 2
        value = attached[2] if attached[1] else words[at + 1] if stop == at + 2 else ""
        assert option is not None
        config[option.now] = int(value) if value.isdecimal() and len(value) < 10 else value
        words[at:stop] = []
    if config.get("model") == "[ngram]":
        config = {"method": "ngram", **{key: value for key, value in config.items() if key != "model"}}
    import json

    command = shlex.join([*launch.prefix, *words, "--speculative-config", json.dumps(config)])
    said = "it is a key" if len(names) == 1 else "they are keys"
    what = f"{', '.join(names)}: of earlier versions; now {said} of --speculative-config."
    return Finding("vllm-option-renamed", "error", what, {}, f"Write it so:\n    {command}")


def _file_findings(engine: str, models: Sequence[ModelFacts]) -> list[Finding]:
    findings = []
    for model in models:
        if model.is_known:
            continue
        if model.is_missing_path:
            what = f"{model.name} does not exist here: {model.problem}"
            advice = "Correct the path, or run the check where the files are."
            findings.append(Finding(f"{_id(engine)}-model-missing", "warning", what, {"path": model.name}, advice))
        else:
            what = f"{model.problem}; what depends on it is not judged."
            advice = "" if model.path else "Allow configuration and tokenizer to be fetched with --allow-download, or give a local folder."
            findings.append(Finding(f"{_id(engine)}-files", "note", what, {"model": model.name}, advice))
    return findings


_Gathered = tuple[Facts, ParallelLaunch | None, list[ModelFacts]]


def _gather_sglang(parsed: Parsed, pasted: Pasted, folder: Path, allow_download: bool) -> _Gathered:
    values = parsed.values
    target = _find(values.get("model_path"), folder, allow_download)
    name = values.get("speculative_draft_model_path")
    draft = find_model(str(name), folder, allow_download=allow_download) if name else None
    facts, layout = sglang_facts.gather(values, target, draft, folder)
    used = parsed.last("config")
    if used is not None:
        facts["config_equals"] = used.values[0] if used.values else None
    return facts, layout, [model for model in (target, draft) if model is not None and model.name]


def _gather_vllm(parsed: Parsed, pasted: Pasted, folder: Path, allow_download: bool) -> _Gathered:
    facts = vllm.resolve(parsed)
    target = _find(facts["model"], folder, allow_download)
    has_draft = facts["draft"] and facts["method"] not in ("ngram", "ngram_gpu", "suffix", "custom_class", "extract_hidden_states")
    draft = find_model(facts["draft"], folder, allow_download=allow_download) if has_draft else None
    vllm.add_models(facts, target, draft)
    return facts, None, [model for model in (target, draft) if model is not None and model.name]


def _gather_llama_cpp(parsed: Parsed, pasted: Pasted, folder: Path, allow_download: bool) -> _Gathered:
    facts = llama_cpp.resolve(parsed, pasted.program)
    target = find_model(facts["model"], folder) if facts["model"] else None
    draft = find_model(facts["draft"], folder) if facts["draft"] else None
    llama_cpp.add_models(facts, target, draft)
    return facts, None, [model for model in (target, draft) if model is not None]


def _find(name: object, folder: Path, allow_download: bool) -> ModelFacts:
    return find_model(str(name), folder, allow_download=allow_download) if name else ModelFacts("", None, "no model is named")


_PARSERS: dict[str, Callable[[Pasted, OptionTable, str, Path], Parsed]] = {
    "sglang": sglang.parse,
    "vllm": vllm.parse,
    "llama.cpp": lambda pasted, table, version, folder: llama_cpp.parse(pasted, table, version),
}
_GATHERERS: dict[str, Callable[[Parsed, Pasted, Path, bool], _Gathered]] = {
    "sglang": _gather_sglang,
    "vllm": _gather_vllm,
    "llama.cpp": _gather_llama_cpp,
}
