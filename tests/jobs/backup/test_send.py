"""A volume is sent as it is, or what is new in it, and the receiver is what it was, or that."""

import os
import random
import shlex
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from dedupd_core.errors import Busy, UsageError
from dedupd_core.format.container import Kind
from dedupd_core.replica.replica import is_replica
from dedupd_core.system.files import opened
from dedupd_core.units import KIB, MIB
from jobs.backup.receiver import ReplicaVolume, drop, end, finish
from jobs.frame.run import JobRun
from tests.hostile.test_copies import OPEN, WRITTEN, overwrite
from tests.jobs.refine.test_refine import POLICY, refine, versions
from tests.support.lab import Lab, fill, flip_bit, new_lab, noise, prose, run_cli, stop_at
from tests.support.odd_files import directory_made
from tests.support.streams import content, point_of, sent
from tests.support.trees import fill_with_all

pytestmark = pytest.mark.root

PROGRAM = (sys.executable, "-m", "dedupd.cli.main")


def stored_bytes(lab: Lab) -> int:
    """What the store and the plain files of a volume take."""
    files = [p for p in (lab.base / "store").rglob("*.dat") if "copies" not in str(p)]
    data = [p for p in lab.data.rglob("*") if p.is_file() and not p.is_symlink()]
    return sum(p.stat().st_size for p in files) + sum(p.stat().st_blocks * 512 for p in data)


def mixed(root: Path) -> Lab:
    lab = new_lab(root)
    fill_with_all(lab)
    for name in (WRITTEN, OPEN):
        lab.put(name, noise(400 * KIB + 77, len(name)))
    for number in range(20):
        lab.put(f"many/{number}", prose(300 * KIB, number) + noise(200 * KIB, number))
    lab.optimize()
    for name in (WRITTEN, OPEN):
        overwrite(lab, name, bytes(256 * KIB), 64 * KIB, seals=name == WRITTEN)
    lab.put("plain", noise(100 * KIB, 77))
    return lab


def test_a_volume_is_received_as_it_was(tmp_path: Path) -> None:
    lab, replica = mixed(tmp_path / "volume"), new_lab(tmp_path / "replica")
    report, _ = sent(lab, replica)
    assert content(replica, tmp_path, "b") == content(lab, tmp_path, "a")
    assert report.wire_bytes < 1.03 * stored_bytes(lab)
    assert point_of(replica) == report.point
    assert report.messages == []
    replica.verify_clean()
    lab.verify_clean()
    assert replica.collect().orphaned_chunks == 0
    assert not (replica.base / "receive").exists()


def test_a_file_that_cannot_be_sent_is_a_finding_and_the_others_come(tmp_path: Path) -> None:
    """A path that no node has room for; a time that none has room for becomes the last one."""
    lab, replica = new_lab(tmp_path / "volume"), new_lab(tmp_path / "replica")
    future = lab.put("future", noise(50 * KIB))
    os.utime(future, (1 << 34, 1 << 34))
    lab.put("other", noise(50 * KIB, 1))
    with (
        opened(os.open(lab.data, os.O_RDONLY)) as top,
        opened(directory_made(top, b"/".join([b"d" * 250] * 270))) as below,
    ):
        os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=below))
    receive = f"{shlex.quote(sys.executable)} -m dedupd.cli.main receive --negotiate"
    result = run_cli("send", lab.root, "--through", f"{receive} {replica.root}")
    assert result.returncode == 1 and "too long for a stream" in result.stderr
    assert replica.read("other") == noise(50 * KIB, 1)
    assert replica.read("future") == future.read_bytes()
    assert (replica.data / "future").stat().st_mtime > (1 << 33)


