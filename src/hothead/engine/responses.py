"""The target's own text: its responses to prompts, and prompts that it writes itself.

Responses go to disk as they come, so that an interrupted run asks only for the rest. Token maps are counted on them and draft heads are
trained on them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

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


def write_prompts(engine: Engine, num_prompts: int, seed: int, max_tokens: int = 128) -> Iterator[str]:
    """Prompts as the target imagines them: sampled from where its chat template opens a user's turn. Raises TokenizerError without one.

    max_tokens: longest prompt; longer ones are cut there. The method is Magpie's (arXiv 2406.08464).
    """
    prefix = engine.tokenizer.encode(user_prefix(engine.tokenizer), add_special_tokens=False)
    num_written = num_asked = 0
    while num_written < num_prompts:
        wanted = num_prompts - num_written
        request_ids = {
            engine.add(prefix, SamplingParams(max_tokens=max_tokens, temperature=1.0, seed=seed + num_asked + place))
            for place in range(wanted)
        }
        num_asked += wanted
        while request_ids:
            for output in engine.step():
                if output.finish_reason is not None:
                    request_ids.remove(output.request_id)
                    text = engine.take(output.request_id).text.strip()
                    if len(text) >= _MIN_PROMPT_CHARACTERS:
                        num_written += 1
                        yield text
        if num_asked > 20 * num_prompts + 100:
            raise TokenizerError(
                f"{engine.tokenizer.source} does not write prompts: {num_written} of {num_asked} samples of a user's turn had text.",
                advice="Give prompts: --prompts FILE.",
            )


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
