"""``dedupd expand``: make files plain."""

import sys
from typing import Any

import click

from dedupd.cli.common import PATH, exits, json_option, message_of, print_json
from dedupd.errors import EXIT_DONE, EXIT_FINDINGS, DedupdError, UsageError
from dedupd.system.paths import named, show_text
from dedupd.volume.restore import require_room, restore_file
from dedupd.volume.volume import Volume


@click.command("expand")
@click.argument("files", nargs=-1, required=True, type=PATH)
@json_option
@exits
def command(files: tuple[str, ...], as_json: bool) -> None:
    """Make FILES plain again now. To keep them so, exclude them in the policy."""
    rows: list[dict[str, Any]] = []
    for path in files:
        try:
            rows.append({"path": path, "restored": _restored(path), "error": ""})
        except (DedupdError, OSError) as error:
            if len(files) == 1 and isinstance(error, UsageError):
                raise
            rows.append({"path": path, "restored": False, "error": message_of(error)})
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            state = "plain again" if row["restored"] else "already plain"
            click.echo(show_text(row["error"] or f"{row['path']}: {state}"))
    sys.exit(EXIT_FINDINGS if any(row["error"] for row in rows) else EXIT_DONE)


def _restored(path: str) -> bool:
    volume, below = Volume.locate_existing(path)
    with volume, named(path):
        if not below:
            raise UsageError(f"{path}: is the volume itself; use `dedupd run unoptimize`")
        require_room(volume, below, lambda: None)
        return restore_file(volume, below).was_stub