def test_what_is_new_is_sent_and_what_went_is_gone(tmp_path: Path) -> None:
    lab, replica = mixed(tmp_path / "volume"), new_lab(tmp_path / "replica")
    for number in range(40):
        lab.put(f"bulk/{number}", noise(MIB // 2, 1000 + number))
    lab.optimize()
    first, _ = sent(lab, replica)
    whole = first.wire_bytes
    lab.put("new", noise(50 * KIB, 501))
    (lab.data / "many/3").unlink()
    shutil.rmtree(lab.data / "empty-folder")
    os.rename(lab.data / "many", lab.data / "much")
    os.rename(lab.data / "prose", lab.data / "deep/prose")
    os.chmod(lab.data / "small", 0o604)
    overwrite(lab, "plain", b"changed", 90 * KIB, seals=True)
    os.link(lab.data / "small", lab.data / "third")
    lab.optimize()
    second, _ = sent(lab, replica, since=first.point)
    assert second.same >= 50
    assert content(replica, tmp_path, "b") == content(lab, tmp_path, "a")
    assert second.wire_bytes < 0.015 * whole + 200 * KIB
    replica.collect()
    replica.compact()
    third, _ = sent(lab, replica, since=second.point)
    assert third.chunks == 0
    assert third.wire_bytes < 20 * KIB
    assert content(replica, tmp_path, "c") == content(lab, tmp_path, "d")
    replica.verify_clean()
    with pytest.raises(UsageError, match="builds on"):
        sent(lab, replica, since=first.point)


def test_a_replica_that_is_one_no_more_is_a_volume_like_others(tmp_path: Path) -> None:
    lab, replica = new_lab(tmp_path / "volume"), new_lab(tmp_path / "replica")
    lab.put("file", noise(200 * KIB))
    lab.optimize()
    report, _ = sent(lab, replica)
    with ReplicaVolume.open(str(replica.root)) as volume, volume.job_lock():
        with volume.mount_lock(), pytest.raises(Busy, match="is active"):
            end(volume)
        assert is_replica(volume.base_fd)
        end(volume)
        assert not is_replica(volume.base_fd)
        with pytest.raises(UsageError, match="not a replica"):
            end(volume)
    assert replica.read("file") == noise(200 * KIB)
    replica.verify_clean()
    with pytest.raises(UsageError):
        sent(lab, replica, since=report.point)


def test_a_receiver_that_answers_is_sent_what_it_lacks(tmp_path: Path) -> None:
    """Also what it has from elsewhere."""
    one, two = new_lab(tmp_path / "one"), new_lab(tmp_path / "two")
    common = noise(4 * MIB, 1)
    for lab, seed in ((one, 2), (two, 3)):
        lab.put("common", common)
        lab.put("own", noise(MIB, seed))
        lab.optimize()
    replica = new_lab(tmp_path / "replica")
    sent(one, replica)
    (replica.base / "replica.json").unlink()
    for name in os.listdir(replica.data):
        (replica.data / name).unlink()
    report, _ = sent(two, replica, negotiates=True)
    assert report.wire_bytes < 1.2 * MIB
    assert content(replica, tmp_path, "b") == content(two, tmp_path, "a")
    replica.verify_clean()
    two.put("more", noise(100 * KIB, 9))
    again, _ = sent(two, replica, negotiates=True)
    assert again.since == report.point
    assert again.wire_bytes < 130 * KIB


def test_a_damaged_file_stays_at_the_receiver_as_it_was(tmp_path: Path) -> None:
    lab, replica = new_lab(tmp_path / "volume"), new_lab(tmp_path / "replica")
    fill(lab)
    lab.optimize()
    before = content(lab, tmp_path, "a")
    first, _ = sent(lab, replica)
    lab.put("base", noise(50 * KIB, 88))
    lab.put("other", noise(9 * KIB, 89))
    lab.optimize()
    path = lab.container(Kind.CHUNKS)
    flip_bit(path, path.stat().st_size - 25 * KIB)
    report, _ = sent(lab, replica, since=first.point)
    assert report.damaged == report.kept == report.errors == 1
    after = content(replica, tmp_path, "b")
    assert after.pop("other")[-1] == noise(9 * KIB, 89)
    assert after == before
    fresh = new_lab(tmp_path / "fresh")
    report, received = sent(lab, fresh)
    assert report.damaged == received.errors == 1
    assert set(content(fresh, tmp_path, "c")) == set(before) - {"base"} | {"other"}
    fresh.verify_clean()


def test_a_record_that_is_another_one_is_not_sent(tmp_path: Path) -> None:
    """It is sound, and would pass for what the file has at the receiver."""
    lab, replica = new_lab(tmp_path / "volume"), new_lab(tmp_path / "replica")
    lab.put("file", noise(300 * KIB, 1))
    lab.put("other", noise(300 * KIB, 2))
    lab.optimize()
    lab.forge_first_record()
    report, _ = sent(lab, replica)
    assert report.damaged == report.kept == 1
    assert "those in the recipe" in report.messages[0]
    (name,) = (name for name, one in content(replica, tmp_path, "b").items() if one[-1])
    assert (replica.root / name).name in ("file", "other")
    assert replica.read(name) == lab.read(name)


def test_records_that_lean_on_others_are_sent_as_they_would_be_alone(tmp_path: Path) -> None:
    """Between ordinary ones: each has the number that the recipes count on."""
    lab, replica = new_lab(tmp_path / "volume"), new_lab(tmp_path / "replica")
    lab.set_policy(POLICY)
    for family in range(3):
        for number, one in enumerate(versions(family + 1, 20)):
            lab.put(f"{family}/{number}", one)
            lab.put(f"alone/{family}-{number}", noise(40 * KIB, 100 * family + number))
    lab.put("all", b"".join(p.read_bytes() for p in sorted(lab.data.rglob("*")) if p.is_file()))
    lab.optimize()
    assert refine(lab).new_deltas
    report, _ = sent(lab, replica)
    assert report.messages == []
    assert content(replica, tmp_path, "b") == content(lab, tmp_path, "a")
    replica.verify_clean()


POINTS = (
    *("receive.group-durable", "receive.complete", "receive.built", "receive.begun"),
    *("receive.moved-out", "receive.cleared", "receive.moved-in", "receive.noted"),
    "receive.switched",
)


@pytest.mark.parametrize("point", POINTS)
def test_a_receiver_that_stops_is_what_it_was_or_nobody_sees_it(tmp_path: Path, point: str) -> None:
    lab, replica = new_lab(tmp_path / "volume"), new_lab(tmp_path / "replica")
    fill(lab)
    lab.put("gone", b"gone")
    lab.optimize()
    first, _ = sent(lab, replica)
    before = content(replica, tmp_path, "before")
    (lab.data / "gone").unlink()
    lab.put("base", noise(70 * KIB, 6))
    lab.put("new/folder/file", noise(70 * KIB, 7))
    lab.optimize()
    now = content(lab, tmp_path, "now")
    with stop_at(point):
        sent(lab, replica, since=first.point)
    is_half = point in POINTS[3:-1]
    if is_half:
        with pytest.raises(Busy, match="--finish"), replica.opened() as volume, volume.job_lock():
            pass
        assert run_cli("mount", replica.root).returncode == 3
    elif point != "receive.switched":
        assert content(replica, tmp_path, "still") == before
        assert point_of(replica) == first.point
        with pytest.raises(Busy, match="--drop"):
            replica.collect()
    with ReplicaVolume.open(str(replica.root)) as volume, volume.job_lock():
        finish(volume, JobRun("receive"), is_asked=True)
        drop(volume)
    assert content(replica, tmp_path, "then") == now
    replica.verify_clean()
    replica.collect()
    lab.put("base", noise(70 * KIB, 8))
    sent(lab, replica, negotiates=True)
    assert content(replica, tmp_path, "last") == content(lab, tmp_path, "at last")
    replica.verify_clean()


def test_users_only_read_a_replica(tmp_path: Path) -> None:
    lab, replica = new_lab(tmp_path / "volume"), new_lab(tmp_path / "replica")
    contents = fill(lab)
    lab.optimize()
    sent(lab, replica)
    view = tmp_path / "view"
    view.mkdir()
    assert run_cli("mount", replica.root, view).returncode == 0
    try:
        assert {name: (view / name).read_bytes() for name in contents} == contents
        with pytest.raises(OSError, match="Read-only"):
            (view / "new").write_bytes(b"")
        lab.put("new", b"new")
        with pytest.raises(Busy, match="unmount the volume"):
            sent(lab, replica)
        assert not (view / "new").exists()
    finally:
        assert run_cli("umount", view).returncode == 0
    assert run_cli("receive", "--finish", replica.root).returncode == 0
    assert (replica.data / "new").exists()


def test_a_stream_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    lab, other, replica = (new_lab(tmp_path / name) for name in ("one", "two", "replica"))
    lab.put("file", b"1")
    other.put("file", b"2")
    replica.put("own", b"3")
    with pytest.raises(UsageError, match="empty"):
        sent(lab, replica)
    (replica.data / "own").unlink()
    sent(lab, replica)
    with pytest.raises(UsageError, match="another volume"):
        sent(other, replica)
    with pytest.raises(UsageError, match="no longer known here"):
        sent(lab, replica, since="00000000-0000-0000-0000-000000000001")


SLOW_SEEDS = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8)]


