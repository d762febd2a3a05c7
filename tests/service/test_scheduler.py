"""The scheduler's decisions, as properties: a pure function, so whole months take milliseconds."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from dedupd.service.planned_jobs import schedules
from dedupd.service.scheduler import (
    CONTINUE_S,
    SLICE_S,
    Action,
    JobRequest,
    Running,
    SpaceLevel,
    SpaceState,
    StartRequest,
    StartTask,
    Stop,
    TaskHistory,
    TaskName,
    Urgency,
    VolumeView,
    Wait,
    due,
    next_action,
)
from dedupd_core.config.policy import parse_policy
from dedupd_core.config.schedule import Calendar, Every, Off, Schedule, parse_schedule
from dedupd_core.format.store_kinds import CLUSTER, KINDS, OWN

HOUR, DAY, WEEK = 3600.0, 86400.0, 7 * 86400.0
MONDAY = datetime(2026, 6, 1, tzinfo=UTC).timestamp()

USUAL: dict[TaskName, Schedule] = {
    "gc": parse_schedule("Sat 02:45 for 8h"),
    "compact": parse_schedule("Sat 02:45 for 8h"),
    "scrub": parse_schedule("Sat 03:45 for 8h"),
    "throughput": parse_schedule("daily 01:00 for 5h"),
    "background": parse_schedule("every 1h"),
}
NIGHTLY = parse_schedule("daily 01:00 for 5h")


def night(day: int, hour: float = 1) -> float:
    return MONDAY + day * DAY + hour * HOUR


def ran(start: float, length: float = 60, completed: bool = True, failures: int = 0) -> TaskHistory:
    return TaskHistory(start, start + length, completed, failures)


def decide(
    *volumes: VolumeView,
    now: float,
    running: Sequence[Running] = (),
    requests: Sequence[JobRequest] = (),
    jobs_max: int = 1,
) -> Action:
    return next_action(volumes, requests, running, now, jobs_max, UTC)


# --- one task ---------------------------------------------------------------------------------


def nightly(now: float, history: TaskHistory | None = None, since: float = 0.0) -> object:
    found = due("throughput", NIGHTLY, history, since, now, UTC)
    assert found is not None
    return found.urgency, found.at_s <= now, found.until_s(now)


def test_a_task_runs_in_its_window_until_the_window_ends() -> None:
    assert nightly(night(3, 2)) == (Urgency.WINDOW, True, night(3, 6))


def test_a_task_that_completed_in_its_window_waits_for_the_next() -> None:
    found = due("throughput", NIGHTLY, ran(night(3, 2)), 0, night(3, 3), UTC)
    assert found is not None and found.at_s == night(4)


def test_a_task_that_was_interrupted_in_its_window_goes_on_in_it() -> None:
    stopped = ran(night(3, 2), completed=False)
    assert nightly(night(3, 3), stopped) == (Urgency.WINDOW, True, night(3, 6))


def test_a_task_stopped_with_its_window_goes_on_in_the_next() -> None:
    found = due("throughput", NIGHTLY, ran(night(3), 5 * HOUR, False), 0, night(3, 7), UTC)
    assert found is not None and found.at_s == night(4)


def test_a_missed_window_is_made_up_for_as_long_as_it_lasts() -> None:
    now = night(3, 9)
    assert nightly(now, ran(night(2, 2))) == (Urgency.MISSED, True, now + 5 * HOUR)


def test_windows_before_the_volume_was_there_were_not_missed() -> None:
    found = due("throughput", NIGHTLY, None, night(3, 8), night(3, 9), UTC)
    assert found is not None and found.at_s == night(4)


def test_a_window_in_which_the_volume_appeared_counts() -> None:
    assert nightly(night(3, 3), since=night(3, 2)) == (Urgency.WINDOW, True, night(3, 6))


def test_a_run_of_the_future_says_nothing() -> None:
    assert nightly(night(3, 2), ran(night(400))) == (Urgency.WINDOW, True, night(3, 6))


def test_nor_does_one_that_ended_while_the_clock_was_ahead() -> None:
    for failures in (0, 1):
        ahead = ran(night(3), 365 * DAY, completed=False, failures=failures)
        found = due("background", Every(HOUR), ahead, 0, night(3, 2), UTC)
        assert found is not None and found.at_s <= night(3, 2)


def test_a_clock_set_back_a_little_repeats_no_completed_task() -> None:
    found = due("throughput", NIGHTLY, ran(night(3, 2), HOUR), 0, night(3, 3) - 5, UTC)
    assert found is not None and found.at_s == night(4)


def test_failures_in_a_row_are_tried_again_more_and_more_slowly() -> None:
    delays = []
    for failures in (1, 2, 3, 20):
        failed = ran(night(3), 60, False, failures)
        found = due("background", Every(60), failed, 0, night(3) + 60, UTC)
        assert found is not None
        delays.append(found.at_s - failed.finished_s)
    assert delays == [60, 120, 240, 86400]


def test_a_background_run_that_was_stopped_goes_on_soon() -> None:
    found = due("background", Every(HOUR), ran(night(3), 600, False), 0, night(3) + 600, UTC)
    assert found is not None and found.at_s == night(3) + 600 + CONTINUE_S


# --- one decision -----------------------------------------------------------------------------


def test_what_people_ask_for_goes_before_everything_else() -> None:
    volume = VolumeView("v", USUAL)
    request = JobRequest("1", "v", night(5, 3))
    assert decide(volume, now=night(5, 3), requests=[request]) == StartRequest(request)


def test_a_background_run_gives_way_to_a_window_of_its_volume() -> None:
    schedules: dict[TaskName, Schedule] = {"gc": USUAL["gc"], "background": Every(60)}
    volume = VolumeView("v", schedules, since_s=MONDAY)
    running = Running("v", Urgency.BACKGROUND, night(5, 1), task="background")
    assert isinstance(decide(volume, now=night(5, 2.5), running=[running]), Wait)
    assert isinstance(decide(volume, now=night(5, 3), running=[running]), Stop)


def test_a_window_does_not_give_way_to_another_window() -> None:
    running = Running("v", Urgency.WINDOW, night(5, 1), night(5, 6))
    assert isinstance(decide(VolumeView("v", USUAL), now=night(5, 3), running=[running]), Wait)


def test_a_job_that_was_asked_for_gives_way_to_nothing() -> None:
    running = Running("v", Urgency.BY_HAND, night(5, 1))
    later = [JobRequest("2", "v", night(5, 2))]
    action = decide(VolumeView("v", USUAL), now=night(5, 3), running=[running], requests=later)
    assert isinstance(action, Wait)


def test_a_job_is_stopped_at_the_end_of_its_window_once() -> None:
    running = Running("v", Urgency.WINDOW, night(5, 1), until_s=night(5, 6))
    volume = VolumeView("v", {"gc": Off()})
    assert decide(volume, now=night(5, 6), running=[running]) == Stop(
        "v", "its time window has ended"
    )
    stopping = replace(running, stopping=True)
    assert isinstance(decide(volume, now=night(5, 6), running=[stopping]), Wait)


def test_of_two_volumes_the_one_goes_first_that_has_waited_longer() -> None:
    one, two = VolumeView("one", USUAL, served_s=20), VolumeView("two", USUAL, served_s=10)
    action = decide(one, two, now=night(5, 3))
    assert isinstance(action, StartTask)
    assert (action.uuid, action.task) == ("two", "gc")


def test_a_long_background_run_lets_another_volume_have_its_turn() -> None:
    views = [VolumeView(name, {"background": Every(HOUR)}) for name in "ab"]
    running = Running("a", Urgency.BACKGROUND, night(0), task="background")
    waited = decide(*views, now=night(0), running=[running])
    assert waited == Wait(night(0) + SLICE_S)
    action = decide(*views, now=night(0) + SLICE_S, running=[running])
    assert action == Stop("a", "another volume is next")


def test_a_long_background_run_yields_to_another_task_of_its_volume() -> None:
    schedules: dict[TaskName, Schedule] = {"gc": Every(HOUR), "background": Every(HOUR)}
    volume = VolumeView("v", schedules)
    running = Running("v", Urgency.BACKGROUND, night(0), task="background")
    assert decide(volume, now=night(0), running=[running]) == Wait(night(0) + SLICE_S)
    action = decide(volume, now=night(0) + SLICE_S, running=[running])
    assert action == Stop("v", "another task is next")


def test_a_run_does_not_wait_for_itself() -> None:
    volume = VolumeView("v", {"background": Every(60)})
    running = Running("v", Urgency.BACKGROUND, night(0), task="background")
    assert isinstance(decide(volume, now=night(9), running=[running]), Wait)


def test_a_window_that_waits_for_users_yields_to_that_of_another_volume() -> None:
    views = [VolumeView(name, USUAL) for name in "ab"]
    running = Running("a", Urgency.WINDOW, night(5, 3), night(5, 10), task="gc", held=True)
    assert decide(*views, now=night(5, 3), running=[running]) == Wait(night(5, 3) + SLICE_S)
    action = decide(*views, now=night(5, 3) + SLICE_S, running=[running])
    assert action == Stop("a", "another volume is next")
    working = replace(running, held=False)
    assert isinstance(decide(*views, now=night(5, 3) + SLICE_S, running=[working]), Wait)


def test_a_window_that_waits_for_users_yields_to_no_background_work() -> None:
    views = [VolumeView("a", USUAL), VolumeView("b", {"background": Every(HOUR)})]
    running = Running("a", Urgency.WINDOW, night(5, 3), night(5, 10), task="gc", held=True)
    assert isinstance(decide(*views, now=night(5, 5), running=[running]), Wait)


# --- any decision -----------------------------------------------------------------------------

times = st.integers(int(MONDAY), int(MONDAY + 3 * WEEK)).map(float)
calendars = st.builds(
    Calendar,
    days=st.frozensets(st.integers(0, 6), min_size=1),
    start_minute=st.integers(0, 1439),
    length_s=st.integers(60, 86400).map(float),
    first_of_month=st.booleans(),
)
any_schedule = st.one_of(st.just(Off()), st.integers(1, 10**5).map(float).map(Every), calendars)
histories = st.builds(
    TaskHistory,
    started_s=times,
    finished_s=times,
    completed=st.booleans(),
    failures=st.integers(0, 3),
)
names: st.SearchStrategy[TaskName] = st.sampled_from(list(USUAL))
views = st.builds(
    VolumeView,
    uuid=st.sampled_from("abc"),
    schedules=st.dictionaries(names, any_schedule),
    history=st.dictionaries(names, histories),
    usable=st.booleans(),
    paused=st.booleans(),
    since_s=times,
    served_s=times,
)
several_views = st.lists(views, max_size=3, unique_by=lambda view: view.uuid)
requests_strategy = st.lists(
    st.builds(
        JobRequest, id=st.sampled_from("123"), uuid=st.sampled_from("abc"), submitted_s=times
    ),
    max_size=3,
)
runnings = st.lists(
    st.builds(
        Running,
        uuid=st.sampled_from("abc"),
        urgency=st.sampled_from(Urgency),
        started_s=times,
        until_s=st.none() | times,
        stopping=st.booleans(),
        task=st.none() | names,
        held=st.booleans(),
    ),
    max_size=2,
    unique_by=lambda one: one.uuid,
)


@given(several_views, requests_strategy, runnings, times, st.integers(1, 3))
def test_nothing_starts_where_it_may_not(
    volumes: list[VolumeView],
    requests: list[JobRequest],
    running: list[Running],
    now: float,
    jobs_max: int,
) -> None:
    action = next_action(volumes, requests, running, now, jobs_max, UTC)
    if isinstance(action, StartTask | StartRequest):
        uuid = action.uuid if isinstance(action, StartTask) else action.request.uuid
        (view,) = (one for one in volumes if one.uuid == uuid)
        assert view.usable and not view.paused
        assert len(running) < jobs_max
        assert uuid not in {one.uuid for one in running}
        if isinstance(action, StartTask):
            assert action.until_s is None or action.until_s > now
    elif isinstance(action, Stop):
        (one,) = (one for one in running if one.uuid == action.uuid)
        assert not one.stopping
    else:
        assert action.until_s > now


@given(
    several_views,
    requests_strategy,
    runnings,
    times,
    st.integers(1, 3),
    st.floats(0, 1, exclude_max=True),
)
def test_nothing_comes_up_while_it_waits(
    volumes: list[VolumeView],
    requests: list[JobRequest],
    running: list[Running],
    now: float,
    jobs_max: int,
    part: float,
) -> None:
    action = next_action(volumes, requests, running, now, jobs_max, UTC)
    if isinstance(action, Wait):
        between = now + part * (action.until_s - now)
        if between < action.until_s:
            later = next_action(volumes, requests, running, between, jobs_max, UTC)
            assert isinstance(later, Wait)


MONTHS = 8
"""Examples that are simulated: each is thousands of decisions."""

# --- weeks, simulated -------------------------------------------------------------------------


@dataclass
class Ran:
    """A run of the simulation."""

    uuid: str
    task: TaskName
    urgency: Urgency
    start_s: float
    end_s: float
    stopped: bool


def simulate(
    volumes: Iterable[VolumeView],
    end_s: float,
    work_s: Iterator[float],
    *,
    start_s: float = MONDAY,
    asleep: tuple[float, float] = (0.0, 0.0),
) -> list[Ran]:
    """What runs when jobs need the times of ``work_s``; the machine is off while ``asleep``."""
    views = {view.uuid: view for view in volumes}
    now, done = start_s, list[Ran]()
    job: tuple[StartTask, float, float, bool] | None = None  # action, began, needs, stopping
    while now < end_s:
        if asleep[0] <= now < asleep[1]:
            now, job = asleep[1], None
        running = []
        if job is not None:
            action, began, needs, stopping = job
            if stopping or now >= began + needs:
                view, completed = views[action.uuid], not stopping
                history = {**view.history, action.task: TaskHistory(began, now, completed)}
                views[action.uuid] = replace(view, history=history, served_s=now)
                done.append(Ran(action.uuid, action.task, action.urgency, began, now, stopping))
                job = None
            else:
                urgency, until_s = action.urgency, action.until_s
                running = [Running(action.uuid, urgency, began, until_s, task=action.task)]
        step = next_action(list(views.values()), [], running, now, 1, UTC)
        if isinstance(step, StartTask):
            job = (step, now, next(work_s), False)
        elif isinstance(step, Stop):
            assert job is not None
            job = (*job[:3], True)
            now += 1
        elif isinstance(step, Wait):
            ends = job[1] + job[2] if job is not None else step.until_s
            now = min(step.until_s, max(ends, now + 1))
    return done


def durations(seed: int, longest_s: float) -> Iterator[float]:
    rng = random.Random(seed)
    while True:
        yield rng.uniform(1, longest_s)


@settings(max_examples=MONTHS)
@given(st.integers(0, 2**32))
def test_each_week_has_its_upkeep_on_every_volume(seed: int) -> None:
    volumes = [VolumeView(name, USUAL, since_s=MONDAY) for name in "ab"]
    done = simulate(volumes, MONDAY + 3 * WEEK, durations(seed, 40 * 60))
    for week in range(3):
        for name in "ab":
            for task in ("gc", "compact", "scrub"):
                start = MONDAY + week * WEEK
                runs = [r for r in done if (r.uuid, r.task) == (name, task) and not r.stopped]
                assert len([r for r in runs if start <= r.start_s < start + WEEK]) == 1


@settings(max_examples=MONTHS)
@given(st.integers(0, 2**32), st.integers(0, 6 * 24))
def test_upkeep_that_was_missed_is_done_once_the_machine_is_back(seed: int, hours: int) -> None:
    asleep = (MONDAY + 5 * DAY, MONDAY + 6 * DAY + hours * HOUR)
    volume = VolumeView("v", USUAL, since_s=MONDAY - WEEK)
    done = simulate([volume], asleep[1] + DAY, durations(seed, 3600), asleep=asleep)
    gc = [run for run in done if run.task == "gc" and run.start_s >= asleep[1]]
    assert gc and gc[0].start_s < asleep[1] + 6 * HOUR


@settings(max_examples=MONTHS)
@given(st.integers(0, 2**32))
def test_volumes_that_always_have_work_share_the_time(seed: int) -> None:
    volumes = [VolumeView(name, {"background": Every(HOUR)}) for name in "abc"]
    done = simulate(volumes, MONDAY + WEEK, durations(seed, 20 * HOUR))
    share = {name: sum(r.end_s - r.start_s for r in done if r.uuid == name) for name in "abc"}
    assert max(share.values()) < 1.5 * min(share.values())


@settings(max_examples=MONTHS)
@given(st.integers(0, 2**32))
def test_tasks_without_windows_all_have_their_turn(seed: int) -> None:
    busy: dict[TaskName, Schedule] = {task: Every(60) for task in USUAL}
    done = simulate([VolumeView("v", busy)], MONDAY + DAY, durations(seed, 600))
    counts = [sum(run.task == task for run in done) for task in busy]
    assert max(counts) <= min(counts) + 1


@settings(max_examples=MONTHS)
@given(st.integers(0, 2**32))
def test_no_run_outlives_its_window(seed: int) -> None:
    volumes = [VolumeView(name, USUAL, since_s=MONDAY) for name in "ab"]
    for run in simulate(volumes, MONDAY + WEEK, durations(seed, 20 * HOUR)):
        if run.urgency == Urgency.WINDOW and run.task != "background":
            schedule = USUAL[run.task]
            assert isinstance(schedule, Calendar)
            window = schedule.latest(run.start_s, UTC)
            assert window is not None and run.end_s <= window.end_s + 1


# --- space --------------------------------------------------------------------------------------


def test_a_restore_is_optimized_as_it_comes_one_run_after_the_other() -> None:
    space = SpaceState(restores=True)
    at_once = decide(VolumeView("a", OFF, space=space), now=night(2, 12))
    assert isinstance(at_once, StartTask)
    assert (at_once.task, at_once.arguments) == ("throughput", ("--min-age-at-most=0s",))
    ended = TaskHistory(night(2, 12), night(2, 12) + 100, completed=True)
    history: dict[TaskName, TaskHistory] = {"throughput": ended}
    view = VolumeView("a", OFF, history, space=space)
    assert task_of(decide(view, now=night(2, 12) + 109)) is None
    assert task_of(decide(view, now=night(2, 12) + 111)) == "throughput"


LOW = SpaceState(SpaceLevel.LOW, since_s=night(2, 12))
OFF: dict[TaskName, Schedule] = dict.fromkeys(USUAL, Off())


def task_of(action: Action) -> TaskName | None:
    return action.task if isinstance(action, StartTask) else None


def test_what_frees_space_runs_at_once_the_cheapest_first_and_then_rests() -> None:
    now, history, seen = night(2, 12.1), dict[TaskName, TaskHistory](), list[TaskName | None]()
    history["gc"] = ran(night(1))
    for _ in range(5):
        volume = VolumeView("a", OFF, dict(history), space=LOW)
        task = task_of(decide(volume, now=now))
        seen.append(task)
        if task is not None:
            history[task] = ran(now, 5)
            now += 6
    assert seen == ["compact", "gc", "compact", "throughput", None]
    assert task_of(decide(VolumeView("a", OFF, history, space=SpaceState()), now=now + DAY)) is None
    later = VolumeView("a", OFF, history, space=LOW)
    assert task_of(decide(later, now=now + 40)) is None
    assert task_of(decide(later, now=now + 130)) == "gc"


def test_removed_files_bring_the_next_collection_forward() -> None:
    begun = night(2, 13)
    history: dict[TaskName, TaskHistory] = {
        "gc": ran(begun, 2),
        "compact": ran(begun + 3, 2),
        "throughput": ran(begun + 6, 2),
    }
    for removed_s, soon in ((begun + 10, "gc"), (begun - 10, None)):
        space = replace(LOW, removed_s=removed_s)
        volume = VolumeView("a", OFF, history, space=space)
        assert task_of(decide(volume, now=begun + 30)) == soon


def test_where_chunks_are_in_a_cluster_only_optimizing_frees_space() -> None:
    now = night(2, 12.1)
    history: dict[TaskName, TaskHistory] = {"gc": ran(night(1))}
    apart = VolumeView("a", OFF, history, space=replace(LOW, is_apart=True))
    assert task_of(decide(apart, now=now)) == "throughput"
    history["throughput"] = ran(now)
    done = VolumeView("a", OFF, history, space=apart.space)
    assert task_of(decide(done, now=now + 6)) is None


def test_jobs_of_containers_are_off_where_there_are_none() -> None:
    policy = parse_policy('schedule_compact = "every 1h"\nschedule_gc = "every 1h"\n', "policy")
    assert schedules(policy, CLUSTER)["compact"] == Off()
    for kind in KINDS:
        assert schedules(policy, kind)["gc"] == policy.schedule_gc
    assert schedules(policy, OWN)["compact"] == policy.schedule_compact


def test_optimization_gives_way_to_what_frees_space_at_once() -> None:
    begun = night(2, 13)
    history: dict[TaskName, TaskHistory] = {"gc": ran(begun, 2), "compact": ran(begun + 3, 2)}
    space = replace(LOW, removed_s=begun + 20)
    volume = VolumeView("a", OFF, history, space=space)
    running = [Running("a", Urgency.SPACE, begun + 6, task="throughput")]
    assert isinstance(decide(volume, now=begun + 10, running=running), Wait)
    assert isinstance(decide(volume, now=begun + 40, running=running), Stop)
    for urgency, stops in ((Urgency.BY_HAND, False), (Urgency.WINDOW, True)):
        held = [replace(running[0], urgency=urgency, task="scrub")]
        assert isinstance(decide(volume, now=begun + 40, running=held), Stop) is stops


def test_a_shorter_age_holds_while_space_is_critical_alone() -> None:
    begun = night(2, 13)
    history: dict[TaskName, TaskHistory] = {"gc": ran(begun, 2), "compact": ran(begun + 3, 2)}
    for age, arguments in (("1h", ("--min-age-at-most=1h",)), ("", ())):
        space = replace(LOW, level=SpaceLevel.CRITICAL, age=age)
        action = decide(VolumeView("a", OFF, history, space=space), now=begun + 10)
        assert isinstance(action, StartTask) and action.arguments == arguments


def test_a_failing_task_does_not_run_without_end_while_space_is_short() -> None:
    failed = ran(night(2, 13), 1, completed=False, failures=3)
    history: dict[TaskName, TaskHistory] = {"gc": failed, "throughput": ran(night(2, 13))}
    history["compact"] = ran(night(2, 14))
    volume = VolumeView("a", OFF, history, space=replace(LOW, since_s=night(2, 13.5)))
    assert task_of(decide(volume, now=failed.finished_s + 100)) != "gc"
    assert task_of(decide(volume, now=failed.finished_s + 300)) == "gc"
