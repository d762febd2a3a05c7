"""A command begins at once: it imports nothing heavy that it does without."""

import subprocess
import sys

import pytest

from dedupd.cli.main import COMMANDS
from tests.support.forks import REPOSITORY

COSTLY = {
    *("aiohttp", "asyncio", "duckdb", "email", "http", "jinja2", "matplotlib", "multiprocessing"),
    *("numpy", "prometheus_client", "psutil", "pyfuse3", "rich", "ssl", "trio"),
    # What serves a mount, and what is for volumes on a cluster alone.
    *("fuse_stub.process", "fuse_stub.operations", "jobs.cluster.session", "dedupd.rados.store"),
}
"""Many modules each. Functions import them where they are used."""

NEEDED = {"jobs": {"rich"}, "serve": {"asyncio", "ssl"}, "status": {"rich"}}
"""What nearly each run of a command uses."""

JOBS = ("compact", "gc", "optimize", "scrub", "unoptimize", "verify")

PASSED_OVER = {"analyze", "cluster", "demo", "doctor", "notify", "run", "send", "setup", "store"}
"""Groups of commands, and commands that take long whatever they import."""


@pytest.mark.parametrize(
    "command", [*sorted(COMMANDS.keys() - PASSED_OVER), *(f"run.{job}" for job in JOBS)]
)
def test_a_command_imports_nothing_costly_that_it_does_without(command: str) -> None:
    program = (
        "import sys, importlib, dedupd.cli.main;"
        f"importlib.import_module('dedupd.cli.{command}'); print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    imported = set(done.stdout.split())
    assert imported & COSTLY - NEEDED.get(command, set()) == set()
