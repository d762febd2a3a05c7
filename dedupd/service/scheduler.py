"""The next action: a pure function of the volumes, their history, the time windows and the time.

This module starts and stops nothing: the service performs the result of :func:`next_action`, and
calls it again. docs/guide/service.md states the rules.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from enum import IntEnum

from dedupd_core.config.schedule import Calendar, Every, Off, Schedule

TaskName = str
"""The name of a task in the schedule (:class:`jobs.specs.Task`)."""

RETRY_S_MIN = 60.0
RETRY_S_MAX = 86400.0
"""The delays after a failure; each failure in a row doubles the delay. The first failure may come
from a killed process, or from a machine that was out of memory for a moment."""

CONTINUE_S = 60.0
"""The delay before a stopped background run continues."""

SLICE_S = 1800.0
"""The longest time of a background run, or of a held run, while another task is waiting."""

WAIT_S_MAX = 3600.0
"""The longest wait, because the clock may be set."""


SPACE_S_MIN = 60.0
REMOVED_S_MIN = 20.0
OPTIMIZE_S_MIN = 900.0
RESTORE_S_MIN = 1.0
RESTORE_RETRY_S = 5.0
SPACE_REST, REMOVED_REST, RESTORE_REST = 20.0, 5.0, 0.1
"""The pause between two runs of a task while space is low or a restore is running. The factors are
relative to the time of the last run. The pause before gc is shorter after files were removed."""


class Urgency(IntEnum):
    """Urgencies; lower values run first."""

    BY_HAND = 0
    SPACE = 1
    WINDOW = 2
    MISSED = 3
    BACKGROUND = 4


class SpaceLevel(IntEnum):
    """Levels of free space on a volume's file system."""

    ENOUGH = 0
    LOW = 1
    CRITICAL = 2


@dataclass(frozen=True, slots=True)
class SpaceState:
    """The space of a volume. Times are seconds since 1970.

    ``since_s``: the start of the current level. ``removed_s``: the last time when files were
    removed. ``age``: the minimum age of files for now; empty to use the policy's value.
    """

    level: SpaceLevel = SpaceLevel.ENOUGH
    since_s: float = 0.0
    removed_s: float = 0.0
    age: str = ""
    restores: bool = False
    """True while a restore fills the volume: optimize runs at once on the restored files."""
    is_apart: bool = False
    """True if the chunks are in a cluster: collecting garbage there frees no space here."""


@dataclass(frozen=True, slots=True)
class TaskHistory:
    """The last run of a task. Times are seconds since 1970."""

    started_s: float
    finished_s: float
    completed: bool
    failures: int = 0
    """The number of failed runs in a row, including the last run."""

    @property
    def took_s(self) -> float:
        """The length of the run, at least 0 even if the clock was set back."""
        return max(0.0, self.finished_s - self.started_s)


@dataclass(frozen=True, slots=True)
class VolumeView:
    """The state of a volume. ``schedules`` is in the order of precedence of tasks."""

    uuid: str
    schedules: Mapping[TaskName, Schedule]
    history: Mapping[TaskName, TaskHistory] = field(default_factory=dict)
    usable: bool = True
    """False if the volume cannot be used, for example not mounted: then a job would fail."""
    paused: bool = False
    since_s: float = 0.0
    """The time when it became a volume: earlier windows were not missed."""
    served_s: float = 0.0
    """The end of its last job: the volume that has waited longest is next."""
    space: SpaceState = SpaceState()


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A request of a user for a job."""

    id: str
    uuid: str
    submitted_s: float


@dataclass(frozen=True, slots=True)
class Running:
    """A running job. ``urgency`` is its urgency at the start."""

    uuid: str
    urgency: Urgency
    started_s: float
    until_s: float | None = None
    stopping: bool = False
    task: TaskName | None = None
    held: bool = False
    """True if it waits for users, or for other work on the machine."""


@dataclass(frozen=True, slots=True)
class StartTask:
    """Start a task, to be stopped at ``until_s``."""

    uuid: str
    task: TaskName
    urgency: Urgency
    until_s: float | None
    arguments: tuple[str, ...] = ()
    """Arguments for this run only."""


@dataclass(frozen=True, slots=True)
class StartRequest:
    """Start a job that a user has requested."""

    request: JobRequest


@dataclass(frozen=True, slots=True)
class Stop:
    """Make the job of a volume save its progress and stop."""

    uuid: str
    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing until this time, unless the state changes."""

    until_s: float


Action = StartTask | StartRequest | Stop | Wait


@dataclass(frozen=True, slots=True)
class DueTask:
    """A task to run at ``at_s``, or now if that time has passed."""

    task: TaskName
    urgency: Urgency
    at_s: float
    length_s: float | None = None
    """The longest run time, if the run does not end with its window."""
    end_s: float | None = None
    arguments: tuple[str, ...] = ()

    def until_s(self, now_s: float) -> float | None:
        return self.end_s if self.length_s is None else now_s + self.length_s


