"""Hosts that are gone are recovered by the one whose turn it is; one that lives is not. What the
cluster itself has lost is never taken for garbage."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dedupd_core import failpoint
from dedupd_core.errors import Busy, Damaged
from dedupd_core.format.cluster.address import parse_address
from dedupd_core.format.cluster.objects import (
    VOLUMES_OBJECT,
    FileId,
    file_shard,
    files_object,
    intents_object,
    lease_object,
)
from dedupd_core.rados.audit import Audit
from dedupd_core.rados.cluster import points
from dedupd_core.rados.cluster.changes import AtomicChange
from dedupd_core.rados.cluster.connection import Cluster
from dedupd_core.rados.cluster.wire import LOCK_XATTR
from dedupd_core.rados.garbage import GRACE_S
from dedupd_core.rados.lease import Lease, lease_state
from dedupd_core.rados.store import RadosStore
from dedupd_core.rados.upkeep.absent_hosts import AbsentHosts
from dedupd_core.rados.upkeep.turn import HostTurn, last_turn, take_turn, turn_name
from tests.support.ceph import REPOSITORY, wait_for
from tests.support.cluster_lab import crash_after
from tests.support.rados_hosts import SHARDS, Host, Site, new_file, random_content

A, B = random_content(1), random_content(2)
LEASE_S = 1.0
OF_NOBODY = "0" * 32


def a_turn(site: Site, host: str = "b", duration_s: float = 30.0) -> HostTurn:
    turn = take_turn(site.cluster, "recover", host, duration_s=duration_s)
    assert turn is not None
    return turn


def look(
    site: Site,
    *,
    after_s: float = 0.0,
    patience_s: float = 60.0,
    own: str = OF_NOBODY,
) -> AbsentHosts:
    """One look at all hosts, as if so much later."""
    with site.another() as other, a_turn(other) as turn:
        later = replace(turn, now_s=turn.now_s + after_s)
        hosts = AbsentHosts(other.store, later, own, patience_s)
        hosts.run()
        turn.note(hosts.found)
    return hosts


def dead_host(site: Site, lease_s: float = LEASE_S) -> Host:
    """Host ``a`` has stored file 1, and died in the midst of storing file 2."""
    host = site.host("a", lease_s=lease_s)
    host.put({1: A})
    host.writer.prepare([new_file(FileId(2, 1), B)])
    host.die()
    return host


def wait_for_the_end_of_its_lease(site: Site, host: Host) -> None:
    wait_for(lambda: lease_state(site.cluster, host.volume).holder is None, "end of the lease", 10)


# --- turns --------------------------------------------------------------------------------------


def test_a_turn_is_one_hosts_and_the_others_know_of_it(site: Site) -> None:
    with a_turn(site, "b") as turn:
        assert take_turn(site.cluster, "recover", "c") is None
        with take_turn(site.cluster, "audit", "c") as beside:  # type: ignore[union-attr]
            assert beside.last is None
        assert abs(turn.now_s - time.time()) < 30  # one machine: one clock
        turn.note({"gone": []})
    with a_turn(site, "c") as turn:
        assert turn.last is not None
        assert (turn.last.host, turn.last.found) == ("b", {"gone": []})
    found = last_turn(site.cluster, "recover")
    assert found is not None and found.host == "b"


def test_a_turn_whose_host_died_ends_and_comes_late_in_vain(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lease, "keep", lambda lease: None)  # as a process that is stopped
    late = a_turn(site, "b", LEASE_S)
    wait_for(lambda: take_turn(site.cluster, "recover", "c") is not None, "end of the turn", 10)
    with pytest.raises(Busy, match="another host has taken over"):
        late.check()
    late._lease._until_s += 3600  # whatever its clock says
    with pytest.raises(Busy, match="another host has taken over"):
        late.note({})
    hosts = AbsentHosts(site.store, late, OF_NOBODY, 0.0)
    dead = dead_host(site)
    wait_for_the_end_of_its_lease(site, dead)
    with pytest.raises(Busy, match="another host now runs"):
        hosts.run()
    assert hosts.taken_over == []


# --- hosts --------------------------------------------------------------------------------------


def test_a_host_that_is_gone_is_recovered_once_and_said_to_be_gone(site: Site) -> None:
    dead = dead_host(site)
    wait_for_the_end_of_its_lease(site, dead)
    assert [len(site.audit().dangling), site.audit().candidates] == [0, 0]
    first = look(site)
    assert (first.waiting, first.retired, first.gone) == (1, 0, [])
    early = look(site, after_s=30)
    assert (early.waiting, early.retired) == (1, 0)
    second = look(site, after_s=120)
    assert (second.waiting, second.retired) == (0, 1)
    (gone,) = second.taken_over
    assert (gone.host, gone.path, gone.left) == ("a", "/srv/a", 0)
    third = look(site, after_s=240)
    assert (third.retired, third.taken_over, third.gone) == (0, [], second.gone)
    assert site.audit().dangling == []
    site.collect()
    assert site.assert_whole().candidates == 0
    with site.host("a", breaks_lease=False) as host:
        assert host.read(1) == A
        host.put({2: B})
    assert look(site, after_s=360).gone == []


def test_a_host_that_lives_is_left_alone(site: Site) -> None:
    """It holds its lease; or it was away, and has come again between two looks; or it is ours."""
    with site.host("a", lease_s=30.0) as host:
        prepared = host.writer.prepare([new_file(FileId(2, 1), B)])
        for after_s in (0, 3600, 7200):
            found = look(site, after_s=after_s)
            assert (found.waiting, found.retired, found.gone) == (0, 0, [])
        host.writer.commit(prepared)
        host.stubs.name(FileId(2, 1), prepared[0].version, B)
        host.writer.finish(prepared)
    dead = dead_host(site)
    wait_for_the_end_of_its_lease(site, dead)
    assert look(site).waiting == 1
    again = dead_host(site)  # a session of its own, which has ended like the first
    wait_for_the_end_of_its_lease(site, again)
    found = look(site, after_s=120)
    assert (found.waiting, found.retired) == (1, 0)
    own = look(site, after_s=3600, own=again.volume)
    assert (own.waiting, own.retired, own.gone) == (0, 0, [])


def test_files_between_two_versions_wait_for_their_host(site: Site) -> None:
    with site.host("a") as host:
        host.put({1: A})
    host = site.host("a", lease_s=LEASE_S)
    host.writer.commit(host.writer.prepare([new_file(FileId(1, 1), B)]))
    host.die()
    wait_for_the_end_of_its_lease(site, host)
    look(site)
    (gone,) = look(site, after_s=120).gone
    assert gone.left == 1
    assert [one.left for one in look(site, after_s=240).gone] == [1]
    site.assert_whole()
    with site.host("a", breaks_lease=False) as back:
        assert back.recovery.rolled_back == 1
        assert back.read(1) == A
    assert look(site, after_s=360).gone == []


def test_what_lost_its_acknowledgement_is_the_same_in_the_end(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change is made twice: one turn, one recovery, nothing missing and nothing left over."""
    dead = dead_host(site, 30.0)
    expire(site, dead.volume)
    make = Cluster.__init__

    def made(cluster: Cluster, *arguments: Any, **options: Any) -> None:
        make(cluster, *arguments, **options)
        cluster.acknowledgements_lost = True

    monkeypatch.setattr(Cluster, "__init__", made)
    assert look(site).waiting == 1
    second = look(site, after_s=120)
    assert (second.retired, len(second.taken_over), second.problems) == (1, 1, [])
    monkeypatch.undo()
    site.collect()
    assert site.assert_whole().candidates == 0


