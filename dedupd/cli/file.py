"""``dedupd file``: what the store knows about files."""

import os
import stat
from typing import Any

import click

from dedupd.cli.common import exits, json_option, print_json
from dedupd.errors import UsageError
from dedupd.format.ids import HOLE, container_of
from dedupd.fsutil import open_beneath, opened
from dedupd.stub import local_ranges
from dedupd.units import format_size
from dedupd.volume import Volume
from jobs.sharing import sharing


@click.command("file")
@click.argument("files", nargs=-1, required=True, type=click.Path())
@click.option(
    "--sharing", "with_sharing", is_flag=True, help="Also look for files that share chunks."
)
@json_option
@exits
def command(files: tuple[str, ...], with_sharing: bool, as_json: bool) -> None:
    """State and chunks of FILES; with --sharing, how much is shared and with how many files."""
    rows = []
    for path in files:
        volume, below = Volume.locate(path)
        with volume:
            row = describe(volume, below, path)
            if with_sharing and row["state"] != "plain":
                row["shared"] = sharing(volume, below)
            rows.append(row)
    if as_json:
        print_json(rows)
        return
    for row in rows:
        click.echo(_line(row))


def describe(volume: Volume, below: bytes, path: str) -> dict[str, Any]:
    """What is known about one file of a volume."""
    with opened(open_beneath(volume.data_fd, below, os.O_RDONLY | os.O_NONBLOCK)) as fd:
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


def _line(row: dict[str, Any]) -> str:
    text = f"{row['path']}: {row['state']}, {format_size(row['length_bytes'])}"
    if row["state"] == "plain":
        return text
    text += f", {row['chunks']} chunks that occupy {format_size(row['chunk_stored_bytes'])}"
    if row["hole_bytes"]:
        text += f", {format_size(row['hole_bytes'])} zeros"
    if row["state"] != "stub":
        text += f", {row['local_ranges']} local ranges"
    if "shared" in row:
        shared = row["shared"]
        text += f", {format_size(shared['shared_bytes'])} shared with {shared['files']} other files"
    return text
