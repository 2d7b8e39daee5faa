"""`hothead map coverage`: how much of a corpus a map covers, by domain and size, and what it misses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hothead.cli.lazy import Command
from hothead.cli.map import corpus
from hothead.cli.options import options, sources
from hothead.config.corpus import CorpusConfig
from hothead.config.map_coverage import MapCoverageConfig
from hothead.errors import OptionError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from hothead.models.tokenizer import Tokenizer
    from hothead.vocab.token_map import TokenMap

CONFIGS = (MapCoverageConfig, CorpusConfig)


@click.command(cls=Command, epilog="Example: hothead map coverage map.safetensors --corpus chats.jsonl --by source")
@click.argument("map_file", metavar="MAP", type=click.Path(path_type=Path))
@click.argument("other_file", metavar="[OTHER]", type=click.Path(path_type=Path), required=False)
@options(*CONFIGS)
@click.pass_context
def coverage(ctx: click.Context, map_file: Path, other_file: Path | None) -> None:
    """Hit rate of the token map MAP on a corpus: the share of its tokens that are hot, at several sizes.

    With a second map both are measured on the same text. Count on other text than the map was built from: its own
    covers itself well.
    """
    given = sources(ctx, *CONFIGS)
    config, corpus_config = given.fill(MapCoverageConfig), given.fill(CorpusConfig)
    if not corpus_config.corpus and not corpus_config.counts:
        raise OptionError("There is no text to measure on.", advice="Give --corpus NAME, or --counts FILE.")
    if config.by is not None and not corpus_config.corpus:
        raise OptionError(f"{config.said('by')} has no effect on counts: they have no domains.", advice="Give --corpus.")
    from hothead.models.catalog import resolve_tokenizer
    from hothead.models.tokenizer import Tokenizer
    from hothead.vocab.token_map import TokenMap

    tokenizer_path = resolve_tokenizer(corpus_config.model_path, corpus_config.cache_dir)
    tokenizer = Tokenizer.load(tokenizer_path)
    maps = {str(path): TokenMap.load(path) for path in (map_file, other_file) if path is not None}
    for name, token_map in maps.items():
        token_map.check_tokenizer(tokenizer, f"token map '{Path(name).name}'")
        token_map.validate_for(tokenizer.vocab_size, tokenizer.source, f"token map '{Path(name).name}'")
    domains = {name or "all": counts for name, counts in _counts_by_domain(config, corpus_config, tokenizer, tokenizer_path).items()}
    description = {
        "tokenizer": tokenizer.source,
        "num_tokens": {name: int(counts.sum()) for name, counts in domains.items()},
        "maps": [{"file": name, **_of_map(token_map, domains, config, tokenizer)} for name, token_map in maps.items()],
    }
    if config.plot is not None:
        from hothead.bench.map_plots import plot_hit_rates

        plot_hit_rates(config.plot, {row["file"]: row["hit_rate"] for row in description["maps"]})  # type: ignore[index]
    click.echo(json.dumps(description, ensure_ascii=False, indent=2) if config.json else _as_tables(description))


def _counts_by_domain(
    config: MapCoverageConfig, corpus_config: CorpusConfig, tokenizer: Tokenizer, tokenizer_path: Path
) -> dict[str, npt.NDArray[np.int64]]:
    """Counts [V] by domain, all of them together as the last one."""
    counted = corpus.count(corpus_config, tokenizer_path, config.by)
    domains = {} if counted is None else {name: counts.counts for name, counts in sorted(counted.domains.items())}
    for path, counts in zip(corpus_config.counts, corpus.load_counts(corpus_config, tokenizer), strict=True):
        domains[path.name] = counts.counts
    if len(domains) > 1:
        domains["all"] = sum(domains.values())  # type: ignore[assignment]
    return domains


def _of_map(
    token_map: TokenMap, domains: dict[str, npt.NDArray[np.int64]], config: MapCoverageConfig, tokenizer: Tokenizer
) -> dict[str, Any]:
    from hothead.vocab.coverage import frequent_misses, hit_rates, usual_sizes

    sizes = sorted(set(config.sizes)) or usual_sizes(len(token_map))
    *_, everything = domains.values()
    return {
        "size": len(token_map),
        "hit_rate": {name: dict(zip(sizes, hit_rates(token_map, counts, sizes), strict=True)) for name, counts in domains.items()},
        "misses": [
            {"token_id": token_id, "text": tokenizer.token_text(token_id), "share": count / int(everything.sum())}
            for token_id, count in frequent_misses(token_map, everything, config.num_misses)
        ],
    }


def _as_tables(description: dict[str, Any]) -> str:
    from hothead.cli.text import as_columns

    lines: list[str] = []
    for row in description["maps"]:
        lines += [f"{row['file']}: {row['size']:,} token ids"]
        sizes = list(next(iter(row["hit_rate"].values())))
        table = [["", "tokens", *(f"H = {size:,}" for size in sizes)]]
        for name, rates in row["hit_rate"].items():
            table.append([name, f"{description['num_tokens'][name]:,}", *(f"{100 * rate:.2f} %" for rate in rates.values())])
        lines += [as_columns(table), ""]
        if row["misses"]:
            lines.append("most frequent tokens that are not hot (share of all tokens):")
            lines += [f"  {miss['token_id']:>7}  {miss['text']!r}  {100 * miss['share']:.3f} %" for miss in row["misses"]]
            lines.append("")
    return "\n".join(lines).rstrip()
