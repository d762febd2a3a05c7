"""A host that dies after any operation on the store, or any step of a stub: nothing dangles at any
time, and nothing is left over after recovery and collection."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dedupd_core import failpoint
from dedupd_core.format.cluster import objects
from dedupd_core.format.cluster.address import parse_address
from dedupd_core.format.cluster.objects import FileId
from dedupd_core.rados.cluster import points
from dedupd_core.rados.garbage import Collection
from dedupd_core.rados.store import RadosStore
from tests.support.ceph import REPOSITORY
from tests.support.rados_hosts import PIECE_BYTES, Host, Site, random_content

A, B, C = random_content(1), random_content(2, 2), random_content(3, 2)
EVERYWHERE = A[:PIECE_BYTES]
BEFORE = {1: A, 2: A + B, 3: B}
AFTER = {1: C, 2: A + B, 4: A + C}
"""File 1 is replaced, 3 deleted, 4 is new; in part of chunks that others have."""


class Crash(Exception):
    """The process ends here."""


def work(host: Host) -> None:
    """The run that is broken off."""
    host.put({1: C, 4: A + C})
    host.delete([3])
    Collection(host.store.chunks, 0.0).run()


def prepared_site(site: Site) -> None:
    with site.host("b") as other:
        other.put({1: EVERYWHERE})
    with site.host("a") as host:
        host.put(BEFORE)


@contextmanager
def crashing(at: int) -> Iterator[list[str]]:
    """Raise after the operation of this number, and after each one that is tried later."""
    passed: list[str] = []

    def hook(name: str) -> None:
        passed.append(name)
        if len(passed) >= at:
            raise Crash(name)

    failpoint.hook = hook
    try:
        yield passed
    finally:
        failpoint.hook = None


def run_until(site: Site, at: int) -> list[str]:
    """The steps that were made; a host that is still there when all are made ended well."""
    with crashing(at) as passed:
        host = None
        try:
            host = site.host("a", after=failpoint.reach)
            work(host)
            host.writer.close()
            host.store.close()
        except Crash:
            if host is not None:
                host.die()
    return passed


def is_before_or_after(host: Host) -> None:
    """Each file reads as one of its contents: stubs that exist name live versions."""
    for inode in BEFORE.keys() | AFTER.keys():
        if FileId(inode, 1).text in host.stubs.versions:
            assert host.read(inode) in (BEFORE.get(inode), AFTER.get(inode)), inode


def check_recovery(site: Site, *, by_another: bool) -> None:
    assert site.audit().dangling == []
    if by_another:
        site.recover(next(v for v, e in site.store.volumes().items() if e.host == "a"))
    with site.host("a") as host:
        is_before_or_after(host)
        host.delete_forgotten()
        is_before_or_after(host)
    site.collect()
    report = site.assert_whole()
    assert report.candidates == 0


def steps_of_a_whole_run(site: Site) -> list[str]:
    prepared_site(site)
    return run_until(site, 10**9)


def test_a_crash_after_each_kind_of_step(ceph: Path, site: Site) -> None:
    """The first of each kind, and recovered by the owner or by another host in turns."""
    steps = steps_of_a_whole_run(site)
    firsts = sorted({steps.index(kind) + 1 for kind in set(steps)})
    assert len(firsts) > 14
    for turn, at in enumerate(firsts):
        check_crash(site, at, by_another=turn % 2 == 0)


def check_crash(site: Site, at: int, *, by_another: bool) -> None:
    address = replace(site.address, name=f"{site.address.name}.{at}")
    directory = site.directory / f"{at}"
    directory.mkdir()
    with Site(RadosStore.create(address), directory) as fresh:
        prepared_site(fresh)
        assert len(run_until(fresh, at)) >= at
        check_recovery(fresh, by_another=by_another)


@pytest.mark.slow
@pytest.mark.parametrize("by_another", [False, True])
def test_a_crash_after_every_step(site: Site, by_another: bool) -> None:
    steps = steps_of_a_whole_run(site)
    for at in range(1, len(steps) + 1):
        check_crash(site, at, by_another=by_another)


@pytest.mark.slow
def test_a_crash_of_the_recovery(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recovery that dies after each of its own steps, behind each crash of the work."""
    monkeypatch.setattr(objects, "PART_ENTRIES_MAX", 3)
    steps = steps_of_a_whole_run(site)
    interesting = [
        at
        for at, step in enumerate(steps, 1)
        if step in (points.COMMITTED, points.FINISHED, points.CHUNK_REFERENCED, "stub", "unlink")
        or step in (points.CHUNK_CREATED, points.REFERENCE_DROPPED, points.CANDIDATE_ADDED)
    ]
    for at in interesting[:: max(1, len(interesting) // 6)]:
        _crash_twice(site, at)


def _crash_twice(site: Site, at: int) -> None:
    second = 0
    while True:
        second += 1
        address = replace(site.address, name=f"{site.address.name}.{at}.{second}")
        directory = site.directory / f"{at}.{second}"
        directory.mkdir()
        with Site(RadosStore.create(address), directory) as fresh:
            prepared_site(fresh)
            run_until(fresh, at)
            with crashing(second) as passed:
                is_whole = True
                try:
                    with fresh.host("a"):
                        pass
                except Crash:
                    is_whole = False
            check_recovery(fresh, by_another=second % 2 == 0)
        if is_whole:
            assert len(passed) < second
            return


# --- by SIGKILL -------------------------------------------------------------------------------


def run_process(site: Site, point: str, count: int) -> int:
    """The same run in a process of its own, killed at a fail point. Returns its status."""
    environment = {**os.environ, "DEDUPD_FAIL_POINT": f"{point}:{count}"}
    command = [sys.executable, "-m", __name__, str(site.address), str(site.directory)]
    result = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode in (0, -signal.SIGKILL), result.stderr
    return result.returncode


@pytest.mark.slow
@pytest.mark.parametrize("point", sorted(p for p in failpoint.POINTS if p.startswith("rados.")))
def test_a_kill_after_every_step_of_a_kind(site: Site, point: str) -> None:
    prepared_site(site)
    count = 0
    while run_process(site, point, count := count + 1) != 0:
        check_recovery(site, by_another=count % 2 == 0)
        with site.host("a") as host:
            host.put(BEFORE)
    check_recovery(site, by_another=False)


def main(address: str, directory: str) -> None:
    after: Callable[[str], None] = failpoint.reach
    options = {"operations_at_once": 8, "after": after}
    with Host(parse_address(address), Path(directory), "a", **options) as host:  # type: ignore[arg-type]
        work(host)


if __name__ == "__main__":
    main(*sys.argv[1:])
