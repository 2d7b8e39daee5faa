"""How often each token id occurs in a corpus, and the file that keeps it.

The file is safetensors with `counts` [V] int64 and the metadata keys format, format_version, vocab_size, tokenizer_fingerprint,
counts_sha256 and provenance (a JSON object of text).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load

from hothead.errors import DataError
from hothead.files.safetensors_bytes import encode_safetensors
from hothead.files.whole import write_whole
from hothead.vocab.formats.stored import ids_fingerprint

MAX_FILE_BYTES = 64 * 2**20
FORMAT = "hothead-token-counts"
FORMAT_VERSION = 1
_BUFFER_TOKENS = 1 << 18


class TokenCounts:
    """counts: [V] int64 for token ids 0..vocab_size-1. tokenizer_fingerprint: "" if unknown. provenance: free text by key.

    Two of the same tokenizer add up with `+`.
    """

    def __init__(
        self,
        vocab_size: int,
        counts: npt.NDArray[np.int64] | None = None,
        tokenizer_fingerprint: str = "",
        provenance: Mapping[str, str] | None = None,
    ) -> None:
        self.counts = np.zeros(vocab_size, np.int64) if counts is None else np.array(counts, np.int64)
        if self.counts.shape != (vocab_size,):
            raise DataError(f"counts of the shape {list(self.counts.shape)} do not fit a vocabulary of {vocab_size} token ids.")
        self.tokenizer_fingerprint = tokenizer_fingerprint
        self.provenance = dict(provenance or {})

    @property
    def vocab_size(self) -> int:
        return len(self.counts)

    @property
    def num_tokens(self) -> int:
        """How many tokens were counted."""
        return int(self.counts.sum())

    @property
    def num_distinct(self) -> int:
        """How many token ids occurred at all."""
        return int(np.count_nonzero(self.counts))

    def update(self, sequences: Iterable[Sequence[int] | npt.NDArray[np.integer]]) -> TokenCounts:
        """Count every token of every sequence; memory does not grow with the corpus. Returns itself.

        Raises DataError for an id outside the vocabulary, which means that the sequences come from another tokenizer.
        """
        buffer: list[npt.NDArray[np.int64]] = []
        num_buffered = 0
        for sequence in sequences:
            buffer.append(np.asarray(sequence, np.int64))
            num_buffered += len(buffer[-1])
            if num_buffered >= _BUFFER_TOKENS:
                self._count(np.concatenate(buffer))
                buffer, num_buffered = [], 0
        if num_buffered:
            self._count(np.concatenate(buffer))
        return self

    def weighted(self, weight: float) -> TokenCounts:
        """Every count times a weight, to the nearest integer. Raises DataError for a weight that is not above 0."""
        if not 0 < weight < 1e6:
            raise DataError(f"counts cannot be weighted by {weight:g}.", advice="Give weights above 0 and below a million.")
        return TokenCounts(self.vocab_size, np.rint(self.counts * weight).astype(np.int64), self.tokenizer_fingerprint, self.provenance)

    def __add__(self, other: TokenCounts) -> TokenCounts:
        """The sum; what only one of the two knows about itself is kept. Raises DataError for counts of different tokenizers."""
        fingerprints = {self.tokenizer_fingerprint, other.tokenizer_fingerprint} - {""}
        if self.vocab_size != other.vocab_size or len(fingerprints) > 1:
            raise DataError(
                "counts of two tokenizers cannot be added.",
                f"One has {self.vocab_size} token ids (tokenizer {self.tokenizer_fingerprint[:12] or 'unknown'}), "
                f"the other {other.vocab_size} (tokenizer {other.tokenizer_fingerprint[:12] or 'unknown'}).",
                advice="Count both with one tokenizer.",
            )
        provenance = {key: value for key, value in self.provenance.items() if other.provenance.get(key, value) == value}
        provenance |= {key: value for key, value in other.provenance.items() if key not in self.provenance}
        return TokenCounts(self.vocab_size, self.counts + other.counts, next(iter(fingerprints), ""), provenance)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenCounts) and np.array_equal(self.counts, other.counts)

    __hash__ = None  # type: ignore[assignment]

    def save(self, path: str | Path) -> None:
        """Write a file that appears whole or not at all. Raises OutputError."""
        metadata = {
            "format": FORMAT,
            "format_version": str(FORMAT_VERSION),
            "vocab_size": str(self.vocab_size),
            "tokenizer_fingerprint": self.tokenizer_fingerprint,
            "counts_sha256": ids_fingerprint(self.counts),
            "provenance": json.dumps(self.provenance, sort_keys=True, ensure_ascii=False),
        }
        write_whole(Path(path), encode_safetensors({"counts": self.counts}, metadata))

    @classmethod
    def load(cls, path: str | Path) -> TokenCounts:
        """Raises DataError for a file that is missing, too large, damaged or something else."""
        path = Path(path)
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                raise DataError(f"'{path}' is no counts file: it has {path.stat().st_size} bytes, and at most {MAX_FILE_BYTES} are read.")
            return cls._decode(path.read_bytes())
        except OSError as error:
            raise DataError(f"the counts file '{path}' cannot be read: {error.strerror or error}.") from error
        except DataError as error:
            raise DataError(f"'{path.name}': {error.what}", *error.details, advice=error.advice) from error
        except Exception as error:
            # The bytes may be anything: whatever a parser trips over is a damaged file, and only that.
            raise DataError(
                f"'{path.name}' is no counts file, or it is damaged ({type(error).__name__}: {error!s:.100}).",
                advice="Write one with hothead map build --counts-output FILE.",
            ) from error

    @classmethod
    def _decode(cls, data: bytes) -> TokenCounts:
        tensors = load(data)
        metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__") or {}
        counts = tensors.get("counts")
        if metadata.get("format") != FORMAT or counts is None or counts.dtype != np.int64 or counts.ndim != 1:
            raise DataError(
                f"it holds no token counts (tensors: {', '.join(sorted(tensors)[:5])!s:.200}).",
                advice="Write counts with hothead map build --counts-output FILE.",
            )
        if not 1 <= int(metadata["format_version"]) <= FORMAT_VERSION:
            raise DataError(f"its format version is {metadata['format_version']}; this hothead reads 1 to {FORMAT_VERSION}.")
        if metadata.get("counts_sha256") != ids_fingerprint(counts) or (counts < 0).any():
            raise DataError("its counts are not the ones it was written with: their sha256 differs.", advice="Count again.")
        provenance = json.loads(metadata.get("provenance", "{}"))
        about = {str(key): str(value) for key, value in provenance.items()}
        return cls(len(counts), counts, str(metadata.get("tokenizer_fingerprint", "")), about)

    def _count(self, token_ids: npt.NDArray[np.int64]) -> None:
        lowest, highest = int(token_ids.min()), int(token_ids.max())
        if lowest < 0 or highest >= self.vocab_size:
            raise DataError(
                f"token id {lowest if lowest < 0 else highest} is outside the vocabulary of {self.vocab_size} token ids.",
                advice="Count with the tokenizer of the model that the map is for.",
            )
        self.counts += np.bincount(token_ids, minlength=self.vocab_size)
