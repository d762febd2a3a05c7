"""``dedupd doctor``: check a machine and a volume, and explain."""

import sys
from dataclasses import asdict

import click

from dedupd.cli.common import PATH, exits, json_option, print_json
from dedupd.cli.terminal import figures, show
from dedupd.errors import EXIT_DONE, EXIT_FINDINGS


@click.command("doctor")
@click.argument("paths", nargs=-1, type=PATH)
@json_option
@exits
def command(paths: tuple[str, ...], as_json: bool) -> None:
    """Check this machine, and each PATH: a volume, or a directory that might become one."""
    from dedupd.service.doctor import Verdict, check_machine, check_path

    checks = {"this machine": check_machine(), **{path: check_path(path) for path in paths}}
    if as_json:
        print_json({name: [asdict(check) for check in found] for name, found in checks.items()})
    else:
        for name, found in checks.items():
            table = figures(4)
            for check in found:
                table.add_row(check.verdict.value, check.what, check.found, check.remedy)
            show(table, title=name)
    bad = any(check.verdict is Verdict.BAD for found in checks.values() for check in found)
    sys.exit(EXIT_FINDINGS if bad else EXIT_DONE)
