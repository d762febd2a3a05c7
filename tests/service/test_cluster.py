"""A service whose volumes have their chunks in a cluster: its schedule, and a cluster that goes."""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from dedupd_core.format.cluster.address import StoreAddress
from dedupd_core.rados.store import RadosStore
from dedupd_core.system.files import opened, read_at
from dedupd_core.units import KIB, MIB
from tests.support.ceph import MiniCeph, mini_ceph
from tests.support.lab import Lab, noise
from tests.support.service import ServiceLab, eventually, service_lab

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(1200)]

OFTEN = """
stop_when_busy = false
space_low = 0
space_critical = 0
schedule_background = "every 1s"
schedule_throughput = "off"
schedule_gc = "every 1s"
schedule_scrub = "every 1s"
"""


class Host:
    """A machine with a service, and a volume of its own on a store that others use, too."""

    def __init__(self, service: ServiceLab, address: StoreAddress) -> None:
        self.service = service
        self.lab = Lab(service.base / "volume")
        self.lab.root.mkdir()
        service.volumes.append(self.lab)
        service.start()
        limits = ("--min-age", "0s", "--min-size", "1", "--force")
        made = service.run("enable", self.lab.root, "--store", str(address), *limits)
        assert made.returncode == 0, made.stdout + made.stderr
        service.mount_pid(self.lab)
        self.set_policy(OFTEN)
        self.look_now()

    def look_now(self) -> None:
        """Have the service look at its volumes and their policies."""
        assert self.service.process is not None
        self.service.process.send_signal(signal.SIGHUP)

    def set_policy(self, text: str) -> None:
        for line in text.strip().splitlines():
            key, _, value = line.partition(" = ")
            done = self.service.run("policy", self.lab.root, key, value.strip('"'))
            assert done.returncode == 0, done.stdout + done.stderr

    def put(self, name: str, content: bytes) -> None:
        (self.lab.root / name).write_bytes(content)

    def read(self, name: str) -> bytes:
        """What the mount process answers: the kernel's pages are forgotten first."""
        with opened(os.open(self.lab.root / name, os.O_RDONLY)) as fd:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            return read_at(fd, os.fstat(fd).st_size, 0)

    def is_stored(self, name: str) -> bool:
        stub = self.lab.stub(name)
        return stub is not None and not stub.flags.transient

    def wait_until_stored(self, *names: str) -> None:
        eventually(lambda: all(map(self.is_stored, names)), f"{names} are stored")

    def run(self, *arguments: object) -> str:
        done = self.service.run(*map(str, arguments))
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @property
    def history(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.service.json("jobs", self.lab.root)["history"]
        return found

    def wait_until_all_have_run(self) -> None:
        """Each task of the schedule has got through since now."""
        now_s = time.time()

        def have_run() -> bool:
            tasks = self.service.view(self.lab)["tasks"]
            last = [tasks[name]["last"] for name in ("background", "gc", "scrub")]
            return all(one and one["completed"] and one["started_s"] > now_s for one in last)

        eventually(have_run, "all tasks have run")

    @property
    def problems(self) -> list[Any]:
        found: list[Any] = self.service.client.get("/v1/service")["problems"]
        return found

    def failed_run(self, since: float) -> dict[str, Any] | None:
        runs = [run for run in self.history if run["outcome"] != "done"]
        return runs[0] if runs else None


@contextmanager
def hosts(directory: Path, address: StoreAddress, *names: str) -> Iterator[list[Host]]:
    with ExitStack() as services:
        made = []
        for name in names:
            (directory / name).mkdir()
            made.append(Host(services.enter_context(service_lab(directory / name)), address))
        yield made


def test_the_schedule_takes_files_of_hosts_and_outlives_the_cluster(tmp_path: Path) -> None:
    common, own, unread = noise(2 * MIB, 1), noise(300 * KIB, 2), noise(300 * KIB, 3)
    with mini_ceph(tmp_path / "ceph") as ceph:
        address = ceph.address("office", 3)
        RadosStore.create(address).close()
        with hosts(tmp_path, address, "a", "b") as (a, b):
            local = a.service.add_volume("local")
            for key, value in (("stop_when_busy", "false"), ("schedule_background", "every 1s")):
                assert a.service.run("policy", local.root, key, value).returncode == 0
            a.look_now()
            a.service.mount_pid(local)
            a.put("common", common)
            a.put("own", own)
            a.put("unread", unread)
            a.wait_until_stored("common", "own", "unread")
            b.put("copy", common)
            b.wait_until_stored("copy")
            assert a.read("common") == b.read("copy") == common
            assert a.read("own") == own
            for host in (a, b):
                host.wait_until_all_have_run()
                assert host.problems == []
            away(ceph, a, local, common)
            a.wait_until_stored("while away")
            assert a.read("unread") == unread
            assert a.read("while away") == own
            a.wait_until_all_have_run()
            assert a.problems == b.problems == []
            used = json.loads(a.run("cluster", "status", str(address), "--json"))
            paths = {one["path"] for one in used["volumes"]}
            assert paths == {str(host.lab.root) for host in (a, b)}
            for host in (a, b):
                assert host.run("run", "unoptimize", host.lab.root)
            assert b.read("copy") == common


def away(ceph: MiniCeph, host: Host, local: Lab, common: bytes) -> None:
    """The cluster does not answer for a minute. What the host has read it reads; the rest fails,
    and the jobs with it; the service goes on, and so do the mount, and the host's volume with a
    store of its own."""
    mount = host.service.mount_pid(host.lab)
    for name in ceph.daemons:
        ceph.pause_daemon(name)
    begun_s = time.monotonic()
    try:
        host.put("while away", host.read("own"))
        assert host.read("common") == common
        with pytest.raises(OSError, match="Input/output error"):
            host.read("unread")
        assert time.monotonic() - begun_s < 30
        failed = eventually(lambda: host.failed_run(begun_s), "a run that finds no cluster")
        assert "rados:" in failed["outcome"]
        (local.root / "local").write_bytes(common)
        eventually(lambda: local.stub("local"), "a volume with a store of its own is optimized")
        assert (local.root / "local").read_bytes() == common
        maps = Path(f"/proc/{host.service.mount_pid(local)}/maps").read_text()
        assert "native" in maps and "rados" not in maps
        time.sleep(max(0.0, begun_s + 60 - time.monotonic()))
        assert host.service.view(host.lab)["mount"]["state"] == "mounted"
        assert not host.is_stored("while away")
    finally:
        for name in ceph.daemons:
            ceph.go_on(name)
    assert host.service.mount_pid(host.lab) == mount
