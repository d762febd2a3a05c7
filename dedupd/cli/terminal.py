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
"""Where no terminal bounds a line: programs and mails need whole names."""

BAR_COLUMNS_MIN = 110
"""Below that the line has no room for a bar beside what it says."""


def console() -> Console:
    """For text as it stands: a name may well look like markup."""
    is_piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    width = PIPED_COLUMNS if is_piped else None
    return Console(highlight=False, markup=False, emoji=False, width=width)


def figures(columns: int = 2) -> Table:
    """A table without a head. Where words are too long they go on in the next line, whole."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for _ in range(columns):
        table.add_column(overflow="fold")
    return table


def headed(*names: str) -> Table:
    """A table with a head. The first column, which names the row, is never broken."""
    table = Table(box=None, pad_edge=False)
    for number, name in enumerate(names):
        table.add_column(name, overflow="fold", no_wrap=number == 0)
    return table


def show(table: RenderableType, title: str = "") -> None:
    """Print a table, without the blanks that fill its lines."""
    if title:
        click.echo(title)
    out = console()
    with out.capture() as capture:
        out.print(table)
    for line in capture.get().splitlines():
        click.echo(line.rstrip())


class ProgressText:
    """One line of how far a job is, the amount first and the time to go last: in 80 columns."""

    def __init__(self, job: str, unit: str, now: Callable[[], float] = time.monotonic) -> None:
        self._job = job
        self._unit = unit
        self._now = now
        self._began_s = now()
        self._to_go = TimeToGo(now)

    def of(self, progress: JobProgress) -> str:
        """The line for a state of the job."""
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
        """What remains, as soon as it can be told; else what has passed."""
        to_go_s = self._to_go.seconds
        if to_go_s is not None:
            return f"about {clock(to_go_s)} remaining"
        return f"{clock(self._now() - self._began_s)} elapsed"


def clock(seconds: float) -> str:
    """A duration like 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


@contextmanager
def progress_bar(job: str, unit: str) -> Iterator[Callable[[JobProgress], None]]:
    """A line on standard error, with a bar where there is room; the function moves it. ``unit``:
    bytes, or things counted."""
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
