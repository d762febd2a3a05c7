"""A host of a cluster loses its power in the midst of a job: its disk forgets what was not synced,
and the cluster forgets nothing."""

import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dedupd import failpoint
from tests.conftest import MakeFileSystem
from tests.support.cluster_lab import ClusterLab, Crash, cluster_lab
from tests.support.lab import noise
from tests.support.power import LOG_TOO, NOTHING, come_back, cut_power
from tests.support.rados_hosts import Site

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(1800)]

COMMON = noise(20_000, 1)


def power_fails_after(at: int, point: Path, how: int, act: Callable[[], object]) -> bool:
    """Whether the act got to its step of this number, when its host lost its power."""
    passed, has_failed = 0, False

    def hook(name: str) -> None:
        nonlocal passed, has_failed
        passed += 1
        if passed >= at:
            if not has_failed:
                cut_power(point, how)
                has_failed = True
            raise Crash(name)

    failpoint.hook = hook
    try:
        act()
    except (Crash, Exception):
        assert has_failed
    finally:
        failpoint.hook = None
    if has_failed:
        come_back(point)
    return has_failed


def sync(point: Path) -> None:
    subprocess.run(["sync", "-f", str(point)], check=True)


def assert_reads(here: ClusterLab, contents: dict[str, bytes], where: object) -> None:
    for name, content in contents.items():
        assert here.lab.read(name) == content, (where, name)


def ways(at: int) -> int:
    """With and without the journal by turns: steps are an odd number apart."""
    return LOG_TOO if at % 2 else NOTHING


Act = Callable[[], object]


def power_fails_after_each_step(
    point: Path, site: Site, turn: Callable[[int], Iterator[Act]], *, stride: int = 1, cuts_min: int
) -> None:
    """A turn makes its files, gives the act in which the power fails, and goes on once the host is
    back. The last one is that whose act gets to its end."""
    cuts = 0
    for at in itertools.count(stride, stride):
        steps = turn(at)
        act = next(steps)
        has_failed = power_fails_after(at, point, ways(at), act)
        assert site.audit().dangling == []
        assert next(steps, None) is None
        if not has_failed:
            break
        cuts += 1
    assert cuts >= cuts_min


def new_files(here: ClusterLab, at: int, count: int) -> dict[str, bytes]:
    contents = {f"file{n}": noise(20_000, at * 10 + n) + COMMON for n in range(count)}
    for name, content in contents.items():
        here.lab.put(name, content)
    return contents


def read_before_and_after(
    here: ClusterLab, site: Site, act: Act, contents: dict[str, bytes], at: int
) -> Iterator[Act]:
    """What is synced reads after a cut in the act, and once it has been done again."""
    sync(here.lab.root)
    yield act
    assert_reads(here, contents, at)
    act()
    assert_reads(here, contents, at)
    here.collect()
    site.assert_whole()


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_power_fails_after_any_step_of_a_run(
    kind: str, site: Site, loop_fs: MakeFileSystem
) -> None:
    """Of files that are new, and of stubs that were written to."""
    point = loop_fs(kind)
    with cluster_lab(point, site) as here:

        def turn(at: int) -> Iterator[Act]:
            contents = new_files(here, at, 2)
            here.lab.put("changed", noise(40_000, at) + COMMON)
            here.optimize()
            for name, content in contents.items():
                here.lab.put(name, content[::-1])
                contents[name] = content[::-1]
            here.lab.let_write("changed")
            with (here.lab.data / "changed").open("r+b") as file:
                os.pwrite(file.fileno(), b"n" * 4096, 8192)
            os.utime(here.lab.data / "changed", ns=(1, 1))
            changed = bytearray(noise(40_000, at) + COMMON)
            changed[8192 : 8192 + 4096] = b"n" * 4096
            contents["changed"] = bytes(changed)
            yield from read_before_and_after(here, site, here.optimize, contents, at)

        stride = 1 if kind == "ext4" else 3
        power_fails_after_each_step(point, site, turn, stride=stride, cuts_min=9)


def test_power_fails_after_any_step_of_a_collection(site: Site, loop_fs: MakeFileSystem) -> None:
    """Files that were removed may be there again, since that was not synced: then they read."""
    point = loop_fs("ext4")
    with cluster_lab(point, site) as here:
        here.lab.put("kept", COMMON)

        def turn(at: int) -> Iterator[Act]:
            contents = new_files(here, at, 3)
            here.optimize()
            sync(point)
            for name in contents:
                (here.lab.data / name).unlink()
            yield here.collect
            for name, content in contents.items():
                if (here.lab.data / name).exists():
                    assert here.lab.read(name) == content, (at, name)
                    (here.lab.data / name).unlink()
            assert here.lab.read("kept") == COMMON
            here.collect()
            assert here.lab.read("kept") == COMMON
            assert site.assert_whole().candidates == 0

        power_fails_after_each_step(point, site, turn, cuts_min=6)


def test_power_fails_while_plain_files_are_made(site: Site, loop_fs: MakeFileSystem) -> None:
    point = loop_fs("ext4")
    with cluster_lab(point, site) as here:

        def turn(at: int) -> Iterator[Act]:
            contents = new_files(here, at, 2)
            here.optimize()
            yield from read_before_and_after(here, site, here.lab.unoptimize, contents, at)

        power_fails_after_each_step(point, site, turn, cuts_min=4)
