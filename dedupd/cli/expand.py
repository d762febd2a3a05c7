"""``dedupd expand``: make files plain."""

import sys

import click

from dedupd.cli.common import exits, json_option, print_json
from dedupd.errors import EXIT_DONE, EXIT_FINDINGS, DedupdError, UsageError
from dedupd.volume import Volume
from jobs.unoptimize import restore_one


@click.command("expand")
@click.argument("files", nargs=-1, required=True, type=click.Path())
@json_option
@exits
def command(files: tuple[str, ...], as_json: bool) -> None:
    """Make FILES plain again now. To keep them so, exclude them in the policy."""
    rows = []
    for path in files:
        volume, below = Volume.locate(path)
        with volume:
            if not below:
                raise UsageError(f"{path}: is the volume itself; use `dedupd run unoptimize`")
            try:
                restored = restore_one(volume, below)
                rows.append({"path": path, "restored": restored, "error": ""})
            except (DedupdError, OSError) as error:
                rows.append({"path": path, "restored": False, "error": str(error)})
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            state = row["error"] or ("plain again" if row["restored"] else "already plain")
            click.echo(f"{row['path']}: {state}")
    sys.exit(EXIT_FINDINGS if any(row["error"] for row in rows) else EXIT_DONE)
