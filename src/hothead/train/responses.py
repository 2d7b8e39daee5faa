"""The target's own responses to prompts, written to disk as they come, so that an interrupted run asks only for the rest."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from hothead.errors import DataError, OutputError

WriteResponses = Callable[[Sequence[str]], Iterable[tuple[int, Sequence[int], Sequence[int]]]]
"""Prompts -> (index of the prompt, its token ids, the response's token ids) for each, in any order, as they are finished."""


def collect_responses(
    prompts: Sequence[str], path: Path, write_responses: WriteResponses, progress: Callable[[int, int], None] | None = None
) -> None:
    """Complete the JSONL file of responses (`prompt_index`, `prompt_token_ids`, `response_token_ids` on each line).

    progress(done, in all) after each response.
    """
    answered = _answered(path, len(prompts))
    missing = [index for index in range(len(prompts)) if index not in answered]
    if not missing:
        return
    num_done = len(answered)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            for place, prompt_token_ids, response_token_ids in write_responses([prompts[index] for index in missing]):
                entry = {
                    "prompt_index": missing[place],
                    "prompt_token_ids": list(prompt_token_ids),
                    "response_token_ids": list(response_token_ids),
                }
                file.write(json.dumps(entry) + "\n")
                file.flush()
                num_done += 1
                if progress is not None:
                    progress(num_done, len(prompts))
    except OSError as error:
        raise OutputError(
            f"Responses cannot be written to '{path}': {error.strerror or error}.", advice="Free disk space or give another --output."
        ) from error


def _answered(path: Path, num_prompts: int) -> set[int]:
    """Prompt indices in the file. A last line that was cut off by a kill is removed."""
    if not path.exists():
        return set()
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    try:
        answered = {int(json.loads(line)["prompt_index"]) for line in whole.splitlines()}
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"'{path}' does not hold responses that this command wrote ({error}).", advice="Remove it, or give another --output."
        ) from error
    if answered and max(answered) >= num_prompts:
        raise DataError(
            f"'{path}' holds a response to prompt {max(answered)}, but only {num_prompts} prompts are given.",
            advice="Use the same prompts as before, or give another --output.",
        )
    return answered