def expire(site: Site, volume: str) -> None:
    """As if the lease of a volume, or of a turn, had run out."""
    oid = lease_object(volume)
    site.cluster.apply(AtomicChange("rados.lease-broken", oid, drop_xattr=LOCK_XATTR))


@pytest.mark.slow
def test_a_recovery_that_dies_after_any_step_is_ended_by_another(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the turn, of the session that takes over, of the notes."""
    monkeypatch.setattr(Lease, "keep", lambda lease: None)
    at, is_dead = 0, True
    while is_dead:
        at += 1
        address = replace(site.address, name=f"{site.address.name}.{at}")
        directory = site.directory / f"{at}"
        directory.mkdir()
        with Site(RadosStore.create(address), directory) as fresh:
            dead = dead_host(fresh, 30.0)
            expire(fresh, dead.volume)
            look(fresh)
            is_dead = crash_after(at, partial(look, fresh, after_s=120))
            for after_s in (600, 1200):
                assert fresh.audit().dangling == []
                expire(fresh, dead.volume)
                expire(fresh, turn_name("recover"))
                assert look(fresh, after_s=after_s).problems == []
            fresh.collect()
            assert fresh.assert_whole().candidates == 0
            with fresh.host("a") as host:
                assert host.read(1) == A
    assert at > 15


@pytest.mark.slow
def test_a_recovery_that_is_killed_after_any_kind_of_step_is_ended_by_another(site: Site) -> None:
    dead = dead_host(site, 30.0)
    expire(site, dead.volume)
    look(site)
    steps = steps_of(partial(look, site, after_s=120))
    assert len(set(steps)) > 10
    for turn, point in enumerate(sorted(set(steps)), 1):
        dead = dead_host(site, 30.0)
        expire(site, dead.volume)
        look(site, after_s=turn * 10_000)
        environment = {**os.environ, "DEDUPD_FAIL_POINT": f"{point}:1"}
        command = [sys.executable, "-m", __name__, str(site.address), str(turn * 10_000 + 120)]
        result = subprocess.run(command, cwd=REPOSITORY, env=environment, check=False)
        assert result.returncode == -signal.SIGKILL, point
        for after_s in (600, 1200):
            assert site.audit().dangling == []
            expire(site, dead.volume)
            expire(site, turn_name("recover"))
            assert look(site, after_s=turn * 10_000 + after_s).problems == []
        site.collect()
        assert site.assert_whole().candidates == 0, point


def steps_of(act: Callable[[], object]) -> list[str]:
    steps: list[str] = []
    failpoint.hook = steps.append
    try:
        act()
    finally:
        failpoint.hook = None
    return steps


@pytest.mark.parametrize("step", ["intent", "recipe", "references"])
def test_what_was_never_committed_is_gone_after_the_grace(
    site: Site, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Between the last reference and the commit: the file is as before, its chunks wait, and go
    with the first collection after the grace."""
    points_of = {
        "intent": points.INTENT_SET,
        "recipe": points.RECIPE_WRITTEN,
        "references": points.CHUNK_CREATED,
    }
    host = site.host("a", lease_s=LEASE_S)
    host.put({1: A})
    steps = steps_of(partial(host.writer.prepare, [new_file(FileId(1, 1), B)]))
    count = max(n for n, name in enumerate(steps, 1) if name == points_of[step])
    host.die()
    with site.host("a") as host:
        assert host.recovery.retired == 1
    site.collect()
    host = site.host("a", lease_s=LEASE_S)
    crash_after(count, lambda: host.writer.prepare([new_file(FileId(1, 1), B)]))
    host.die()
    wait_for_the_end_of_its_lease(site, host)
    look(site)
    assert look(site, after_s=120).retired == 1
    waiting = site.audit().candidates
    assert waiting == (3 if step == "references" else 0)
    early = site.collect(GRACE_S)
    assert (early.removed, early.waiting) == (0, waiting)
    later_ns = time.time_ns() + int(GRACE_S * 1e9)
    monkeypatch.setattr("dedupd_core.rados.garbage.time.time_ns", lambda: later_ns)
    assert site.collect(GRACE_S).removed == waiting
    monkeypatch.undo()
    assert site.assert_whole().chunks == 3
    with site.host("a") as host:
        assert host.read(1) == A


# --- what the cluster has lost ------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["files", "intents", "volumes"])
def test_what_a_lost_table_knew_is_not_let_go_of(site: Site, lost: str) -> None:
    with site.host("a") as host:
        host.put({1: A, 2: B})
    table = files_object(host.volume, file_shard(FileId(1, 1), SHARDS))
    objects = {"files": table, "intents": intents_object(host.volume), "volumes": VOLUMES_OBJECT}
    site.cluster.apply(AtomicChange("rados.table-removed", objects[lost], remove=True))
    if lost != "volumes":
        with pytest.raises(Damaged, match="the cluster has lost"):
            site.host("a")
    audit = Audit(site.store)
    report = audit.run()
    assert report.damaged != []
    assert report.leaked == []
    audit.repair()
    site.collect()
    assert host.stubs.versions.keys() == {FileId(1, 1).text, FileId(2, 1).text}
    with site.another() as other:
        host.store = other.store
        host.assert_reads_right()


def test_a_volume_that_has_left_leaves_nothing_unclear(site: Site) -> None:
    with site.host("a") as host:
        host.put({1: A})
        host.delete([1])
    site.store.leave(host.volume)
    site.collect()
    assert site.assert_whole().chunks == 0
    with site.host("a") as host:  # it may join again
        host.put({1: A})
    site.assert_whole()


def main(address: str, after_s: str) -> None:
    """A host that looks for others that are gone, until it is killed."""
    with Site(RadosStore.open(parse_address(address)), Path()) as site:
        look(site, after_s=float(after_s))


if __name__ == "__main__":
    main(*sys.argv[1:])
