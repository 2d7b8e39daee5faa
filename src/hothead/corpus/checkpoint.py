"""What a counting run has so far, in a file: counts by domain and the place in the corpus up to which they go."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import load, save

from hothead.corpus.worker import DomainCounts
from hothead.errors import DataError
from hothead.files.whole import write_whole


@dataclass(frozen=True)
class Place:
    """The next block to read: which file, its position there (bytes or records), its first line."""

    file_index: int = 0
    position: int = 0
    line: int = 1


@dataclass
class Progress:
    """Counts of everything before `place`. fingerprint: of the bytes that were read; num_bytes: how many."""

    domains: dict[str, DomainCounts]
    place: Place
    fingerprint: str
    num_bytes: int


def write_checkpoint(progress: Progress, path: Path, job: str) -> None:
    """job: fingerprint of what is being counted and how. Raises OutputError."""
    names = list(progress.domains)
    about = {
        "job": job,
        "place": asdict(progress.place),
        "fingerprint": progress.fingerprint,
        "num_bytes": progress.num_bytes,
        "domains": names,
        "num_documents": [progress.domains[name].num_documents for name in names],
    }
    tensors = {str(index): progress.domains[name].counts for index, name in enumerate(names)}
    write_whole(path, save(tensors or {"none": np.zeros(1, np.int64)}, {"hothead": json.dumps(about)}))


def read_checkpoint(path: Path, job: str) -> Progress | None:
    """None if there is none. Raises DataError for a file of another run."""
    if not path.exists():
        return None
    try:
        data = path.read_bytes()
        tensors = load(data)
        about = json.loads(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]["hothead"])
        domains = {
            name: DomainCounts(tensors[str(index)], number)
            for index, (name, number) in enumerate(zip(about["domains"], about["num_documents"], strict=True))
        }
        progress = Progress(domains, Place(**about["place"]), about["fingerprint"], about["num_bytes"])
    except Exception as error:  # the bytes may be anything
        raise DataError(f"'{path}' is not the checkpoint of a counting run.", advice="Remove it, or give another output file.") from error
    if about["job"] != job:
        raise DataError(
            f"'{path}' is the checkpoint of another run: its files, tokenizer or options differ from these.",
            advice="Remove it to start anew, or give another output file.",
        )
    return progress
