"""Metrics for Prometheus, computed for each request from the state of the service."""

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dedupd.service.problems import problems
from dedupd.service.served_volume import ServedVolume
from dedupd_core import __version__
from dedupd_core.config.schedule import Off
from dedupd_core.errors import ServiceUnreachable
from dedupd_core.system.control_socket import ControlClient, socket_path

if TYPE_CHECKING:
    from dedupd.service.service import Service

ANSWER_S_MAX = 1.0
"""A mount answers in milliseconds. Prometheus waits for at most ten seconds."""

_ASKING = ThreadPoolExecutor(1, "metrics")
"""A separate thread, with one request at a time, because a mount may hang."""

Statuses = Mapping[str, Mapping[str, Any]]
"""The state of each mount process, by the volume's uuid (docs/design/control.md)."""


@dataclass(frozen=True, slots=True)
class _Gauge:
    """A figure of a volume; ``key`` is its place in the source."""

    name: str
    help: str
    key: str


SAVINGS = (
    _Gauge("dedupd_volume_files", "Files at the last measurement.", "files"),
    _Gauge("dedupd_volume_files_optimized", "Optimized files (stubs).", "files_optimized"),
    _Gauge("dedupd_volume_logical_bytes", "Sum of the file lengths.", "logical_bytes"),
    _Gauge("dedupd_volume_plain_bytes", "Blocks that all files would use if plain.", "plain_bytes"),
    _Gauge("dedupd_volume_occupied_bytes", "Blocks that files and store use.", "occupied_bytes"),
    _Gauge(
        "dedupd_volume_saved_bytes",
        "Blocks that all files would use if plain, minus the blocks that files and store use.",
        "saved_bytes",
    ),
    _Gauge("dedupd_volume_free_bytes", "Free space of the file system.", "free_bytes"),
    _Gauge("dedupd_volume_size_bytes", "Size of the file system.", "size_bytes"),
    _Gauge(
        "dedupd_volume_in_policy_files",
        "Files that the policy selects: optimized, pending or too young.",
        "in_policy_files",
    ),
    _Gauge(
        "dedupd_volume_oldest_waiting_timestamp_seconds",
        "Last change of the oldest pending file; 0 if no file is pending.",
        "oldest_waiting_s",
    ),
    _Gauge(
        "dedupd_volume_quarantined_records",
        "Damaged records of the store that could not be repaired.",
        "quarantined_records",
    ),
    _Gauge(
        "dedupd_volume_garbage_bytes",
        "Garbage that a compaction would free.",
        "garbage_bytes",
    ),
    _Gauge("dedupd_volume_measured_timestamp_seconds", "Time of the last measurement.", "time_s"),
)

REASONS = ("waiting", "young", "saves_little", "small", "excluded", "other")
"""The reasons why files are plain: ``jobs/usage/backlog.py``."""

MOUNT_COUNTERS = (
    _Gauge("dedupd_mount_requests", "Requests of users.", "requests"),
    _Gauge("dedupd_mount_busy_seconds", "Total time of the requests of users.", "busy_s"),
    _Gauge("dedupd_mount_chunk_hits", "Chunks found in the cache.", "chunk_hits"),
    _Gauge("dedupd_mount_chunk_misses", "Chunks read from the store.", "chunk_misses"),
)

MOUNT_GAUGES = (
    _Gauge("dedupd_mount_files_open", "Open files.", "files_open"),
    _Gauge("dedupd_mount_inodes", "Inodes known to the kernel.", "inodes_known"),
    _Gauge("dedupd_mount_cache_bytes", "Decompressed chunks in memory.", "chunk_cache_bytes"),
)


async def metrics_text(service: "Service") -> bytes:
    """Format the metrics for Prometheus."""
    uuids = [volume.uuid for volume in service.volumes.values() if volume.is_mounted]
    loop, told = asyncio.get_running_loop(), [uuid for uuid in uuids if uuid is not None]
    statuses = await loop.run_in_executor(_ASKING, _statuses, told)
    registry = CollectorRegistry()
    registry.register(_ServiceCollector(service, statuses))
    ProcessCollector(namespace="dedupd_service", registry=registry)
    return generate_latest(registry)


