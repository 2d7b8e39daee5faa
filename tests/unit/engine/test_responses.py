"""Responses of the target are kept as they come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from hothead.engine.responses import collect_prompts, collect_responses
from hothead.errors import DataError
from hothead.train.dataset import read_documents


def answers(prompts: Sequence[str]) -> Iterator[tuple[int, Sequence[int], Sequence[int]]]:
    for index in reversed(range(len(prompts))):
        yield index, [ord(prompts[index])], [ord(prompts[index]), 1, 2]


def test_interrupted_answers_are_completed(tmp_path: Path) -> None:
    path = tmp_path / "out" / "responses.jsonl"
    prompts = ["a", "b", "c", "d"]

    def two_only(some: Sequence[str]) -> Iterator[tuple[int, Sequence[int], Sequence[int]]]:
        yield from list(answers(some))[:2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect_responses(prompts, path, two_only)
    with path.open("a") as file:
        file.write('{"prompt_index": 0, "prompt_to')  # killed while writing
    asked: list[str] = []
    done: list[tuple[int, int]] = []

    def recorded(some: Sequence[str]) -> Iterator[tuple[int, Sequence[int], Sequence[int]]]:
        asked.extend(some)
        return answers(some)

    collect_responses(prompts, path, recorded, lambda *counts: done.append(counts))
    assert asked == ["a", "b"]
    assert done == [(3, 4), (4, 4)]
    assert {document.prompt_token_ids for document in read_documents(path, 200, 10)} == {(ord(prompt),) for prompt in prompts}


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "responses.jsonl"
    path.write_text('{"text": 1}\n')
    with pytest.raises(DataError, match="does not hold what"):
        collect_responses(["a"], path, answers)
    path.write_text('{"prompt_index": 7}\n')
    with pytest.raises(DataError, match="only 1 prompts"):
        collect_responses(["a"], path, answers)


def test_prompts_without_text_are_sampled_anew(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    asked: list[int] = []

    def sample(numbers: Sequence[int]) -> Iterator[tuple[int, str]]:
        for number in reversed(numbers):
            asked.append(number)
            yield number, "" if number % 3 == 0 else f"prompt {number}"

    def killed(numbers: Sequence[int]) -> Iterator[tuple[int, str]]:
        yield from list(sample(numbers))[:2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect_prompts(4, path, killed)
    done: list[tuple[int, int]] = []
    expected = ["prompt 1", "prompt 2", "prompt 4", "prompt 5"]
    assert collect_prompts(4, path, sample, lambda *counts: done.append(counts)) == expected
    assert done[-1] == (4, 4)
    asked.clear()
    assert collect_prompts(4, path, sample) == expected
    assert asked == []
    with pytest.raises(DataError, match="does not write prompts: 0 of 80 samples"):
        collect_prompts(4, tmp_path / "none", lambda numbers: ((number, " ") for number in numbers))
