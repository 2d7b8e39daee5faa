"""Weights from a GGUF file, under their Hugging Face names and in the Hugging Face row order.

Llama-architecture files store the rows of q and k in interleaved rotary order (pairs side by side); the halves convention that is used here
wants row j * head_dim / 2 + d of a head where the file has row 2 * d + j. Rows are translated one by one, so that any cut is right.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hothead.errors import CheckpointError
from hothead.files.gguf_header import GgufHeader, read_gguf_header
from hothead.models.families import FAMILIES
from hothead.models.weights.base import Rows, check_rows, expect_scattered, read_stored
from hothead.models.weights.decode import stored_format

_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_PATTERN = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_PERMUTED = re.compile(r"\.self_attn\.(q|k)_proj\.(weight|bias)$")


class GgufWeights:
    """A WeightSource over one GGUF file."""

    passed_over: frozenset[str] = frozenset()

    def __init__(self, header: GgufHeader) -> None:
        self.source = header.path.name
        self._tensors = {hugging_face_name(name): tensor for name, tensor in header.tensors.items()}
        self._path = header.path
        self._map: np.memmap | None = None
        self._num_heads = _permuted_heads(header)

    @classmethod
    def open(cls, path: Path) -> GgufWeights:
        """Reads the header only; raises CheckpointError."""
        return cls(read_gguf_header(path))

    def names(self) -> frozenset[str]:
        return frozenset(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        self._check_name(name)
        return self._tensors[name].shape

    def stored_format(self, name: str) -> str:
        self._check_name(name)
        return self._tensors[name].format

    def read(self, name: str, rows: Rows = None, columns: slice | None = None, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        self._check_name(name)
        tensor = self._tensors[name]
        decoder = stored_format(tensor.format, f"Tensor {name} of {self.source}")
        if self._map is None:
            self._map = np.memmap(self._path, dtype=np.uint8, mode="r")
        if isinstance(rows, np.ndarray):
            expect_scattered(self._map, tensor.offset, tensor.num_bytes)
        permuted = _PERMUTED.search(name)
        if permuted and self._num_heads:
            rows = interleaved_rows(check_rows(rows, tensor.shape[0], name), tensor.shape[0], self._num_heads[permuted[1]])
        stored = self._map[tensor.offset : tensor.offset + tensor.num_bytes]
        return read_stored(stored, tensor.shape, decoder, rows, columns, dtype, name)

    def close(self) -> None:
        self._map = None

    def _check_name(self, name: str) -> None:
        if name not in self._tensors:
            raise CheckpointError(f"{self.source} has no tensor {name}.", f"It has {len(self._tensors)} tensors.")


def hugging_face_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor; a name that is not in the table stays, and shows up as left over."""
    stem, _, kind = name.rpartition(".")
    if stem in _TOP_NAMES:
        return f"{_TOP_NAMES[stem]}.{kind}"
    match = _LAYER_PATTERN.fullmatch(name)
    if match and match[2] in _LAYER_NAMES:
        return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"
    return name


def interleaved_rows(rows: Rows, num_rows: int, num_heads: int) -> NDArray[np.int64]:
    """For rows in the halves convention, the rows of the file that hold them."""
    if rows is None or isinstance(rows, slice):
        rows = np.arange(num_rows, dtype=np.int64)[slice(None) if rows is None else rows]
    head_dim = num_rows // num_heads
    heads, inside = np.divmod(rows, head_dim)
    halves, dimensions = np.divmod(inside, head_dim // 2)
    return np.asarray(heads * head_dim + 2 * dimensions + halves, dtype=np.int64)


def _permuted_heads(header: GgufHeader) -> dict[str, int]:
    """Heads of q and k where the architecture's files are interleaved, else nothing."""
    architecture = header.fields.get("general.architecture")
    if not any(architecture in family.gguf_architectures and family.is_gguf_permuted for family in FAMILIES.values()):
        return {}
    num_heads = _one_number(header.fields[f"{architecture}.attention.head_count"])
    num_kv_heads = header.fields.get(f"{architecture}.attention.head_count_kv")
    return {"q": num_heads, "k": num_heads if num_kv_heads is None else _one_number(num_kv_heads)}


def _one_number(value: int | list[int]) -> int:
    return value[0] if isinstance(value, list) else value
