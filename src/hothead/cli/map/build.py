"""`hothead map build`: from a corpus to a ranked token map."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import click

from hothead import __version__
from hothead.cli import notes
from hothead.cli.lazy import Command
from hothead.cli.map import corpus
from hothead.cli.options import options, sources
from hothead.config.corpus import CorpusConfig
from hothead.config.map_build import MapBuildConfig
from hothead.errors import OptionError

if TYPE_CHECKING:
    from hothead.models.tokenizer import Tokenizer
    from hothead.vocab.count import TokenCounts
    from hothead.vocab.token_map import TokenMap

CONFIGS = (MapBuildConfig, CorpusConfig)


@click.command(cls=Command, epilog="Example: hothead map build --corpus logs.jsonl --corpus 'notes/**/*.md' -o map.safetensors")
@options(*CONFIGS)
@click.pass_context
def build(ctx: click.Context) -> None:
    """Count a corpus and rank its tokens.

    One map serves every size: it is cut when it is used (--hot-size, --hot-coverage). Every end token and every token
    of the chat format is in, whatever the corpus says. The best corpus is what the model itself answers: response
    logs, or --self.
    """
    given = sources(ctx, *CONFIGS)
    config, corpus_config = given.fill(MapBuildConfig), given.fill(CorpusConfig)
    if not corpus_config.corpus and not corpus_config.counts and config.num_self is None:
        raise OptionError(
            "There is nothing to count.",
            advice="Give text (--corpus NAME), counts (--counts FILE), or let the model write (--self 2000).",
        )
    from hothead.files.whole import check_writable
    from hothead.models.catalog import resolve_tokenizer
    from hothead.models.tokenizer import Tokenizer

    for path in (config.output, config.counts_output):
        if path is not None:
            check_writable(path)
    tokenizer_path = resolve_tokenizer(corpus_config.model_path, corpus_config.cache_dir)
    tokenizer = Tokenizer.load(tokenizer_path)
    counts = corpus.load_counts(corpus_config, tokenizer)
    counted = corpus.count(corpus_config, tokenizer_path, checkpoint=config.output.with_name(f".{config.output.name}.counting"))
    if counted is not None:
        about = {"corpus": " ".join(corpus_config.corpus), "corpus_fingerprint": counted.fingerprint, "counted": corpus_config.counted}
        counts.append(_as_counts(tokenizer, counted.total.counts, about))
    if config.num_self is not None:
        from hothead.cli.map.own_text import own_counts

        counts.append(own_counts(config, corpus_config, tokenizer))
    total, *others = counts
    for other in others:
        total = total + other
    if config.counts_output is not None:
        total.save(config.counts_output)
    token_map = _rank(config, tokenizer, total)
    token_map.save(config.output)
    _say(token_map, total, config)
    click.echo(config.output)


def _as_counts(tokenizer: Tokenizer, counts: object, about: dict[str, str]) -> TokenCounts:
    from hothead.vocab.count import TokenCounts

    return TokenCounts(tokenizer.vocab_size, counts, tokenizer.fingerprint, about)  # type: ignore[arg-type]


def _rank(config: MapBuildConfig, tokenizer: Tokenizer, counts: TokenCounts) -> TokenMap:
    from hothead.models.required import required_token_ids
    from hothead.vocab.token_map import SAMPLE_SIZE, TokenMap

    required = required_token_ids(tokenizer, has_bytes=config.has_bytes)
    provenance = {
        **counts.provenance,
        "tokenizer": tokenizer.source,
        "num_tokens": str(counts.num_tokens),
        "num_always_in": str(len(required)),
        "made_by": f"hothead {__version__} map build",
        "date": datetime.date.today().isoformat(),
    }
    token_map = TokenMap.ranked(
        counts.counts,
        required,
        config.size,
        tokenizer.vocab_size,
        tokenizer_fingerprint=tokenizer.fingerprint,
        provenance=provenance,
    )
    if config.coverage is not None:
        token_map = token_map.for_coverage(config.coverage)
    return token_map.with_sample({token_id: tokenizer.token(token_id) for token_id in token_map.token_ids[:SAMPLE_SIZE].tolist()})


def _say(token_map: TokenMap, counts: TokenCounts, config: MapBuildConfig) -> None:
    from hothead.vocab.coverage import hit_rates, usual_sizes

    sizes = usual_sizes(len(token_map))
    shares = hit_rates(token_map, counts.counts, sizes)
    notes.line(f"{len(token_map):,} token ids, ranked by {counts.num_tokens:,} counted tokens")
    notes.line("covered of them: " + ", ".join(f"{size:,}: {share:.1%}" for size, share in zip(sizes, shares, strict=True)))
    if token_map.num_fillers:
        notes.note(
            f"{token_map.num_fillers:,} of {len(token_map):,} token ids were never seen and only fill up the size (lowest ids first): "
            "a larger corpus or a smaller --size serves better."
        )
    if config.output.suffix == ".pt":
        notes.note("a .pt list keeps the ids and their order; counts, provenance and fingerprints stay in .safetensors only.")
