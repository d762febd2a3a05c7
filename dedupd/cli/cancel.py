"""``dedupd cancel``: stop jobs of the service."""

from urllib.parse import quote

import click

from dedupd.cli.common import answer, exits, json_option
from dedupd.service.client import ServiceClient
from dedupd_core.errors import UsageError


@click.command("cancel")
@click.argument("job_ids", metavar="[ID]...", nargs=-1)
@click.option(
    "--all", "of_all", is_flag=True, help="Stop all running and queued jobs, on all volumes."
)
@json_option
@exits
def command(job_ids: tuple[str, ...], of_all: bool, as_json: bool) -> None:
    """Stop jobs at their next safe point, and keep their finished work. `dedupd jobs` lists the
    IDs.

    A scheduled job starts again when it is next due; `dedupd pause` prevents that.
    """
    if of_all == bool(job_ids):
        raise UsageError("no job is given; name jobs, or use --all; `dedupd jobs` lists the IDs")
    client = ServiceClient.needed()
    if of_all:
        found = client.jobs(1)
        # Cancel queued jobs first: otherwise they would start as soon as the running jobs stop.
        job_ids = tuple(job["id"] for job in (*found["waiting"], *found["running"]))
    jobs = [client.delete(f"/v1/jobs/{quote(job_id, safe='')}") for job_id in job_ids]
    lines = [f"{job_id}: {job['outcome']}" for job_id, job in zip(job_ids, jobs, strict=True)]
    is_one = len(jobs) == 1 and not of_all
    answer(
        as_json, jobs[0] if is_one else jobs, "\n".join(lines or ["no job is running or queued"])
    )
