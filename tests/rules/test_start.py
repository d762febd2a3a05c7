"""How programs start: at once, with no costly import, and with all standard streams."""

import ast
import subprocess
import sys
import tomllib

import pytest

from dedupd.cli.main import COMMANDS
from tests.support.forks import REPOSITORY
from tests.support.sources import ROOT, all_modules, called

COSTLY = {
    *("aiohttp", "asyncio", "duckdb", "email", "http", "jinja2", "matplotlib", "multiprocessing"),
    *("numpy", "prometheus_client", "psutil", "pyfuse3", "rich", "ssl", "trio"),
    # What serves a mount, and what is for volumes on a cluster alone.
    *(
        "fuse_stub.process",
        "fuse_stub.operations",
        "jobs.cluster.session",
        *("dedupd_core.rados.store", "dedupd_core.rados.reading.volume_store"),
    ),
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


def test_every_entry_point_opens_its_streams_first() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    entries = {target.partition(":")[0] for target in project["scripts"].values()}
    for module in all_modules():
        if module.path.name == "__main__.py" or '__name__ == "__main__"' in module.path.read_text():
            entries.add(module.name)
    calls = {
        module.name
        for module in all_modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and called(node.func) == "open_standard_streams"
    }
    assert entries <= calls, "these leave standard streams closed"
