"""The service: connects mounts, schedule and control."""

import asyncio
import logging
import os
import signal
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial

from dedupd.service.client import only_service
from dedupd.service.config import ServiceConfig, VolumeConfig, load_config
from dedupd.service.guard.guards import Guards
from dedupd.service.job_process import JobProcess
from dedupd.service.mount_keeper import MountState
from dedupd.service.mount_usage import is_worth_measuring, measure
from dedupd.service.planned_jobs import job_arguments
from dedupd.service.scheduler import (
    JobRequest,
    Running,
    StartRequest,
    StartTask,
    Stop,
    Urgency,
    VolumeView,
    Wait,
    next_action,
)
from dedupd.service.served_volume import ServedVolume
from dedupd.service.space import LOOK_S as SPACE_LOOK_S
from dedupd.service.systemd.journal import Event, report
from dedupd.service.systemd.notify import Notifier
from dedupd.service.telling import Notifications
from dedupd_core.errors import (
    Busy,
    ConfigurationError,
    DedupdError,
    NotAVolume,
    ReadOnlyVolume,
    ServiceUnreachable,
    UsageError,
)
from dedupd_core.failures import Failures
from dedupd_core.units import counted
from jobs.specs import JOBS, TASKS

AGAIN_S = 5.0
"""Delay before a task that failed starts again."""

LOOK_S = 60.0
"""The longest wait of the schedule: a policy may have been edited, or the clock set."""

ENDED_KEPT = 200
"""The number of finished jobs that can be queried by ID."""

WAITING_MAX = 1000
"""The limit for queued job requests."""

DRAIN_S = 120.0
"""The extra time to stop, beyond systemd's default: jobs save progress, mounts sync files."""


