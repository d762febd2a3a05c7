"""``dedupd notify``: send a test notification."""

import sys

import click

from dedupd.cli.common import exits, json_option, print_json
from dedupd.service.client import ServiceClient
from dedupd_core.errors import EXIT_DONE, EXIT_FINDINGS, UsageError


@click.command("notify")
@click.option("--test", "is_test", is_flag=True, help="Send the test notification.")
@json_option
@exits
def command(is_test: bool, as_json: bool) -> None:
    """Send a test notification through each configured channel.

    The channels are the keys `on_problem`, `mail_to` and `webhook` of the configuration.
    """
    if not is_test:
        raise UsageError(
            "nothing to do; use --test to send a test notification through each channel"
        )
    results = ServiceClient.needed().post("/v1/notify")
    if as_json:
        print_json(results)
    else:
        for way, failure in results.items():
            click.echo(f"{way}: {failure or 'delivered'}")
    if not results:
        raise UsageError(
            "no notification channel is configured; set on_problem, mail_to or webhook"
        )
    sys.exit(EXIT_FINDINGS if any(results.values()) else EXIT_DONE)