@pytest.mark.parametrize("seed", [0, 1, *SLOW_SEEDS])
def test_a_stream_with_a_wrong_bit_changes_nothing(tmp_path: Path, seed: int) -> None:
    lab, replica = new_lab(tmp_path / "volume"), new_lab(tmp_path / "replica")
    fill(lab)
    lab.optimize()
    command = [*PROGRAM, "send", str(lab.root)]
    data = bytearray(subprocess.run(command, capture_output=True, check=True).stdout)
    rng = random.Random(seed)
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    if seed % 4 == 3:
        del data[rng.randrange(len(data)) :]
    done = subprocess.run(
        [*PROGRAM, "receive", replica.root], input=bytes(data), capture_output=True, check=False
    )
    assert done.returncode in (1, 2, 4), done.stderr
    assert os.listdir(replica.data) == [] and not point_of(replica)
    replica.verify_clean()
    assert run_cli("receive", "--drop", replica.root).returncode == 0
    sent(lab, replica)
    assert content(replica, tmp_path, "b") == content(lab, tmp_path, "a")


def test_damage_says_itself(tmp_path: Path) -> None:
    replica = new_lab(tmp_path / "replica")
    command = [*PROGRAM, "receive", str(replica.root)]
    done = subprocess.run(command, input=b"no stream" * 9, capture_output=True, check=False)
    assert done.returncode == 4 and b"not a frame of a dedupd stream" in done.stderr


