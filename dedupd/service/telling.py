"""Sends notifications through the configured channels.

It does so when a problem starts and when it is resolved. A slow channel delays neither the service
nor other channels.
"""

import asyncio
import logging
import os
import socket
import sys
import threading
import time

from dedupd.service.config import ServiceConfig
from dedupd.service.notices.delivery import DeliveryMethod, deliver
from dedupd.service.notices.ledger import Ledger, PendingNotice
from dedupd.service.notices.problem import Notice, NoticeReason, Problem, Severity
from dedupd.service.problems import ServiceView, problems, summary
from dedupd.service.systemd.journal import Event, report
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened

LOOK_S = 1.0
"""The interval between checks for problems."""

RETRY_S = (5.0, 30.0, 300.0, 3600.0)
"""The delays before a failed delivery is retried; after the last one, it is dropped."""

STOP_S = 5.0
"""The longest time that a running delivery may delay the stop of the service."""

FILE = b"notices.json"

_EVENTS = {"space": Event.SPACE_LOW, "backlog": Event.BACKLOG, "damage_met": Event.DAMAGE_MET}

log = logging.getLogger("dedupd.service")


def ways_of(config: ServiceConfig) -> list[DeliveryMethod]:
    """Return the channels of a configuration."""
    found = []
    if config.on_problem:
        found.append(DeliveryMethod("command", config.on_problem))
    if config.mail_to:
        found.append(DeliveryMethod("mail", (config.sendmail, "-i", "-t"), config.mail_to))
    if config.webhook:
        module = "dedupd.service.notices.webhook"
        found.append(
            DeliveryMethod("webhook", (sys.executable, "-P", "-m", module, config.webhook))
        )
    return found


class Notifications:
    """The ledger of a service, and the tasks that deliver its notifications."""

    def __init__(self, service: ServiceView) -> None:
        self._service = service
        self._ledger = Ledger()
        self._host = socket.gethostname()
        self._restarts: dict[str, int] = {}
        self._queued = asyncio.Condition()
        self._state = 0  # the number of ledger states so far
        self._saving = threading.Lock()  # protects the file and the number of its state
        self._saved = 0

    @property
    def _ways(self) -> list[DeliveryMethod]:
        return ways_of(self._service.config)

    async def run(self) -> None:
        """Check for problems and send notifications, until cancelled."""
        data = await asyncio.to_thread(self._load)
        self._ledger = Ledger.of_json(data, time.time())
        try:
            async with asyncio.TaskGroup() as group:
                for name in ("command", "mail", "webhook"):
                    group.create_task(self._deliver_all(name))
                while True:
                    await self._look()
                    await asyncio.sleep(LOOK_S)
        finally:
            self._save(*self._to_save())

    async def test(self) -> dict[str, str]:
        """Send a test notification through each channel; return the error of each, or ""."""
        text = f"This is a test of dedupd on {self._host}. Nothing is wrong."
        problem = Problem("test", "", Severity.INFO, text)
        notice = Notice(NoticeReason.TEST, problem, time.time(), self._host)
        ways = self._ways
        results = await asyncio.gather(*(deliver(way, notice) for way in ways))
        return {way.name: result for way, result in zip(ways, results, strict=True)}

    async def _look(self) -> None:
        config, now_s, ledger = self._service.config, time.time(), self._ledger
        seen = [*problems(self._service, now_s), *self._died()]
        begun, over = ledger.update(seen, now_s, config.problem_calm_s)
        for problem, is_over in [*((p, False) for p in begun), *((p, True) for p in over)]:
            event = Event.PROBLEM_OVER if is_over else _EVENTS.get(problem.kind, Event.PROBLEM)
            level = logging.INFO if is_over else logging.WARNING
            text = f"resolved: {problem.message}" if is_over else problem.message
            report(event, text, level, kind=problem.kind, path=problem.volume)
            if problem.severity.is_at_least(config.notify_from):
                happening = NoticeReason.END if is_over else NoticeReason.BEGIN
                self._tell(Notice(happening, problem, now_s, self._host))
        window = config.summary.latest(now_s) if config.summary is not None else None
        is_due = window is not None and window.start_s > ledger.summary_s and now_s < window.end_s
        if is_due and self._ways:
            ledger.summary_s = now_s
            text, details = summary(self._service, now_s)
            problem = Problem("summary", "", Severity.INFO, text)
            self._tell(Notice(NoticeReason.SUMMARY, problem, now_s, self._host, details))
        if begun or over or is_due:
            await self._changed()

    def _died(self) -> list[Problem]:
        """Report mounts whose process has died since the last check, even if they work again."""
        found = []
        for volume in self._service.volumes.values():
            path, count = volume.config.path, volume.keeper.restarts
            if count > self._restarts.get(path, count):
                text = f"{path}: the mount process has died"
                found.append(Problem("mount", path, Severity.ERROR, text))
            self._restarts[path] = count
        return found

    def _tell(self, notice: Notice) -> None:
        self._ledger.queue(notice, [way.name for way in self._ways])

    async def _changed(self) -> None:
        """Save the ledger, and wake the channels."""
        await asyncio.to_thread(self._save, *self._to_save())
        async with self._queued:
            self._queued.notify_all()

    async def _deliver_all(self, name: str) -> None:
        """Deliver the notifications of one channel, in order."""
        while True:
            async with self._queued:
                while (waiting := self._ledger.next_of(name)) is None:
                    await self._queued.wait()
            way = next((way for way in self._ways if way.name == name), None)
            # The notification is dropped if the channel is no longer configured.
            failure = "" if way is None else await self._delivered(way, waiting)
            again = bool(failure) and waiting.tries < len(RETRY_S)
            if failure:
                kind = waiting.notice.problem.kind
                fate = "it will be retried" if again else "it is dropped"
                log.warning(
                    "a notification (%s) by %s was not delivered: %s; %s", kind, name, failure, fate
                )
            self._ledger.settle(waiting, again)
            await self._changed()
            if again:
                await asyncio.sleep(RETRY_S[waiting.tries])

    async def _delivered(self, way: DeliveryMethod, waiting: PendingNotice) -> str:
        """Deliver a notification, and record its delivery even if the service stops during it."""
        task = asyncio.ensure_future(deliver(way, waiting.notice))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait({task}, timeout=STOP_S)
            if task.done() and not task.cancelled() and not task.result():
                self._ledger.settle(waiting, again=False)
            task.cancel()
            await asyncio.wait({task})
            raise

    def _load(self) -> bytes:
        try:
            with open(os.path.join(self._service.config.state_path, FILE.decode()), "rb") as file:
                return file.read()
        except OSError:
            return b""

    def _to_save(self) -> tuple[int, bytes]:
        """Return the number of this state of the ledger, and its data."""
        self._state += 1
        return self._state, self._ledger.to_json()

    def _save(self, state: int, data: bytes) -> None:
        """Write a state, unless a newer one is already written: threads run in any order."""
        with self._saving:
            if state > self._saved:
                self._saved = state
                self._write(data)

    def _write(self, data: bytes) -> None:
        directory = self._service.config.state_path
        try:
            os.makedirs(directory, mode=0o755, exist_ok=True)
            with opened(os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
                Disk().replace_file(fd, FILE, data)
        except OSError as error:
            # After a restart, the notification may be repeated, which is better than a loss.
            log.warning(
                "%s: the state of notifications cannot be saved: %s", directory, error.strerror
            )
