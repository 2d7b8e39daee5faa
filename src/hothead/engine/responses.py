"""The target's own text: its responses to prompts, and prompts that it writes itself.

Responses go to disk as they come, so that an interrupted run asks only for the rest. Token maps are counted on them and draft heads are
trained on them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hothead.config.engine import NONE, EngineConfig
from hothead.config.option import replace
from hothead.config.sampling import SamplingParams
from hothead.engine.engine import Engine
from hothead.errors import DataError, OutputError, TokenizerError
from hothead.models.tokenizer import Tokenizer

WriteResponses = Callable[[Sequence[str]], Iterable[tuple[int, Sequence[int], Sequence[int]]]]
"""Prompts -> (index of the prompt, its token ids, the response's token ids) for each, in any order, as they are finished."""

CONCURRENCY = 64
"""Requests at once. With so many, plain decoding gives the most tokens per second on a CPU."""
_MARK = "\x02prompt\x03"
_MIN_PROMPT_CHARACTERS = 3
_MAX_ROUNDS = 20


def plain_config(config: EngineConfig) -> EngineConfig:
    """The same target for much text at once: no draft, many requests."""
    return replace(config, speculative_draft_model_path=NONE, max_concurrency=max(config.max_concurrency, CONCURRENCY))


def respond(
    engine: Engine, prompts: Sequence[str], sampling: SamplingParams, max_prompt_tokens: int | None = None
) -> Iterator[tuple[int, Sequence[int], Sequence[int]]]:
    """(index of the prompt, its token ids, the response's) as responses are finished. Longer prompts than max_prompt_tokens are left out.

    Prompt i is sampled with the seed of `sampling` plus i, so it gets the same response in any batch.
    """
    limit = min(max_prompt_tokens or engine.max_request_tokens, engine.max_request_tokens - 1)
    waiting: dict[str, tuple[int, list[int]]] = {}
    for index, prompt in enumerate(prompts):
        token_ids = prompt_token_ids(engine.tokenizer, prompt)
        if len(token_ids) <= limit:
            own = sampling if sampling.seed is None else replace(sampling, seed=sampling.seed + index)
            waiting[engine.add(token_ids, own)] = (index, token_ids)
    while waiting:
        for output in engine.step():
            if output.finish_reason is not None:
                yield *waiting.pop(output.request_id), engine.take(output.request_id).token_ids


def prompt_token_ids(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """A user's turn in the chat template, or the text as it stands where there is none."""
    return tokenizer.apply_chat_template([{"role": "user", "content": prompt}]) if tokenizer.has_chat_template else tokenizer.encode(prompt)


def sample_prompts(engine: Engine, samples: Sequence[int], seed: int, max_tokens: int = 128) -> Iterator[tuple[int, str]]:
    """(number of the sample, text of a user's turn as the target imagines it), in any order, as they are finished; "" is possible.

    Sampled from where the chat template opens a user's turn, sample i with the seed plus i; longer ones than max_tokens are cut there. The
    method is Magpie's (arXiv 2406.08464). Raises TokenizerError without such a place.
    """
    prefix = engine.tokenizer.encode(user_prefix(engine.tokenizer), add_special_tokens=False)
    waiting = {}
    for sample in samples:
        waiting[engine.add(prefix, SamplingParams(max_tokens=max_tokens, temperature=1.0, seed=seed + sample))] = sample
    while waiting:
        for output in engine.step():
            if output.finish_reason is not None:
                yield waiting.pop(output.request_id), engine.take(output.request_id).text.strip()


def user_prefix(tokenizer: Tokenizer) -> str:
    """What the chat template writes before a user's text. Raises TokenizerError where that cannot be told."""
    before, mark, _ = tokenizer.render_chat([{"role": "user", "content": _MARK}]).partition(_MARK)
    if not mark or not before:
        raise TokenizerError(
            f"the chat template of {tokenizer.source} has no place where a user's turn begins.", advice="Give prompts: --prompts FILE."
        )
    return before


def collect_responses(
    prompts: Sequence[str], path: Path, write_responses: WriteResponses, progress: Callable[[int, int], None] | None = None
) -> None:
    """Complete the JSONL file of responses (`prompt_index`, `prompt_token_ids`, `response_token_ids` on each line).

    progress(done, in all) after each response. Raises DataError, OutputError.
    """
    answered = {int(row["prompt_index"]) for row in _rows(path, "prompt_index")}
    if answered and max(answered) >= len(prompts):
        raise DataError(
            f"'{path}' holds a response to prompt {max(answered)}, but only {len(prompts)} prompts are given.",
            advice="Use the same prompts as before, or give another --output.",
        )
    missing = [index for index in range(len(prompts)) if index not in answered]

    def rows() -> Iterator[dict[str, Any]]:
        for place, prompt_token_ids, response_token_ids in write_responses([prompts[index] for index in missing]):
            yield {
                "prompt_index": missing[place],
                "prompt_token_ids": list(prompt_token_ids),
                "response_token_ids": list(response_token_ids),
            }

    if missing:
        for num_done, _ in enumerate(_appended(path, rows()), start=len(answered) + 1):
            if progress is not None:
                progress(num_done, len(prompts))


def collect_prompts(
    num_prompts: int,
    path: Path,
    sample: Callable[[Sequence[int]], Iterable[tuple[int, str]]],
    progress: Callable[[int, int], None] | None = None,
) -> list[str]:
    """Complete the JSONL file of sampled prompts (`sample`, `prompt` on each line) -> the first num_prompts that have text, by sample.

    sample(numbers) -> (number, text) for each. Raises DataError where the target writes none, OutputError.
    """
    found = {int(row["sample"]): str(row["prompt"]) for row in _rows(path, "sample")}
    num_asked = 0
    for _ in range(_MAX_ROUNDS):
        num_asked += num_prompts - sum(number < num_asked and _is_prompt(text) for number, text in found.items())
        missing = [number for number in range(num_asked) if number not in found]
        new = ({"sample": number, "prompt": text} for number, text in sample(missing)) if missing else iter(())
        for row in _appended(path, new):
            found[row["sample"]] = row["prompt"]
            if progress is not None:
                progress(min(num_prompts, sum(map(_is_prompt, found.values()))), num_prompts)
        texts = [found[number] for number in range(num_asked) if _is_prompt(found[number])]
        if len(texts) >= num_prompts:
            return texts[:num_prompts]
    raise DataError(
        f"the model does not write prompts: {len(texts)} of {num_asked} samples of a user's turn had text.", advice="Give --prompts FILE."
    )


def _is_prompt(text: str) -> bool:
    return len(text) >= _MIN_PROMPT_CHARACTERS


def _appended(path: Path, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows, each after it was written down. Raises OutputError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row) + "\n")
                file.flush()
                yield row
    except OSError as error:
        raise OutputError(
            f"'{path}' cannot be written: {error.strerror or error}.", advice="Free disk space or give another --output."
        ) from error


def _rows(path: Path, key: str) -> list[dict[str, Any]]:
    """What such a file holds. A last line that was cut off by a kill is removed. Raises DataError for a file without the key."""
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    try:
        rows = [json.loads(line) for line in whole.splitlines()]
        for row in rows:
            int(row[key])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"'{path}' does not hold what this command wrote ({error}).", advice="Remove it, or give another --output."
        ) from error
    return rows
