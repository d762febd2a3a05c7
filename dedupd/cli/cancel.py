"""``dedupd cancel``: end a job of the service."""

from urllib.parse import quote

import click

from dedupd.cli.common import answer, exits, json_option
from dedupd.service.client import ServiceClient


@click.command("cancel")
@click.argument("job_id", metavar="ID")
@json_option
@exits
def command(job_id: str, as_json: bool) -> None:
    """End the job ID at its next safe point; its work so far stays. `dedupd jobs` lists ids."""
    job = ServiceClient.needed().delete(f"/v1/jobs/{quote(job_id, safe='')}")
    answer(as_json, job, f"{job_id}: {job['outcome']}")
