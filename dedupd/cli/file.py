"""``dedupd file``: show how files are stored."""

import sys
from dataclasses import asdict, dataclass
from typing import Any

import click

from dedupd.cli.common import (
    PATH,
    exits,
    job_run,
    json_option,
    message_of,
    print_json,
    status_of,
)
from dedupd_core.errors import EXIT_DONE, DedupdError, PolicyError
from dedupd_core.system.paths import show_text
from dedupd_core.units import counted, format_size
from dedupd_core.volume.volume import Volume
from jobs.tree.explanation import Explanation, explain_file
from jobs.tree.file_figures import (
    PlainFigures,
    Sharing,
    StubFigures,
    file_figures,
    is_folder,
    sharing,
)
from jobs.usage.usage import UsageRow, usage


@click.command("file")
@click.argument("files", nargs=-1, required=True, type=PATH)
@click.option(
    "--sharing",
    "with_sharing",
    is_flag=True,
    help="Also find the files that share chunks with FILES.",
)
@json_option
@exits
def command(files: tuple[str, ...], with_sharing: bool, as_json: bool) -> None:
    """Show the state and the chunks of FILES.

    For a folder, show the space that it uses and how much deleting it would free, as `dedupd du`
    does.
    """
    rows, failures = list[_Described | _Unknown](), list[DedupdError | OSError]()
    for path in files:
        try:
            rows.append(_described(path, with_sharing))
        except (DedupdError, OSError) as error:
            if len(files) == 1:
                raise
            failures.append(error)
            rows.append(_Unknown(path, message_of(error)))
    if as_json:
        print_json([row.to_json() for row in rows])
    else:
        for row in rows:
            click.echo(show_text(row.text), err=isinstance(row, _Unknown))
    sys.exit(max((status_of(error) for error in failures), default=EXIT_DONE))


@dataclass(frozen=True, slots=True)
class _Unknown:
    """A file that cannot be described."""

    path: str
    text: str

    def to_json(self) -> dict[str, Any]:
        return {"path": self.path, "state": "unknown", "error": self.text}


@dataclass(frozen=True, slots=True)
class _Folder:
    path: str
    figures: UsageRow

    def to_json(self) -> dict[str, Any]:
        return {"state": "folder", "path": self.path, **asdict(self.figures), "name": self.path}

    @property
    def text(self) -> str:
        row = self.figures
        return (
            f"{self.path}: folder of {counted(row.files, 'file')},"
            f" {row.files_optimized} of them optimized, {format_size(row.logical_bytes)};"
            f" takes {format_size(row.takes_bytes)}, {format_size(row.shared_bytes)} of it"
            f" shared; deleting it frees {format_size(row.frees_bytes)}"
        )


@dataclass(frozen=True, slots=True)
class _File:
    """A file, with ``shared`` if requested, and with ``explanation`` if it has local blocks."""

    figures: PlainFigures | StubFigures
    shared: Sharing | None
    explanation: Explanation | None

    def to_json(self) -> dict[str, Any]:
        row = asdict(self.figures)
        if self.shared is not None:
            row["shared"] = asdict(self.shared)
        if self.explanation is not None:
            row |= {"policy": self.explanation.to_json(), "outcome": self.explanation.outcome}
        return row

    @property
    def text(self) -> str:
        figures, size = self.figures, format_size(self.figures.length_bytes)
        if isinstance(figures, PlainFigures):
            text = f"{figures.path}: plain"
            if figures.saving is not None:
                return f"{text}: would save {figures.saving * 100:.0f} %, {size}"
            outcome = "" if self.explanation is None else f"; {self.explanation.outcome}"
            return f"{text}, {size}{outcome}"
        text = f"{figures.path}: {figures.state}, {size}, {counted(figures.chunks, 'chunk')} that"
        text += f" occupy {format_size(figures.chunk_stored_bytes)}"
        if figures.hole_bytes:
            text += f", {format_size(figures.hole_bytes)} zeros"
        if figures.local_ranges:
            text += f", {counted(figures.local_ranges, 'local range')}"
        if self.shared is not None:
            text += f", {format_size(self.shared.shared_bytes)} shared"
            text += f" with {counted(self.shared.files, 'other file')}"
        return text


_Described = _Folder | _File


def _described(path: str, with_sharing: bool) -> _Described:
    volume, below = Volume.locate_existing(path)
    with volume:
        if is_folder(volume, below):
            with job_run("file", unit="files") as run:
                found = usage(volume, run, [(below, path)])
            return _Folder(path, found.together)
        figures = file_figures(volume, below, path)
        is_stub = isinstance(figures, StubFigures)
        shared = sharing(volume, below) if with_sharing and is_stub else None
        has_own_blocks = figures.state != "stub"
        return _File(figures, shared, _explanation(volume, below) if has_own_blocks else None)


def _explanation(volume: Volume, below: bytes) -> Explanation | None:
    """Explain how the policy handles a file; None if that cannot be read."""
    try:
        return explain_file(volume, volume.policy(), below)
    except PolicyError:
        return None
