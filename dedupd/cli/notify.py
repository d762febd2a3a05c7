"""``dedupd notify``: try the ways by which the service tells somebody of problems."""

import sys

import click

from dedupd.cli.common import exits, json_option, print_json
from dedupd.service.client import ServiceClient
from dedupd_core.errors import EXIT_DONE, EXIT_FINDINGS, UsageError


@click.command("notify")
@click.option("--test", "is_test", is_flag=True, help="Tell by each way that this is a test.")
@json_option
@exits
def command(is_test: bool, as_json: bool) -> None:
    """Try the ways by which the service tells somebody of problems.

    They are `on_problem`, `mail_to` and `webhook` of the configuration.
    """
    if not is_test:
        raise UsageError("give --test: then each way tells that this is a test")
    results = ServiceClient.needed().post("/v1/notify")
    if as_json:
        print_json(results)
    else:
        for way, failure in results.items():
            click.echo(f"{way}: {failure or 'delivered'}")
    if not results:
        raise UsageError(
            "the configuration names nobody to tell; set on_problem, mail_to or webhook in it"
        )
    sys.exit(EXIT_FINDINGS if any(results.values()) else EXIT_DONE)
