"""A volume in the service: its mount, its policy, and its jobs."""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from dedupd.service.config import VolumeConfig
from dedupd.service.history import WEEK_S, DailyFlow, History, Savings, StoredHistory
from dedupd.service.job_process import JobProcess
from dedupd.service.mount_keeper import MountKeeper, MountState
from dedupd.service.planned_jobs import schedules, tasks_of
from dedupd.service.scheduler import TaskHistory, TaskName, VolumeView
from dedupd.service.space import (
    SAMPLES_MAX,
    ReclaimableSpace,
    RestoreWatch,
    Sample,
    SpaceWatch,
    reclaimable,
    sample_of,
)
from dedupd_core.config.policy import Policy, parse_policy
from dedupd_core.config.policy_file import set_in_text
from dedupd_core.config.schedule import Schedule
from dedupd_core.deleted.alarm import Alarm, read_state
from dedupd_core.errors import CatalogUnusable, PolicyError
from dedupd_core.format.store_kinds import OWN, StoreKind
from dedupd_core.stores.registry import kind_at
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened, takes_no_changes
from dedupd_core.system.paths import explain
from dedupd_core.volume.base_directory import VOLUME_FILE
from dedupd_core.volume.volume import POLICY_FILE
from jobs.tree.candidates import YOUNG

R = TypeVar("R")

RUNS_LOOKED_AT = 50
"""The number of runs to search for the last runs of optimize and recover."""

BUSY_RETRY_S = 60.0
"""The delay before a retry if another process held the volume."""

log = logging.getLogger("dedupd.service")


