"""The figure of what `benchmarks.ingest` measured.

    python -m benchmarks.plot INGEST.json PLOT.svg

A program of its own: the peak memory of a measured command is never less than that of the process
that started it, so that one does without matplotlib.
"""

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")

from matplotlib.figure import Figure

COLOURS = ("#0072b2", "#e69f00")
"""First ingest, and that of duplicates."""

Run = dict[str, Any]


def plot(results: dict[str, list[Run]], size_bytes: int, path: Path) -> None:
    """The rates and the stored bytes of all programs, side by side: medians."""
    names = list(results)[::-1]
    places = range(len(names))

    def medians(value: Callable[[Run], float]) -> list[float]:
        return [statistics.median(map(value, results[name])) for name in names]

    def rates_of(which: str) -> list[float]:
        return [size_bytes / 1e6 / wall_s for wall_s in medians(lambda run: run[which]["wall_s"])]

    figure = Figure(figsize=(9, 0.7 + 0.55 * len(names)), layout="constrained")
    rates, stored = figure.subplots(1, 2, sharey=True)
    for offset, colour, which in zip((0.2, -0.2), COLOURS, ("first", "second"), strict=True):
        middle = [place + offset for place in places]
        bars = rates.barh(middle, rates_of(which), 0.38, color=colour, label=f"{which} ingest")
        rates.bar_label(bars, fmt="{:,.0f}", padding=2, fontsize=8)
    sizes = medians(lambda run: run["stored_bytes"] / 1e6)
    bars = stored.barh(places, sizes, 0.6, color="#999999")
    stored.bar_label(bars, fmt="{:,.0f}", padding=2, fontsize=8)
    rates.set_yticks(places, names)
    rates.set_xlabel("MB/s by the clock")
    rates.legend(frameon=False, fontsize=8)
    stored.set_xlabel("MB on the disk after the first ingest")
    for axes in (rates, stored):
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.15)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    measured = json.loads(Path(sys.argv[1]).read_text())
    plot(measured["runs"], measured["bytes"], Path(sys.argv[2]))


if __name__ == "__main__":
    main()
