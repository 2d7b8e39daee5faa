"""What the configuration of an EAGLE-3 head says, in each of the forms that heads are published in.

- The authors' form, also written by SpecForge and read by SGLang: a llama configuration with draft_vocab_size; `eagle_config` may name the
  target's layers by the layer whose *output* is meant.
- The speculators form: speculators_model_type "eagle3", the layer's own configuration under transformer_layer_config;
  eagle_aux_hidden_state_layer_ids counts as vLLM does, by the layer whose *input* is meant (0: the embedding).

Both are turned into layers whose input is read, as `Decoder.forward_captured` counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hothead.errors import CheckpointError, DraftError
from hothead.files.json_table import read_json_table
from hothead.models.config import IntReader, ModelConfig, from_hugging_face
from hothead.models.families import FAMILIES

NUM_FEATURE_LAYERS = 3
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
_MIN_TARGET_LAYERS = 6
_SPECULATORS = "eagle3"
_ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Speculator", "Eagle3DraftModel", "LlamaForCausalLM")


@dataclass(frozen=True)
class Eagle3Config:
    """layer: its one decoder layer; vocab_size there is the target's. target_hidden_size: of the features that fc reads.

    draft_vocab_size: rows of its own head, None where the configuration says nothing. feature_layers: None where it names none.
    norm_before_residual: the residual starts from the normed feature. has_fusion_norm: one norm over the joined features before fc;
    has_layer_norms: one for each of them. is_output_normed: the feature of the next step is the output after the final norm.
    """

    layer: ModelConfig
    target_hidden_size: int
    draft_vocab_size: int | None
    feature_layers: tuple[int, ...] | None
    norm_before_residual: bool
    has_fusion_norm: bool
    has_layer_norms: bool
    is_output_normed: bool
    says_tied: bool

    @property
    def num_feature_layers(self) -> int:
        return NUM_FEATURE_LAYERS if self.feature_layers is None else len(self.feature_layers)


def default_feature_layers(num_layers: int) -> tuple[int, ...]:
    """Layers of the target whose inputs are read where a head names none: low, middle and high, as EAGLE-3, SGLang and vLLM choose them.

    A target with fewer than 6 layers does not have these: embedding, middle and last output.
    """
    if num_layers < _MIN_TARGET_LAYERS:
        return (0, num_layers // 2, num_layers)
    return (2, num_layers // 2, num_layers - 3)


def is_eagle3(folder: Path) -> bool:
    """Whether a draft head's folder holds an EAGLE-3 head, as far as its configuration tells."""
    file = folder / "config.json"
    if not file.is_file():
        return False
    values = read_json_table(file, CheckpointError)
    names = [str(name) for name in values.get("architectures") or []]
    return (
        any("eagle3" in name.lower() for name in names)
        or values.get("speculators_model_type") == _SPECULATORS
        or values.get("draft_vocab_size") is not None
    )


def read_eagle3_config(folder: Path) -> Eagle3Config:
    """config.json of an EAGLE-3 head in either form. Raises DraftError for another kind of head, ModelConfigError for what it needs and
    is not implemented."""
    file = folder / "config.json"
    if not file.is_file():
        raise DraftError(
            f"{folder} is not a draft head: it has no config.json.", advice="Give the folder that holds config.json and the weights."
        )
    values = read_json_table(file, CheckpointError)
    where = str(folder)
    architectures = [str(name) for name in values.get("architectures") or ["LlamaForCausalLMEagle3"]]
    if architectures[0] not in _ARCHITECTURES or not is_eagle3(folder):
        raise DraftError(
            f"{folder} is not an EAGLE-3 draft head.",
            f"Its architecture is {architectures[0]}, and it has no draft_vocab_size.",
            advice="EAGLE-3 heads are LlamaForCausalLMEagle3 or, from speculators, Eagle3Speculator. Heads of EAGLE: --algorithm EAGLE.",
        )
    table = values.get("eagle_config")
    inner: Mapping[str, Any] = table if isinstance(table, Mapping) else {}
    is_speculators = "speculators_model_type" in values or "speculators_config" in values
    layer = _layer(values, is_speculators, where)
    if layer.num_layers != 1:
        raise DraftError(
            f"The draft head {folder} has {layer.num_layers} decoder layers.",
            "EAGLE-3 heads with one layer are implemented.",
            advice="Use another head for this target.",
        )
    if not inner.get("use_aux_hidden_state", True):
        raise DraftError(
            f"The draft head {folder} reads the target's last hidden states only (use_aux_hidden_state is false).",
            "Heads that read several of its layers are implemented.",
            advice="Use another head for this target.",
        )

    def says(key: str) -> bool:
        return bool(values.get(key, inner.get(key, False)))

    read = IntReader(values, where)
    return Eagle3Config(
        layer=layer,
        target_hidden_size=read("target_hidden_size", layer.hidden_size),
        draft_vocab_size=None if values.get("draft_vocab_size") is None else read("draft_vocab_size"),
        feature_layers=_feature_layers(values, inner, where),
        norm_before_residual=says("norm_before_residual"),
        has_fusion_norm=says("norm_before_fc"),
        has_layer_norms=says("fc_norm"),
        is_output_normed=says("norm_output"),
        says_tied=bool(values.get("tie_word_embeddings", False)),
    )


def _layer(values: Mapping[str, Any], is_speculators: bool, where: str) -> ModelConfig:
    if not is_speculators:
        own = {key: value for key, value in values.items() if key not in ("layer_types", "sliding_window")}
        return from_hugging_face({**own, "architectures": ["LlamaForCausalLM"], "model_type": "llama"}, None, where)
    layer = values.get("transformer_layer_config")
    if not isinstance(layer, Mapping):
        raise DraftError(
            f"The draft head {where} has no transformer_layer_config, which the speculators form needs.", advice="Fetch config.json again."
        )
    kind = layer.get("model_type", "llama")
    family = FAMILIES[kind].hugging_face_class if kind in FAMILIES else ""
    return from_hugging_face({**layer, "model_type": kind, "architectures": [family]}, None, where)


def _feature_layers(values: Mapping[str, Any], inner: Mapping[str, Any], where: str) -> tuple[int, ...] | None:
    """Of eagle_config the layers whose outputs are meant, else those whose inputs are."""
    nested, direct = inner.get(LAYER_IDS), values.get(LAYER_IDS)
    found, key, offset = (nested, f"eagle_config.{LAYER_IDS}", 1) if nested else (direct, LAYER_IDS, 0)
    if not found:
        return None
    if not isinstance(found, list) or not all(type(layer) is int and layer + offset >= 0 for layer in found):
        raise DraftError(f"The draft head {where} has {key} = {found!r}; it must be a list of layers.", advice="Fetch config.json again.")
    return tuple(layer + offset for layer in found)
