"""Responses to train on: reading, the held-out split, and packing into batches of equal size.

A row is a pair of the token at i + 1 and the target's feature at i; its position is i. A response of length R after a prompt of length L
has the R *response rows* i = L-1 .. L+R-2, and before them L-1 *context rows*, which are attended to and carry no loss. In a batch the
response rows of all documents come first and lie one after the other, so that everything that a row predicts is found one row later, and
what it predicts with the features of s draft steps is found s + 1 rows later: all alignment between draft steps is slicing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hothead.errors import DataError

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Document:
    """A prompt and the target's response to it, as token ids."""

    prompt_token_ids: tuple[int, ...]
    response_token_ids: tuple[int, ...]

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.prompt_token_ids + self.response_token_ids

    @property
    def num_context_rows(self) -> int:
        return len(self.prompt_token_ids) - 1

    @property
    def num_response_rows(self) -> int:
        return len(self.response_token_ids)


@dataclass(frozen=True)
class Batch:
    """Packed documents. N response rows (padding at the end), M rows in all (response rows, then context rows), B documents.

    documents: their indices. next_token_ids: [M] int64, the token at i + 1; positions: [M] int64, i. The four tuples have one entry per
    document: how many rows of each kind it has, and where they start. num_after: [N] int64, response rows of the same document behind
    each row (-1 for padding): the loss of draft step s counts where num_after > s.
    """

    documents: tuple[int, ...]
    num_response_rows: int
    next_token_ids: IntArray
    positions: IntArray
    num_after: IntArray
    context_lengths: tuple[int, ...]
    response_lengths: tuple[int, ...]
    response_starts: tuple[int, ...]
    context_starts: tuple[int, ...]


def read_documents(path: Path, vocab_size: int, max_length: int) -> list[Document]:
    """Responses with at least two tokens, cut to max_length tokens with their prompt.

    Raises DataError with the line for anything malformed.

    A last line without a line break is left out: the file is still being written.
    """
    documents = []
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n") and line.strip():
                    document = _parse(line, f"{path}, line {number}", vocab_size)
                    response = document.response_token_ids[: max_length - len(document.prompt_token_ids)]
                    if len(document.prompt_token_ids) < max_length and len(response) >= 2:
                        documents.append(Document(document.prompt_token_ids, response))
    except OSError as error:
        raise DataError(f"Responses '{path}' cannot be read: {error.strerror or error}.", advice="Give a JSONL file.") from error
    if not documents:
        raise DataError(
            f"'{path}' has no response of two or more tokens within {max_length} tokens.",
            advice="Write responses first: hothead train eagle --prompts FILE.",
        )
    return documents


def _parse(line: bytes, where: str, vocab_size: int) -> Document:
    try:
        entry = json.loads(line)
        sides = (entry["prompt_token_ids"], entry["response_token_ids"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{where}: not a response ({error}).", advice="Each line is an object with prompt_token_ids and response_token_ids."
        ) from error
    for side in sides:
        if not isinstance(side, list) or not all(type(token_id) is int for token_id in side):
            raise DataError(f"{where}: token ids are not a list of integers.", advice="Tokenize prompts and responses first.")
        wrong = [token_id for token_id in side if not 0 <= token_id < vocab_size]
        if wrong:
            raise DataError(
                f"{where}: {len(wrong)} token ids are outside the vocabulary of {vocab_size} (first: {wrong[0]}).",
                advice="Use responses that this target wrote.",
            )
    if not sides[0]:
        raise DataError(f"{where}: the prompt is empty.", advice="Remove the line.")
    return Document(tuple(sides[0]), tuple(sides[1]))


def read_prompts(path: Path) -> list[str]:
    """The `prompt` of each line of a JSONL file. Raises DataError with the line for anything else."""
    prompts = []
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    prompt = json.loads(line)["prompt"]
                except (ValueError, KeyError, TypeError) as error:
                    raise DataError(
                        f"{path}, line {number}: not a prompt ({error}).", advice="Each line is an object with a prompt."
                    ) from error
                if not isinstance(prompt, str) or not prompt:
                    raise DataError(
                        f"{path}, line {number}: the prompt is not a text, or empty.", advice="Each line is an object with a prompt."
                    )
                prompts.append(prompt)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"Prompts '{path}' cannot be read: {error}.", advice="Give a JSONL file.") from error
    if not prompts:
        raise DataError(f"'{path}' has no prompts.", advice="Each line is an object with a prompt.")
    return prompts


