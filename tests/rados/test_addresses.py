"""Three hosts, each with an address of its own: one is cut off, taken for dead, and comes back."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from dedupd_core.format.cluster.address import StoreAddress
from dedupd_core.rados.lease import LeaseState, lease_state
from dedupd_core.rados.store import RadosStore
from tests.support.ceph import REPOSITORY, MiniCeph, mini_ceph, wait_for
from tests.support.networks import Network, network
from tests.support.rados_hosts import Site

HOSTS = ("a", "b", "c")

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(900)]


class Place(NamedTuple):
    network: Network
    ceph: MiniCeph
    site: Site

    def start(self, name: str, seed: int) -> "subprocess.Popen[bytes]":
        """A host at work, until it is killed or refused."""
        command = [sys.executable, "-m", "tests.support.rados_hosts"]
        command += [str(self.site.address), str(self.site.directory), name, str(seed)]
        log = (self.site.directory / f"{name}.log").open("ab")
        with log:
            return subprocess.Popen(
                self.network.command(name, command), cwd=REPOSITORY, stdout=log, stderr=log
            )

    def log(self, name: str) -> str:
        return (self.site.directory / f"{name}.log").read_text()

    def volume(self, name: str) -> str | None:
        volumes = self.site.store.volumes()
        return next((uuid for uuid, entry in volumes.items() if entry.host == name), None)

    def lease(self, name: str) -> LeaseState:
        volume = self.volume(name)
        assert volume is not None
        return lease_state(self.site.cluster, volume)

    def recover_from(self, name: str, volume: str) -> "subprocess.CompletedProcess[str]":
        """By the command that people have, on another host."""
        command = [sys.executable, "-m", "dedupd.cli.main", "cluster", "recover"]
        command += [str(self.site.address), volume]
        return subprocess.run(
            self.network.command(name, command),
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    @property
    def fenced(self) -> list[str]:
        return list(self.ceph.command("osd dump")["blocklist"])


@contextmanager
def place(directory: Path, timeout_s: float) -> Iterator[Place]:
    with network(*HOSTS) as found, mini_ceph(directory / "ceph", ip=found.address) as ceph:
        address: StoreAddress = ceph.address("s", timeout_s)
        with Site(RadosStore.create(address), directory) as site:
            yield Place(found, ceph, site)


def test_a_host_that_is_cut_off_is_fenced_by_its_address_and_does_no_harm(tmp_path: Path) -> None:
    with place(tmp_path, 200) as here:
        processes = {name: here.start(name, seed) for seed, name in enumerate(HOSTS)}
        try:
            for name in HOSTS:
                wait_for(lambda name=name: here.volume(name) is not None, f"host {name}")  # type: ignore[misc]
                wait_for(lambda name=name: here.lease(name).holder is not None, "its lease")  # type: ignore[misc]
            time.sleep(5)
            for name in HOSTS:
                client = here.lease(name).address
                assert client is not None and here.network.addresses[name] in client
            before, volume = here.lease("a"), here.volume("a")
            assert volume is not None and before.address is not None
            here.network.cut("a")
            # As long as its lease may last nobody takes over.
            busy = here.recover_from("b", volume)
            assert busy.returncode == 3, busy.stdout + busy.stderr
            wait_for(lambda: here.lease("a").holder is None, "end of its lease", 60)
            assert here.site.audit().dangling == []
            done = here.recover_from("b", volume)
            assert done.returncode == 0, done.stdout + done.stderr
            # Its client is refused, and no other one of any host.
            assert len(here.fenced) > 0
            assert all(here.network.addresses["a"] in one for one in here.fenced)
            assert here.site.audit().dangling == []
            for name in ("b", "c"):
                assert processes[name].poll() is None, here.log(name)
            here.network.mend("a")
            # It goes on where it was, and is refused.
            assert processes["a"].wait(240) != 0
            assert "WriterFenced" in here.log("a") or "lease" in here.log("a"), here.log("a")
            assert here.site.audit().dangling == []
            # It begins anew, as another client of the same address.
            processes["a"] = here.start("a", 77)
            wait_for(lambda: here.lease("a").session != before.session, "new session")
            time.sleep(5)
            for name, process in processes.items():
                assert process.poll() is None, here.log(name)
        finally:
            for process in processes.values():
                process.kill()
                process.wait()
        for name in HOSTS:
            with here.site.host(name, operations_at_once=8) as host:
                host.delete_forgotten()
                host.assert_reads_right()
                assert host.recovery.damaged == []
        here.site.collect()
        assert here.site.assert_whole().candidates == 0