def due(
    task: TaskName,
    schedule: Schedule,
    history: TaskHistory | None,
    since_s: float,
    now_s: float,
    zone: tzinfo | None = None,
) -> DueTask | None:
    """Return the next run of a task; None for never."""
    if history is not None and _is_of_the_future(history, now_s):
        history = None  # the clock was set back, so the history is not usable
    retry_s = _retry_s(history)
    if isinstance(schedule, Off):
        return None
    if isinstance(schedule, Every):
        return DueTask(task, Urgency.BACKGROUND, max(retry_s, _next_interval(schedule, history)))
    return _calendar(task, schedule, history, since_s, retry_s, now_s, zone)


def _retry_s(history: TaskHistory | None) -> float:
    """Return the earliest time for a retry after a failure."""
    if history is None or not history.failures:
        return 0.0
    doubled = RETRY_S_MIN * 2.0 ** min(history.failures - 1, 20)
    return history.finished_s + min(RETRY_S_MAX, doubled)


def due_for_space(
    space: SpaceState, histories: Mapping[TaskName, TaskHistory], now_s: float
) -> Iterator[DueTask]:
    """List the tasks to run because space is low, the cheapest first: compact, gc, optimize."""
    if space.restores:
        last = histories.get("throughput")
        again_s = last.finished_s + max(RESTORE_S_MIN, RESTORE_REST * last.took_s) if last else 0.0
        # Writers are waiting, so the retry after a failure is fast, too.
        at_s = max(again_s, min(_retry_s(last), last.finished_s + RESTORE_RETRY_S if last else 0.0))
        yield DueTask("throughput", Urgency.SPACE, at_s, arguments=("--min-age-at-most=0s",))
    if space.level is SpaceLevel.ENOUGH:
        return
    known = {name: one for name, one in histories.items() if not _is_of_the_future(one, now_s)}
    if not space.is_apart:
        yield from _due_for_garbage(space, known)
    if space.restores:
        return
    optimize = known.get("throughput")
    arguments = (f"--min-age-at-most={space.age}",) if space.age else ()
    at_s = _again_s(space, optimize, OPTIMIZE_S_MIN, SPACE_REST)
    yield DueTask("throughput", Urgency.SPACE, at_s, arguments=arguments)


def _due_for_garbage(space: SpaceState, known: Mapping[TaskName, TaskHistory]) -> Iterator[DueTask]:
    gc, compact = known.get("gc"), known.get("compact")
    collected_s = gc.finished_s if gc is not None and gc.completed else 0.0
    if collected_s > (compact.started_s if compact is not None else 0.0):
        yield DueTask("compact", Urgency.SPACE, _retry_s(compact))
    is_removed = gc is not None and space.removed_s > gc.started_s
    rest = (REMOVED_S_MIN, REMOVED_REST) if is_removed else (SPACE_S_MIN, SPACE_REST)
    yield DueTask("gc", Urgency.SPACE, _again_s(space, gc, *rest))


def _again_s(
    space: SpaceState, last: TaskHistory | None, rest_s: float, rest_share: float
) -> float:
    """Return the time for the next run while space is low: at once for the first run."""
    if last is None:
        return 0.0
    if last.started_s < space.since_s and not last.failures:
        return 0.0
    return max(_retry_s(last), last.finished_s + max(rest_s, rest_share * last.took_s))


def _is_of_the_future(history: TaskHistory, now_s: float) -> bool:
    """Return whether a run is in the future; a small difference does not count."""
    return history.started_s > now_s or history.finished_s > now_s + RETRY_S_MAX


def _next_interval(schedule: Every, history: TaskHistory | None) -> float:
    if history is None:
        return 0.0
    if history.completed or history.failures:
        return history.started_s + schedule.interval_s
    return history.finished_s + min(CONTINUE_S, schedule.interval_s)


def _calendar(
    task: TaskName,
    schedule: Calendar,
    history: TaskHistory | None,
    since_s: float,
    retry_s: float,
    now_s: float,
    zone: tzinfo | None,
) -> DueTask:
    window = schedule.latest(now_s, zone)
    coming = schedule.next_start(now_s, zone)
    later = DueTask(task, Urgency.WINDOW, coming, end_s=coming + schedule.length_s)
    if window is None or (window.start_s < since_s and window.end_s <= now_s):
        return later
    has_begun = history is not None and history.started_s >= window.start_s
    if has_begun and history is not None and history.completed:
        return later
    if now_s < window.end_s:
        at_s = max(window.start_s, retry_s)
        return DueTask(task, Urgency.WINDOW, at_s, end_s=window.end_s) if at_s < coming else later
    if has_begun or max(now_s, retry_s) >= coming:
        return later
    return DueTask(task, Urgency.MISSED, max(window.end_s, retry_s), length_s=schedule.length_s)


