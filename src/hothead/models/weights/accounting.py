"""Every weight is accounted for: nothing missing, nothing left over, every shape as the configuration says."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from hothead.errors import CheckpointError
from hothead.models.weights.base import WeightSource

# Buffers that older checkpoints carry and that are computed anyway.
_COMPUTED = re.compile(r"(rotary_emb\.inv_freq|rope_freqs\.weight|\.attn\.bias|\.masked_bias)$")
_NUM_LISTED = 5


def account(
    source: WeightSource, shapes: Mapping[str, tuple[int, ...]], *, has_tied_head: bool = False, unused: Collection[str] = ()
) -> None:
    """Compare a checkpoint with what the model needs. Raises CheckpointError, which lists names and numbers.

    shapes: every needed tensor. has_tied_head: a stored `lm_head.weight` is a copy of the embedding and is passed over, and so is a bias of
    zeros that the model has not (AutoGPTQ stores one for each layer). unused: names of tensors that are known and need not be read.
    """
    stored = source.names()
    missing = [name for name in shapes if name not in stored]
    ignored = {name for name in stored if _COMPUTED.search(name)} | set(unused) | ({"lm_head.weight"} if has_tied_head else set())
    left_over = sorted(name for name in stored - set(shapes) - ignored if not _is_zero_bias(source, name))
    wrong = [(name, source.shape(name), shape) for name, shape in shapes.items() if name in stored and source.shape(name) != shape]
    details = []
    if missing:
        details.append(f"Missing: {_listed(missing)} ({len(missing)} of {len(shapes)}).")
    if left_over:
        details.append(f"Left over: {_listed(left_over)} ({len(left_over)} of {len(stored)}).")
    details += [f"{name} is {list(found)} instead of {list(needed)}." for name, found, needed in wrong[:_NUM_LISTED]]
    if len(wrong) > _NUM_LISTED:
        details.append(f"And {len(wrong) - _NUM_LISTED} more shapes differ.")
    formats = [source.stored_format(name) for name in ("lm_head.weight", "model.embed_tokens.weight") if name in stored]
    if has_tied_head and len(set(formats)) > 1:
        details.append(f"One matrix by its configuration (tie_word_embeddings), but lm_head is {formats[0]} and embed_tokens {formats[1]}.")
    if details:
        raise CheckpointError(
            f"The weights of {source.source} do not fit its configuration"
            f"{': half a checkpoint' if missing and not left_over and not wrong else ''}.",
            *details,
            advice="Fetch the model again, or check that configuration and weights belong together.",
        )


def _is_zero_bias(source: WeightSource, name: str) -> bool:
    return name.endswith(".bias") and len(source.shape(name)) == 1 and not bool(source.read(name).any())


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_NUM_LISTED]) + (", ..." if len(names) > _NUM_LISTED else "")
