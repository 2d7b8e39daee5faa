"""Reading, splitting, and packing of responses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hothead.errors import DataError
from hothead.train.dataset import Document, epoch_batches, fingerprint, pack, read_documents, read_prompts, split_held_out

from .tiny import make_documents


def write_lines(path: Path, entries: list[object], end: str = "\n") -> Path:
    path.write_text("\n".join(json.dumps(entry) for entry in entries) + end)
    return path


def entry(prompt: object, response: object) -> dict[str, object]:
    return {"prompt_token_ids": prompt, "response_token_ids": response}


def test_reads_cuts_and_leaves_out(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path / "r.jsonl", [entry([1, 2], [3, 4, 5]), entry([1], [2]), entry([1] * 9, [2, 2]), entry([1], list(range(10)))]
    )
    assert read_documents(path, 50, 5) == [Document((1, 2), (3, 4, 5)), Document((1,), (0, 1, 2, 3))]


def test_a_line_that_is_still_being_written_is_left_out(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "r.jsonl", [entry([1], [2, 3]), entry([1], [4, 5])], end="")
    assert read_documents(path, 50, 10) == [Document((1,), (2, 3))]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"prompt_token_ids": [1]}', "line 2: not a response"),
        ("[1, 2]", "line 2: not a response"),
        ("{", "line 2: not a response"),
        ('{"prompt_token_ids": [1], "response_token_ids": [1.5, 2]}', "line 2: token ids are not"),
        ('{"prompt_token_ids": [1], "response_token_ids": [true, 2]}', "line 2: token ids are not"),
        ('{"prompt_token_ids": [1], "response_token_ids": [3, 50]}', "outside the vocabulary of 50 .first: 50"),
        ('{"prompt_token_ids": [-1], "response_token_ids": [3, 4]}', "outside the vocabulary"),
        ('{"prompt_token_ids": [], "response_token_ids": [3, 4]}', "line 2: the prompt is empty"),
    ],
)
def test_malformed_lines_are_named(tmp_path: Path, line: str, what: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(entry([1], [2, 3])) + "\n" + line + "\n")
    with pytest.raises(DataError, match=what):
        read_documents(path, 50, 10)


def test_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_documents(tmp_path / "none.jsonl", 50, 10)
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(DataError, match="no response"):
        read_documents(tmp_path / "empty.jsonl", 50, 10)
    with pytest.raises(DataError, match="no prompts"):
        read_prompts(tmp_path / "empty.jsonl")


def test_prompts(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "p.jsonl", [{"prompt": "a", "source": "x"}, {"prompt": "b"}])
    assert read_prompts(path) == ["a", "b"]
    with pytest.raises(DataError, match="line 1"):
        read_prompts(write_lines(tmp_path / "q.jsonl", [{"text": "a"}]))
    with pytest.raises(DataError, match="line 1"):
        read_prompts(write_lines(tmp_path / "q.jsonl", [{"prompt": ""}]))


def test_held_out_prompts_are_on_one_side_whatever_the_order() -> None:
    documents = make_documents(30)
    documents.append(Document(documents[3].prompt_token_ids, (1, 2, 3)))
    training, held_out = split_held_out(documents, 6)
    assert sorted(training + held_out) == list(range(31))
    assert len(held_out) >= 6
    assert not {documents[one].prompt_token_ids for one in training} & {documents[one].prompt_token_ids for one in held_out}
    turned = documents[::-1]
    assert {turned[one] for one in split_held_out(turned, 6)[1]} == {documents[one] for one in held_out}
    with pytest.raises(DataError, match="too few"):
        split_held_out(documents, 31)


def test_an_epoch_holds_every_document_once_and_depends_on_the_seed_only() -> None:
    documents = make_documents(40)
    batches = epoch_batches(documents, 64, 3, seed=1, epoch=2)
    assert sorted(index for batch in batches for index in batch) == list(range(40))
    assert all(sum(documents[index].num_response_rows for index in batch) + 3 <= 64 for batch in batches)
    assert batches == epoch_batches(documents, 64, 3, seed=1, epoch=2)
    assert batches != epoch_batches(documents, 64, 3, seed=1, epoch=3)
    assert batches != epoch_batches(documents, 64, 3, seed=2, epoch=2)


def test_packing_lays_every_pair_of_token_and_feature_once() -> None:
    documents = make_documents(6)
    chosen = [4, 1, 5]
    batch = pack(documents, chosen, 64, 3, multiple=16)
    assert len(batch.positions) % 16 == 0
    for place, index in enumerate(chosen):
        token_ids = documents[index].token_ids
        num_context = documents[index].num_context_rows
        start, length = batch.response_starts[place], batch.response_lengths[place]
        context = slice(batch.context_starts[place], batch.context_starts[place] + num_context)
        rows = np.concatenate([np.arange(context.start, context.stop), np.arange(start, start + length)])
        assert batch.next_token_ids[rows].tolist() == list(token_ids[1:])
        assert batch.positions[rows].tolist() == list(range(len(token_ids) - 1))
        assert batch.num_after[start : start + length].tolist() == list(range(length - 1, -1, -1))
    num_used = sum(batch.response_lengths)
    assert (batch.num_after[num_used:] == -1).all()
    assert len(batch.num_after) == 64


def test_fingerprint_sees_tokens_order_and_where_the_prompt_ends() -> None:
    one, other = Document((1, 2), (3, 4)), Document((1,), (2, 3, 4))
    assert len({fingerprint([one]), fingerprint([other]), fingerprint([one, other]), fingerprint([other, one])}) == 4
