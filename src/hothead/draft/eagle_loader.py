"""From an EAGLE checkpoint to a drafter: every mismatch is refused before a weight is read (`check_eagle`)."""

from __future__ import annotations

from pathlib import Path

from hothead.draft.context import DraftContext
from hothead.draft.eagle import EagleDrafter
from hothead.draft.hot import load_hot_head
from hothead.errors import CheckpointError, DraftError
from hothead.files.json_table import read_json_table
from hothead.models.config import ModelConfig, from_hugging_face
from hothead.models.eagle import EagleNetwork
from hothead.models.weights import open_weights
from hothead.models.weights.accounting import account
from hothead.vocab.token_map import SpellingTokenizer


def check_eagle(path: Path | None, target: ModelConfig, tokenizer: SpellingTokenizer, num_token_ids: int) -> None:
    """Raise DraftError or CheckpointError unless a head fits the target, as far as configuration and headers tell."""
    if path is None:
        raise DraftError(
            f"EAGLE needs a draft head, and none ships with hothead for {target.source}.",
            advice="Give one with --draft FOLDER, make one with hothead train eagle, or use --algorithm NGRAM.",
        )
    draft = read_eagle_config(path)
    _check_fit(draft, target, path)
    source = open_weights(path)
    try:
        # Published heads carry the target's embedding along, which was frozen while they were trained.
        account(source, EagleNetwork.tensor_shapes(draft, "fc.bias" in source.names()), unused=("embed_tokens.weight",))
    finally:
        source.close()


def load_eagle(context: DraftContext) -> EagleDrafter:
    """The drafter of a head that `check_eagle` has let pass."""
    target, path = context.decoder, context.plan.path
    assert path is not None
    draft_config = read_eagle_config(path)
    max_context = min(context.context_length, draft_config.context_length)
    source = open_weights(path)
    try:
        num_positions = max_context + context.plan.shape.num_steps
        network = EagleNetwork.load(draft_config, source, target.dtype, target.device, num_positions)
    finally:
        source.close()
    return EagleDrafter(
        network,
        target.embedding,
        load_hot_head(context, context.source, target.config),
        context.num_slots,
        max_context,
        context.plan.shape,
        target.device,
        target.dtype,
        context.hot_token_ids,
    )


def read_eagle_config(folder: Path) -> ModelConfig:
    """config.json of an EAGLE checkpoint: a llama configuration whose architecture is named after EAGLE, or not named at all."""
    file = folder / "config.json"
    if not file.is_file():
        raise DraftError(
            f"{folder} is not a draft head: it has no config.json.", advice="Give the folder that holds config.json and the weights."
        )
    values = read_json_table(file, CheckpointError)
    architectures = [str(name) for name in values.get("architectures") or ["LlamaForCausalLM"]]
    if architectures[0] not in ("LlamaForCausalLM", "LlamaForCausalLMEagle"):
        raise DraftError(
            f"{folder} is not an EAGLE draft head.",
            f"Its architecture is {architectures[0]}.",
            advice="EAGLE heads are LlamaForCausalLMEagle.",
        )
    # Published heads copy the target's tying; the head in use is the target's either way.
    return from_hugging_face({**values, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}, None, str(folder))


def _check_fit(draft: ModelConfig, target: ModelConfig, folder: Path) -> None:
    if draft.hidden_size != target.hidden_size:
        raise DraftError(
            f"The draft head {folder} does not fit {target.source}.",
            f"Its hidden size is {draft.hidden_size}, the target's {target.hidden_size}: it was trained on another model's features.",
            advice="Give a head that was trained for this target, or make one with hothead train eagle.",
        )
