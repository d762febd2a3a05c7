"""``dedupd expand``: expand stubs into plain files."""

import os
import stat
import sys
from typing import Any

import click

from dedupd.cli.common import PATH, exits, json_option, message_of, print_json
from dedupd.cli.policy import saved
from dedupd_core.config.policy_file import keep_plain
from dedupd_core.config.rules import pattern_of
from dedupd_core.errors import EXIT_DONE, EXIT_FINDINGS, DedupdError, UsageError
from dedupd_core.system.files import opened
from dedupd_core.system.inherited import lift_limits
from dedupd_core.system.paths import named, open_beneath, show_text
from dedupd_core.volume.restore import require_room, restore_file
from dedupd_core.volume.volume import Volume


@click.command("expand")
@click.argument("files", nargs=-1, required=True, type=PATH)
@click.option(
    "--once", is_flag=True, help="Add no rule, so that a later run may optimize the files again."
)
@json_option
@exits
def command(files: tuple[str, ...], once: bool, as_json: bool) -> None:
    """Expand FILES into plain files, and add a policy rule that keeps them plain."""
    lift_limits()
    rows: list[dict[str, Any]] = []
    for path in files:
        try:
            restored, ruled = _restored(path, once)
            rows.append({"path": path, "restored": restored, "ruled": ruled, "error": ""})
        except (DedupdError, OSError) as error:
            if len(files) == 1 and isinstance(error, UsageError):
                raise
            message = message_of(error)
            rows.append({"path": path, "restored": False, "ruled": False, "error": message})
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            state = "expanded" if row["restored"] else "already plain"
            state += "; a policy rule keeps it plain" if row["ruled"] else ""
            click.echo(show_text(row["error"] or f"{row['path']}: {state}"))
    sys.exit(EXIT_FINDINGS if any(row["error"] for row in rows) else EXIT_DONE)


def _restored(path: str, once: bool) -> tuple[bool, bool]:
    """Expand a file. Returns whether it was a stub, and whether a policy rule was added."""
    volume, below = Volume.locate_existing(path)
    with volume, named(path):
        if not below:
            raise UsageError(f"{path}: is the volume itself; use `dedupd run unoptimize`")
        if os.path.isdir(path):
            text = "is a directory; `dedupd run unoptimize` expands all files in it"
            raise UsageError(f"{path}: {text}")
        needs_rule = not once and _is_regular(volume, below)
        needs_rule = needs_rule and not volume.policy().excludes(below)
        require_room(volume, below, lambda: None)
        was_stub = restore_file(volume, below).was_stub
        if needs_rule:
            saved(volume, lambda text: keep_plain(text, [pattern_of(below)], volume.policy_where))
            # A run that started before the rule existed may have optimized the file again.
            restore_file(volume, below)
        return was_stub, needs_rule


def _is_regular(volume: Volume, below: bytes) -> bool:
    with opened(open_beneath(volume.data_fd, below, os.O_PATH)) as fd:
        return stat.S_ISREG(os.fstat(fd).st_mode)
