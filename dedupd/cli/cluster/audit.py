"""``dedupd cluster audit``: find missing, damaged and unreferenced objects of a store."""

import sys
from dataclasses import asdict

import click

from dedupd.cli.common import exits, json_option, show_or_json
from dedupd_core.errors import EXIT_DAMAGED, EXIT_DONE, EXIT_FINDINGS
from dedupd_core.format.cluster.address import parse_address
from dedupd_core.rados.audit import Audit, AuditReport
from dedupd_core.rados.store import RadosStore
from dedupd_core.units import counted

SHOWN_MAX = 20


@click.command("audit")
@click.argument("store")
@click.option("--read", "reads_chunks", is_flag=True, help="Read the content of all chunks too.")
@click.option("--repair", is_flag=True, help="Delete unreferenced objects.")
@json_option
@exits
def command(store: str, reads_chunks: bool, repair: bool, as_json: bool) -> None:
    """Find missing, damaged and unreferenced objects in STORE.

    Hosts can write while the audit runs. The audit does not repair a damaged chunk. A host replaces
    the chunk when it stores a file that contains the same bytes.
    """
    with RadosStore.open(parse_address(store)) as opened:
        audit = Audit(opened, reads_chunks=reads_chunks)
        report = audit.run()
        if repair:
            audit.repair()
    show_or_json(as_json, asdict(report), lambda: _show(report))
    left = [] if repair else report.leaked
    lost = report.dangling or report.damaged
    sys.exit(EXIT_DAMAGED if lost else EXIT_FINDINGS if left else EXIT_DONE)


def _show(report: AuditReport) -> None:
    click.echo(
        f"{counted(report.files, 'file')}, {counted(report.chunks, 'chunk')},"
        f" {counted(report.references, 'reference')}; {counted(report.pinned, 'pinned chunk')},"
        f" {counted(report.candidates, 'garbage candidate')}"
    )
    for word, findings in (
        ("missing", report.dangling),
        ("damaged", report.damaged),
        ("unreferenced", report.leaked),
    ):
        for finding in findings[:SHOWN_MAX]:
            click.echo(f"  {word}: {finding}", err=True)
        if len(findings) > SHOWN_MAX:
            click.echo(f"  {word}: and {len(findings) - SHOWN_MAX} more", err=True)
    if report.repaired:
        click.echo(f"{counted(report.repaired, 'object')} deleted.")
