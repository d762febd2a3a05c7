"""``dedupd file``: what the store knows about files."""

import sys
from dataclasses import asdict
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
from jobs.tree.file_figures import file_figures, is_folder, sharing
from jobs.usage.usage import usage


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
        if is_folder(volume, below):
            with job_run("file", unit="files") as run:
                found = usage(volume, run, [(below, path)])
            return {"state": "folder", "path": path, **asdict(found.together), "name": path}
        row = file_figures(volume, below, path)
        if with_sharing and row["state"] != "plain":
            row["shared"] = sharing(volume, below)
        if row["state"] != "stub" and (told := _explanation(volume, below)) is not None:
            row["policy"] = told.to_json()
            row["outcome"] = told.outcome
    return row


def _explanation(volume: Volume, below: bytes) -> Explanation | None:
    """What comes of a file by the policy; None where that cannot be read."""
    try:
        return explain_file(volume, volume.policy(), below)
    except PolicyError:
        return None


def _line(row: dict[str, Any]) -> str:
    if row["state"] == "folder":
        return (
            f"{row['path']}: folder of {counted(row['files'], 'file')}, {row['files_optimized']}"
            f" of them optimized, {format_size(row['logical_bytes'])}; uses"
            f" {format_size(row['takes_bytes'])}, {format_size(row['shared_bytes'])} of it shared;"
            f" deleting it frees {format_size(row['frees_bytes'])}"
        )
    state, size = row["state"], format_size(row["length_bytes"])
    if state == "plain":
        if row["saving"] is not None:
            return f"{row['path']}: plain: would save {row['saving'] * 100:.0f} %, {size}"
        return f"{row['path']}: plain, {size}" + (f"; {row['outcome']}" if "outcome" in row else "")
    text = f"{row['path']}: {state}, {size}"
    text += f", {counted(row['chunks'], 'chunk')} that use {format_size(row['chunk_stored_bytes'])}"
    if row["hole_bytes"]:
        text += f", {format_size(row['hole_bytes'])} zeros"
    if row["state"] != "stub":
        text += f", {counted(row['local_ranges'], 'local range')}"
    if "shared" in row:
        shared = row["shared"]
        text += f", {format_size(shared['shared_bytes'])} shared"
        text += f" with {counted(shared['files'], 'other file')}"
    return text
