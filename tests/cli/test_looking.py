"""Commands that only show something: they write nothing below, and wait for nothing there."""

import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import pytest

from dedupd.service.history import History
from dedupd_core.errors import EXIT_FINDINGS
from tests.conftest import MakeFileSystem
from tests.support.lab import fill_to_the_brim, noise, run_cli
from tests.support.mounts import MountedLab, mounted_lab

pytestmark = pytest.mark.root

LIMIT_S = 60.0
"""A machine that is busy answers within seconds. A command that waits for the thaw does not end."""


def commands(lab: MountedLab) -> dict[str, Callable[[], object]]:
    """Everything that looks at a volume, by name. Each raises where it fails."""

    def shows(*arguments: str | Path, status_max: int = 0) -> Callable[[], object]:
        def show() -> None:
            done = run_cli(*arguments)
            assert done.returncode <= status_max, done

        return show

    history = History(str(lab.base))
    return {
        "status": shows("status", "--here", lab.root),
        "jobs": shows("jobs", lab.root),
        "file": shows("file", lab.root / "stub"),
        "du": shows("du", lab.root),
        "deleted": shows("deleted", lab.root),
        "doctor": shows("doctor", lab.root, status_max=EXIT_FINDINGS),
        "policy": shows("policy", lab.root),
        "dry run": shows("run", "optimize", "--dry-run", lab.root),
        "history": lambda: (history.load(), history.runs(9), history.flow(0), history.damage_met()),
    }


@contextmanager
def looked_at(point: Path, *, mounted: bool) -> Iterator[MountedLab]:
    """A volume with a stub, a plain file, a history, and something that was deleted."""
    with mounted_lab(point) as lab:
        lab.set_policy('min_age = "0s"\nmin_size = "1"\nkeep_deleted = "1h"\n')
        for name in ("stub", "gone"):
            lab.make_stub(name, noise(100_000, seed=len(name)))
        (lab.view / "plain").write_bytes(noise(30_000, seed=9))
        (lab.view / "gone").unlink()
        optimized = run_cli("run", "optimize", lab.root)  # has a history, unlike the lab's own
        assert optimized.returncode == 0, optimized
        if not mounted:
            lab.unmount()
        yield lab


def expect_answers(looks: dict[str, Callable[[], object]], over: Callable[[], object]) -> None:
    """All of them answer before ``over`` ends the state that they are tried in."""
    with ThreadPoolExecutor(len(looks)) as pool:
        try:
            under_way = {pool.submit(look): name for name, look in looks.items()}
            _, waiting = wait(under_way, LIMIT_S)
        finally:
            over()
    assert [under_way[one] for one in waiting] == []
    for one in under_way:
        one.result()


@pytest.mark.parametrize("mounted", [True, False], ids=["mounted", "unmounted"])
def test_nothing_waits_for_the_thaw_of_a_frozen_file_system(
    loop_fs: MakeFileSystem, mounted: bool
) -> None:
    point = loop_fs()
    with looked_at(point, mounted=mounted) as lab:
        looks = commands(lab)
        subprocess.run(["fsfreeze", "--freeze", point], check=True)
        expect_answers(looks, lambda: subprocess.run(["fsfreeze", "--unfreeze", point], check=True))


def everything_below(directory: Path) -> dict[str, tuple[int, int, int, int]]:
    """What any writing would change, of each name: its inode, size, blocks and change time."""
    return {
        str(path.relative_to(directory)): (
            (status := path.lstat()).st_ino,
            status.st_size,
            status.st_blocks,
            status.st_ctime_ns,
        )
        for path in [directory, *directory.rglob("*")]
    }


def test_nothing_is_written_where_there_is_room(loop_fs: MakeFileSystem) -> None:
    with looked_at(loop_fs(), mounted=False) as lab:
        before = everything_below(lab.base)
        for look in commands(lab).values():
            look()
        assert everything_below(lab.base) == before


def test_a_volume_without_a_history_gets_none(loop_fs: MakeFileSystem) -> None:
    with looked_at(loop_fs(), mounted=False) as lab:
        for path in (lab.base / "catalog").iterdir():
            path.unlink()
        (lab.base / "catalog").rmdir()
        for look in commands(lab).values():
            look()
        assert not (lab.base / "catalog").exists()


def test_full_file_systems_and_those_out_of_inodes_answer(loop_fs: MakeFileSystem) -> None:
    point = loop_fs(size="64M")
    with looked_at(point, mounted=False) as lab:
        last = 0
        while os.statvfs(point).f_favail:
            (lab.root / f"empty{last}").touch()
            last += 1
        fill_to_the_brim(lab.root / "empty0")
        for look in commands(lab).values():
            look()
        for number in range(last):
            (lab.root / f"empty{number}").unlink()
