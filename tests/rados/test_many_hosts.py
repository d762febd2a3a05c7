"""Three hosts, each a process with its volume and lease, that are killed again and again; and the
same hosts while the cluster loses disks, or is gone."""

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dedupd_core.errors import DedupdError, StoreUnreachable, WriterFenced
from dedupd_core.rados.store import RadosStore
from tests.support.ceph import POOL, REPOSITORY, MiniCeph, mini_ceph, wait_for
from tests.support.rados_hosts import Host, Site, random_content

HOSTS = ("a", "b", "c")
pytestmark = pytest.mark.slow


def start(site: Site, name: str, seed: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.support.rados_hosts"]
    command += [str(site.address), str(site.directory), name, str(seed)]
    log = (site.directory / f"{name}.log").open("ab")
    with log:
        return subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=log)


def assert_all_is_well(site: Site) -> None:
    """After recovery and collection: every file right, nothing missing, nothing over."""
    for name in HOSTS:
        with site.host(name, operations_at_once=8) as host:
            host.delete_forgotten()
            host.assert_reads_right()
            assert host.recovery.damaged == []
    site.collect()
    assert site.assert_whole().candidates == 0


def test_hosts_that_are_killed_lose_and_leak_nothing(site: Site) -> None:
    chance = random.Random(os.environ.get("SEED", "1"))
    processes = {name: start(site, name, seed) for seed, name in enumerate(HOSTS)}
    try:
        for round_ in range(20):
            time.sleep(chance.uniform(0.5, 2.5))
            name = chance.choice(HOSTS)
            log = (site.directory / f"{name}.log").read_text()
            assert processes[name].poll() is None, log
            processes[name].kill()
            processes[name].wait()
            assert site.audit().dangling == [], f"round {round_}"
            if chance.random() < 0.5:
                recover_elsewhere(site, name)
                assert site.audit().dangling == [], f"round {round_}"
            site.collect()
            processes[name] = start(site, name, 100 + round_)
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    assert site.audit().dangling == []
    assert_all_is_well(site)


def recover_elsewhere(site: Site, name: str) -> None:
    found = [v for v, entry in site.store.volumes().items() if entry.host == name]
    if found:
        with site.another() as other:
            writer, _ = other.store.writer(found[0], None, is_holder_dead=lambda state: True)
            writer.close()


# --- the cluster --------------------------------------------------------------------------------


@contextmanager
def hosts_at_work(site: Site, count: int = 3) -> Iterator[list[BaseException]]:
    """Hosts that work in threads until the end of the context, and their errors."""
    ended = threading.Event()
    errors: list[BaseException] = []

    def work(name: str) -> None:
        chance = random.Random(name)
        try:
            with Host(site.address, site.directory, name, operations_at_once=4) as host:
                while not ended.is_set():
                    host.work(chance, 2)
        except BaseException as error:
            errors.append(error)

    def collect() -> None:
        try:
            with site.another() as other:
                while not ended.wait(1.0):
                    other.collect()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in HOSTS[:count]]
    threads.append(threading.Thread(target=collect))
    for thread in threads:
        thread.start()
    try:
        yield errors
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def test_a_disk_that_dies_and_comes_back_under_load(tmp_path: Path) -> None:
    with (
        mini_ceph(tmp_path / "ceph", in_memory=False) as ceph,
        Site(RadosStore.create(ceph.address("s", 60)), tmp_path) as site,
    ):
        with hosts_at_work(site) as errors:
            time.sleep(5)
            ceph.stop_daemon("osd.1")
            wait_for(lambda: not ceph.is_clean(), "death")
            time.sleep(5)
            ceph.command("osd out", ids=["1"])
            time.sleep(15)
            ceph.start_daemon("osd.1")
            ceph.command("osd in", ids=["1"])
            wait_for(ceph.is_clean, "return")
            time.sleep(10)
        assert errors == []
        assert_all_is_well(site)


def beginnings(ceph: MiniCeph) -> set[tuple[int, int]]:
    """Since which map each disk is up: where none is left, nobody tells that they are down."""
    return {(osd["osd"], osd["up_from"]) for osd in ceph.command("osd dump")["osds"] if osd["up"]}


