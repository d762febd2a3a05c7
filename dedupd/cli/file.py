"""``dedupd file``: what the store knows about files."""

import errno
import os
import stat
import sys
from typing import Any

import click

from dedupd.cli.common import PATH, exits, json_option, message_of, print_json, status_of
from dedupd.errors import EXIT_DONE, DedupdError, UsageError
from dedupd.format.ids import HOLE, container_of
from dedupd.stub.transition import local_ranges
from dedupd.system.files import opened
from dedupd.system.paths import named, open_beneath, show_text
from dedupd.units import counted, format_size
from dedupd.volume.volume import Volume
from jobs.tree.sharing import sharing


@click.command("file")
@click.argument("files", nargs=-1, required=True, type=PATH)
@click.option(
    "--sharing", "with_sharing", is_flag=True, help="Also look for files that share chunks."
)
@json_option
@exits
def command(files: tuple[str, ...], with_sharing: bool, as_json: bool) -> None:
    """State and chunks of FILES; with --sharing, how much is shared and with how many files."""
    rows, failures = [], list[DedupdError | OSError]()
    for path in files:
        try:
            rows.append(_described(path, with_sharing))
        except (DedupdError, OSError) as error:
            if len(files) == 1:
                raise
            failures.append(error)
            rows.append({"path": path, "state": "unknown", "error": message_of(error)})
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            text = row["error"] if "error" in row else _line(row)
            click.echo(show_text(text), err="error" in row)
    sys.exit(max((status_of(error) for error in failures), default=EXIT_DONE))


def _described(path: str, with_sharing: bool) -> dict[str, Any]:
    volume, below = Volume.locate_existing(path)
    with volume:
        row = describe(volume, below, path)
        if with_sharing and row["state"] != "plain":
            row["shared"] = sharing(volume, below)
    return row


def describe(volume: Volume, below: bytes, path: str) -> dict[str, Any]:
    """What is known about one file of a volume."""
    with opened(_open(volume, below, path)) as fd:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{path}: not a regular file")
        row: dict[str, Any] = {
            "path": path,
            "state": "plain",
            "length_bytes": status.st_size,
            "local_bytes": status.st_blocks * 512,
        }
        stub = volume.space.read(fd, path)
        if stub is None:
            return row
        local = local_ranges(fd, stub, status.st_size)
    recipe = volume.content(stub, path).recipe
    chunks: dict[int, int] = {}
    containers: set[int] = set()
    holes = 0
    for span in recipe.spans(0, stub.covered):
        if span.chunk == HOLE:
            holes += span.length
            continue
        containers.add(container_of(span.chunk))
        if span.chunk not in chunks:
            chunks[span.chunk] = volume.chunk_records.describe(span.chunk).stored_length
    row |= {
        "state": "stub" if not local else "partly local",
        "covered_bytes": stub.covered,
        "local_ranges": len(local),
        "chunks": len(chunks),
        "chunk_stored_bytes": sum(chunks.values()),
        "containers": len(containers),
        "hole_bytes": holes,
        "content": recipe.content.hex(),
    }
    return row


def _open(volume: Volume, below: bytes, path: str) -> int:
    try:
        with named(path):
            return open_beneath(volume.data_fd, below, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UsageError(f"{path}: not a regular file, but a link") from None
        raise


def _line(row: dict[str, Any]) -> str:
    text = f"{row['path']}: {row['state']}, {format_size(row['length_bytes'])}"
    if row["state"] == "plain":
        return text
    text += (
        f", {counted(row['chunks'], 'chunk')} that occupy {format_size(row['chunk_stored_bytes'])}"
    )
    if row["hole_bytes"]:
        text += f", {format_size(row['hole_bytes'])} zeros"
    if row["state"] != "stub":
        text += f", {counted(row['local_ranges'], 'local range')}"
    if "shared" in row:
        shared = row["shared"]
        text += f", {format_size(shared['shared_bytes'])} shared"
        text += f" with {counted(shared['files'], 'other file')}"
    return text
