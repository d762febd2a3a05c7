"""A pytest plugin for the guest: reports each test on the second serial port as a line of JSON."""

import json
import os
from collections.abc import Iterator
from typing import IO

import pytest

PORT = "/dev/ttyS1"

_port: IO[str] | None = None
_failed: dict[str, pytest.TestReport] = {}
_skipped: set[str] = set()
_seconds: dict[str, float] = {}


def pytest_configure() -> None:
    global _port
    assert os.environ.get("DEDUPD_VM") == "1", "this plugin is for a virtual machine"
    _port = os.fdopen(os.open(PORT, os.O_WRONLY), "w", buffering=1)


def _write(test: str, outcome: str, seconds: float = 0.0, text: str = "") -> None:
    assert _port is not None
    record = {"test": test, "outcome": outcome, "seconds": round(seconds, 1), "text": text}
    print(json.dumps(record), file=_port, flush=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _write(item.nodeid, "started")
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    test = report.nodeid
    _seconds[test] = _seconds.get(test, 0.0) + report.duration
    if report.outcome == "skipped":
        _skipped.add(test)
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        _write(test, "skipped", _seconds[test], reason.removeprefix("Skipped: "))
    elif report.outcome == "failed":
        _failed.setdefault(test, report)
    if report.when == "teardown":
        if (failure := _failed.get(test)) is not None:
            sections = "\n".join(content[-3000:] for _, content in failure.sections)
            text = f"{failure.longreprtext[-6000:]}\n{sections}"
            _write(test, "failed", _seconds[test], text)
        elif test not in _skipped:
            _write(test, "passed", _seconds[test])


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _write(report.nodeid, "failed", 0.0, report.longreprtext[-6000:])