def test_all_disks_that_die_at_once_under_load(tmp_path: Path) -> None:
    """As in a power cut of the cluster, as far as the processes of its disks can have one."""
    with (
        mini_ceph(tmp_path / "ceph", in_memory=False) as ceph,
        Site(RadosStore.create(ceph.address("s", 60)), tmp_path) as site,
    ):
        osds = [name for name in ceph.daemons if name.startswith("osd.")]
        with hosts_at_work(site) as errors:
            for _ in range(3):
                time.sleep(4)
                before = beginnings(ceph)
                for name in osds:
                    ceph.stop_daemon(name)
                for name in osds:
                    ceph.start_daemon(name)
                wait_for(lambda old=before: not old & beginnings(ceph), "return of all")  # type: ignore[misc]
            time.sleep(5)
        assert errors == []
        assert_all_is_well(site)


def test_a_disk_more_and_smaller_placement_groups(tmp_path: Path) -> None:
    """Nothing that is stored says where anything is: what moves is read as before, and nothing of
    a store that rests is written."""
    with (
        mini_ceph(tmp_path / "ceph", in_memory=False) as ceph,
        Site(RadosStore.create(ceph.address("s", 60)), tmp_path) as site,
        Site(RadosStore.create(ceph.address("rest", 60)), tmp_path / "rest") as resting,
    ):
        resting.directory.mkdir()
        with resting.host("a", operations_at_once=8) as host:
            host.put({inode: random_content(inode, 20) for inode in range(1, 11)})
        before = versions_of(resting)
        with hosts_at_work(site) as errors:
            ceph.add_osd(3)
            wait_for(lambda: ceph.groups_on(3) > 0, "placement groups on the new disk")
            # (What the manager does that this cluster has not.)
            for option in ("pg_num_actual", "pgp_num_actual"):
                ceph.command(
                    "osd pool set", pool=POOL, var=option, val="32", yes_i_really_mean_it=True
                )
            time.sleep(10)
            (pool,) = (one for one in ceph.command("osd dump")["pools"] if one["pool_name"] == POOL)
            assert (pool["pg_num"], pool["pg_placement_num"]) == (32, 32)
        assert errors == []
        assert_all_is_well(site)
        assert versions_of(resting) == before
        resting.assert_whole()
        with resting.host("a") as host:
            host.assert_reads_right()


def versions_of(site: Site) -> dict[str, int]:
    """Of the keys of all objects: each change of an object has another one."""
    pages = {name: site.cluster.page(name, count=1) for name in site.cluster.names()}
    return {name: page.version for name, page in pages.items() if page is not None}


def stop_all(ceph: MiniCeph) -> None:
    for name in ceph.daemons:
        ceph.pause_daemon(name)


def go_on(ceph: MiniCeph) -> None:
    for name in ceph.daemons:
        ceph.go_on(name)


def test_a_cluster_that_is_gone_and_comes_back(tmp_path: Path) -> None:
    content = random_content(1)
    with (
        mini_ceph(tmp_path / "ceph") as ceph,
        Site(RadosStore.create(ceph.address("s", 2)), tmp_path) as site,
    ):
        host = site.host("a", lease_s=6.0)
        host.put({1: content})
        stop_all(ceph)
        for attempt in (lambda: host.read(1), lambda: host.put({2: content})):
            begun_s = time.monotonic()
            with pytest.raises(StoreUnreachable):
                attempt()
            assert time.monotonic() - begun_s < 5
        with pytest.raises(StoreUnreachable):
            site.another()
        time.sleep(6)
        go_on(ceph)
        wait_for(lambda: reads(host, 1) == content, "cluster")
        wait_for(lambda: is_fenced(host), "refusal")
        host.die()
        with site.host("a") as host:
            host.put({2: content})
            host.assert_reads_right()
        site.collect()
        site.assert_whole()


def test_a_monitor_that_is_gone_for_a_while(tmp_path: Path) -> None:
    with (
        mini_ceph(tmp_path / "ceph") as ceph,
        Site(RadosStore.create(ceph.address("s", 5)), tmp_path) as site,
        hosts_at_work(site) as errors,
    ):
        time.sleep(3)
        ceph.pause_daemon("mon.a")
        time.sleep(60)
        with pytest.raises(StoreUnreachable):
            site.another()
        ceph.go_on("mon.a")
        time.sleep(10)
        site.another().store.close()
        assert errors == []


def is_fenced(host: Host) -> bool:
    """Whether its lease is over; parts of the cluster may not answer yet."""
    try:
        host.put({2: b""})
    except WriterFenced:
        return True
    except StoreUnreachable:
        return False
    raise AssertionError("a session without a lease has stored a file")


def reads(host: Host, inode: int) -> bytes | None:
    try:
        return host.read(inode)
    except DedupdError:
        return None
