"""Three hosts, each with its service: one dies, or is stopped, in the midst of a job, and another
one's service recovers it by its schedule."""

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import psutil
import pytest

from dedupd_core.rados.audit import Audit
from dedupd_core.rados.store import RadosStore
from dedupd_core.rados.tables import Intents
from dedupd_core.rados.upkeep.turn import last_turn
from dedupd_core.units import MIB
from tests.service.test_cluster import Host, hosts
from tests.support.ceph import mini_ceph
from tests.support.lab import noise
from tests.support.service import eventually

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(1200)]

FILES, FILE_BYTES = 24, 2 * MIB
LOOKING = """
schedule_gc = "off"
schedule_scrub = "off"
schedule_recover = "every 4s"
schedule_audit = "every 8s"
"""


class Machine:
    """All processes of a host: the service, its job, the mount."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.mount = host.service.mount_pid(host.lab)

    @property
    def pids(self) -> list[int]:
        """The service first: it would start the others anew."""
        process = self.host.service.process
        assert process is not None
        below = psutil.Process(process.pid).children(recursive=True)
        return list(dict.fromkeys([process.pid, *(one.pid for one in below), self.mount]))

    def send(self, number: int) -> None:
        for pid in self.pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue


class Site:
    """The hosts, and what the store says of the first one."""

    def __init__(self, store: RadosStore, made: list[Host]) -> None:
        self.store = store
        self.a, self.b, self.c = made
        with self.a.lab.opened() as volume:
            self.volume = UUID(volume.parameters.uuid).hex
        self.content: dict[str, bytes] = {}
        for host in made:
            host.set_policy(LOOKING)

    def put(self, seed: int) -> None:
        """Files of the first host, of chunks that no other file has."""
        for n in range(FILES):
            name = f"f{n}"
            self.content[name] = noise(FILE_BYTES, seed * 1000 + n)
            self.a.put(name, self.content[name])

    def change(self) -> None:
        """Parts of files that are stored are written anew."""
        for n in range(FILES):
            name, part = f"f{n}", noise(MIB // 2, 900_000 + n)
            with (self.a.lab.root / name).open("r+b") as file:
                file.seek(MIB)
                file.write(part)
            before = self.content[name]
            self.content[name] = before[:MIB] + part + before[MIB + len(part) :]

    @property
    def intents(self) -> int:
        return len(Intents(self.store.cluster, self.volume).all())

    def in_the_midst_of_a_job(self, chance: random.Random) -> Machine:
        """The first host, while it stores what has changed."""
        self.put(1)
        self.a.wait_until_stored(*self.content)
        self.change()
        eventually(lambda: self.intents > 0, "a job that stores")
        time.sleep(chance.uniform(0.0, 0.5))
        return Machine(self.a)

    def assert_nothing_dangles(self) -> None:
        assert Audit(self.store).run().dangling == []

    @property
    def gone(self) -> list[str]:
        last = last_turn(self.store.cluster, "recover")
        return [] if last is None else [one["volume"] for one in last.found["gone"]]

    def wait_for_recovery(self) -> None:
        """By one of the other hosts, which go on meanwhile."""
        rounds = 0

        def is_recovered() -> bool:
            nonlocal rounds
            rounds += 1
            self.assert_nothing_dangles()
            if rounds % 8 == 0 and rounds < 80:
                (self.b if rounds % 16 else self.c).put(f"meanwhile{rounds}", noise(MIB, rounds))
            return self.gone == [self.volume]

        eventually(is_recovered, "another host has recovered it")

    def assert_all_is_well(self) -> None:
        """After all have ended what they had begun: every byte is right, nothing is left over."""
        self.a.wait_until_stored(*self.content)
        for name, content in self.content.items():
            assert self.a.read(name) == content, name
        eventually(lambda: self.gone == [], "the host is seen again")
        for host in (self.a, self.b, self.c):
            eventually(lambda host=host: host.problems == [], "no problem is left")  # type: ignore[misc]
            host.set_policy('schedule_background = "off"\nschedule_audit = "off"')
            host.run("run", "gc", "--all-garbage", "--wait", host.lab.root)
        self.a.run("run", "gc", "--all-garbage", "--wait", self.a.lab.root)
        report = Audit(self.store, reads_chunks=True).run()
        assert (report.dangling, report.damaged, report.leaked) == ([], [], [])
        assert (report.candidates, self.intents) == (0, 0)


@contextmanager
def three_hosts(tmp_path: Path) -> Iterator[Site]:
    with mini_ceph(tmp_path / "ceph") as ceph:
        address = ceph.address("office", 30)
        RadosStore.create(address).close()
        with hosts(tmp_path, address, "a", "b", "c") as made, RadosStore.open(address) as store:
            yield Site(store, made)


def test_a_host_that_is_killed_is_recovered_by_another(tmp_path: Path) -> None:
    chance = random.Random(os.environ.get("SEED", "1"))
    with three_hosts(tmp_path) as site:
        machine = site.in_the_midst_of_a_job(chance)
        machine.send(signal.SIGKILL)
        site.a.service.kill()
        site.assert_nothing_dangles()
        site.wait_for_recovery()
        eventually(
            lambda: any("no job of" in str(one) for one in (*site.b.problems, *site.c.problems)),
            "one of the others tells it",
        )
        left = site.intents  # between two versions: these wait for their host
        site.a.service.start()
        site.a.service.wait_until_it_listens()
        site.a.service.mount_pid(site.a.lab)
        site.assert_all_is_well()
        assert left <= FILES


def test_a_host_that_is_stopped_finds_itself_fenced_and_begins_again(tmp_path: Path) -> None:
    chance = random.Random(os.environ.get("SEED", "2"))
    with three_hosts(tmp_path) as site:
        machine = site.in_the_midst_of_a_job(chance)
        stopped = machine.pids
        machine.send(signal.SIGSTOP)
        assert site.intents > 0
        begun_s = time.time()
        site.wait_for_recovery()
        assert time.time() - begun_s > 30  # not before its lease has run out
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)

        def said() -> str | None:
            runs = [run for run in site.a.history if run["job"] == "optimize"]
            late = [run["outcome"] for run in runs if run["outcome"] not in ("done", "stopped")]
            return late[0] if late else None

        assert "start the job again" in eventually(said, "the job says why it ends")
        site.assert_nothing_dangles()
        site.assert_all_is_well()
        assert site.a.service.mount_pid(site.a.lab) == machine.mount
