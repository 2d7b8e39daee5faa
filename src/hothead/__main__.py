"""Entry point of `hothead` and `python -m hothead`: catches Ctrl-C before anything is imported that takes time."""

from __future__ import annotations

import sys

EXIT_INTERRUPTED = 130


def main() -> int:
    try:
        from hothead.cli.main import run

        return run(sys.argv[1:])
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
