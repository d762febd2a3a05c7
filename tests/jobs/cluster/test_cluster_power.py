"""A host of a cluster loses its power in the midst of a job: its disk forgets what was not synced,
and the cluster forgets nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest

from dedupd_core import failpoint
from tests.conftest import MakeFileSystem
from tests.support.cluster_crashes import Act, Death, Turns, break_off_at_each_step
from tests.support.cluster_lab import ClusterLab, Crash, cluster_lab
from tests.support.power import LOG_TOO, NOTHING, come_back, cut_power
from tests.support.rados_hosts import Site

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(1800)]


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


def by_power_cut(here: ClusterLab, point: Path) -> Death:
    """With and without the journal by turns: steps are an odd number apart."""

    def death(at: int, act: Act) -> bool:
        return power_fails_after(at, point, LOG_TOO if at % 2 else NOTHING, lambda: act(here.lab))

    return death


@pytest.mark.parametrize(
    ("kind", "name", "stride", "cuts_min"),
    [
        ("ext4", "run", 1, 30),
        ("xfs", "run", 3, 9),
        ("ext4", "collection", 1, 6),
        ("ext4", "plain", 1, 4),
    ],
)
def test_power_fails_after_any_step(
    kind: str, name: str, stride: int, cuts_min: int, site: Site, loop_fs: MakeFileSystem
) -> None:
    point = loop_fs(kind)
    with cluster_lab(point, site) as here:
        turn, death = getattr(Turns(here), name), by_power_cut(here, point)
        break_off_at_each_step(site, turn, death, stride=stride, deaths_min=cuts_min)
