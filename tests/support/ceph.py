"""A real Ceph for tests: one monitor and three OSDs on loopback, with cephx, up in seconds.

By hand: ``python -m tests.support.ceph DIRECTORY DIRECTORY/up``, while ``DIRECTORY/users`` has a
file whose name is the number of a process that lives.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dedupd_core.errors import UsageError
from dedupd_core.format.cluster.address import StoreAddress
from dedupd_core.rados.cluster.binding import binding

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAMS = ("ceph-mon", "ceph-osd", "ceph-authtool", "monmaptool")
PACKAGES = "ceph-mon ceph-osd ceph-common python3-rados"
POOL = "dedup"
USER = "dedupd"
OSDS = 3
LOOPBACK = "127.0.0.1"
_WAIT_S = 60.0

CAPABILITIES = [
    *("mon", 'allow r, allow command "osd blocklist"'),
    *("osd", f"allow rwx pool={POOL}"),
]
"""What docs/guide/cluster.md tells people to give to the user."""


def require_ceph() -> None:
    """Skip the test where Ceph is not installed."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        pytest.skip(f"{missing[0]} is not installed (Debian: {PACKAGES})")
    try:
        binding()
    except UsageError as error:
        pytest.skip(str(error))


def wait_for(condition: Callable[[], bool], what: str, limit_s: float = _WAIT_S) -> None:
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, f"no {what} within {limit_s:g} s"
        time.sleep(0.05)


