"""A real service in a process of its own, with a notify socket and a configuration of its own."""

import faulthandler
import json
import os
import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from dedupd.cli.main import main
from dedupd.service.client import ServiceClient
from dedupd_core.errors import DedupdError, ServiceUnreachable
from dedupd_core.system import mount_table
from fuse_stub.mounts.mount_points import clear_dead_mount
from fuse_stub.mounts.mount_process import unmount
from tests.support.forks import CONTEXT
from tests.support.lab import Lab, new_lab, run_cli

T = TypeVar("T")

WAIT_S = 240.0
"""Everything here takes a second or two, on a machine that has time for it."""

END_S = 100.0
"""A service ends in a moment, and gives its mounts and jobs 90 seconds."""


def eventually(probe: Callable[[], T | None], what: str) -> T:
    """The first answer of ``probe`` that is not None or False."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        found = probe()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"never: {what}")


def free_bytes(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


class Program:
    """A service in a process that is forked (:mod:`tests.support.forks`)."""

    def __init__(self, config: str, log: str, environment: dict[str, str]) -> None:
        self._process = CONTEXT.Process(target=_serve, args=(config, log, environment))
        self._process.start()
        self._log = log
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int:
        self._process.join(END_S)
        if self._process.exitcode is None:
            self.send_signal(signal.SIGUSR1)  # its log shows where it is
            time.sleep(1)
            self.send_signal(signal.SIGKILL)
            self._process.join()
            raise AssertionError(f"it does not end: {Path(self._log).read_text()[-8000:]}")
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def _serve(config: str, log: str, environment: dict[str, str]) -> None:
    """What the process does: the command itself."""
    os.environ.update(environment)
    log_fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log_fd, 2)
    os.close(log_fd)
    faulthandler.register(signal.SIGUSR1)
    try:
        main(["serve", "--config", config], prog_name="dedupd")
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else 1)


class Listener:
    """What systemd does for a service: takes in whatever it says, at once.

    A queue of datagrams is short (10 on many machines), and a service whose words nobody takes
    waits until somebody does.
    """

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._messages = queue.SimpleQueue[str]()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while message := self._socket.recv(4096):
            self._messages.put(message.decode())

    def next(self, timeout_s: float) -> str | None:
        """What was said next; None where nothing was said for so long."""
        try:
            return self._messages.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()


class ServiceLab:
    """A machine with a service. Volumes are mounted over themselves."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.config = base / "etc" / "dedupd.toml"
        self.volumes_directory = base / "etc" / "volumes.d"
        self.volumes_directory.mkdir(parents=True)
        self.socket = base / "control.sock"
        self.configure()
        self.volumes: list[Lab] = []
        self.process: Program | None = None
        self.log = base / "log"
        self._notify = Listener(base / "notify")
        self.said: list[str] = []

    @property
    def environment(self) -> dict[str, str]:
        """What the commands have to know to find this service and no other."""
        return {"DEDUPD_CONFIG": str(self.config)}

    def configure(self, text: str = "") -> None:
        state = self.base / "state"
        self.config.write_text(f'socket = "{self.socket}"\nstate = "{state}"\n{text}')

    def add_volume(self, name: str = "volume", policy: str = "") -> Lab:
        """A volume that the service will serve; scheduled tasks are off unless told otherwise."""
        lab = new_lab(self.base / name)
        lab.set_policy(QUIET_POLICY + policy)
        self.volumes.append(lab)
        (self.volumes_directory / f"{name}.toml").write_text(f'path = "{lab.root}"\n')
        return lab

    def start(self, **environment: str) -> None:
        """Start it, and wait until it says that it is ready."""
        told = {"NOTIFY_SOCKET": str(self.base / "notify"), **environment}
        self.process = Program(str(self.config), str(self.log), told)
        self.wait_for_word("READY=1")

    def wait_for_word(self, word: str) -> str:
        """Wait until the service sends systemd a message with this line."""
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            is_over = self.process is not None and self.process.poll() is not None
            message = self._notify.next(0.1)
            if message is None:
                if is_over:
                    break
                continue
            self.said.append(message)
            if word in message.split("\n"):
                return message
        raise AssertionError(f"{word} was never said; the log: {self.log.read_text()[-4000:]}")

    def stop(self) -> int:
        """Have it stop as systemd does; its exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self._end()

    def kill(self) -> None:
        """End it as a crash would."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self._end()

    def _end(self) -> int:
        assert self.process is not None
        status = self.process.wait()
        self.process = None
        return status

    def close(self) -> None:
        """Leave nothing behind."""
        try:
            if self.process is not None:
                self.stop()
        finally:
            for lab in self.volumes:
                clear_dead_mount(str(lab.root))
                if is_mounted(lab):
                    unmount(str(lab.root))
            self._notify.close()

    @property
    def client(self) -> ServiceClient:
        return ServiceClient(str(self.socket))

    def wait_until_it_listens(self) -> None:
        """For one that was started without :meth:`start`. Its socket is there a moment before."""

        def probe() -> ServiceClient | None:
            try:
                return self.client
            except ServiceUnreachable:
                return None

        eventually(probe, "it answers")

    def view(self, lab: Lab) -> dict[str, Any]:
        return self.client.volume(str(lab.root))

    def mount_pid(self, lab: Lab) -> int:
        """The process that serves a volume, once one does."""

        def probe() -> int | None:
            mount = self.view(lab)["mount"]
            return int(mount["pid"]) if mount["state"] == "mounted" else None

        return eventually(probe, f"{lab.root} is mounted")

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """A command that finds this service."""
        return run_cli(*arguments, environment=self.environment)

    def json(self, *arguments: str | Path) -> Any:
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def submit(self, job: str, lab: Lab, **options: object) -> str:
        body = {"job": job, "path": str(lab.root), "options": options}
        return str(self.client.post("/v1/jobs", body)["id"])

    def ended(self, job_id: str) -> dict[str, Any]:
        """A job once it has ended."""

        def probe() -> dict[str, Any] | None:
            job = self.client.job(job_id, 5)
            return job if job["state"] == "ended" else None

        return eventually(probe, f"{job_id} ends")

    def job_in(self, lab: Lab, state: str) -> dict[str, Any]:
        """The job of a volume, once it is in a state."""

        def probe() -> dict[str, Any] | None:
            job = self.view(lab)["job"]
            return job if job is not None and job["state"] == state else None

        return eventually(probe, f"a job of {lab.root} is {state}")

    def verify(self) -> None:
        """Nothing is wrong with any volume; the service must have ended, and the mounts too."""
        for lab in self.volumes:
            lab.verify_clean()


QUIET_POLICY = """
min_age = "0s"
min_size = "1"
space_low = 0
space_critical = 0
schedule_background = "off"
schedule_throughput = "off"
schedule_reconcile = "off"
schedule_gc = "off"
schedule_compact = "off"
schedule_scrub = "off"
schedule_full_scrub = "off"
"""


def is_mounted(lab: Lab) -> bool:
    return any(mount.point == str(lab.root) for mount in mount_table.volumes())


def is_alive(pid: int) -> bool:
    """Whether there is such a process, be it one that has ended and that nobody has waited for."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def has_ended(pid: int) -> bool:
    """Whether a process does nothing any more, waited for or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port of the loopback address that nobody else is given while the block runs.

    Whoever says SO_REUSEADDR, as servers do, can listen on it: nobody does so here.
    """
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield int(keeper.getsockname()[1])


def answers(action: Callable[[], object]) -> bool:
    try:
        action()
    except (DedupdError, OSError):
        return False
    return True


@contextmanager
def service_lab(base: Path) -> Iterator[ServiceLab]:
    lab = ServiceLab(base)
    try:
        yield lab
    finally:
        lab.close()
