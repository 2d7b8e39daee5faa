"""The `hothead` command: its subcommands, and what becomes of an error."""

from __future__ import annotations

import os
import sys
import traceback

import click

from hothead import __version__
from hothead.cli import notes
from hothead.cli.lazy import LazyGroup
from hothead.errors import HotheadError

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141  # as a shell reports a program that SIGPIPE ended

COMMANDS = {
    "generate": ("hothead.cli.generate:generate", "Generate text for one or more prompts."),
    "map": ("hothead.cli.map:map_group", "Make, look at, convert and measure token maps."),
    "check": ("hothead.cli.check:check", "Judge another engine's launch before it is paid for."),
    "models": ("hothead.cli.models:models", "List, fetch and describe models."),
    "train": ("hothead.cli.train:train_group", "Train draft heads."),
}


@click.group(
    cls=LazyGroup,
    lazy_commands=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 fine, 1 the answer is no, 2 bad usage or input, 130 interrupted.",
)
@click.version_option(__version__, prog_name="hothead", message="%(prog)s %(version)s")
def hothead() -> None:
    """Speculative decoding with a hot vocabulary: the same text, drafted with a smaller head."""


def run(arguments: list[str]) -> int:
    """Run one command line; the exit code. Every error becomes a message on stderr, with a traceback only for --debug."""
    state = {"debug": False}
    try:
        # Not `hothead.main`: it takes closed pipes and interrupts into its own hands.
        with notes.warnings_as_notes(), hothead.make_context("hothead", arguments, obj=state) as context:
            hothead.invoke(context)
        sys.stdout.flush()
        return 0
    except click.exceptions.Exit as end:
        return _flushed(end.exit_code)
    except (KeyboardInterrupt, click.exceptions.Abort):
        return _interrupted()
    except click.ClickException as error:
        error.show()
        return EXIT_BAD_INPUT
    except BrokenPipeError:
        return _broken_pipe()
    except HotheadError as error:
        _report(f"{type(error).__name__}: {error}", state["debug"])
        return error.exit_code
    except (OSError, MemoryError) as error:
        _report(f"{type(error).__name__}: {error}", state["debug"])
        return EXIT_BAD_INPUT
    except Exception as error:
        _report(
            f"Internal error: {type(error).__name__}: {error}\n  Run it again with --debug to see where, and please report it.",
            state["debug"],
        )
        return EXIT_BAD_INPUT


def _flushed(code: int) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _broken_pipe()
    return code


def _report(message: str, is_debug: bool) -> None:
    if is_debug:
        traceback.print_exc()
    print(message, file=sys.stderr)


def _interrupted() -> int:
    # The terminal shows ^C without a line end.
    print("\nInterrupted." if sys.stderr.isatty() else "Interrupted.", file=sys.stderr)
    return EXIT_INTERRUPTED


def _broken_pipe() -> int:
    # The reader is gone. Python flushes stdout once more when it exits and would complain, so stdout is pointed elsewhere.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_BROKEN_PIPE
