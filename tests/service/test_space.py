"""Space that comes back by itself: a volume that is nearly full, and a folder that is deleted."""

import asyncio
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedupd.service.config import VolumeConfig
from dedupd.service.mount_keeper import MountKeeper, MountState
from dedupd.service.scheduler import SpaceLevel
from dedupd.service.served_volume import ServedVolume
from dedupd.service.space import (
    RESTORE_IDLE_S,
    RestoreWatch,
    Sample,
    SpaceWatch,
    level_of,
    rate_of,
    reclaimable,
)
from dedupd_core.config.policy import Policy, RestoreMode
from dedupd_core.config.reserve import Reserve
from dedupd_core.units import MIB
from tests.conftest import MakeFileSystem
from tests.support.lab import noise
from tests.support.service import ServiceLab, eventually, free_bytes

HOUR = 3600.0
POLICY = Policy(space_low=Reserve(percent=10.0), space_critical=Reserve(percent=5.0))


def sample(time_s: float, free: int, inodes: int = 10) -> Sample:
    return Sample(time_s, free, 1000, inodes)


def test_a_level_ends_a_little_above_where_it_begins() -> None:
    level, seen = SpaceLevel.ENOUGH, []
    for free in (101, 99, 105, 109, 49, 53, 56, 111, 105):
        level = level_of(free, 100, 50, level)
        seen.append(level)
    enough, low, critical = SpaceLevel
    assert seen == [enough, low, low, low, critical, critical, low, enough, enough]


def test_a_look_says_when_there_is_something_to_do() -> None:
    watch = SpaceWatch()
    assert not watch.look(sample(1, 500), POLICY)
    assert not watch.look(sample(2, 500, inodes=5), POLICY)  # removed, and there is enough
    assert watch.look(sample(3, 80, inodes=5), POLICY)
    assert not watch.look(sample(4, 80, inodes=6), POLICY)
    assert watch.look(sample(5, 80, inodes=5), POLICY)
    assert watch.look(sample(6, 40, inodes=5), POLICY)
    state = watch.state(POLICY)
    assert (state.level, state.since_s, state.removed_s) == (SpaceLevel.CRITICAL, 6, 5)
    assert state.age == "1h"
    assert watch.state(Policy(min_age_s=0)).age == ""


def test_a_restore_is_something_to_do_when_it_begins() -> None:
    watch, on = SpaceWatch(), Policy(restore_mode=RestoreMode.ON)
    looks = (Policy(), on, on, Policy(), on)
    assert [watch.look(sample(1, 500), one) for one in looks] == [False, True, False, False, True]


def test_the_forecast_is_the_line_through_what_was_seen() -> None:
    watch = SpaceWatch()
    for hour in range(5):
        watch.look(Sample(hour * HOUR, 10_000 - hour * 1000, 20_000, 1), POLICY)
    assert watch.full_s == pytest.approx(10 * HOUR)
    assert rate_of([Sample(at * HOUR, 5 + at, 9, 1) for at in range(4)]) == pytest.approx(-1 / HOUR)
    assert rate_of([sample(at, 9 - at) for at in range(9)]) is None


def test_the_forecast_goes_on_where_an_earlier_life_was() -> None:
    watch = SpaceWatch()
    watch.look(sample(4 * 3600, 60), Policy())
    assert watch.full_s is None
    watch.recall([sample(hour * 3600, 100 - 10 * hour) for hour in (1, 2, 3)])
    assert watch.full_s == pytest.approx(10 * 3600)


