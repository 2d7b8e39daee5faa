"""A picture of hit rate against hot size."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hothead.errors import OptionError
from hothead.vocab.files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLES = ("-", "--", ":", "-.")


def plot_hit_rates(path: Path, maps: Mapping[str, Mapping[str, Mapping[int, float]]]) -> None:
    """maps: file of a map -> domain -> hot size -> hit rate. A domain is a colour, a map a kind of line.

    Raises OptionError, OutputError.
    """
    figure = new_figure()
    axes = figure.subplots()
    for style, (name, domains) in zip(_STYLES * len(maps), maps.items(), strict=False):
        for number, (domain, rates) in enumerate(domains.items()):
            label = domain if len(maps) == 1 else f"{domain} ({Path(name).name})"
            sizes = list(rates)
            axes.plot(sizes, [100 * rates[size] for size in sizes], style, marker="o", markersize=3, color=f"C{number % 10}", label=label)
    sizes = sorted({size for domains in maps.values() for rates in domains.values() for size in rates})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes], rotation=30)
    axes.set_xlabel("hot size (token ids)")
    axes.set_ylabel("hit rate (% of tokens)")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=8)
    save_figure(figure, path)


def new_figure() -> Figure:
    """An empty picture. Raises OptionError where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise OptionError("--plot needs the package matplotlib.", advice='Install it: pip install "hothead[plot]".') from error
    return Figure(figsize=(8, 5), dpi=120, layout="constrained")


def save_figure(figure: Figure, path: Path) -> None:
    """Write it whole or not at all, in the format that the suffix names. Raises OptionError, OutputError."""
    import io

    buffer = io.BytesIO()
    kind = path.suffix.removeprefix(".").lower() or "png"
    try:
        figure.savefig(buffer, format=kind)
    except ValueError as error:
        raise OptionError(f"a picture cannot be written as '.{kind}': {error!s:.200}.", advice="Give a name that ends in .png.") from error
    write_whole(path, buffer.getvalue())