class ServedVolume:
    """One volume of the configuration. All methods belong to the event loop."""

    def __init__(self, config: VolumeConfig) -> None:
        self.keeper = MountKeeper(config)
        self.paused = False
        self.policy = Policy()
        self.policy_problem = ""
        self._knows_policy = False
        """True if the policy was read at least once; before that, it is only the default."""
        self.tasks: dict[TaskName, TaskHistory] = {}
        self.savings: Savings | None = None
        self.flow: DailyFlow | None = None
        self.space = SpaceWatch()
        self.garbage_bytes = 0
        """The bytes that a compaction would free, as known from jobs and measurements."""
        self.young_bytes = 0
        """The bytes of files that the last optimize run found too young."""
        self._restore = RestoreWatch()
        self.damage_met = 0
        """The number of records that readers could not read since the last scrub."""
        self.neighbours: Mapping[str, Any] = {}
        """The last report of recover on other hosts of the cluster store."""
        self.optimized_s = 0.0
        """The end of the last completed run of optimize."""
        self.since_s = 0.0
        self._served_s = 0.0
        self._not_before_s = 0.0
        """No job starts before this time of a monotonic clock: another process held the volume."""
        self.is_known = False
        self._left_alone = False
        # A process may open the files of LMDB only once at a time.
        self._catalog = asyncio.Lock()

    @property
    def config(self) -> VolumeConfig:
        return self.keeper.config

    @property
    def uuid(self) -> str | None:
        return self.keeper.uuid

    @property
    def is_mounted(self) -> bool:
        return self.keeper.state is MountState.MOUNTED

    async def view(self) -> VolumeView | None:
        """Return the scheduler's view of the volume; None while its state is unknown."""
        if self.uuid is None or self.keeper.base is None:
            return None
        if not self.is_known:
            try:
                await self._get_to_know()
            except OSError as error:
                log.error("%s: %s", self.config.path, explain(error))
                return None
        self.read_policy()
        usable = self.is_mounted and time.monotonic() >= self._not_before_s and not self._left_alone
        usable = usable and not self.is_read_only
        return VolumeView(
            self.uuid,
            {} if self.policy_problem else self.schedules,
            dict(self.tasks),
            usable,
            self.paused,
            self.since_s,
            self._served_s,
            replace(self.space.state(self.policy), is_apart=not self.store_kind.has_containers),
        )

    @property
    def schedules(self) -> dict[TaskName, Schedule]:
        """The schedule of each task, by the policy as last read."""
        return schedules(self.policy, self.store_kind)

    @property
    def store_kind(self) -> StoreKind:
        """The kind of the store; until the volume was found, the kind of a volume's own store."""
        base = self.keeper.base
        return OWN if base is None else kind_at(base)

    async def look_at_space(self) -> bool:
        """Measure the free space. Returns whether the scheduler may have to act now."""
        base = self.keeper.base
        self.read_policy()
        if base is None or not self.is_mounted or not self._knows_policy:
            return False
        try:
            sample = await asyncio.to_thread(sample_of, base, time.time())
        except OSError:
            return False  # it was unmounted a moment ago, or the disk is missing
        return self.space.look(sample, self.policy)

    async def look_for_damage(self) -> None:
        """Count the damaged records that readers have found since the last scrub."""
        if self.is_mounted:
            self.damage_met = await self.remember(History.damage_met) or 0

    @property
    def reclaimable(self) -> list[ReclaimableSpace]:
        """Jobs that would free space, the cheapest first."""
        saved = 0.0 if self.savings is None else self.savings.saved_fraction
        found = reclaimable(self.tasks, self.garbage_bytes, self.young_bytes, saved)
        gives_back = self.store_kind.has_containers
        return [one for one in found if one.job == "optimize" or gives_back]

    @property
    def is_read_only(self) -> bool:
        """True if its file system is read-only now: then no job can work."""
        base = self.keeper.base
        return base is not None and takes_no_changes(f"{base}/{VOLUME_FILE.decode()}")

    @property
    def noise_alarm(self) -> Alarm | None:
        """The alarm that suspends garbage collection, if one is active."""
        if self.keeper.base is None:
            return None
        try:
            with opened(os.open(self.keeper.base, os.O_RDONLY | os.O_DIRECTORY)) as base_fd:
                return read_state(base_fd).alarm
        except OSError:
            return None

    async def pause(self, paused: bool) -> None:
        """Pause or resume the jobs of the volume; remembered across restarts."""
        self.paused = paused
        await self.remember(lambda history: history.note_paused(paused))

    @contextmanager
    def left_alone(self) -> Iterator[None]:
        """Start no job on the volume while the block runs."""
        self._left_alone = True
        try:
            yield
        finally:
            self._left_alone = False

    async def note_end(self, job: JobProcess) -> None:
        """Record the outcome of a job."""
        assert job.started_s is not None and job.finished_s is not None
        self._served_s = job.finished_s
        self._note_report(job.report or {})
        await self._end_restore(job.report or {})
        if job.report is None:
            started_s = job.started_s
            report = _report_of(job, started_s, job.finished_s)
            await self.remember(lambda history: history.note_run(started_s, report))
        if job.task is None:
            if job.completed and job.path in (self.config.path, self.config.mountpoint):
                for name in tasks_of(job.job, job.arguments):
                    await self._note_task(
                        name, TaskHistory(job.started_s, job.finished_s, completed=True)
                    )
            return
        name, last = job.task, self.tasks.get(job.task)
        if job.was_busy:
            self._not_before_s = time.monotonic() + BUSY_RETRY_S
            return
        failures = (last.failures if last is not None else 0) + 1 if job.failed else 0
        history = TaskHistory(job.started_s, job.finished_s, job.completed, failures)
        await self._note_task(name, history)

    async def _end_restore(self, report: Mapping[str, Any]) -> None:
        """Switch ``restore_mode`` off when the restore no longer writes."""
        is_done = report.get("job") == "optimize" and report.get("outcome") == "done"
        optimized = report.get("files_optimized", 0)
        if is_done and self._restore.is_over(self.policy, optimized, time.time()):
            try:
                await asyncio.to_thread(self._switch_restore_off)
            except (PolicyError, OSError) as error:
                log.warning(
                    "%s: restore_mode could not be switched off: %s",
                    self.config.path,
                    explain(error),
                )

    def _switch_restore_off(self) -> None:
        base, where = self.keeper.base, f"{self.config.path}: policy.toml"
        if base is None:
            return
        with opened(os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as base_fd:
            with open(f"{base}/{POLICY_FILE.decode()}", encoding="utf-8") as file:
                text = file.read()
            changed = set_in_text(text, "restore_mode", "off", where)
            Disk().replace_file(base_fd, POLICY_FILE, changed.encode())
        log.info("%s: restores no longer write: restore_mode is off", self.config.path)

    async def _note_task(self, name: TaskName, history: TaskHistory) -> None:
        self.tasks[name] = history
        await self.remember(lambda kept: kept.note_task(name, history))

    def _note_report(self, report: Mapping[str, Any]) -> None:
        """Update the figures of space that jobs could free from a report."""
        if report.get("job") == "optimize":
            self.young_bytes = report.get("bytes_skipped", {}).get(YOUNG, 0)
            if report.get("outcome") == "done":
                self.optimized_s = max(self.optimized_s, report.get("started_s", 0.0))
        elif report.get("job") == "gc":
            self.garbage_bytes += report.get("orphaned_bytes", 0) - report.get("freed_bytes", 0)
            self.garbage_bytes = max(0, self.garbage_bytes)
        elif report.get("job") == "compact":
            self.garbage_bytes = max(0, report["dead_bytes"] - report["freed_bytes"])
        elif report.get("job") == "recover" and report.get("outcome") == "done":
            self.neighbours = report

    async def note_savings(self, savings: Savings) -> None:
        self.savings, self.garbage_bytes = savings, savings.garbage_bytes
        await self.remember(lambda history: history.note_savings(savings))
        self.flow = await self.remember(lambda history: history.flow(time.time()))

    async def remember(self, act: Callable[[History], R]) -> R | None:
        """Read or write the catalogue; None, with a log message, if that fails: the disk may be
        missing, while other volumes still work."""
        base = self.keeper.base
        if base is None:
            return None
        try:
            # A separate descriptor: the keeper closes its own when the volume is unmounted.
            with opened(os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
                async with self._catalog:
                    return await asyncio.to_thread(act, History(f"/proc/self/fd/{fd}"))
        except CatalogUnusable as error:
            log.warning("%s", error)
        except OSError as error:
            log.warning("%s: the catalogue cannot be used: %s", self.config.path, explain(error))
        return None

    async def _get_to_know(self) -> None:
        assert self.keeper.base is not None
        self.since_s = os.stat(os.path.join(self.keeper.base, VOLUME_FILE.decode())).st_mtime
        memory = await self.remember(History.load) or StoredHistory({}, False, None)
        self.tasks = dict(memory.tasks)
        self.paused = memory.paused
        self.savings = memory.savings
        self.flow = await self.remember(lambda history: history.flow(time.time()))
        self.space.recall(await self.remember(_seen_space) or ())
        if self.savings is not None:
            self.garbage_bytes = self.savings.garbage_bytes
        runs = await self.remember(lambda history: history.runs(RUNS_LOOKED_AT)) or []
        for run in reversed(runs):
            if run.get("job") in ("optimize", "recover"):
                self._note_report(run)
        self._served_s = max((one.finished_s for one in self.tasks.values()), default=0.0)
        self.is_known = True

    def read_policy(self) -> None:
        """Read the current policy, which may be edited at any time."""
        base = self.keeper.base
        if base is None:
            return
        where = os.path.join(self.config.path, ".dedupd", POLICY_FILE.decode())
        try:
            with open(os.path.join(base, POLICY_FILE.decode()), encoding="utf-8") as file:
                self.policy = parse_policy(file.read(), where)
            self.policy_problem, self._knows_policy = "", True
        except FileNotFoundError:
            self.policy, self.policy_problem, self._knows_policy = Policy(), "", True
        except (PolicyError, OSError, UnicodeDecodeError) as error:
            if explain(error) != self.policy_problem:
                log.error("%s", explain(error))
            self.policy_problem = explain(error)


def _seen_space(history: History) -> list[Sample]:
    """Return the measurements of free space in the last week."""
    since_s = time.time() - WEEK_S
    return [
        Sample(one.time_s, one.free_bytes, one.size_bytes, 0)
        for one in history.savings(SAMPLES_MAX // 2)
        if one.time_s >= since_s
    ]


def _report_of(job: JobProcess, started_s: float, finished_s: float) -> dict[str, Any]:
    """Return a record for a run that left none, because it failed or was stopped early."""
    return {
        "job": job.job,
        "outcome": job.outcome,
        "started_s": started_s,
        "resources": {"wall_s": round(finished_s - started_s, 3)},
    }