def next_action(
    volumes: Sequence[VolumeView],
    requests: Sequence[JobRequest],
    running: Sequence[Running],
    now_s: float,
    jobs_max: int,
    zone: tzinfo | None = None,
) -> Action:
    """Return the action for now. The caller performs it, and asks again with the new state."""
    for one in running:
        if one.until_s is not None and now_s >= one.until_s and not one.stopping:
            return Stop(one.uuid, "its time window has ended")
    waiting, wakes = _waiting(volumes, requests, now_s, zone)
    wakes += [one.until_s for one in running if one.until_s is not None and not one.stopping]
    by_volume = {one.uuid: one for one in running}
    has_room = len(running) < jobs_max
    for urgency, uuid, start in waiting:
        holder = by_volume.get(uuid)
        if holder is None and has_room:
            return start
        if holder is not None and isinstance(start, StartTask) and start.task == holder.task:
            continue
        blockers = [holder] if holder is not None else list(running)
        # One stop is enough: it makes the needed place free.
        if any(one.stopping for one in blockers):
            continue
        for blocker in blockers:
            if _gives_way(urgency, blocker) or _frees_sooner(start, blocker):
                return Stop(blocker.uuid, "a more urgent job is due")
        for blocker in blockers:
            if not _takes_turns(urgency, uuid, blocker):
                continue
            if now_s >= blocker.started_s + SLICE_S:
                other = "task" if uuid == blocker.uuid else "volume"
                return Stop(blocker.uuid, f"another {other} is next")
            wakes.append(blocker.started_s + SLICE_S)
    return Wait(min([now_s + WAIT_S_MAX, *(wake for wake in wakes if wake > now_s)]))


def _gives_way(urgency: Urgency, running: Running) -> bool:
    if urgency == Urgency.BY_HAND:
        return running.urgency != Urgency.BY_HAND
    if urgency == Urgency.SPACE:
        return running.urgency > Urgency.SPACE
    return urgency < Urgency.BACKGROUND and running.urgency == Urgency.BACKGROUND


def _frees_sooner(start: Action, running: Running) -> bool:
    """Return whether a job frees space at once, while the running job frees it file by file."""
    if not isinstance(start, StartTask) or start.urgency != Urgency.SPACE:
        return False
    return start.task != "throughput" and (running.task, running.urgency) == (
        "throughput",
        Urgency.SPACE,
    )


def _takes_turns(urgency: Urgency, uuid: str, running: Running) -> bool:
    """Return whether a running job stops after a while if work of this urgency is waiting."""
    if running.urgency == Urgency.BACKGROUND:
        return True
    # Another volume may be idle. Its job must be as urgent, or it would be stopped.
    is_held_up = running.held and running.urgency != Urgency.BY_HAND
    return is_held_up and uuid != running.uuid and urgency <= running.urgency


def _waiting(
    volumes: Sequence[VolumeView],
    requests: Sequence[JobRequest],
    now_s: float,
    zone: tzinfo | None,
) -> tuple[list[tuple[Urgency, str, Action]], list[float]]:
    """Return the actions that could start now, the most urgent first, and later start times."""
    ready: list[tuple[tuple[float, ...], Urgency, str, Action]] = []
    wakes: list[float] = []
    open_volumes = {one.uuid: one for one in volumes if one.usable and not one.paused}
    for request in requests:
        if request.uuid in open_volumes:
            order: tuple[float, ...] = (Urgency.BY_HAND, request.submitted_s)
            ready.append((order, Urgency.BY_HAND, request.uuid, StartRequest(request)))
    for volume in open_volumes.values():
        for rank, one in _tasks(volume, now_s, zone):
            if one.at_s > now_s:
                wakes.append(one.at_s)
                continue
            until_s = one.until_s(now_s)
            start = StartTask(volume.uuid, one.task, one.urgency, until_s, one.arguments)
            # Tasks without a window take turns: otherwise the last one would never run.
            due_s = one.at_s if one.urgency == Urgency.BACKGROUND else 0.0
            order = (one.urgency, volume.served_s, due_s, rank)
            ready.append((order, one.urgency, volume.uuid, start))
    ready.sort(key=lambda row: (row[0], row[2]))
    return [(urgency, uuid, start) for _, urgency, uuid, start in ready], wakes


def _tasks(volume: VolumeView, now_s: float, zone: tzinfo | None) -> Iterator[tuple[int, DueTask]]:
    if volume.schedules:  # otherwise the policy cannot be read
        yield from enumerate(due_for_space(volume.space, volume.history, now_s))
    for rank, (task, schedule) in enumerate(volume.schedules.items()):
        history = volume.history.get(task)
        found = due(task, schedule, history, volume.since_s, now_s, zone)
        if found is not None:
            yield rank, found
