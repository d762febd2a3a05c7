"""``dedupd doctor``: check a machine and a volume, and explain the results."""

import sys
from collections import Counter
from dataclasses import asdict

import click
from rich.text import Text

from dedupd.cli.common import PATH, exits, json_option, print_json
from dedupd.cli.terminal import figures, show
from dedupd_core.errors import EXIT_DONE, EXIT_FINDINGS
from dedupd_core.units import counted

_STYLES = {"bad": "bold red", "warning": "yellow", "fine": "green"}
"""The style of each verdict on a terminal, the worst verdict first."""


@click.command("doctor")
@click.argument("paths", nargs=-1, type=PATH)
@json_option
@exits
def command(paths: tuple[str, ...], as_json: bool) -> None:
    """Check this machine, and each PATH: a volume, or a directory that is to become one."""
    from dedupd.service.doctor import check_machine, check_path

    checks = {"this machine": check_machine(), **{path: check_path(path) for path in paths}}
    if as_json:
        print_json({name: [asdict(check) for check in found] for name, found in checks.items()})
    else:
        for name, found in checks.items():
            table = figures(4)
            for check in sorted(found, key=lambda one: list(_STYLES).index(one.verdict.value)):
                verdict = Text(check.verdict.value, style=_STYLES[check.verdict.value])
                table.add_row(verdict, check.what, check.found, check.remedy)
            show(table, title=name)
    verdicts = Counter(check.verdict.value for found in checks.values() for check in found)
    if not as_json:
        problems, warnings = counted(verdicts["bad"], "problem"), verdicts["warning"]
        click.echo(f"{problems}, {counted(warnings, 'warning')}.")
    sys.exit(EXIT_FINDINGS if verdicts["bad"] else EXIT_DONE)
