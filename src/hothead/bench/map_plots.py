"""Pictures of token maps: hit rate against hot size, and hot rows on ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hothead.errors import OptionError
from hothead.files.whole import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from hothead.bench.map_size import SizeRow

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
    _size_axis(axes, sizes)
    axes.set_ylabel("hit rate (% of tokens)")
    axes.legend(fontsize=8)
    save_figure(figure, path)


def plot_map(path: Path, name: str, description: Mapping[str, Any]) -> None:
    """Coverage of a map's own counts against size, and hot rows of each rank. description: of `describe_map`."""
    figure = new_figure()
    left, right = figure.subplots(1, 2)
    figure.suptitle(f"{name}: {description['size']:,} token ids", fontsize=10)
    if description["coverage"]:
        _size_axis(left, list(description["coverage"]))
        left.plot(list(description["coverage"]), [100 * share for share in description["coverage"].values()], marker="o", markersize=3)
        left.set_ylabel("share of its own counts (%)")
    else:
        left.text(0.5, 0.5, "no counts", ha="center", va="center", transform=left.transAxes)
    tp_sizes = sorted({entry["tp_size"] for entry in description["rows_per_rank"]})
    placements = list(dict.fromkeys(entry["placement"] for entry in description["rows_per_rank"]))
    for number, placement in enumerate(placements):
        rows = [entry["rows"] for entry in description["rows_per_rank"] if entry["placement"] == placement]
        places = [index + (number - (len(placements) - 1) / 2) * 0.25 for index in range(len(rows))]
        most, least = [max(one) for one in rows], [min(one) for one in rows]
        right.bar(places, most, 0.22, label=f"{placement}: most on a rank", color=f"C{number}")
        right.hlines(least, [place - 0.11 for place in places], [place + 0.11 for place in places], color="black", linewidth=1)
    right.set_xticks(range(len(tp_sizes)), list(map(str, tp_sizes)))
    right.set_xlabel("tp_size (black line: fewest on a rank)")
    right.set_ylabel("hot rows")
    if placements:
        right.set_ylim(0, 1.25 * description["size"])  # room for the legend
        right.legend(fontsize=8)
    save_figure(figure, path)


def plot_sizes(path: Path, rows: Sequence[SizeRow], best_size: int, vocab_size: int) -> None:
    """Predicted tokens per second and hit rate against hot size. Raises OptionError, OutputError."""
    figure = new_figure()
    axes = figure.subplots()
    sizes = [row.size for row in rows]
    _size_axis(axes, sizes)
    axes.plot(sizes, [row.tokens_per_s for row in rows], marker="o", color="C0", label="tokens/s (predicted)")
    axes.axvline(best_size, color="C0", linestyle=":", label=f"best: {'full head' if best_size >= vocab_size else f'{best_size:,}'}")
    axes.set_ylabel("tokens/s")
    axes.set_ylim(0)
    right = axes.twinx()
    right.plot(sizes, [100 * row.hit_rate for row in rows], marker="s", markersize=3, color="C1", label="hit rate")
    right.set_ylabel("hit rate (% of tokens)")
    right.set_ylim(0, 102)
    figure.legend(loc="outside upper center", ncols=3, fontsize=8)
    save_figure(figure, path)


def _size_axis(axes: Axes, sizes: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes], rotation=30)
    axes.set_xlabel("hot size (token ids)")
    axes.grid(visible=True, alpha=0.3)


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
