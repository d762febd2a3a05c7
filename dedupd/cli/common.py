"""The base of all commands: exit statuses, JSON output, the run of a job."""

import errno
import functools
import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, ParamSpec, TypeVar

import click

from dedupd_core.errors import EXIT_FINDINGS, EXIT_USAGE, DedupdError, ReadOnlyVolume
from dedupd_core.system.inherited import lift_limits
from dedupd_core.system.paths import explain, filename_of, show_text
from jobs.frame.channel import Channel
from jobs.frame.run import JobRun

P = ParamSpec("P")
R = TypeVar("R")


class _Named(click.Path):
    """A path argument. Refuses an empty path, which would mean the working directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:
            self.fail("the name is empty", param, ctx)
        return super().convert(value, param, ctx)


PATH = _Named(readable=False)  # if the path cannot be read, the command reports the reason

json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
force_option = click.option(
    "--force", is_flag=True, help="Allow a file system that may lose files in a power failure."
)
trust_holes_option = click.option(
    "--trust-holes",
    is_flag=True,
    help="Also accept stubs that contain some of their data in blocks of their own (local"
    " blocks). Safe only if the program that made the copy"
    " preserved holes.",
)


privileges_option = click.option(
    "--privileges",
    is_flag=True,
    help="Keep set-user-ID bits, file capabilities, security labels and device nodes (root only).",
)

other_owners_option = click.option(
    "--force",
    is_flag=True,
    help="Also write into directories that belong to other users (root only).",
)


def exits(command: Callable[P, R]) -> Callable[P, R]:
    """Decorator: print an error as one line, and exit with its stable status."""

    @functools.wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except BrokenPipeError:
            raise  # the reader has closed the pipe; click exits silently
        except (DedupdError, OSError) as error:
            kind = (
                type(error).__name__
                if isinstance(error, DedupdError | PermissionError)
                else "OSError"
            )
            fail(message_of(error), status_of(error), bool(kwargs.get("as_json")), kind)

    return wrapper


def message_of(error: DedupdError | OSError) -> str:
    """Format an error for users."""
    if isinstance(error, PermissionError):
        where = filename_of(error) or "the volume"
        remedy = "run the command as the user that enabled the volume, usually root"
        return f"{where}: permission denied; {remedy}"
    if isinstance(error, OSError) and error.errno == errno.EROFS:
        return f"{explain(error)}; find the cause (`dmesg`), then `mount -o remount,rw`"
    return explain(error)


def status_of(error: DedupdError | OSError) -> int:
    if isinstance(error, OSError) and error.errno == errno.EROFS:
        return ReadOnlyVolume.exit_status
    if isinstance(error, PermissionError):
        return EXIT_USAGE
    return error.exit_status if isinstance(error, DedupdError) else EXIT_FINDINGS


def fail(message: str, status: int, as_json: bool, kind: str) -> NoReturn:
    """Print an error and exit."""
    if as_json:
        print(json.dumps({"error": message, "kind": kind, "exit_status": status}))
    else:
        click.echo(_folded(f"dedupd: {show_text(message)}"), err=True)
    sys.exit(status)


def _folded(text: str) -> str:
    """Wrap a line between words on a terminal, which would wrap it within words."""
    if not sys.stderr.isatty():
        return text
    columns = shutil.get_terminal_size().columns
    return textwrap.fill(text, columns, break_long_words=False, break_on_hyphens=False)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def show_or_json(as_json: bool, value: Any, show: Callable[[], None]) -> None:
    """Print the result of a command: ``value`` as JSON, or else the output of ``show``."""
    if as_json:
        print_json(value)
    else:
        show()


def answer(as_json: bool, value: Any, text: str) -> None:
    """Print the result of a command: ``value`` as JSON, or else ``text``."""
    show_or_json(as_json, value, lambda: click.echo(text))


@contextmanager
def job_run(job: str, unit: str = "bytes") -> Iterator[JobRun]:
    """Run a job, and report its progress to the service, or on a terminal. Raises UsageError if a
    resource limit of the caller cannot be removed."""
    lift_limits()
    channel = Channel.from_environment()
    if channel is not None:
        run = JobRun(job, lambda _: channel.tell(run))
        with channel.serving(run), run.stopped_by_signals():
            yield run
        return
    if not sys.stderr.isatty():
        run = JobRun(job)
        with run.stopped_by_signals():
            yield run
        return
    from dedupd.cli.terminal import progress_bar  # rich imports many modules

    with progress_bar(job, unit) as show:
        run = JobRun(job, show)
        with run.stopped_by_signals():
            yield run
