"""Streams from and to volumes whose chunks are in a cluster."""

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from dedupd_core.errors import Busy, UsageError
from jobs.backup.receiver import ReplicaVolume, drop, finish, token
from jobs.backup.sender import ROWS_AT_ONCE, Resume
from jobs.frame.run import JobRun
from tests.support.cluster_lab import ClusterLab, cluster_lab, crash_after
from tests.support.lab import Lab, fill, new_lab, noise, stop_at
from tests.support.rados_hosts import Site
from tests.support.streams import point_of, reception, sent
from tests.support.trees import Seen, fill_with_all, seen

pytestmark = pytest.mark.root


def tree_of(lab: Lab) -> Seen:
    """What a volume holds: its files' bytes by the store, all else by its tree."""
    found = seen(lab.data, contents=False)
    return {
        name: (*facts, lab.read(name)) if _is_file(lab.data / name) else facts
        for name, facts in found.items()
    }


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def go_on(lab: Lab, act: Callable[[ReplicaVolume], None]) -> None:
    with ReplicaVolume.open(str(lab.root)) as volume, volume.job_lock():
        act(volume)


def put_in_place(volume: ReplicaVolume) -> None:
    run = JobRun("receive")
    finish(volume, run, reception(volume, run), is_asked=False)


def assert_settled(here: ClusterLab) -> None:
    """Nothing is missing in the store, and after a collection nothing is left over."""
    assert here.site.audit().dangling == []
    here.collect()
    here.collect()
    report = here.site.assert_whole()
    assert report.recipes == report.files


def test_a_volume_goes_into_a_cluster_and_comes_back(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.backup.sent_points.NUMBERS_MAX", 2 * ROWS_AT_ONCE)
    lab, back = new_lab(tmp_path / "volume", "4k"), new_lab(tmp_path / "back", "4k")
    with cluster_lab(tmp_path / "there", site) as there:
        fill_with_all(lab)
        contents = fill(lab)
        lab.optimize()
        first, _ = sent(lab, there.lab)
        assert first.messages == []
        assert tree_of(there.lab) == tree_of(lab)
        # (A block may be an attribute's.)
        assert max(p.stat().st_blocks for p in there.lab.data.rglob("*") if p.is_file()) <= 8
        assert not (there.lab.base / "receive").exists()
        assert_settled(there)
        sent(there.lab, back)
        assert tree_of(back) == tree_of(lab)
        back.verify_clean()
        # What is new, both ways.
        lab.put("new", noise(200_000, 91))
        (lab.data / next(iter(contents))).unlink()
        lab.optimize()
        second, received = sent(lab, there.lab, since=first.point)
        assert second.same > 5 and received.chunks < 60
        assert tree_of(there.lab) == tree_of(lab)
        assert_settled(there)
        third, _ = sent(there.lab, back, negotiates=True)
        assert third.chunks < 60
        assert tree_of(back) == tree_of(lab)
        fourth, _ = sent(there.lab, back, since=third.point)
        assert fourth.same == fourth.files and fourth.chunks == 0
        assert tree_of(back) == tree_of(lab)
        back.verify_clean()
        with pytest.raises(UsageError, match="builds on"):
            sent(lab, there.lab, since=first.point)


def test_what_the_cluster_has_need_not_be_sent(site: Site, tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume", "4k")
    with (
        cluster_lab(tmp_path / "one", site) as one,
        cluster_lab(tmp_path / "two", site) as two,
    ):
        for here in (one.lab, lab):
            here.put("file", noise(2_000_000, 1))
        lab.put("own", noise(50_000, 2))
        one.optimize()
        lab.optimize()
        report, received = sent(lab, two.lab, negotiates=True)
        assert report.wire_bytes < 250_000 and report.known > 300
        assert received.present > 300
        assert tree_of(two.lab) == tree_of(lab)
        (one.lab.data / "file").unlink()
        one.collect()
        assert_settled(two)
        assert two.lab.read("file") == noise(2_000_000, 1)


def test_a_stream_that_was_cut_goes_on(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.backup.receiver.GROUP_BYTES", 200_000)
    monkeypatch.setattr("jobs.backup.receiver.BATCH_BYTES", 100_000)
    lab = new_lab(tmp_path / "volume", "4k")
    with cluster_lab(tmp_path / "there", site) as there:
        for number in range(8):
            lab.put(f"file{number}", noise(200_000, number))
        lab.optimize()
        with stop_at("receive.group-durable", passes=4):
            sent(lab, there.lab)
        tokens: list[str] = []
        go_on(there.lab, lambda volume: tokens.append(token(volume)))
        assert there.collect().files_forgotten == 0  # what was received is held
        report, _ = sent(lab, there.lab, resume=Resume.parse(tokens[0]))
        assert 0 < report.chunks < 350
        assert tree_of(there.lab) == tree_of(lab)
        assert_settled(there)
        with stop_at("receive.group-durable", passes=2):
            sent(lab, there.lab)
        go_on(there.lab, drop)
        assert there.collect().files_forgotten > 0
        assert_settled(there)
        assert tree_of(there.lab) == tree_of(lab)


@pytest.mark.slow
def test_a_crash_after_any_step_of_receiving(site: Site, tmp_path: Path) -> None:
    """The replica is what it was, or what was sent, or nobody sees it until `receive` goes on; the
    store has all that stubs need, and after a collection no more."""
    lab = new_lab(tmp_path / "volume", "4k")
    with cluster_lab(tmp_path / "there", site) as there:
        at, died = 0, True
        for number in range(3):
            lab.put(f"file{number}", noise(20_000, number) + noise(20_000, 99))
        while died:
            at += 3
            states = [tree_of(there.lab)]
            lab.put(f"file{at % 3}", noise(30_000, 1000 + at) + noise(20_000, 99))
            os.utime(lab.data / f"file{at % 3}", ns=(1, 1))
            lab.optimize()
            states.append(tree_of(lab))
            since = point_of(there.lab)
            died = crash_after(at, partial(sent, lab, there.lab, since=since))
            assert site.audit().dangling == [], at
            try:
                assert tree_of(there.lab) in states, at
                with there.lab.opened() as volume, volume.job_lock():
                    pass
            except (Busy, AssertionError, FileNotFoundError):
                assert (there.lab.base / "receive/switching").exists(), at
            # (A crash of it, too, before it is let go on.)
            crash_after(7, lambda: go_on(there.lab, put_in_place))
            go_on(there.lab, put_in_place)
            assert site.audit().dangling == [], at
            assert tree_of(there.lab) in states, at
            go_on(there.lab, drop)
            assert_settled(there)
            if point_of(there.lab) == since:
                sent(lab, there.lab, since=since)
            assert tree_of(there.lab) == states[1], at
            assert_settled(there)
            shutil.rmtree(there.lab.base / "cluster-cache", ignore_errors=True)