def test_where_the_policy_was_never_read_nobody_knows_what_is_low(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that frees space would only fail by the same policy."""
    volume = ServedVolume(VolumeConfig(str(tmp_path), str(tmp_path)))
    monkeypatch.setattr(MountKeeper, "base", str(tmp_path))
    volume.keeper.state = MountState.MOUNTED
    policy = tmp_path / "policy.toml"
    policy.write_text('min_age = "soon"\n')
    assert not asyncio.run(volume.look_at_space())
    assert volume.space.latest is None and volume.policy_problem
    policy.write_text('space_low = "99%"\n')
    assert asyncio.run(volume.look_at_space())
    assert volume.space.level > SpaceLevel.ENOUGH
    policy.write_text("nonsense")
    asyncio.run(volume.look_at_space())
    assert volume.space.level > SpaceLevel.ENOUGH, "what was read before holds"


def test_what_could_be_freed_is_told_by_job() -> None:
    found = reclaimable({}, 100, 50, 0.5)
    assert [(one.job, one.bytes) for one in found] == [
        ("compact", 100),
        ("gc", None),
        ("optimize", 25),
    ]


@pytest.fixture
def machine(loop_fs: MakeFileSystem) -> Iterator[ServiceLab]:
    machine = ServiceLab(loop_fs("ext4", "160M"))
    try:
        yield machine
    finally:
        machine.close()


@pytest.mark.root
def test_the_space_of_a_deleted_folder_comes_back_by_itself(machine: ServiceLab) -> None:
    """40 % of the volume, at 95 %: 90 % of it is free again within two minutes."""
    # Other tests keep the machine busy.
    lab = machine.add_volume(policy='reserve = "0"\nstop_when_busy = false\n')
    text = (lab.base / "policy.toml").read_text()
    total = os.statvfs(lab.root).f_blocks * os.statvfs(lab.root).f_frsize
    share = int(total * 0.4) // (8 * MIB)
    for at in range(share):  # containers of their own, as a folder has that came in one go
        lab.put(f"folder/{at}", noise(8 * MIB, at))
    lab.optimize()
    lab.put("kept", noise(20 * MIB, 999))
    lab.optimize()
    ballast = free_bytes(lab.root) - int(total * 0.05)
    lab.put("ballast", b"").write_bytes(b"\1" * ballast)
    for key in ("space_low", "space_critical", "keep_deleted"):  # as a new administrator has them
        text = re.sub(f"(?m)^{key} = .*\n", "", text)
    lab.write_policy(text + 'exclude = ["ballast"]\n')
    machine.start()
    level = eventually(lambda: (machine.view(lab)["space"] or {}).get("level"), "it was looked at")
    assert level in ("low", "critical")
    eventually(lambda: machine.view(lab)["tasks"]["gc"]["last"], "it has looked for garbage")
    eventually(lambda: machine.view(lab)["tasks"]["throughput"]["last"], "and optimized")
    before, began_s = free_bytes(lab.root), time.monotonic()
    shutil.rmtree(lab.root / "folder")
    wanted = before + int(0.9 * share * 8 * MIB)
    eventually(lambda: free_bytes(lab.root) >= wanted, "the space is back")
    assert time.monotonic() - began_s < 120
    assert (lab.root / "kept").read_bytes() == noise(20 * MIB, 999)
    eventually(lambda: machine.view(lab)["space"]["level"] == "enough", "it is over")
    assert machine.run("status", lab.root).stdout.count("free") >= 1
    machine.stop()
    machine.verify()


@pytest.mark.root
def test_younger_files_are_taken_while_space_is_critical(machine: ServiceLab) -> None:
    lab = machine.add_volume()
    lab.set_policy(
        (lab.base / "policy.toml").read_text().replace('min_age = "0s"', 'min_age = "9d"')
        + 'space_min_age = "0s"\nreserve = "0"\n'
    )
    os.utime(lab.put("f", noise(1 * MIB)))
    machine.start()
    assert machine.view(lab)["tasks"]["throughput"]["last"] is None
    assert machine.run("policy", lab.root, "space_critical", "99%").returncode == 0
    eventually(lambda: lab.stub("f") is not None, "it is a stub")
    assert machine.view(lab)["space"]["level"] == "critical"


def test_a_restore_is_over_an_hour_after_its_last_file() -> None:
    watch, on = RestoreWatch(), Policy(restore_mode=RestoreMode.ON)
    assert not watch.is_over(on, 0, 1000.0)
    assert not watch.is_over(on, 5, 4000.0)
    assert not watch.is_over(on, 0, 4000.0 + RESTORE_IDLE_S)
    assert watch.is_over(on, 0, 4001.0 + RESTORE_IDLE_S)
    assert not watch.is_over(Policy(), 0, 9e9)
    assert not watch.is_over(on, 0, 9e9), "it has just been switched on again"