def _statuses(uuids: Iterable[str]) -> Statuses:
    found = {}
    for uuid in uuids:
        try:
            with ControlClient(socket_path(uuid), ANSWER_S_MAX) as client:
                found[uuid] = client.call("status")
        except ServiceUnreachable:
            continue  # it died a moment ago, which another metric shows, or it hangs
    return found


class _ServiceCollector(Collector):
    def __init__(self, service: "Service", statuses: Statuses) -> None:
        self._service = service
        self._statuses = statuses

    def collect(self) -> Iterator[Metric]:
        yield _single("dedupd_info", "Version of the service.", {"version": __version__}, 1)
        count = len(problems(self._service, time.time()))
        yield _single("dedupd_problems", "Number of current problems.", {}, count)
        yield from self._mounts()
        yield from self._savings()
        yield from self._space()
        yield from self._tasks()
        yield from self._jobs()

    def _volumes(self) -> Iterator[tuple[list[str], ServedVolume]]:
        for volume in self._service.volumes.values():
            yield [volume.config.path], volume

    def _mounts(self) -> Iterator[Metric]:
        mounted = GaugeMetricFamily(
            "dedupd_volume_mounted", "1 if the volume is mounted, else 0.", None, _PATH
        )
        paused = GaugeMetricFamily(
            "dedupd_volume_paused", "1 if jobs are paused, else 0.", None, _PATH
        )
        restarts = CounterMetricFamily(
            "dedupd_mount_restarts", "Mount processes that died.", None, _PATH
        )
        for path, volume in self._volumes():
            mounted.add_metric(path, float(volume.is_mounted))
            paused.add_metric(path, float(volume.paused))
            restarts.add_metric(path, volume.keeper.restarts)
        yield from (mounted, paused, restarts)
        for one in MOUNT_COUNTERS:
            yield self._of_mounts(CounterMetricFamily(one.name, one.help, None, _PATH), one.key)
        failures = CounterMetricFamily(
            "dedupd_mount_failures",
            "Unexpected failures of tasks and requests in the mount process.",
            None,
            [*_PATH, "what"],
        )
        for path, volume in self._volumes():
            status = self._statuses.get(volume.uuid or "", {})
            for what, count in status.get("failures", {}).items():
                failures.add_metric([*path, what], count)
        yield failures
        for one in MOUNT_GAUGES:
            yield self._of_mounts(GaugeMetricFamily(one.name, one.help, None, _PATH), one.key)

    def _of_mounts(self, family: CounterMetricFamily | GaugeMetricFamily, key: str) -> Metric:
        for path, volume in self._volumes():
            status = self._statuses.get(volume.uuid or "")
            if status is not None and key in status:
                family.add_metric(path, status[key])
        return family

    def _savings(self) -> Iterator[Metric]:
        for one in SAVINGS:
            family = GaugeMetricFamily(one.name, one.help, None, _PATH)
            for path, volume in self._volumes():
                if volume.savings is not None:
                    family.add_metric(path, getattr(volume.savings, one.key))
            yield family
        labels = [*_PATH, "reason"]
        files = GaugeMetricFamily(
            "dedupd_volume_plain_files", "Plain files, by reason.", None, labels
        )
        sizes = GaugeMetricFamily(
            "dedupd_volume_plain_files_bytes",
            "Lengths of the plain files, by reason.",
            None,
            labels,
        )
        for path, volume in self._volumes():
            if volume.savings is not None:
                for reason in REASONS:
                    files.add_metric([*path, reason], getattr(volume.savings, f"{reason}_files"))
                    sizes.add_metric([*path, reason], getattr(volume.savings, f"{reason}_bytes"))
        yield from (files, sizes)
        coming = GaugeMetricFamily(
            "dedupd_volume_incoming_bytes_per_day",
            "Bytes that became eligible per day, over the last week.",
            None,
            _PATH,
        )
        going = GaugeMetricFamily(
            "dedupd_volume_optimized_bytes_per_day",
            "Bytes that were optimized per day, over the last week.",
            None,
            _PATH,
        )
        for path, volume in self._volumes():
            if volume.flow is not None:
                coming.add_metric(path, volume.flow.in_bytes_per_day)
                going.add_metric(path, volume.flow.out_bytes_per_day)
        yield from (coming, going)

    def _space(self) -> Iterator[Metric]:
        level = GaugeMetricFamily(
            "dedupd_space_level", "Free space: 0 enough, 1 low, 2 critical.", None, _PATH
        )
        free = GaugeMetricFamily("dedupd_space_free_bytes", "Current free space.", None, _PATH)
        total = GaugeMetricFamily(
            "dedupd_space_total_bytes", "Size of the file system.", None, _PATH
        )
        full = GaugeMetricFamily(
            "dedupd_space_full_timestamp_seconds",
            "Time when the file system is full at the current rate.",
            None,
            _PATH,
        )
        gain = GaugeMetricFamily(
            "dedupd_space_reclaimable_bytes", "Space that a job would free.", None, [*_PATH, "job"]
        )
        for path, volume in self._volumes():
            if (latest := volume.space.latest) is None:
                continue
            level.add_metric(path, volume.space.level)
            free.add_metric(path, latest.free_bytes)
            total.add_metric(path, latest.total_bytes)
            if volume.space.full_s is not None:
                full.add_metric(path, volume.space.full_s)
            for one in volume.reclaimable:
                if one.bytes is not None:
                    gain.add_metric([*path, one.job], one.bytes)
        yield from (level, free, total, full, gain)

    def _tasks(self) -> Iterator[Metric]:
        labels = [*_PATH, "task"]
        started = GaugeMetricFamily(
            "dedupd_task_started_timestamp_seconds",
            "Start of the last run; before the first run, the time when the volume was enabled.",
            None,
            labels,
        )
        completed = GaugeMetricFamily(
            "dedupd_task_completed", "1 if the last run was completed, else 0.", None, labels
        )
        failures = GaugeMetricFamily(
            "dedupd_task_failures", "Consecutive failed runs.", None, labels
        )
        for path, volume in self._volumes():
            for name, schedule in volume.schedules.items():
                if name in volume.tasks:
                    started.add_metric([*path, name], volume.tasks[name].started_s)
                elif volume.is_known and not isinstance(schedule, Off):
                    started.add_metric([*path, name], volume.since_s)
            for name, history in volume.tasks.items():
                completed.add_metric([*path, name], float(history.completed))
                failures.add_metric([*path, name], history.failures)
        yield from (started, completed, failures)

    def _jobs(self) -> Iterator[Metric]:
        labels = [*_PATH, "job"]
        running = GaugeMetricFamily("dedupd_job_running", "1 for a running job.", None, labels)
        held = GaugeMetricFamily(
            "dedupd_job_held", "1 if the job is waiting for users, else 0.", None, labels
        )
        began = GaugeMetricFamily(
            "dedupd_job_started_timestamp_seconds", "Start of the running job.", None, labels
        )
        to_go = GaugeMetricFamily(
            "dedupd_job_to_go_seconds",
            "Estimated remaining time of the current phase.",
            None,
            labels,
        )
        for path, volume in self._volumes():
            job = self._service.running.get(volume.uuid or "")
            if job is not None:
                running.add_metric([*path, job.job], 1)
                held.add_metric([*path, job.job], float(job.held))
                began.add_metric([*path, job.job], job.started_s or 0.0)
                if job.to_go_s is not None:
                    to_go.add_metric([*path, job.job], job.to_go_s)
        ended = CounterMetricFamily("dedupd_jobs", "Finished jobs.", None, ["job", "outcome"])
        for (name, outcome), count in self._service.counts.items():
            ended.add_metric([name, outcome], count)
        freed = CounterMetricFamily(
            "dedupd_jobs_freed_bytes", "Bytes that jobs freed.", None, ["job"]
        )
        for name, size_bytes in self._service.freed_bytes.items():
            freed.add_metric([name], size_bytes)
        failures = CounterMetricFamily(
            "dedupd_service_failures",
            "Unexpected failures of tasks of the service.",
            None,
            ["what"],
        )
        for what, count in self._service.failures.counts.items():
            failures.add_metric([what], count)
        yield from (running, held, began, to_go, ended, freed, failures)


_PATH = ["path"]


def _single(name: str, text: str, labels: Mapping[str, str], value: float) -> Metric:
    family = GaugeMetricFamily(name, text, None, list(labels))
    family.add_metric(list(labels.values()), value)
    return family
