"""Runs jobs in the service if it manages the volume, else in this process."""

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click

from dedupd.cli.common import PATH, exits, job_run, json_option, print_json
from dedupd.cli.job_limits import OPTIONS, conduct, take_limits
from dedupd.service.client import ServiceClient
from dedupd_core.errors import EXIT_FINDINGS
from dedupd_core.system.paths import resolved
from jobs.frame.run import Cancelled, JobRun
from jobs.specs import JOBS

WAIT_S = 5
"""The longest time that one request waits for a change of a job."""


Decorator = Callable[[Callable[..., None]], Any]


def job_command(job: str, *options: Decorator) -> Decorator:
    """Decorator: a command that runs a job on PATH, in the service if it manages PATH.

    The limits that the job supports (``JOBS``) become options of the command, not arguments.
    """
    spec = JOBS.get(job)
    known = spec.known if spec is not None else frozenset()
    limits = [OPTIONS[name] for name in OPTIONS if name in known]
    decorators: tuple[Decorator, ...] = (
        click.command(job),
        click.argument("path", type=PATH),
        *options,
        *limits,
        json_option,
        exits,
        _through_service(job, known),
    )

    def decorate(command: Callable[..., None]) -> Any:
        made: Any = command
        for decorator in reversed(decorators):
            made = decorator(made)
        return made

    return decorate


def _through_service(job: str, known: frozenset[str]) -> Decorator:
    """Decorator: let the service run a job if it manages the volume; ``--wait`` waits for the end.

    ``known``: the options that the service supports.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @click.option(
            "--wait", is_flag=True, help="Wait for the job to finish if the service runs it."
        )
        @functools.wraps(command)
        def wrapper(path: str, as_json: bool, wait: bool, **options: Any) -> None:
            chosen = {
                name: value for name in known if (value := options.get(name)) not in (None, False)
            }
            take_limits(options)
            client = None
            if not conduct().here and not options.get("dry_run"):
                client = ServiceClient.serving(path)
            if client is None:
                command(path=path, as_json=as_json, **options)
                return
            body = {"job": job, "path": resolved(path), "options": chosen}
            if wait:
                _finish(_run_to_the_end(client, body, as_json), as_json)
                return
            submitted = client.post("/v1/jobs", body)
            if as_json:
                print_json(submitted)
            else:
                click.echo(
                    f"Queued as {submitted['id']}; `dedupd jobs --watch` shows its progress."
                )
                for line in _what_it_waits_for(client, path):
                    click.echo(line)

        return wrapper

    return decorate


def _what_it_waits_for(client: ServiceClient, path: str) -> Iterator[str]:
    volume = client.volume(path)
    if volume["paused"]:
        yield f"The volume is paused; the job starts after `dedupd resume {volume['path']}`."
    elif volume["mount"]["state"] == "unmounted":
        yield f"The volume is unmounted; the job starts after `dedupd mount {volume['path']}`."


def _run_to_the_end(client: ServiceClient, body: dict[str, Any], as_json: bool) -> dict[str, Any]:
    """Run a job in the service, show its progress, and return the finished job.

    Signals are deferred before the service gets the job, so that Ctrl-C reports that it continues.
    """
    with job_run(body["job"]) as run:
        job_id = client.post("/v1/jobs", body)["id"]
        for line in _what_it_waits_for(client, body["path"]):
            click.echo(line, err=True)  # the output is the report
        while True:
            job = client.job(job_id, WAIT_S)
            if job["state"] == "ended":
                return job
            _show(run, job)
            try:
                run.safe_point()
            except Cancelled:
                raise Cancelled(
                    f"{job_id} continues in the service; to stop it, run `dedupd cancel {job_id}`"
                ) from None


def _show(run: JobRun, job: dict[str, Any]) -> None:
    phase = job["waits_for"] or job["progress"].get("phase", job["state"])
    known = {name: job["progress"].get(name, 0) for name in ("done", "total", "files")}
    run.update(phase=phase, **known)


def _finish(job: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(job["report"] if job["report"] is not None else job)
    else:
        click.echo(job["output"], nl=False)
        click.echo(job["errors"], nl=False, err=True)
        if job["outcome"].startswith("stopped"):
            click.echo(f"dedupd: {job['outcome']}", err=True)
    status = job["exit_status"]
    sys.exit(EXIT_FINDINGS if status is None or status < 0 else status)
