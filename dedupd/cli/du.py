"""``dedupd du``: show the disk usage of folders, and how much deleting them would free."""

import csv
import io
from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import get_args

import click

from dedupd.cli.common import PATH, exits, job_run, json_option, print_json
from dedupd_core.errors import UsageError
from dedupd_core.system.paths import show_text
from dedupd_core.units import counted, format_size
from dedupd_core.volume.volume import Volume
from jobs.frame.run import JobRun
from jobs.usage.groups import By
from jobs.usage.usage import Usage, UsageRow, usage
from jobs.usage.what_if import WhatIf, what_if


@click.command("du")
@click.argument("paths", nargs=-1, required=True, type=PATH)
@click.option(
    "--by",
    type=click.Choice([one for one in get_args(By) if one]),
    help="Group by owner, file type or folder.",
)
@click.option(
    "--shares",
    is_flag=True,
    help="Also divide the size of each chunk evenly among its references, and show the resulting"
    " share of each row.",
)
@click.option(
    "--csv",
    "as_csv",
    is_flag=True,
    help="Print the rows as CSV, including the shares that --shares shows.",
)
@click.option(
    "--what-if",
    "changes",
    metavar="KEY=VALUE",
    multiple=True,
    help="Estimate the effect of another policy value, for example exclude_types=mp4. Repeatable.",
)
@json_option
@exits
def command(
    paths: tuple[str, ...],
    by: By | None,
    shares: bool,
    as_csv: bool,
    changes: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show how much space PATHS use, how much of this space is shared, and how much deleting PATHS
    would free.

    The command reads metadata only, and changes nothing.
    """
    with job_run("du", unit="files") as run:
        if changes:
            _reckon(paths, changes, run, as_json)
            return
        found = [
            usage(volume, run, of_volume, by or "", with_shares=shares or as_csv)
            for volume, of_volume in _by_volume(paths)
        ]
    if as_json:
        print_json([one.to_json() for one in found])
    elif as_csv:
        click.echo(_csv(found), nl=False)
    else:
        for one in found:
            _show(one, has_shares=shares)


def _by_volume(paths: tuple[str, ...]) -> Iterator[tuple[Volume, list[tuple[bytes, str]]]]:
    """Open each volume that contains some of ``paths``; yield it with the paths inside it."""
    roots: dict[str, list[tuple[bytes, str]]] = {}
    for path in dict.fromkeys(paths):
        volume, below = Volume.locate_existing(path)
        with volume:
            roots.setdefault(volume.root, []).append((below, path))
    for root, of_volume in roots.items():
        with Volume.open(root) as volume:
            yield volume, of_volume


def _show(found: Usage, *, has_shares: bool) -> None:
    rows = [*found.rows, found.together] if len(found.rows) > 1 else found.rows
    head = ["files", "size", "takes", "shared", "deleting frees"]
    lines = [head + ["fair share"] * has_shares]
    lines += [_cells(row, has_shares=has_shares) for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for cells, name in zip(lines, ["", *(row.name for row in rows)], strict=True):
        # Names are in the last column and are not shortened, as in du(1).
        figures = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        click.echo(f"{figures}  {show_text(name)}".rstrip())
    if found.together.frees_bytes:
        click.echo(
            f"To free the space of deleted files, run `dedupd run gc {found.path}` and `dedupd run"
            f" compact {found.path}`."
        )
    _tell(found.messages)


def _cells(row: UsageRow, *, has_shares: bool) -> list[str]:
    cells = [f"{row.files:,}"] + [
        format_size(size)
        for size in (row.logical_bytes, row.takes_bytes, row.shared_bytes, row.frees_bytes)
    ]
    if has_shares:
        cells.append(format_size(row.share_bytes or 0))
    return cells


def _csv(found: list[Usage]) -> str:
    """Format the rows, and the rest of each volume, so that the shares add up to its total."""
    out = io.StringIO()
    names = ["volume", *(one.name for one in fields(UsageRow))]
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    for one in found:
        for row in one.rows:
            writer.writerow({"volume": one.path, **asdict(row)})
        writer.writerow({"volume": one.path, **asdict(one.rest), "name": "(the rest)"})
    return out.getvalue()


def _reckon(paths: tuple[str, ...], changes: tuple[str, ...], run: JobRun, as_json: bool) -> None:
    values = dict(_change(text) for text in changes)
    if len(paths) != 1:
        raise UsageError("--what-if: needs exactly one volume; name one path")
    volume, _ = Volume.locate_existing(paths[0])
    with volume:
        found = what_if(volume, run, values)
    if as_json:
        print_json({**asdict(found), "costs_bytes": found.costs_bytes})
        return
    for line in _told(found):
        click.echo(line)
    _tell(run.findings.messages)


def _change(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--what-if {text}: has no value; use the form exclude_types=mp4")
    return key.strip(), value.strip()


def _told(found: WhatIf) -> Iterator[str]:
    if found.files_left_out:
        yield (
            f"{counted(found.files_left_out, 'optimized file')} would be excluded from later runs."
            f" Expanded, they would use {format_size(found.plain_bytes)}, and their chunks would"
            f" free {format_size(found.store_bytes_freed)}."
        )
    if found.files_taken:
        yield (
            f"{counted(found.files_taken, 'plain file')}, {format_size(found.bytes_taken)}, would"
            " be optimized. The savings are known only after reading them."
        )
    if found.copies_bytes_more:
        more = "more" if found.copies_bytes_more > 0 else "less"
        yield f"Second copies would use {format_size(abs(found.copies_bytes_more))} {more}."
    cost = found.costs_bytes
    if not (found.files_left_out or found.files_taken or found.copies_bytes_more):
        yield "Nothing would change."
    elif cost:
        yield f"In total {format_size(abs(cost))} {'more' if cost > 0 else 'less'}."


def _tell(messages: list[str]) -> None:
    for message in messages:
        click.echo(f"  {show_text(message)}", err=True)
