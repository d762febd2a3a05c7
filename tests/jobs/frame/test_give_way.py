"""A stop, or a pause, is obeyed in the midst of whatever a job does longest.

Ordered right after a safe point, the worst of all moments, it must be obeyed at one more safe point
of the same phase. What lies between two of them is counted, not timed: the thing of which a volume
has a million is a directory with more files here than are looked at together.
"""

import shutil
import threading
from collections.abc import Callable, Iterator

import pytest

from dedupd_core.config.policy import Policy
from dedupd_core.volume.volume import Volume
from jobs.check.verify import Verify
from jobs.compact.compact_job import Compact
from jobs.frame.run import Cancelled, JobRun
from jobs.gc.gc_job import Gc
from jobs.optimize.optimize_job import Optimize
from jobs.rebuild import Rebuild
from jobs.reconcile.merge import CHUNKS_AT_ONCE
from jobs.reconcile.reconcile_job import Reconcile
from jobs.scrub.scrub_job import Depth, Scrub
from jobs.tree.candidates import SkippedFiles, candidates
from jobs.tree.walk import walk
from jobs.unoptimize import Unoptimize
from tests.support.lab import Lab, lab_in, noise
from tests.support.service import eventually

PLAIN_FILES = 10_000
"""In one directory: more than the native side looks at before it asks."""

STUBS = 100

Act = Callable[[Volume, JobRun], object]


class OrderedRun(JobRun):
    """Gives itself an order, once, right after the n-th safe point of a phase."""

    def __init__(self, phase: str, passes: int, order: Callable[["OrderedRun"], None]) -> None:
        super().__init__("test")
        self._phase = phase
        self._left = passes
        self._order = order

    def safe_point(self) -> None:
        super().safe_point()
        if self.progress.phase == self._phase:
            self._left -= 1
            if self._left == 0:
                self._order(self)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with lab_in(tmp_path_factory.mktemp("give-way")) as lab:
        # Two partitions, so two containers of everything.
        lab.set_policy('min_age = "0s"\nmin_size = "1"\nredundancy_threshold = 1\npartitions = 2\n')
        for number in range(STUBS):
            lab.put(f"stubs/{number}.{'ab'[number % 2]}", noise(120_000, number))
            lab.put(f"twice/{number}.{'ba'[number % 2]}", noise(120_000, number))
            lab.put(f"gone/{number}.a", noise(120_000, STUBS + number))
        lab.optimize()
        shutil.rmtree(lab.data / "gone")
        lab.collect()
        (lab.data / "plain").mkdir()
        for number in range(PLAIN_FILES):
            (lab.data / f"plain/{number}").touch()
        yield lab


def gc(volume: Volume, run: JobRun) -> object:
    return Gc(volume, run, full=True).run()


def quick_scrub(volume: Volume, run: JobRun) -> object:
    return Scrub(volume, run, Depth.QUICK).run()


def full_scrub(volume: Volume, run: JobRun) -> object:
    return Scrub(volume, run, Depth.FULL).run()


def look_for_candidates(volume: Volume, run: JobRun) -> object:
    run.update(phase="scanning")
    return list(candidates(volume, Policy(), b"", SkippedFiles(), [], run.safe_point))


def walk_plain_files(volume: Volume, run: JobRun) -> object:
    run.update(phase="walking")
    return list(walk(volume, b"plain", safe_point=run.safe_point))


LONG_PHASES: list[tuple[str, Act, str, int]] = [
    ("optimize", look_for_candidates, "scanning", 3),
    ("optimize", lambda volume, run: Optimize(volume, run).run(), "scanning", 3),
    ("unoptimize", walk_plain_files, "walking", 3),
    ("unoptimize", lambda volume, run: Unoptimize(volume, run, b"plain").run(), "counting", 3),
    ("unoptimize", lambda volume, run: Unoptimize(volume, run).run(), "restoring", 3),
    ("gc", gc, "walking the tree", 1),
    ("gc", gc, "reading recipes", 1),
    ("gc", gc, "sweeping chunks", 1),
    ("compact", lambda volume, run: Compact(volume, run).run(), "measuring chunks", 1),
    ("compact", lambda volume, run: Compact(volume, run).run(), "compacting", 1),
    ("scrub", quick_scrub, "tables", 1),
    ("scrub", full_scrub, "records", 1),
    ("scrub", quick_scrub, "stubs", PLAIN_FILES // 64 - 20),
    ("scrub", quick_scrub, "second copies", 1),
    ("rebuild", lambda volume, run: Rebuild(volume, run).run(), "stubs", PLAIN_FILES // 64 - 20),
    ("verify", lambda volume, run: Verify(volume, run).run(), "chunks containers", 1),
    ("verify", lambda volume, run: Verify(volume, run).run(), "stubs", PLAIN_FILES // 64 - 20),
    ("reconcile", lambda volume, run: Reconcile(volume, run).run(), "walking the tree", 3),
]


@pytest.mark.parametrize(
    ("act", "phase", "passes"),
    [
        pytest.param(*row[1:], id=f"{row[0]}-{row[2]}-{number}")
        for number, row in enumerate(LONG_PHASES)
    ],
)
def test_a_stop_is_obeyed_in_the_midst_of_a_long_phase(
    lab: Lab, act: Act, phase: str, passes: int
) -> None:
    run = OrderedRun(phase, passes, JobRun.cancel)
    with lab.opened() as volume, volume.job_lock(), pytest.raises(Cancelled):
        act(volume, run)
    assert run.progress.phase == phase


def test_a_pause_is_obeyed_in_the_midst_of_a_long_phase_and_costs_nothing(lab: Lab) -> None:
    passes = PLAIN_FILES // 64 - 20
    run = OrderedRun("stubs", passes, lambda run: run.pace.hold("test", "because"))
    done: list[object] = []

    def work() -> None:
        with lab.opened() as volume, volume.job_lock():
            done.append(quick_scrub(volume, run))

    thread = threading.Thread(target=work)
    thread.start()
    eventually(lambda: run.pace.is_held, "the pause is ordered")
    assert not done and run.progress.phase == "stubs"
    run.pace.release("test")
    thread.join()
    (report,) = done
    assert report.plain_files == PLAIN_FILES  # type: ignore[attr-defined]


def test_a_stop_is_obeyed_before_all_chunks_of_a_merge_log_are_compared(lab: Lab) -> None:
    # Right after a safe point, and before the first chunks are read.
    run = OrderedRun("merging", 2, JobRun.cancel)
    with lab.opened() as volume, volume.job_lock():
        job = Reconcile(volume, run)
        with pytest.raises(Cancelled):
            job.run()
    assert sum(row.duplicate_chunks for row in job.report().partitions) > CHUNKS_AT_ONCE
    assert job.report().merged.chunks == 0
