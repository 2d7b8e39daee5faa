"""What SGLang itself makes of launch lines: run by an interpreter that has it, with `stubs` on PYTHONPATH and nothing of this package.

Standard input: JSON, {"folder": working directory, "lines": [[argument, ...], ...]}. Standard output, last line: JSON with the version, the
names of its options, and for each line {"parsed": bool, "resolved": {...} or null, "error": text}.
"""

import contextlib
import io
import json
import logging
import os
import sys

FIELDS = (
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "speculative_token_map",
    "speculative_use_rejection_sampling",
    "enable_multi_layer_eagle",
    "tp_size",
    "dp_size",
    "attn_dp_size",
    "enable_dp_lm_head",
    "max_running_requests",
    "context_length",
)


def ask(argv):
    from sglang.srt.server_args import prepare_server_args

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            server_args = prepare_server_args(list(argv))
    except (SystemExit, Exception) as error:
        return {"parsed": False, "resolved": None, "error": (said.getvalue().strip().splitlines() or [repr(error)])[-1][-300:]}
    try:
        server_args.resolve_once()
        resolved = server_args.resolved_dict()
    except (SystemExit, Exception) as error:
        return {"parsed": True, "resolved": None, "error": f"{type(error).__name__}: {error}"[:300]}
    return {"parsed": True, "resolved": {name: resolved[name] for name in FIELDS}, "error": ""}


def main():
    asked = json.load(sys.stdin)
    os.chdir(asked["folder"])
    logging.disable(logging.CRITICAL)
    import argparse

    import sglang
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(prog="sglang serve")
    ServerArgs.add_cli_args(parser)
    names = sorted(name for action in parser._actions for name in action.option_strings)
    answers = [ask(line) for line in asked["lines"]]
    sys.stdout.flush()
    print()
    print(json.dumps({"version": sglang.__version__, "names": names, "answers": answers}))


if __name__ == "__main__":
    main()
