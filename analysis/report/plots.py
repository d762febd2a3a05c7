"""The study's figures as SVG for the report's page: vectors, with the fonts of the page."""

import io
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import matplotlib

matplotlib.use("svg")

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, PercentFormatter

from analysis.collection.chunkings import BASIC_SUFFIX, FIXED, SIZES
from analysis.database import EVERYTHING
from analysis.figures import (
    ChunkSizeRow,
    CompressibilityRow,
    DuplicateShareRow,
    DuplicationRow,
    FrequencyRow,
)
from analysis.study import Study

T = TypeVar("T")

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#888888")
"""The colours of Okabe and Ito: colour-blind readers can distinguish them on white and black."""

INK, PAPER, LINE = "#010203", "#fdfcfb", "#d9dad8"
"""Placeholders in the drawing, replaced by the colours of the page, which has a dark mode."""

_OF_THE_PAGE = {INK: "var(--ink)", PAPER: "var(--paper)", LINE: "var(--line)"}

DASHES = ("solid", "dashed", "dotted", "dashdot")
"""Lines also differ in their dashes, for printers without colour."""

SERIES_MAX = 8
"""Datasets in one figure; the largest are shown."""

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dedupd",
    "font.family": "sans-serif",
    "font.sans-serif": ["system-ui", "Helvetica", "Arial", "DejaVu Sans"],
    "font.size": 9,
    "text.parse_math": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": LINE,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.6,
}


def plots(study: Study) -> dict[str, str]:
    """Return the figures as SVG by the name of their query, only those with data."""
    drawn = {
        "figure1_duplicate_share": _figure(_duplicate_share, study.figure1_duplicate_share),
        "figure2_chunk_size": _figure(_chunk_size, [study] if study.figure2_chunk_size else []),
        "figure3_compressibility": _figure(_compressibility, study.figure3_compressibility),
        "figure4_duplication": _figure(_duplication, study.figure4_duplication),
        "figure7_chunk_sizes": _figure(_chunk_sizes, study.figure7_chunk_sizes),
        "frequency": _figure(_frequency, study.frequency),
    }
    return {name: svg for name, svg in drawn.items() if svg}


def _figure(draw: Callable[[Axes, Sequence[T]], None], rows: Sequence[T]) -> str:
    if not rows:
        return ""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(6.4, 3.5), layout="constrained")
        draw(figure.subplots(), rows)
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    text = out.getvalue()
    for drawn, shown in _OF_THE_PAGE.items():
        text = text.replace(drawn, shown)
    return text[text.index("<svg") :]


def _line(axes: Axes, at: int, x: Sequence[float], y: Sequence[float], label: str) -> None:
    axes.plot(
        x, y, label=label, color=COLOURS[at % len(COLOURS)], linestyle=DASHES[at % len(DASHES)]
    )


def _percent(axes: Axes, label: str, **legend: Any) -> None:
    """Set up a y axis in percent, and the place of the legend."""
    axes.set_ylabel(label)
    axes.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    axes.legend(**legend)


def _cumulated(values: Sequence[float]) -> list[float]:
    total = sum(values) or 1.0
    return [100 * done / total for done in accumulate(values)]


def _duplicate_share(axes: Axes, rows: Sequence[DuplicateShareRow]) -> None:
    sizes: dict[str, float] = {}
    for row in rows:
        sizes[row.dataset] = sizes.get(row.dataset, 0.0) + row.data_bytes
    steps = range(0, 101, 5)
    for at, name in enumerate(sorted(sizes, key=lambda name: -sizes[name])[:SERIES_MAX]):
        of = {row.share_percent: row.data_bytes for row in rows if row.dataset == name}
        _line(axes, at, steps, _cumulated([of.get(step, 0) for step in steps]), name)
    of_all = [sum(r.duplicate_bytes for r in rows if r.share_percent == step) for step in steps]
    if sum(of_all):
        axes.fill_between(
            steps,
            _cumulated(of_all),
            step=None,
            color="#999999",
            alpha=0.25,
            linewidth=0,
            label="duplicate bytes, all datasets",
        )
    axes.set(
        xlabel="Chunks of the file that occur in another file, %", xlim=(0, 100), ylim=(0, 102)
    )
    _percent(axes, "Bytes of files, cumulative", loc="best")


def _chunk_size(axes: Axes, studies: Sequence[Study]) -> None:
    [study] = studies
    names = [FIXED, *reversed(SIZES)]
    rows = [row for name in names if (row := study.savings(name)) is not None]
    whole = next((r for r in study.table2_whole_file_and_chunks if r.dataset == EVERYTHING), None)
    labels = ["whole file"] if whole else []
    plain = [100 * whole.whole_file] if whole else []
    first = len(plain)
    labels += [row.chunking for row in rows]
    plain += [100 * row.saved for row in rows]
    margins = [0.0] * first + [100 * row.saved_margin for row in rows]
    _bars(axes, -0.2, plain, margins, 0, "deduplication")
    if study.collection.compressed:
        both = [100 * row.saved_compressed for row in rows]
        both_margins = [100 * row.saved_compressed_margin for row in rows]
        _bars(axes, first + 0.2, both, both_margins, 1, "deduplication and compression")
    axes.set_xticks(range(len(labels)), labels)
    axes.grid(axis="x", visible=False)
    bottom, top = axes.get_ylim()
    axes.set_ylim(min(0.0, bottom), max(100.0 * (max(plain) > 60), top * 1.1))
    _percent(axes, "Space saved", loc="upper left", ncols=2)


