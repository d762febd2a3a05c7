"""A job of a volume in a cluster ends after any step, of the store or of a stub: every file reads
right at once, nothing is missing in the store at any time, and after the next run and a collection
nothing is left over."""

from pathlib import Path
from uuid import UUID

import pytest

from tests.conftest import MakeFileSystem
from tests.support.cluster_crashes import (
    Turns,
    break_off_at_each_step,
    by_exception,
    by_kill,
    by_kill_of_its_mount,
)
from tests.support.cluster_lab import cluster_lab
from tests.support.rados_hosts import Site

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize(
    ("kind", "name"),
    [("ext4", "run"), ("xfs", "run"), ("btrfs", "run"), ("ext4", "collection"), ("ext4", "plain")],
)
def test_an_exception_after_any_step(
    kind: str, name: str, site: Site, loop_fs: MakeFileSystem
) -> None:
    with cluster_lab(loop_fs(kind), site) as here:
        turn = getattr(Turns(here), name)
        deaths_min = {"run": 30, "collection": 20, "plain": 4}[name]
        break_off_at_each_step(site, turn, by_exception(here), deaths_min=deaths_min)


@pytest.mark.parametrize("by_another", [False, True])
@pytest.mark.parametrize("name", ["run", "collection", "plain"])
def test_a_kill_at_any_step(
    name: str, by_another: bool, site: Site, loop_fs: MakeFileSystem
) -> None:
    """Of a process of its own, by SIGKILL; then its own host comes, or another one before."""
    with cluster_lab(loop_fs("ext4"), site) as here:
        turn = getattr(Turns(here), name)

        def recover() -> None:
            if by_another:
                site.recover(UUID(here.uuid).hex)

        deaths = break_off_at_each_step(site, turn, by_kill(here), recover=recover, deaths_min=10)
        print(f"\n{name}: killed at each of its {deaths} steps")


@pytest.mark.parametrize("name", ["run", "plain"])
def test_a_kill_of_the_mount_at_any_effect(
    name: str, site: Site, loop_fs: MakeFileSystem, tmp_path: Path
) -> None:
    view = tmp_path / "view"
    view.mkdir()
    with cluster_lab(loop_fs("ext4"), site) as here:
        turn, death = getattr(Turns(here), name), by_kill_of_its_mount(here, view)
        deaths = break_off_at_each_step(site, turn, death, deaths_min=10)
        print(f"\n{name}: the mount was killed before each of its {deaths} effects")