def split_held_out(documents: Sequence[Document], num_held_out: int) -> tuple[list[int], list[int]]:
    """Indices of (training, held out) documents.

    Chosen by the hash of the prompt, so that a prompt never lies on both sides and the order of the file does not matter.
    """
    by_prompt: dict[bytes, list[int]] = {}
    for index, document in enumerate(documents):
        by_prompt.setdefault(hashlib.sha256(np.asarray(document.prompt_token_ids, "<i4").tobytes()).digest(), []).append(index)
    held_out: set[int] = set()
    for digest in sorted(by_prompt):
        if len(held_out) >= num_held_out:
            break
        held_out.update(by_prompt[digest])
    if len(held_out) == len(documents):
        raise DataError(
            f"{len(documents)} responses are too few to keep {num_held_out} for evaluation.",
            advice="Give more, or a smaller --num-held-out.",
        )
    return [index for index in range(len(documents)) if index not in held_out], sorted(held_out)


def fingerprint(documents: Sequence[Document]) -> str:
    """sha256 over lengths and token ids, in order."""
    digest = hashlib.sha256()
    for document in documents:
        digest.update(np.asarray([len(document.prompt_token_ids), *document.token_ids], "<i4").tobytes())
    return digest.hexdigest()


def epoch_batches(documents: Sequence[Document], batch_rows: int, margin: int, seed: int, epoch: int) -> list[tuple[int, ...]]:
    """Document indices of each batch of one epoch: the same for the same seed, similar lengths together, batches in random order.

    Response rows of a batch, and `margin` rows of padding after them, fit batch_rows, and so must every single document.
    """
    random = np.random.default_rng([seed, epoch])
    lengths = np.array([document.num_response_rows for document in documents])
    assert lengths.max() + margin <= batch_rows, (int(lengths.max()), margin, batch_rows)
    totals = np.array([len(document.token_ids) for document in documents])
    order = random.permutation(len(documents))
    batches: list[tuple[int, ...]] = []
    for start in range(0, len(order), 1024):
        window = order[start : start + 1024]
        batches.extend(_fill(window[np.argsort(totals[window], kind="stable")], lengths, batch_rows - margin))
    return [batches[index] for index in random.permutation(len(batches))]


def _fill(order: IntArray, lengths: IntArray, capacity: int) -> Iterator[tuple[int, ...]]:
    current: list[int] = []
    num_rows = 0
    for index in order.tolist():
        length = int(lengths[index])
        if num_rows + length > capacity:
            yield tuple(current)
            current, num_rows = [], 0
        current.append(index)
        num_rows += length
    if current:
        yield tuple(current)


def pack(documents: Sequence[Document], chosen: Sequence[int], batch_rows: int, margin: int, multiple: int = 512) -> Batch:
    """Lay out documents as a Batch of batch_rows response rows, of which at least `margin` at the end are padding, and context rows up to a
    multiple (few different shapes: matrix kernels are prepared once per shape)."""
    response_lengths = tuple(documents[index].num_response_rows for index in chosen)
    context_lengths = tuple(documents[index].num_context_rows for index in chosen)
    num_used = sum(response_lengths)
    assert num_used + margin <= batch_rows, (num_used, margin, batch_rows)
    num_rows = batch_rows + -(-max(sum(context_lengths), margin + 1) // multiple) * multiple
    next_token_ids, positions = np.zeros(num_rows, np.int64), np.zeros(num_rows, np.int64)
    num_after = np.full(batch_rows, -1, np.int64)
    response_starts, context_starts = [], []
    response_start, context_start = 0, batch_rows
    for place, index in enumerate(chosen):
        token_ids = np.asarray(documents[index].token_ids, np.int64)
        num_context, num_response = context_lengths[place], response_lengths[place]
        for start, first, length in ((response_start, num_context, num_response), (context_start, 0, num_context)):
            next_token_ids[start : start + length] = token_ids[first + 1 : first + 1 + length]
            positions[start : start + length] = np.arange(first, first + length)
        num_after[response_start : response_start + num_response] = np.arange(num_response - 1, -1, -1)
        response_starts.append(response_start)
        context_starts.append(context_start)
        response_start += num_response
        context_start += num_context
    return Batch(
        tuple(chosen),
        batch_rows,
        next_token_ids,
        positions,
        num_after,
        context_lengths,
        response_lengths,
        tuple(response_starts),
        tuple(context_starts),
    )