def _bars(
    axes: Axes, begin: float, values: Sequence[float], margins: Sequence[float], at: int, label: str
) -> None:
    places = [begin + number for number in range(len(values))]
    axes.bar(
        places,
        values,
        width=0.38,
        color=COLOURS[at],
        label=label,
        hatch="" if at == 0 else "//",
        edgecolor=PAPER,
        linewidth=0.5,
    )
    if any(margins):
        axes.errorbar(places, values, yerr=margins, fmt="none", ecolor=INK, capsize=2)
    for place, value, margin in zip(places, values, margins, strict=True):
        axes.annotate(
            f"{value:.1f}",
            (place, value + margin),
            (0, 2),
            textcoords="offset points",
            ha="center",
            fontsize=7,
        )


def _compressibility(axes: Axes, rows: Sequence[CompressibilityRow]) -> None:
    x = [row.ratio_percent / 100 for row in rows]
    _line(axes, 0, x, _cumulated([row.chunks for row in rows]), "chunks")
    _line(axes, 1, x, _cumulated([row.data_bytes for row in rows]), "bytes")
    _line(axes, 2, x, _cumulated([row.saved_bytes for row in rows]), "bytes saved by compression")
    axes.set(xlabel="Compressed size / size of the chunk", xlim=(0, 1.01), ylim=(0, 102))
    _percent(axes, "Distinct chunks, cumulative", loc="upper left")


def _duplication(axes: Axes, rows: Sequence[DuplicationRow]) -> None:
    ordered = sorted(rows, key=lambda row: -row.copies_min)
    places = range(len(ordered))
    axes.bar(places, [row.chunks for row in ordered], color=COLOURS[5], label="chunks (left)")
    _logarithmic(axes)
    axes.set_xticks(places, [_bin(row.copies_min) for row in ordered])
    axes.grid(axis="x", visible=False)
    axes.set(xlabel="Copies of the chunk", ylabel="Distinct chunks")
    right = axes.twinx()
    right.spines["right"].set_visible(True)
    right.grid(visible=False)
    for at, (label, values) in enumerate(
        (
            ("chunks, cumulative", [row.chunks for row in ordered]),
            ("bytes with all copies, cumulative", [row.occurring_bytes for row in ordered]),
        )
    ):
        _line(right, at, list(places), _cumulated(values), label)
    right.set_ylim(0, 102)
    right.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    handles = [*axes.get_legend_handles_labels()[0], *right.get_legend_handles_labels()[0]]
    right.legend(handles=handles, loc="upper left")


def _logarithmic(axes: Axes) -> None:
    """Set up a logarithmic y axis with numbers as plain text."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _bin(copies_min: int) -> str:
    return "1" if copies_min == 1 else f"{_short(copies_min)}+"


def _short(number: float) -> str:
    for limit, unit in ((1 << 30, "G"), (1 << 20, "M"), (1 << 10, "k")):
        if number >= limit:
            return f"{number / limit:g}{unit}"
    return f"{number:g}"


def _chunk_sizes(axes: Axes, rows: Sequence[ChunkSizeRow]) -> None:
    names = sorted({row.chunking for row in rows}, key=lambda name: name.endswith(BASIC_SUFFIX))
    for at, name in enumerate(names):
        of = [row for row in rows if row.chunking == name]
        total = sum(row.chunks for row in of) or 1
        label = "basic" if name.endswith(BASIC_SUFFIX) else "regression"
        axes.step(
            [row.size_bytes / 1024 for row in of],
            [100 * row.chunks / total for row in of],
            where="mid",
            label=label,
            color=COLOURS[at],
            linestyle=DASHES[at],
        )
    axes.set(xlabel="Size of the chunk, KiB", ylim=(0, None))
    _percent(axes, "Chunks", loc="upper center", ncols=2)


def _frequency(axes: Axes, rows: Sequence[FrequencyRow]) -> None:
    for at, name in enumerate(reversed(SIZES)):
        of = sorted((row for row in rows if row.chunking == name), key=lambda row: row.copies_min)
        if not of:
            continue
        at_least, remaining = [], sum(row.chunks for row in of)
        for row in of:
            at_least.append(remaining)
            remaining -= row.chunks
        axes.plot(
            [row.copies_min for row in of],
            at_least,
            marker="osv^D"[at % 5],
            markersize=3,
            label=name,
            color=COLOURS[at % len(COLOURS)],
            linestyle=DASHES[at % len(DASHES)],
        )
    axes.set_xscale("log", base=2)
    _logarithmic(axes)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.set(xlabel="Copies, at least", ylabel="Distinct chunks")
    axes.legend(loc="upper right", ncols=2)
