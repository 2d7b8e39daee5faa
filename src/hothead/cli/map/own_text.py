"""`map build --self N`: the model answers N prompts, and its responses are counted."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from hothead.cli import notes, prompts
from hothead.config.corpus import CorpusConfig
from hothead.config.map_build import MapBuildConfig
from hothead.errors import DataError

if TYPE_CHECKING:
    from hothead.config.sampling import SamplingParams
    from hothead.engine import Engine
    from hothead.models.tokenizer import Tokenizer
    from hothead.vocab.count import TokenCounts


def own_counts(config: MapBuildConfig, corpus_config: CorpusConfig, tokenizer: Tokenizer) -> TokenCounts:
    """Counts of the model's responses, which stay beside the map; a run that was interrupted is completed.

    Raises DataError, OutputError.
    """
    from hothead.config.engine import EngineConfig
    from hothead.config.sampling import SamplingParams
    from hothead.engine import Engine
    from hothead.engine.responses import collect_prompts, collect_responses, plain_config, respond, sample_prompts
    from hothead.models.catalog import resolve_model
    from hothead.vocab.count import TokenCounts

    assert config.num_self is not None
    resolve_model(corpus_config.model_path, corpus_config.cache_dir)  # a bare tokenizer writes nothing: said before anything is loaded
    sampling = SamplingParams(max_tokens=config.max_tokens, temperature=config.temperature, seed=config.seed)
    given = None if config.prompts is None else _read_prompts(config.prompts, config.num_self)
    own = _OwnFiles(config, corpus_config, sampling, tokenizer, given)
    engine_config = EngineConfig(model_path=corpus_config.model_path, cache_dir=corpus_config.cache_dir)
    engine: list[Engine] = []

    def started() -> Engine:
        """Loads the model when it is first needed: not at all where every response is there already."""
        if not engine:
            engine.append(Engine(plain_config(engine_config)))
        return engine[0]

    try:
        asked = given
        if asked is None:
            with notes.steps("writing prompts") as show:
                asked = collect_prompts(config.num_self, own.prompts, lambda samples: sample_prompts(started(), samples, config.seed), show)
        with notes.steps("writing responses") as show:
            collect_responses(asked, own.responses, lambda some: respond(started(), some, sampling), show)
    finally:
        for one in engine:
            one.close()
    return _counted(own.responses, TokenCounts(tokenizer.vocab_size, None, tokenizer.fingerprint), config, len(asked))


class _OwnFiles:
    """Where prompts and responses lie. Their names carry what they depend on, so that other options make other files."""

    def __init__(
        self, config: MapBuildConfig, corpus_config: CorpusConfig, sampling: SamplingParams, tokenizer: Tokenizer, given: list[str] | None
    ) -> None:
        about = (corpus_config.model_path, tokenizer.fingerprint, config.num_self, config.seed, given)
        self.prompts = config.output.with_name(f"{config.output.stem}.prompts-{_digest(about)}.jsonl")
        about_responses = (*about, sampling.temperature, sampling.max_tokens)
        self.responses = config.output.with_name(f"{config.output.stem}.responses-{_digest(about_responses)}.jsonl")


def _digest(about: object) -> str:
    return hashlib.sha256(repr(about).encode()).hexdigest()[:8]


def _read_prompts(path: Path, num_wanted: int) -> list[str]:
    found = [prompt.text for prompt in prompts.from_file(str(path)) if prompt.text is not None]
    if len(found) < num_wanted:
        raise DataError(
            f"'{path}' has {len(found)} prompts, and {num_wanted} responses are asked for.",
            advice=f"Give more prompts, or --self {len(found)}.",
        )
    return found[:num_wanted]


def _counted(path: Path, counts: TokenCounts, config: MapBuildConfig, num_prompts: int) -> TokenCounts:
    rows = [json.loads(line)["response_token_ids"] for line in path.read_bytes().splitlines()]
    # A head has more rows than the tokenizer has tokens; should the model ever choose one, it stands for nothing.
    counts.update([token_id for token_id in row if token_id < counts.vocab_size] for row in rows)
    if len(rows) < num_prompts:
        notes.note(f"{num_prompts - len(rows)} of {num_prompts} prompts are too long for the model's context and have no response.")
    how = "greedy" if config.temperature == 0 else f"temperature {config.temperature:g}, seed {config.seed}"
    whose = "the model's own prompts" if config.prompts is None else config.prompts.name
    counts.provenance["own_responses"] = f"{len(rows)} to {whose}, at most {config.max_tokens} tokens each, {how}"
    notes.line(f"counted {counts.num_tokens:,} tokens of {len(rows):,} responses in {path}")
    return counts
