"""Output on a terminal: tables, and the progress of a job."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
from rich.table import Table

from dedupd_core.units import format_size
from jobs.frame.run import Progress as JobProgress
from jobs.frame.run import TimeToGo

PIPED_COLUMNS = 1000
"""The width if the output is no terminal: programs and mails need complete names."""

BAR_COLUMNS_MIN = 110
"""Narrower lines have no space for a progress bar."""


def console() -> Console:
    """Return a console that prints text unchanged, because names of files may look like markup."""
    is_piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    width = PIPED_COLUMNS if is_piped else None
    return Console(highlight=False, markup=False, emoji=False, width=width)


def figures(columns: int = 2) -> Table:
    """Create a table without a header. Long cells are wrapped."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for _ in range(columns):
        table.add_column(overflow="fold")
    return table


def headed(*names: str) -> Table:
    """Create a table with a header. The first column, which names the row, is never wrapped."""
    table = Table(box=None, pad_edge=False)
    for number, name in enumerate(names):
        table.add_column(name, overflow="fold", no_wrap=number == 0)
    return table


def show(table: RenderableType, title: str = "") -> None:
    """Print a table without trailing blanks."""
    if title:
        click.echo(title)
    out = console()
    with out.capture() as capture:
        out.print(table)
    for line in capture.get().splitlines():
        click.echo(line.rstrip())


class ProgressText:
    """Formats the progress of a job as one line of at most 80 columns: amount first, time last."""

    def __init__(self, job: str, unit: str, now: Callable[[], float] = time.monotonic) -> None:
        self._job = job
        self._unit = unit
        self._now = now
        self._began_s = now()
        self._to_go = TimeToGo(now)

    def of(self, progress: JobProgress) -> str:
        """Format a state of the job."""
        done = progress.done
        self._to_go.see(progress.phase, done, progress.total)
        parts = [self._amount(progress)] if done or progress.total else []
        if progress.files:
            parts.append(f"{progress.files:,} file{'' if progress.files == 1 else 's'}")
        parts.append(self._time())
        share = f" {min(1.0, done / progress.total):.0%}" if progress.total else ""
        return f"{self._job}: {progress.phase}{share}, {', '.join(parts)}"

    def _amount(self, progress: JobProgress) -> str:
        def size(value: int) -> str:
            return format_size(value) if self._unit == "bytes" else f"{value:,}"

        done = size(progress.done)
        return f"{done} of {size(progress.total)}" if progress.total else done

    def _time(self) -> str:
        """Format the remaining time if it is known, else the elapsed time."""
        to_go_s = self._to_go.seconds
        if to_go_s is not None:
            return f"about {clock(to_go_s)} remaining"
        return f"{clock(self._now() - self._began_s)} elapsed"


def clock(seconds: float) -> str:
    """Format a duration, for example 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


@contextmanager
def progress_bar(job: str, unit: str) -> Iterator[Callable[[JobProgress], None]]:
    """Show a line of progress on standard error; yield the function that updates it. ``unit``:
    bytes, or the name of the counted things."""
    out, text = Console(stderr=True), ProgressText(job, unit)
    columns: list[ProgressColumn] = [TextColumn("{task.description}", markup=False)]
    if out.width >= BAR_COLUMNS_MIN:
        columns.append(BarColumn(bar_width=None))
    with Progress(*columns, console=out, transient=True, expand=True) as bar:
        task = bar.add_task(job, total=None)

        def show(progress: JobProgress) -> None:
            bar.update(
                task,
                description=text.of(progress),
                completed=progress.done,
                total=progress.total or None,
            )

        yield show
