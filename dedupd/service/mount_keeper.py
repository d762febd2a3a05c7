"""Keeps one volume mounted by a separate process, which survives the service.

If the mount process exits, or the volume is unmounted without the service, it is mounted again at
once. After ``dedupd umount``, which calls the service, the volume stays unmounted.
"""

import asyncio
import logging
import os
import time
from enum import StrEnum

from dedupd.service.config import VolumeConfig
from dedupd.service.systemd.journal import Event, report
from dedupd.service.systemd.slice import is_of_systemd
from dedupd_core.errors import Busy, DedupdError, UsageError
from dedupd_core.stores.registry import kind_at
from dedupd_core.system import mount_table
from dedupd_core.system.control_socket import (
    QUESTION_TIMEOUT_S,
    ControlClient,
    fetch_base,
    socket_path,
)
from fuse_stub.mounts.mount_points import covered, is_dead
from fuse_stub.mounts.mount_process import ServeOptions, open_volume, served_in_background, unmount
from fuse_stub.mounts.mount_unit import NoUnit, served_in_unit
from fuse_stub.mounts.over_mount import replaces_without_gap

log = logging.getLogger("dedupd.service")

RETRY_S_MIN = 0.5
RETRY_S_MAX = 60.0
"""The delays between two attempts to mount; each failure in a row doubles the delay."""

STABLE_S = 60.0
"""If a mount lived this long, earlier failures no longer count."""


class MountState(StrEnum):
    STARTING = "starting"
    MOUNTED = "mounted"
    FAILED = "failed"
    UNMOUNTED = "unmounted"


