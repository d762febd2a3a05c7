"""Output on a terminal: tables, and the progress of a job."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from dedupd.units import counted, format_size
from jobs.frame.run import Progress as JobProgress

PIPED_COLUMNS = 1000
"""Where no terminal bounds a line: programs and mails need whole names."""


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


@contextmanager
def progress_bar(job: str, unit: str) -> Iterator[Callable[[JobProgress], None]]:
    """A bar on standard error; the function moves it. ``unit``: bytes, or things counted."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(job, total=None, amount="")

        def show(progress: JobProgress) -> None:
            def size(value: int) -> str:
                return format_size(value) if unit == "bytes" else str(value)

            amount = size(progress.done)
            if progress.total:
                amount += f" of {size(progress.total)}"
            if progress.files:
                amount += f", {counted(progress.files, 'file')}"
            bar.update(
                task,
                description=f"{job}: {progress.phase}",
                completed=progress.done,
                total=progress.total or None,
                amount=amount,
            )

        yield show
