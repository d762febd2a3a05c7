"""Runs one guard process per file system below managed volumes (docs/guide/mount.md).

A guard fails open: if its process exits, the kernel allows all opens, and the service kills a guard
that does not respond. It is a separate process because a mount process may not use ``fanotify``.
"""

import asyncio
import json
import logging
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dedupd.service.guard.file_systems import FileSystem, MountProcess, below, mount_processes
from dedupd.service.systemd.journal import Event, report
from dedupd_core.errors import DedupdError
from dedupd_core.system.paths import explain, show_text
from dedupd_core.system.processes import make_register, register, server_environment

LOOK_S = 1.0
"""The interval between checks for mounted volumes."""

SILENCE_S_MAX = 10.0
"""A guard prints a line each second. A silent guard may block programs, so it is killed."""

RETRY_S = 60.0
"""The delay before a failed guard is started again: the disk may be slow."""

LOGGED_S = 60.0
"""The interval in which a program that opens many stubs is logged only once."""

PROGRAMS_MAX = 1000

log = logging.getLogger("dedupd.service")


@dataclass(slots=True, eq=False)
class _Guard:
    process: Process
    processes: frozenset[MountProcess]
    point: str
    reading: "asyncio.Task[None] | None" = None
    is_ready: bool = False
    problem: str = ""
    refused: int = 0


@dataclass(frozen=True, slots=True)
class GuardState:
    """The state of all guards, for status output."""

    wanted: bool
    guarded: tuple[str, ...]
    """Mount points of the file systems with a guard."""
    problem: str
    refused: int


class GuardedVolume(Protocol):
    """A volume of the service."""

    @property
    def uuid(self) -> str | None: ...
    @property
    def is_mounted(self) -> bool: ...


class GuardConfig(Protocol):
    """The part of the configuration that the guards use."""

    @property
    def guard_below(self) -> bool: ...


class GuardedService(Protocol):
    """The service that owns the guards."""

    @property
    def config(self) -> GuardConfig: ...
    @property
    def volumes(self) -> Mapping[Any, GuardedVolume]: ...


class Guards:
    """All guards of a service. All methods belong to the event loop."""

    def __init__(self, service: GuardedService) -> None:
        self._service = service
        self._guards: dict[str, _Guard] = {}
        self._known: object = None
        self._retry_s = 0.0
        self._refused_before = 0
        self._logged: dict[int, float] = {}
        self.problem = ""

    @property
    def state(self) -> GuardState:
        ready = [one for one in self._guards.values() if one.is_ready]
        refused = self._refused_before + sum(one.refused for one in self._guards.values())
        points = tuple(sorted(one.point for one in ready))
        return GuardState(self._service.config.guard_below, points, self.problem, refused)

    async def run(self) -> None:
        """Start and stop guards as needed, until cancelled."""
        try:
            while True:
                await self._look()
                await asyncio.sleep(LOOK_S)
        finally:
            self._known = None
            for device in list(self._guards):
                await self._end(device)

    def _served(self) -> frozenset[str]:
        """Return the uuids of the volumes that need a guard."""
        if not self._service.config.guard_below:
            return frozenset()
        volumes = self._service.volumes.values()
        return frozenset(one.uuid for one in volumes if one.is_mounted and one.uuid)

    async def _look(self) -> None:
        for device in [device for device, one in self._guards.items() if one.problem]:
            self._fail(f"{self._guards[device].point}: {self._guards[device].problem}")
            await self._end(device)
        served = self._served()
        mounted = await asyncio.to_thread(mount_processes) if served else frozenset()
        known = (served, mounted)
        if known == self._known or (served and time.monotonic() < self._retry_s):
            return
        self.problem = ""
        try:
            if served:
                await asyncio.to_thread(make_register)
                register()
            found, all_answered = await asyncio.to_thread(below, mounted, served)
        except (DedupdError, OSError) as error:
            self._fail(explain(error))
            return
        # A mount process that does not answer yet opens stubs by its lock; it is asked again later.
        self._known = known if all_answered else None
        try:
            for device in [device for device in self._guards if device not in found]:
                await self._end(device)
            for device, one in found.items():
                guard = self._guards.get(device)
                if guard is None or guard.processes != one.processes:
                    await self._start(device, one)
        finally:
            for one in found.values():
                one.close()

    def _fail(self, problem: str) -> None:
        """Record a problem, and retry later."""
        if problem != self.problem:
            log.warning("guard below mounts is inactive: %s", show_text(problem))
        self.problem, self._known = problem, None
        self._retry_s = time.monotonic() + RETRY_S

    async def _start(self, device: str, one: FileSystem) -> None:
        """Start a guard, and then stop its predecessor: there is always a guard."""
        if one.obstacle:
            await self._end(device)
            self.problem = one.obstacle
            log.warning("%s: guard below the mount is inactive: %s", one.point, one.obstacle)
            return
        fds = [one.fds[0], *one.fds]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "dedupd.service.guard", one.point, *map(str, fds)),
            pass_fds=[*{*fds}],
            stdin=PIPE,
            stdout=PIPE,
            env=server_environment(),
            start_new_session=True,
            cwd="/",
        )
        guard = _Guard(process, frozenset(one.processes), one.point)
        await self._listen_once(guard)
        await self._end(device)
        self._guards[device] = guard
        if not guard.problem:
            guard.reading = asyncio.create_task(self._listen(guard))

    async def _end(self, device: str) -> None:
        guard = self._guards.pop(device, None)
        if guard is None:
            return
        self._refused_before += guard.refused
        if guard.reading is not None:
            guard.reading.cancel()
        if guard.process.returncode is None:
            guard.process.kill()
        await guard.process.wait()

    async def _listen(self, guard: _Guard) -> None:
        while not guard.problem:
            await self._listen_once(guard)

    async def _listen_once(self, guard: _Guard) -> None:
        """Process one line of a guard."""
        assert guard.process.stdout is not None
        try:
            async with asyncio.timeout(SILENCE_S_MAX):
                line = await guard.process.stdout.readline()
            message: dict[str, Any] = json.loads(line or b'{"problem": "the guard has ended"}')
        except TimeoutError:
            message = {"problem": f"the guard has not responded for {SILENCE_S_MAX:.0f} s"}
        except ValueError:
            return  # The pipe was full and accepted only a part of the line.
        if "problem" in message:
            guard.is_ready, guard.problem = False, str(message["problem"])
            if guard.process.returncode is None:
                guard.process.kill()
        elif "ready" in message:
            guard.is_ready = True
        elif "count" in message:
            guard.refused = message["count"]
        else:
            self._log(**message)

    def _log(self, pid: int, uid: int, program: str, path: str) -> None:
        """Log a refused open, unless another open by the same process was logged recently."""
        now_s = time.monotonic()
        if self._logged.get(pid, -LOGGED_S) > now_s - LOGGED_S:
            return
        if len(self._logged) >= PROGRAMS_MAX:
            self._logged.clear()
        self._logged[pid] = now_s
        report(
            Event.STUB_REFUSED,
            f"{show_text(path)}: program {show_text(program)} (process {pid}, user {uid}) opened a"
            " stub below its mount and got an error; read the file through the mounted volume",
            logging.WARNING,
            pid=pid,
            uid=uid,
            path=path,
        )