class Service:
    """One run of ``dedupd serve``. All methods belong to the event loop."""

    def __init__(self, config_path: str, notifier: Notifier) -> None:
        """Raises ConfigurationError."""
        self.config_path = config_path
        self.config: ServiceConfig = load_config(config_path)
        self.started_s = time.time()
        self.volumes: dict[VolumeConfig, ServedVolume] = {}
        self.waiting: list[JobProcess] = []
        self.running: dict[str, JobProcess] = {}
        """Running jobs by the uuid of the volume."""
        self.ended: deque[JobProcess] = deque(maxlen=ENDED_KEPT)
        self.counts: Counter[tuple[str, str]] = Counter()
        """The number of finished jobs, by name and by outcome: completed, stopped or failed."""
        self.freed_bytes: Counter[str] = Counter()
        """The bytes that jobs have freed, by name."""
        self.listen_problem = ""
        """The reason why the page is not available, for users; empty if there is no problem."""
        self.telling = Notifications(self)
        self.guards = Guards(self)
        self.failures = Failures("dedupd.service")
        """Unexpected failures in this process."""
        self._notifier = notifier
        self._keeping: dict[ServedVolume, asyncio.Task[None]] = {}
        self._stop = asyncio.Event()
        self._wake = asyncio.Event()
        self._group = asyncio.TaskGroup()
        self._reloading = asyncio.Lock()
        self._numbers = 0
        self._next_look_s = 0.0
        self._measuring: set[asyncio.Task[None]] = set()

    # --- life -------------------------------------------------------------------------------------

    async def run(self, control: AbstractAsyncContextManager[object]) -> None:
        """Serve until SIGTERM or SIGINT; SIGHUP reloads the configuration. Raises Busy.

        ``control`` accepts requests while it is entered.
        """
        loop = asyncio.get_running_loop()
        with only_service(self.config.socket_path):
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._stop.set)
            # A failing task must not stop the others: each is contained, or restarted.
            async with self._group, control:
                loop.add_signal_handler(signal.SIGHUP, self._reload_on_signal)
                watch = self._group.create_task(self._watch())
                self._apply(self.config)
                for volume in list(self.volumes.values()):
                    await volume.keeper.settled.wait()
                    await self._view_of(volume)
                works = {
                    "the schedule": self._schedule,
                    "watching space": self._watch_space,
                    "notifications": self.telling.run,
                    "the guard below mounts": self.guards.run,
                }
                tasks = [self._keep_up(*work) for work in works.items()]
                self._notifier.ready(self.status)
                report(Event.SERVICE_READY, f"dedupd is ready: {self.status}", pid=os.getpid())
                await self._stop.wait()
                self._notifier.stopping()
                self._notifier.extend(DRAIN_S)
                report(Event.SERVICE_STOPPING, "dedupd is stopping")
                for task in tasks:
                    task.cancel()
                await self._drain()
                watch.cancel()

    @property
    def status(self) -> str:
        """The state in one line, for users."""
        mounted = sum(volume.is_mounted for volume in self.volumes.values())
        jobs = counted(len(self.running), "job")
        return f"{mounted} of {len(self.volumes)} volumes mounted, {jobs}"

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    async def reload(self) -> None:
        """Reload the configuration. After a ConfigurationError, the old one stays in use.

        Raises ServiceUnreachable if the service is stopping: a newly mounted volume would stay
        mounted.
        """
        async with self._reloading:
            if self.is_stopping:
                raise ServiceUnreachable(
                    "the service is stopping; the configuration is read at the next start"
                )
            self._notifier.reloading()
            try:
                config = load_config(self.config_path)
                for key in ("socket_path", "listen", "group", "readers", "state_path"):
                    if getattr(config, key) != getattr(self.config, key):
                        raise ConfigurationError(
                            f"{self.config_path}: {key.removesuffix('_path')} can only be changed"
                            " by a restart of the service"
                        )
            except ConfigurationError as error:
                text = f"the configuration was not changed: {error}"
                report(Event.RELOAD_FAILED, text, logging.ERROR)
                raise
            finally:
                self._notifier.ready(self.status)
            self._apply(config)
            report(Event.RELOADED, f"{self.config_path} was read again: {self.status}")

    def _reload_on_signal(self) -> None:
        async def reload() -> None:
            # A failure is in the log, or no longer matters.
            with suppress(ConfigurationError, ServiceUnreachable):
                await self.reload()

        self._begin("a reload", reload)

    def _apply(self, config: ServiceConfig) -> None:
        """Apply a configuration: add new volumes, and release removed ones, which stay mounted."""
        self.config = config
        for one in config.volumes:
            if one not in self.volumes:
                volume = self.volumes[one] = ServedVolume(one)
                what = f"keeping {one.path} mounted"
                self._keeping[volume] = self._keep_up(what, volume.keeper.run)
        for one in [one for one in self.volumes if one not in config.volumes]:
            self._begin("releasing a volume", partial(self._let_go, self.volumes.pop(one)))
        for volume in self.volumes.values():
            if volume.keeper.state is MountState.FAILED:
                volume.keeper.mount()
        self.look_again()

    async def _let_go(self, volume: ServedVolume) -> None:
        reason = "its volume was removed from the configuration"
        if volume.uuid in self.running:
            self.running[volume.uuid].stop(reason)
        if all(other.uuid != volume.uuid for other in self.volumes.values()):
            for job in [job for job in self.waiting if job.uuid == volume.uuid]:
                self._give_up(job, reason)
        await volume.keeper.stop(self._keeping.pop(volume))

    async def _drain(self) -> None:
        """Stop the jobs at their next safe point, then the mounts if configured."""
        for task in self._measuring:
            task.cancel()
        for job in list(self.running.values()):
            job.stop("the service is stopping")
        while self.running:
            await next(iter(self.running.values())).changed.wait()
        for volume in list(self.volumes.values()):
            if self.config.unmount_on_stop:
                try:
                    await volume.keeper.unmount()
                except DedupdError as error:
                    # It stays mounted, and the next service adopts it.
                    report(Event.MOUNT_STAYS, str(error), logging.WARNING)
            await volume.keeper.stop(self._keeping.pop(volume))

    async def _watch(self) -> None:
        """Notify systemd that the event loop runs."""
        seconds = self._notifier.watchdog_s
        while seconds is not None:
            self._notifier.alive()
            await asyncio.sleep(seconds)

    async def _watch_space(self) -> None:
        """Wake the scheduler when space becomes low, or files are removed while it is low."""
        while True:
            for volume in list(self.volumes.values()):
                with self.failures.noted(f"watching {volume.config.path}"):
                    if await volume.look_at_space():
                        self.look_again()
                    await volume.look_for_damage()
            await asyncio.sleep(SPACE_LOOK_S)

    def _begin(self, what: str, work: Callable[[], Awaitable[None]]) -> "asyncio.Task[None]":
        return self._group.create_task(self.failures.contained(what, work))

    def _keep_up(self, what: str, work: Callable[[], Awaitable[None]]) -> "asyncio.Task[None]":
        again = partial(asyncio.sleep, AGAIN_S)
        return self._group.create_task(self.failures.kept_up(what, work, again))

    # --- jobs -------------------------------------------------------------------------------------

    def look_again(self) -> None:
        """Wake the scheduler, because the state changed."""
        self._wake.set()

    async def _schedule(self) -> None:
        while True:
            self._wake.clear()
            await self._decide()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._next_look_s):
                    await self._wake.wait()

    async def _decide(self) -> None:
        """Perform all actions that are due now."""
        while True:
            seen = [(one, await self._view_of(one)) for one in list(self.volumes.values())]
            # A reload may have removed some volumes during the loop.
            served = self.volumes.get
            views = [view for one, view in seen if view and served(one.config) is one]
            requests = [JobRequest(job.id, job.uuid, job.submitted_s) for job in self.waiting]
            now_s = time.time()
            running = [
                Running(
                    uuid,
                    job.urgency,
                    now_s - job.running_s,
                    job.until_s,
                    stopping=bool(job.stop_reason),
                    task=job.task,
                    held=job.held,
                )
                for uuid, job in self.running.items()
            ]
            action = next_action(views, requests, running, now_s, self.config.jobs_max)
            if isinstance(action, Wait):
                self._next_look_s = min(LOOK_S, max(0.0, action.until_s - now_s))
                return
            if isinstance(action, Stop):
                self.running[action.uuid].stop(action.reason)
            elif isinstance(action, StartTask):
                self._start(self._scheduled(action))
            elif isinstance(action, StartRequest):
                job = next(job for job in self.waiting if job.id == action.request.id)
                self.waiting.remove(job)
                self._start(job)

    async def _view_of(self, volume: ServedVolume) -> VolumeView | None:
        try:
            return await volume.view()
        except Exception as error:
            self.failures.note(f"the view of {volume.config.path}", error)
            return None

    def _scheduled(self, action: StartTask) -> JobProcess:
        task = TASKS[action.task]
        return JobProcess(
            id=self._new_id(task.job),
            uuid=action.uuid,
            job=task.job,
            path=self.by_uuid(action.uuid).config.path,
            arguments=(*task.options, *action.arguments),
            urgency=action.urgency,
            submitted_s=time.time(),
            task=action.task,
            eager=task.eager,
            pressing=action.urgency is Urgency.SPACE and not task.eager,
            until_s=action.until_s,
        )

    def _new_id(self, job: str) -> str:
        self._numbers += 1
        return f"{job}-{int(self.started_s)}-{self._numbers}"

    def _start(self, job: JobProcess) -> None:
        self.running[job.uuid] = job
        run = partial(self._run_job, job, self.by_uuid(job.uuid))
        self._begin(f"{job.job} on {job.path}", run)

    async def _run_job(self, job: JobProcess, volume: ServedVolume) -> None:
        try:
            await self._run_to_its_end(job, volume)
        finally:
            # After any failure: no job of the volume starts while this one counts as running.
            if self.running.get(job.uuid) is job:
                del self.running[job.uuid]
            if job not in self.ended:
                self.ended.append(job)
            job.change()
            self.look_again()

    async def _run_to_its_end(self, job: JobProcess, volume: ServedVolume) -> None:
        report(Event.JOB_STARTED, f"{job.job} started on {job.path}", job=job.id, path=job.path)
        job.paused = volume.paused
        await job.run()
        await volume.note_end(job)
        level = logging.WARNING if job.failed or job.found_damage else logging.INFO
        event = Event.JOB_FAILED if job.failed else Event.JOB_ENDED
        report(event, f"{job.job} on {job.path}: {job.outcome}", level, job=job.id, path=job.path)
        if sum((job.report or {}).get("repaired", {}).values()):
            text = f"{job.path}: damage was repaired"
            report(Event.DAMAGE_REPAIRED, text, job=job.id, path=job.path)
        how = "failed" if job.failed else "completed" if job.completed else "stopped"
        self.counts[job.job, how] += 1
        self.freed_bytes[job.job] += (job.report or {}).get("freed_bytes", 0)
        if volume.is_mounted and not self.is_stopping and is_worth_measuring(volume.savings, job):
            measure = partial(self._measure, volume)
            task = self._begin(f"measuring {volume.config.path}", measure)
            self._measuring.add(task)
            task.add_done_callback(self._measuring.discard)

    async def _measure(self, volume: ServedVolume) -> None:
        savings = await measure(volume.config.path)
        if savings is not None:
            await volume.note_savings(savings)

    # --- requests of users ------------------------------------------------------------------------

    def by_uuid(self, uuid: str) -> ServedVolume:
        """Raises NotAVolume."""
        for volume in self.volumes.values():
            if volume.uuid == uuid:
                return volume
        raise NotAVolume(f"{uuid}: the service has no such volume; see `dedupd status`")

    def by_path(self, path: str) -> ServedVolume:
        """Return the volume that contains an absolute path. Raises NotAVolume."""
        path = os.path.normpath(path)
        for volume in self.volumes.values():
            for place in volume.keeper.places:
                if path == place or path.startswith(place + "/"):
                    return volume
        raise NotAVolume(
            f"{path}: not in a volume that the service manages; create one with `dedupd enable`"
        )

    def submit(self, name: str, path: str, options: dict[str, object]) -> JobProcess:
        """Queue a job to run as soon as possible.

        Raises UsageError, NotAVolume, Busy, ReadOnlyVolume.
        """
        arguments = job_arguments(name, options)
        volume = self.by_path(path)
        if volume.uuid is None:
            raise Busy(f"{path}: {volume.keeper.problem or 'the volume is not mounted yet'}")
        if volume.is_read_only:
            raise ReadOnlyVolume(
                f"{path}: the file system is read-only; find the cause (`dmesg`), then `mount -o"
                " remount,rw`"
            )
        whole = os.path.normpath(path) in volume.keeper.places
        if not whole and not JOBS[name].of_a_subtree:
            raise UsageError(
                f"{path}: {name} works only on entire volumes; use {volume.config.path}"
            )
        if len(self.waiting) >= WAITING_MAX:
            raise Busy(f"{WAITING_MAX} jobs are already queued; cancel some, or wait")
        now_s = time.time()
        job = JobProcess(
            self._new_id(name), volume.uuid, name, path, arguments, Urgency.BY_HAND, now_s
        )
        self.waiting.append(job)
        self.look_again()
        return job

    def job(self, job_id: str) -> JobProcess:
        """Parse a token. Raises UsageError."""
        for job in (*self.waiting, *self.running.values(), *self.ended):
            if job.id == job_id:
                return job
        raise UsageError(f"{job_id}: no such job; `dedupd jobs` lists them")

    def cancel(self, job: JobProcess) -> None:
        """Cancel a job: a running job stops at its next safe point."""
        if job in self.waiting:
            self._give_up(job, "cancelled")
        elif job.finished_s is None:
            job.cancelled = True
            job.stop("cancelled")
        self.look_again()

    def _give_up(self, job: JobProcess, reason: str) -> None:
        """Finish a job that has not started."""
        self.waiting.remove(job)
        job.stop(reason)
        job.finished_s = time.time()
        self.ended.append(job)
        job.change()

    async def pause(self, volume: ServedVolume, paused: bool) -> None:
        """Pause or resume the jobs of a volume."""
        await volume.pause(paused)
        job = self.running.get(volume.uuid or "")
        if job is not None:
            job.pause(paused)
        self.look_again()

    async def unmount(self, volume: ServedVolume) -> None:
        """Unmount a volume after its job has stopped. Raises Busy if files are in use."""
        with volume.left_alone():
            job = self.running.get(volume.uuid or "")
            if job is not None:
                job.stop("the volume is being unmounted")
            while volume.uuid in self.running:
                await self.running[volume.uuid].changed.wait()
            await volume.keeper.unmount()
