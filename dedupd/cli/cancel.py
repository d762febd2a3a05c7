"""``dedupd cancel``: end jobs of the service."""

from urllib.parse import quote

import click

from dedupd.cli.common import answer, exits, json_option
from dedupd.service.client import ServiceClient
from dedupd_core.errors import UsageError


@click.command("cancel")
@click.argument("job_ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "of_all", is_flag=True, help="All jobs that run or wait, on all volumes.")
@json_option
@exits
def command(job_ids: tuple[str, ...], of_all: bool, as_json: bool) -> None:
    """End the jobs ID at their next safe point; their work so far stays. `dedupd jobs` lists ids.

    A job of the schedule comes back in its time; `dedupd pause` holds them.
    """
    if of_all == bool(job_ids):
        raise UsageError("name the jobs to end, or give --all; `dedupd jobs` lists them")
    client = ServiceClient.needed()
    if of_all:
        found = client.jobs(1)
        # The waiting ones first: they would begin in the place of those that run.
        job_ids = tuple(job["id"] for job in (*found["waiting"], *found["running"]))
    jobs = [client.delete(f"/v1/jobs/{quote(job_id, safe='')}") for job_id in job_ids]
    lines = [f"{job_id}: {job['outcome']}" for job_id, job in zip(job_ids, jobs, strict=True)]
    is_one = len(jobs) == 1 and not of_all
    answer(as_json, jobs[0] if is_one else jobs, "\n".join(lines or ["no job runs or waits"]))