class MountKeeper:
    """Keeps one volume of the configuration mounted. All methods belong to the event loop."""

    def __init__(self, config: VolumeConfig) -> None:
        self.config = config
        self.state = MountState.STARTING
        self.problem = ""
        """The reason why it is not mounted, for users; empty if there is no problem."""
        self.uuid: str | None = None
        self.pid: int | None = None
        self.restarts = 0
        self.mounted_since_s = 0.0
        self.settled = asyncio.Event()
        """Set when an attempt to mount it has finished, successful or not."""
        self.places: tuple[str, ...] = (config.mountpoint, config.path)
        """Its paths as users give them, and, since the first attempt, with links resolved."""
        self._wanted = True
        self._stopping = False
        self._changed = asyncio.Event()
        self._transition = asyncio.Lock()
        self._base_fd: int | None = None
        self._is_base_adopted = False
        self._failures = 0
        self._deaths = 0

    @property
    def base(self) -> str | None:
        """A path to its ``.dedupd`` that works mounted or unmounted; None before it was found."""
        return None if self._base_fd is None else f"/proc/self/fd/{self._base_fd}"

    async def run(self) -> None:
        """Keep the volume mounted or unmounted as requested, until :meth:`stop`."""
        while not self._stopping:
            if not self._wanted:
                await self._wait_for_change(None)
                continue
            try:
                async with self._transition:
                    self.pid = await asyncio.to_thread(self._bring_up)
            except Exception as error:
                if not isinstance(error, DedupdError | OSError):
                    log.exception("%s cannot be mounted", self.config.path)
                self._note_failure(error)
                await self._wait_for_change(_delay_s(self._failures))
                continue
            self._note_mount()
            await self._end_of(self.pid)
            self._note_end()
            if self._wanted and self._deaths > 1:
                await self._wait_for_change(_delay_s(self._deaths - 1))

    def mount(self) -> None:
        """Request a mount, and try immediately if the volume is not mounted."""
        self._wanted = True
        if self.state is not MountState.MOUNTED:
            self.state = MountState.STARTING
        self._failures = 0
        self.settled.clear()
        if self.state is MountState.MOUNTED:
            self.settled.set()
        self._changed.set()

    async def unmount(self) -> None:
        """Unmount the volume and keep it unmounted. If it is in use, raise Busy instead."""
        async with self._transition:
            before = self._wanted
            self._wanted = False
            try:
                await asyncio.to_thread(self._take_away)
            except UsageError:
                pass  # it was unmounted elsewhere a moment ago
            except DedupdError:
                self._wanted = before
                raise
            self.state, self.problem = MountState.UNMOUNTED, ""
            self._changed.set()
            self._let_go()

    async def stop(self, task: "asyncio.Task[None]") -> None:
        """Stop :meth:`run`, which ``task`` runs; the volume stays mounted."""
        self._stopping = True
        self._changed.set()
        await task
        self.settled.set()
        self._let_go()

    def _point(self) -> str:
        return os.path.realpath(self.config.mountpoint)

    def _mount(self) -> mount_table.Mount | None:
        point = self._point()
        return next((found for found in mount_table.volumes() if found.point == point), None)

    def _take_away(self) -> None:
        """Unmount the volume. Even the search for the mount may wait for the mount process."""
        if self._mount() is not None:
            unmount(self._point())

    def _bring_up(self) -> int:
        """Return the pid of the mount process; start it if there is none."""
        path, point = os.path.realpath(self.config.path), self._point()
        self.places = (self.config.mountpoint, self.config.path, point, path)
        mounted = self._mount()
        if mounted is not None and not is_dead(point):
            return self._adopt(mounted)
        if self._base_fd is None:
            with open_volume(path) as volume:
                self._require_expected(volume.parameters.uuid)
                self.uuid = volume.parameters.uuid
                self._base_fd = os.dup(volume.base_fd)
        around = mount_table.find(point)
        if around is not None and around.volume != self.uuid:
            raise Busy(f"{point}: is inside a volume that is already mounted at {around.point}")
        hidden = covered(point) if point == path else ""
        if hidden:
            log.warning("%s; unmount the volume to move them away", hidden)
        asked = ServeOptions(point, self.config.cache_bytes, self.config.options)
        return self._serve(path, self._base_fd, asked)

    def _serve(self, path: str, base_fd: int, asked: ServeOptions) -> int:
        """Start a mount process: in its own unit, or as a child of the service."""
        # The unit has no network. Before Linux 6.5, a mount cannot replace a dead one without a
        # gap.
        may_have_unit = is_of_systemd() and replaces_without_gap()
        if self.uuid and may_have_unit and not kind_at(f"/proc/self/fd/{base_fd}").needs_network:
            try:
                return served_in_unit(self.uuid, path, base_fd, asked)
            except NoUnit as error:
                log.warning("%s: the mount process has no unit of its own: %s", path, error)
        return served_in_background(path, base_fd, asked)

    def _adopt(self, mounted: mount_table.Mount) -> int:
        """Adopt a mount that is already running, because the service was restarted."""
        with ControlClient(socket_path(mounted.volume), QUESTION_TIMEOUT_S) as client:
            status = client.call("status")
        if os.path.realpath(status["root"]) != os.path.realpath(self.config.path):
            raise Busy(f"{mounted.point}: the volume {status['root']} is already mounted here")
        self._require_expected(mounted.volume)
        if self._base_fd is None:
            self._base_fd = fetch_base(mounted.volume)
            self._is_base_adopted = True
        self.uuid = mounted.volume
        pid: int = status["pid"]
        return pid

    def _require_expected(self, uuid: str) -> None:
        """Raise Busy if the path leads to a volume other than the configured one."""
        if self.config.uuid and uuid != self.config.uuid:
            raise Busy(
                f"{self.config.path}: contains the volume {uuid}, but the configuration lists"
                f" {self.config.uuid}; correct the path or the uuid in the configuration"
            )

    async def _end_of(self, pid: int) -> None:
        """Wait until a process exits, or the service stops."""
        try:
            pid_fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(pid_fd, ended.set)
        try:
            while not ended.is_set() and not self._stopping:
                waits = [asyncio.create_task(event.wait()) for event in (ended, self._changed)]
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                for one in waits:
                    one.cancel()
                if not ended.is_set():
                    self._changed.clear()
        finally:
            loop.remove_reader(pid_fd)
            os.close(pid_fd)
        if ended.is_set():
            _reap(pid)

    async def _wait_for_change(self, seconds: float | None) -> None:
        if not self._stopping:
            try:
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
            except TimeoutError:
                pass
        self._changed.clear()

    def _note_mount(self) -> None:
        self.state, self.problem = MountState.MOUNTED, ""
        self._failures = 0
        self.mounted_since_s = time.time()
        self.settled.set()
        report(
            Event.MOUNTED,
            f"{self.config.path} is mounted at {self.config.mountpoint}",
            volume=self.uuid,
            path=self.config.path,
            pid=self.pid,
        )

    def _note_end(self) -> None:
        if self._stopping and self._wanted:
            return
        lived_s = time.time() - self.mounted_since_s
        self.pid = None
        if self._is_base_adopted and self._mount() is None:
            # A descriptor from a read-only mount would make the next mount read-only, too.
            self._let_go()
        if not self._wanted:
            self.state = MountState.UNMOUNTED
            report(Event.UNMOUNTED, f"{self.config.path} is unmounted", path=self.config.path)
            return
        self.restarts += 1
        # The first death in a while causes an immediate retry; repeated deaths, slower retries.
        self._deaths = 1 if lived_s > STABLE_S else self._deaths + 1
        self.state = MountState.STARTING
        self.problem = "the mount process has died; the volume is being mounted again"
        report(
            Event.MOUNT_DIED,
            f"{self.config.path}: {self.problem}",
            logging.ERROR,
            path=self.config.path,
            volume=self.uuid,
        )

    def _note_failure(self, error: Exception) -> None:
        self._failures += 1
        self.state = MountState.FAILED
        message = str(error)
        if message != self.problem:
            self.problem = message
            report(Event.MOUNT_FAILED, message, logging.ERROR, path=self.config.path)
        self.settled.set()

    def _let_go(self) -> None:
        """Close the descriptor, which would prevent the unmount of the file system below."""
        if self._base_fd is not None:
            os.close(self._base_fd)
            self._base_fd, self._is_base_adopted = None, False


def _delay_s(failures: int) -> float:
    return min(RETRY_S_MAX, RETRY_S_MIN * 2.0 ** min(failures - 1, 30))


def _reap(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass  # an earlier service started it