def ended(processes: list["subprocess.Popen[bytes]"]) -> list[int]:
    return [process.wait(timeout=120) for process in processes]


def kill_and_resume(lab: Lab, replica: Lab, rng: random.Random, limit_s: float) -> int:
    """Send with one side killed at a random moment, again and again, each time going on where the
    last one stopped, until a run gets through; returns how often it was killed."""
    kills = 0
    while True:
        run_cli("receive", "--finish", replica.root)  # where all has come, and it was killed then
        since = point_of(replica)
        token = run_cli("receive", "--token", replica.root).stdout.strip()
        more = ["--since", since] if since else []
        more += ["--resume", token] if token else []
        sender = subprocess.Popen(
            [*PROGRAM, "send", lab.root, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        receiver = subprocess.Popen(
            [*PROGRAM, "receive", replica.root], stdin=sender.stdout, stderr=subprocess.PIPE
        )
        assert sender.stdout is not None
        sender.stdout.close()
        victim = rng.choice((sender, receiver))
        with suppress(subprocess.TimeoutExpired):
            victim.wait(timeout=rng.uniform(0.2, limit_s))
        if victim.poll() is None:
            victim.kill()
            kills += 1
        told = receiver.communicate()[1], sender.communicate()[1]
        if ended([sender, receiver]) == [0, 0]:
            return kills
        assert b"Traceback" not in b"".join(told), told
        assert {sender.returncode, receiver.returncode} <= {0, 1, -9}, told


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_stream_gets_through_however_often_one_side_is_killed(tmp_path: Path) -> None:
    rng = random.Random(int(os.environ.get("DEDUPD_KILL_SEED", "1")))
    wanted = int(os.environ.get("DEDUPD_KILLS", "100"))
    lab, replica = new_lab(tmp_path / "volume"), new_lab(tmp_path / "replica")
    fill_with_all(lab)
    for number in range(150):
        lab.put(f"bulk/{number}", noise(MIB, number))
    lab.optimize()
    kills, turn = 0, 0
    while kills < wanted:
        # Short of what a whole run takes here, so that most runs are hit.
        kills += kill_and_resume(lab, replica, rng, 4.0)
        assert content(replica, tmp_path, f"b{turn}") == content(lab, tmp_path, f"a{turn}")
        for name in (f"a{turn}", f"b{turn}"):
            shutil.rmtree(tmp_path / name)
        replica.verify_clean()
        replica.collect()
        turn += 1
        for number in rng.sample(range(150), 15):
            lab.put(f"bulk/{number}", noise(2 * MIB, 1000 * turn + number))
        (lab.data / f"renamed-{turn}").mkdir()
        os.rename(lab.data / "bulk/0", lab.data / f"renamed-{turn}/0")
        lab.put("bulk/0", noise(MIB, turn))
        lab.optimize()
    lab.verify_clean()
    print(f"{kills} kills in {turn} states")
