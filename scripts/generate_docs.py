"""Write the pages and README parts that follow from the code, or with --check fail if one of them is out of date.

    python scripts/generate_docs.py [--check]

docs/reference/options.md and docs/reference/cli.md come from the option definitions and the commands, the code map in README.md
from the folders, the table of docs/reference/map-format.md from the registry of formats, and the tables of what is supported from the runs
of tests/matrix that docs/reference/support.json holds.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from hothead.cli.main import hothead  # noqa: E402
from hothead.cli.options import ConfigOption, type_text  # noqa: E402
from hothead.config.option import Option, Options, options_of  # noqa: E402
from hothead.preflight.foreign import FOREIGN_CHECKS  # noqa: E402
from hothead.vocab.formats.registry import FORMATS, KEPT  # noqa: E402

WIDTH = 100
# In the order in which one step uses them, foundations first.
FOLDERS = (
    "config",
    "files",
    "vocab",
    "parallel",
    "models",
    "corpus",
    "verify",
    "draft",
    "preflight",
    "engine",
    "train",
    "serve",
    "bench",
    "cli",
)
_GENERATED = "<!-- Written by scripts/generate_docs.py; edit the definitions, not this page. -->"


def main() -> int:
    formats = ROOT / "docs/reference/map-format.md"
    pages = {
        ROOT / "docs/reference/options.md": options_page(),
        ROOT / "docs/reference/cli.md": cli_page(),
        ROOT / "README.md": with_generated_parts(
            (ROOT / "README.md").read_text(encoding="utf-8"), {"code-map": code_map(), "support": support_summary()}
        ),
        ROOT / "docs/reference/support.md": support_page(),
        ROOT / "docs/reference/checks.md": checks_page(),
        formats: with_generated_parts(formats.read_text(encoding="utf-8"), {"map-formats": map_formats()}),
    }
    stale = [path for path, text in pages.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if "--check" not in sys.argv[1:]:
        for path in stale:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text := pages[path], encoding="utf-8")
            print(f"{path.relative_to(ROOT)}: {len(text.splitlines())} lines written")
        return 0
    for path in stale:
        print(f"{path.relative_to(ROOT)} is out of date: run python scripts/generate_docs.py", file=sys.stderr)
    return 1 if stale else 0


def options_page() -> str:
    """Every option of every command, one table per record."""
    used_by: dict[type[Options], list[str]] = {}
    for name, command in walk(hothead, "hothead"):
        for parameter in command.params:
            if (
                isinstance(parameter, ConfigOption)
                and parameter.record is not None
                and name not in used_by.setdefault(parameter.record, [])
            ):
                used_by[parameter.record].append(name)
    lines = [_GENERATED, "# Options", "", "A key of a `--config` file is the option's name; a flag wins over the file.", ""]
    for record, names in used_by.items():
        lines += [f"## {record.heading}: `{record.__name__}`", "", f"Used by {', '.join(f'`{name}`' for name in names)}.", ""]
        lines += [
            "| name | flags | value | default | what it does |",
            "|---|---|---|---|---|",
            *(option_row(item) for item in options_of(record)),
            "",
        ]
    return "\n".join(lines)


def option_row(item: Option) -> str:
    flags = ", ".join(f"`{flag}`" for flag in item.flags)
    value = type_text(item) + (f", {item.range_text}" if item.range_text and not item.choices else "")
    default = "" if item.default in (None, ()) else f"`{str(item.default).lower() if item.kind is bool else item.default}`"
    text = item.help.replace("|", "\\|")
    return f"| `{item.name}` | {flags} | {value} | {default} | {text} |"


def cli_page() -> str:
    """The help page of every command."""
    lines = [_GENERATED, "# Commands", ""]
    for name, command in walk(hothead, "hothead"):
        context = click.Context(command, info_name=name, terminal_width=WIDTH, max_content_width=WIDTH, help_option_names=["-h", "--help"])
        lines += [f"## {name}", "", "```text", command.get_help(context), "```", ""]
    return "\n".join(lines)


def walk(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """A command and all below it, each with its full name."""
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for child in command.list_commands(context):
            below = command.get_command(context, child)
            assert below is not None, child
            yield from walk(below, f"{name} {child}")


def code_map() -> str:
    """One row per folder of the package: what its docstring says it is, and how many files answer its questions."""
    package = ROOT / "src/hothead"
    lines = ["| where | what it is | files |", "|---|---|---|"]
    for module in ("errors", "records"):
        lines.append(f"| `{module}.py` | {summary(package / f'{module}.py')} | 1 |")
    for folder in FOLDERS:
        if (package / folder).is_dir():
            num_files = sum(path.name != "__init__.py" for path in (package / folder).rglob("*.py"))
            lines.append(f"| `{folder}/` | {summary(package / folder / '__init__.py')} | {num_files} |")
    return "\n".join(lines)


def map_formats() -> str:
    """One row per format of `map convert`."""
    lines = ["| `--to` | what it is | keeps besides the ids |", "|---|---|---|"]
    for one in FORMATS.values():
        lines.append(f"| `{one.name}` | {one.title} | {', '.join(what for what in KEPT if what in one.keeps)} |")
    return "\n".join(lines)


def support() -> tuple[dict[str, list[str]], dict[str, dict[str, list[int]]]]:
    """Columns by group, and runs passed and made by kind of draft and column."""
    found = json.loads((ROOT / "docs/reference/support.json").read_text(encoding="utf-8"))
    return found["columns"], found["cells"]


def support_cell(counts: list[int] | None) -> str:
    if not counts or not counts[1]:
        return "not run"
    return "yes" if counts[0] == counts[1] else f"**no** ({counts[1] - counts[0]} of {counts[1]} runs failed)"


def support_summary() -> str:
    """One row per group of columns, one column per kind of draft: yes where every cell is, else what is not, by name."""
    columns, cells = support()
    lines = [f"| | | {' | '.join(cells)} |", "|---|---|" + "---|" * len(cells)]
    for title, names in columns.items():
        row = []
        for counts in cells.values():
            bad = [f"{name}: {found}" for name in names if (found := support_cell(counts.get(name))) != "yes"]
            row.append("; ".join(bad) or "yes")
        lines.append(f"| {title} | {', '.join(names)} | {' | '.join(row)} |")
    return "\n".join(lines)


def support_page() -> str:
    """A table per group of columns, with the numbers of runs."""
    columns, cells = support()
    lines = [
        _GENERATED,
        "# What works with what",
        "",
        "Each cell is what happened when the matrix of tests (`tests/matrix`) ran through the whole engine: *yes* where every run passed, "
        "with their number. Greedy and coupled text must be the text of plain decoding on one rank, token for token; rejection's text must "
        "be the same on any number of ranks (its law has tests of its own). All drafts with a head use a token map. Ties, paddings and "
        "ranks are run with float32 heads (three and four ranks with tied, padded ones and with untied, unpadded ones), and every stored "
        "form on one and two ranks.",
        "",
    ]
    for title, names in columns.items():
        lines += [f"## {title.capitalize()}", "", f"| draft | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
        for kind, counts in cells.items():
            row = [f"{support_cell(found)} ({found[1]})" if (found := counts.get(name)) else "not run" for name in names]
            lines.append(f"| {kind} | {' | '.join(row)} |")
        lines.append("")
    return "\n".join(lines)


def checks_page() -> str:
    """Every check of `hothead check`, by engine, with its story and sources."""
    lines = [_GENERATED, "# Checks of `hothead check`", ""]
    for engine in dict.fromkeys(check.engine for check in FOREIGN_CHECKS):
        lines += [f"## {engine}", ""]
        for check in FOREIGN_CHECKS:
            if check.engine == engine:
                lines += [f"### {check.check_id}", "", f"**{check.title}.** {check.story}", ""]
                if check.sources:
                    lines += [f"Sources: {'; '.join(check.sources)}.", ""]
    return "\n".join(lines)


def summary(path: Path) -> str:
    """First line of a module's docstring, without the full stop."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.splitlines()[0].removesuffix(".") if docstring else "(no docstring)"


def with_generated_parts(text: str, parts: dict[str, str]) -> str:
    """The text with what stands between `<!-- generated: NAME -->` and `<!-- end -->` replaced."""
    for name, content in parts.items():
        start, end = f"<!-- generated: {name} -->\n", "<!-- end -->"
        before, found_start, rest = text.partition(start)
        _, found_end, after = rest.partition(end)
        assert found_start, f"{start!r} is missing"
        assert found_end, f"{end!r} is missing after {start!r}"
        text = f"{before}{start}{content}\n{end}{after}"
    return text


if __name__ == "__main__":
    sys.exit(main())