class MiniCeph:
    """A cluster in a directory. OSDs in memory lose what they have when they are killed.

    ``ip``: the address that it is at. ``sockets``: its daemons can be asked; the directory's name
    has to be a short one then.
    """

    def __init__(
        self,
        directory: Path,
        *,
        in_memory: bool = True,
        ip: str = LOOPBACK,
        sockets: bool = False,
    ) -> None:
        self.directory, self.in_memory, self.ip = directory, in_memory, ip
        self._socket = f"{directory}/run/$name.asok" if sockets else ""
        self.conf = directory / "ceph.conf"
        self.keyring = directory / f"client.{USER}.keyring"
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._fsid = str(uuid.uuid4())
        self._admin: Any = None

    # --- up and down --------------------------------------------------------------------------

    def start(self) -> None:
        for name in ("mon", "run", "log", *(f"osd{i}" for i in range(OSDS))):
            (self.directory / name).mkdir(parents=True)
        ports = _free_ports(self.ip, 2)
        self.conf.write_text(
            _CONF.format(
                d=self.directory,
                fsid=self._fsid,
                ip=self.ip,
                v2=ports[0],
                v1=ports[1],
                socket=self._socket,
            )
        )
        admin = self.directory / "client.admin.keyring"
        monitor = self.directory / "mon.keyring"
        caps = ("--cap", "mon", "allow *", "--cap", "osd", "allow *", "--cap", "mgr", "allow *")
        self._run("ceph-authtool", "-C", admin, "--gen-key", "-n", "client.admin", *caps)
        self._run("ceph-authtool", "-C", monitor, "--gen-key", "-n", "mon.", *caps[:3])
        self._run("ceph-authtool", monitor, "--import-keyring", admin)
        monmap = self.directory / "monmap"
        addresses = f"[v2:{self.ip}:{ports[0]},v1:{self.ip}:{ports[1]}]"
        self._run(
            *("monmaptool", "--create", "--clobber", "--addv", "a", addresses),
            *("--fsid", self._fsid, monmap),
        )
        self._run(
            *("ceph-mon", "-c", self.conf, "--mkfs", "-i", "a"),
            *("--monmap", monmap, "--keyring", monitor),
        )
        self.start_daemon("mon.a")
        self._admin = self.client("admin", admin)
        with ThreadPoolExecutor(OSDS) as pool:
            list(pool.map(self._make_osd, range(OSDS)))
        self.command("osd pool create", pool=POOL, pg_num=16, pgp_num=16)
        self.command("osd pool application enable", pool=POOL, app="dedupd")
        self.add_user(USER, CAPABILITIES)
        wait_for(self.is_clean, "clean cluster")

    def _make_osd(self, number: int) -> None:
        directory = self.directory / f"osd{number}"
        osd_uuid = str(uuid.uuid4())
        key = subprocess.run(
            ["ceph-authtool", "--gen-print-key"], capture_output=True, text=True, check=True
        ).stdout.strip()
        self.command(
            "osd new", json.dumps({"cephx_secret": key}).encode(), uuid=osd_uuid, id=number
        )
        keyring = directory / "keyring"
        self._run("ceph-authtool", "-C", keyring, "-n", f"osd.{number}", "--add-key", key)
        self._run(
            *("ceph-osd", "-c", self.conf, "-i", str(number), "--mkfs"),
            *("--osd-uuid", osd_uuid, "--keyring", keyring, "--osd-data", directory),
            *self._store_options,
        )
        self.start_daemon(f"osd.{number}")

    def add_osd(self, number: int) -> None:
        """One more disk, which takes part at once."""
        (self.directory / f"osd{number}").mkdir()
        self._make_osd(number)

    def groups_on(self, number: int) -> int:
        """How many placement groups an OSD has, by its own word; 0 where it is not there yet."""
        dump = self.command("osd dump")
        is_up = any(osd["osd"] == number and osd["up"] for osd in dump["osds"])
        if not is_up:
            return 0
        found = [self.command("osd map", pool=POOL, object=f"o{n}") for n in range(50)]
        return sum(number in one["acting"] or number in one["up"] for one in found)

    @property
    def _store_options(self) -> list[str]:
        return [] if self.in_memory else ["--osd-objectstore", "bluestore"]

    def start_daemon(self, name: str) -> None:
        """``mon.a`` or ``osd.N``, in a process of this one's."""
        kind, _, number = name.partition(".")
        command = [f"ceph-{kind}", "-f", "-c", str(self.conf), "-i", number]
        if kind == "osd":
            command += ["--osd-data", str(self.directory / f"osd{number}"), *self._store_options]
        log = (self.directory / "log" / f"{name}.err").open("ab")
        with log:
            self.daemons[name] = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def stop_daemon(self, name: str, how: signal.Signals = signal.SIGKILL) -> None:
        process = self.daemons.pop(name)
        process.send_signal(how)
        if how is not signal.SIGSTOP:
            process.wait()

    def pause_daemon(self, name: str) -> None:
        """It does nothing from then on, in none of its threads: on a busy machine they go on until
        one of them has taken the signal."""
        process = self.daemons[name]
        process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{process.pid}/task")

        def is_stopped() -> bool:
            texts = [(task / "stat").read_text() for task in tasks.iterdir()]
            return all(text.rpartition(")")[2].split()[0] == "T" for text in texts)

        wait_for(is_stopped, f"rest of {name}")

    def go_on(self, name: str) -> None:
        self.daemons[name].send_signal(signal.SIGCONT)

    def stop(self) -> None:
        for process in self.daemons.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.kill()
        for process in self.daemons.values():
            process.wait()
        if self._admin is not None:
            self._admin.shutdown()

    # --- the administrator --------------------------------------------------------------------

    def client(self, user: str, keyring: Path) -> Any:
        library: Any = binding()
        rados = library.Rados(conffile=str(self.conf), name=f"client.{user}")
        rados.conf_set("keyring", str(keyring))
        rados.conf_set("client_mount_timeout", "30")
        rados.connect()
        return rados

    def command(self, prefix: str, data: bytes = b"", **arguments: Any) -> Any:
        """A command to the monitor, as ``ceph`` sends it."""
        request = json.dumps({"prefix": prefix, "format": "json", **arguments})
        status, answer, message = self._admin.mon_command(request, data)
        assert status == 0, f"{prefix}: {status} {message}"
        return json.loads(answer) if answer.strip() else None

    def ask_osd(self, number: int, prefix: str) -> Any:
        """A command to an OSD, of a cluster with sockets."""
        request = json.dumps({"prefix": prefix, "format": "json"})
        with socket.socket(socket.AF_UNIX) as own, own.makefile("rb") as answer:
            own.connect(str(self.directory / "run" / f"osd.{number}.asok"))
            own.sendall(request.encode() + b"\0")
            length = int.from_bytes(answer.read(4), "big")
            return json.loads(answer.read(length))

    def add_user(self, name: str, capabilities: list[str]) -> Path:
        """The keyring of a new user."""
        found = self.command("auth get-or-create", entity=f"client.{name}", caps=capabilities)
        keyring = self.directory / f"client.{name}.keyring"
        keyring.write_text(f"[client.{name}]\n\tkey = {found[0]['key']}\n")
        return keyring

    def is_clean(self) -> bool:
        states = self._pg_states()
        return bool(states) and all(up >= 2 for up in states)

    def _pg_states(self) -> list[int]:
        """How many OSDs are up for each placement group, from the map of the OSDs."""
        tree = self.command("osd dump")
        up = [osd["osd"] for osd in tree["osds"] if osd["up"]]
        return [len(up)] if len(up) == OSDS else []

    def address(self, name: str, timeout_s: float = 30.0) -> StoreAddress:
        return address_in(self.directory, name, timeout_s)

    def _run(self, *command: object) -> None:
        result = subprocess.run(
            [str(c) for c in command], capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, f"{command}: {result.stdout}{result.stderr}"


_CONF = """\
[global]
fsid = {fsid}
mon host = [v2:{ip}:{v2},v1:{ip}:{v1}]
public addr = {ip}
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
keyring = {d}/client.admin.keyring
osd pool default size = 2
osd pool default min size = 1
osd crush chooseleaf type = 0
run dir = {d}/run
admin socket = {socket}
pid file = {d}/run/$name.pid
log file = {d}/log/$name.log
mon data = {d}/mon
mon allow pool delete = true
mon data avail warn = 1
mon data avail crit = 1
mon allow pool size one = true
auth allow insecure global id reclaim = false
mon osd down out interval = 600
paxos propose interval = 0.05
paxos min wait = 0.01
mon osd min down reporters = 1
osd heartbeat grace = 6
osd heartbeat interval = 1
osd objectstore = memstore
memstore device bytes = 4294967296
bluestore block size = 4294967296
osd pool default pg autoscale mode = off
osd class update on start = false
osd memory target = 939524096
osd op num shards = 2
ms async op threads = 2
debug ms = 0

[osd]
keyring = $osd_data/keyring

[mon]
keyring = {d}/mon/keyring
"""


def _free_ports(ip: str, count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((ip, 0))
        return [one.getsockname()[1] for one in sockets]


@contextmanager
def mini_ceph(
    directory: Path, *, in_memory: bool = True, ip: str = LOOPBACK, sockets: bool = False
) -> Iterator[MiniCeph]:
    """A cluster that lives as long as the context."""
    require_ceph()
    ceph = MiniCeph(directory, in_memory=in_memory, ip=ip, sockets=sockets)
    try:
        ceph.start()
        yield ceph
    finally:
        ceph.stop()
        for osd in range(OSDS):
            shutil.rmtree(directory / f"osd{osd}", ignore_errors=True)


def address_in(directory: Path, name: str, timeout_s: float = 30.0) -> StoreAddress:
    """A store of this name in the cluster of a directory."""
    keyring = str(directory / f"client.{USER}.keyring")
    return StoreAddress(POOL, name, str(directory / "ceph.conf"), USER, keyring, timeout_s)


# --- one cluster for all processes of a test run ----------------------------------------------


@contextmanager
def shared_ceph(directory: Path) -> Iterator[Path]:
    """The directory of a cluster that the processes of a test run share.

    A process of its own keeps it up as long as one of them uses it, also where they are killed.
    """
    require_ceph()
    users = directory / "users"
    users.mkdir(parents=True, exist_ok=True)
    # A process may use it more than once: fixtures of two folders are two.
    mine = users / f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
    with _locked(directory):
        mine.touch()
        place = directory / "place"
        if not place.exists():
            running = directory / uuid.uuid4().hex[:8]
            place.write_text(str(running))
            log = (directory / "keeper.log").open("ab")
            with log:
                subprocess.Popen(
                    [sys.executable, "-m", "tests.support.ceph", str(directory), str(running)],
                    cwd=REPOSITORY,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        running = Path(place.read_text())
    try:
        wait_for((running / "ready").exists, f"cluster (see {directory}/keeper.log)")
        yield running
    finally:
        mine.unlink()


def keep(directory: Path, running: Path) -> None:
    """Keep a cluster up for those that are noted as its users, and alive."""
    with mini_ceph(running):
        (running / "ready").touch()
        while True:
            time.sleep(0.5)
            with _locked(directory):
                users = [path.name.split("-")[0] for path in (directory / "users").iterdir()]
                if not any(os.path.exists(f"/proc/{user}") for user in users):
                    (directory / "place").unlink()
                    return


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    with (directory / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    keep(Path(sys.argv[1]), Path(sys.argv[2]))
