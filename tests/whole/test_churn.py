"""Weeks in the life of a volume: users, jobs and deaths on a real mount, against a model.

At the end every file is what users made of it, verify finds nothing, and the store has no more in
it than one that is built from the same files at once.
"""

import os
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from dedupd_core.system.disk import Disk
from dedupd_core.volume.volume import Volume
from jobs.compact.compact_job import Compact
from jobs.frame.run import JobRun
from jobs.gc.gc_job import Gc
from jobs.optimize.optimize_job import Optimize
from jobs.reconcile.reconcile_job import Reconcile, Strategy
from jobs.refine.refine_job import Refine
from jobs.scrub.scrub_job import Depth, Scrub
from tests.support.crash import in_fork, kill_at_step
from tests.support.lab import Lab, new_lab, noise, prose
from tests.support.mounts import MountedLab, mounted_lab

pytestmark = pytest.mark.root

KILLED_SHARE = 0.3
"""Of all runs of jobs. A run that is killed is followed by one that is not."""

STEPS_MAX = {
    "optimize": 120,
    "reconcile": 40,
    "refine": 60,
    "scrub": 60,
    "gc": 32,
    "compact": 60,
}
"""A killed run dies before so many durable effects: in its beginning as well as at its end."""

STORED_MORE_MAX = 0.05

JOBS = ("optimize", "scrub", "gc", "compact")
"""In the order of a week; all but the first are left out now and then."""

JOBS_REFINED = ("optimize", "reconcile", "refine", "scrub", "gc", "compact")

POLICY_REFINED = (
    'min_age = "0s"\nmin_size = "1"\npartitions = 2\ncompaction_min_dead = 0\n'
    'refine = "full"\nrefine_age = "0s"\n'
)


def run_job(lab: Lab, job: str, disk: Disk) -> None:
    """One job to its end, or to its death."""
    with Volume.open(str(lab.root), disk) as volume, volume.job_lock():
        run = JobRun(job)
        if job == "optimize":
            Optimize(volume, run).run()
        elif job == "scrub":
            # Killed before, it may find what was left half done; of a file nothing is ever lost.
            assert Scrub(volume, run, Depth.FULL, 0).run().losses == []
        elif job == "reconcile":
            assert Reconcile(volume, run, Strategy.ALL).run().messages == []
        elif job == "refine":
            assert Refine(volume, run).run().messages == []
        elif job == "gc":
            assert Gc(volume, run).run().messages == []
        else:
            assert Compact(volume, run).run().messages == []


class Life:
    """A mounted volume, what its users have made of it, and what they do next."""

    def __init__(self, lab: MountedLab, seed: int, size_bytes: int, jobs: tuple[str, ...]) -> None:
        self.lab = lab
        self.jobs = jobs
        self.rng = random.Random(seed)
        self.size_bytes = size_bytes
        self.model: dict[str, bytes] = {}
        self.done: Counter[str] = Counter()
        for name in ("a", "b", "c"):
            (lab.view / name).mkdir()

    def new_name(self) -> str:
        return f"{self.rng.choice('abc')}/f{self.rng.randrange(10**9)}"

    def some_name(self) -> str:
        return self.rng.choice(sorted(self.model))

    def new_content(self) -> bytes:
        rng = self.rng
        length = rng.randrange(self.size_bytes // 8, self.size_bytes)
        make = noise if rng.random() < 0.7 else prose
        return make(length, rng.randrange(10**9))

    def act(self) -> None:
        """One thing that a user does."""
        actions = ["create", "edit", "append", "truncate", "copy", "delete", "rename", "move"]
        weights = [4, 3, 1, 1, 3, 4, 2, 1]
        action = self.rng.choices(actions, weights)[0] if self.model else "create"
        getattr(self, action)()
        self.done[action] += 1

    def create(self) -> None:
        self.write(self.new_name(), self.new_content())

    def write(self, name: str, content: bytes) -> None:
        (self.lab.view / name).write_bytes(content)
        self.model[name] = content

    def edit(self) -> None:
        name = self.some_name()
        content = self.model[name]
        at = self.rng.randrange(max(1, len(content)))
        data = self.rng.randbytes(self.rng.randrange(1, 5000))
        with open(self.lab.view / name, "r+b") as file:
            file.seek(at)
            file.write(data)
        self.model[name] = content[:at] + data + content[at + len(data) :]

    def append(self) -> None:
        name, data = self.some_name(), self.rng.randbytes(20_000)
        with open(self.lab.view / name, "ab") as file:
            file.write(data)
        self.model[name] += data

    def truncate(self) -> None:
        name = self.some_name()
        length = self.rng.randrange(len(self.model[name]) + 1)
        os.truncate(self.lab.view / name, length)
        self.model[name] = self.model[name][:length]

    def copy(self) -> None:
        self.write(self.new_name(), self.model[self.some_name()])

    def delete(self) -> None:
        name = self.some_name()
        (self.lab.view / name).unlink()
        del self.model[name]

    def rename(self) -> None:
        old, new = self.some_name(), self.new_name()
        (self.lab.view / old).rename(self.lab.view / new)
        self.model[new] = self.model.pop(old)

    def move(self) -> None:
        """Two directories change places."""
        one, two = self.rng.sample("abc", 2)
        view = self.lab.view
        (view / one).rename(view / "between")
        (view / two).rename(view / one)
        (view / "between").rename(view / two)
        places = {one: two, two: one}
        self.model = {
            f"{places.get(name[0], name[0])}{name[1:]}": content
            for name, content in self.model.items()
        }

    def work(self, job: str) -> None:
        """A job, which may die, or see the mount die, and then is run again."""
        fate = self.rng.random()
        if fate < KILLED_SHARE:
            step = self.rng.randrange(STEPS_MAX[job])
            self.done[f"{job} killed"] += kill_at_step(
                lambda disk: run_job(self.lab, job, disk), step
            )
        if fate < KILLED_SHARE / 3:
            self.lab.kill()
            self.lab.mount()
            self.done["mount killed"] += 1
            self.expect_all()
        assert in_fork(lambda: run_job(self.lab, job, Disk())) == 0
        self.done[job] += 1

    def expect_all(self) -> None:
        view = self.lab.view
        found = {str(p.relative_to(view)) for p in view.rglob("*") if p.is_file()}
        assert found == self.model.keys()
        for name, content in self.model.items():
            assert (view / name).read_bytes() == content, name

    def week(self, actions: int) -> None:
        for _ in range(actions):
            self.act()
        self.work("optimize")
        for job in self.jobs[1:]:
            if self.rng.random() < 0.6:
                self.work(job)
        self.expect_all()


def store_bytes(base: Path) -> int:
    return sum(p.stat().st_blocks * 512 for p in (base / "store").rglob("*") if p.is_file())


@dataclass(frozen=True, slots=True)
class Course:
    """How a volume lives, and by how much more its store may have in it at the end."""

    weeks: int
    actions: int
    size_bytes: int
    jobs: tuple[str, ...] = JOBS
    policy: str = ""
    stored_more_max: float = STORED_MORE_MAX


def live(tmp_path: Path, course: Course, seed: int) -> None:
    weeks = course.weeks
    with mounted_lab(tmp_path) as lab:
        if course.policy:
            lab.set_policy(course.policy)
        life = Life(lab, seed, course.size_bytes, course.jobs)
        for _ in range(weeks):
            life.week(course.actions)
        for job in course.jobs:
            life.work(job)
        life.expect_all()
        lab.unmount()
        lab.verify_clean()
        stored = store_bytes(lab.base)
    fresh = new_lab(tmp_path / "fresh")
    if course.policy:
        fresh.set_policy(course.policy)
    for name, content in life.model.items():
        fresh.put(name, content)
    for job in course.jobs:
        run_job(fresh, job, Disk())
    anew = store_bytes(fresh.base)
    print(
        f"\n{weeks} weeks: {dict(life.done)}; {len(life.model)} files,"
        f" {sum(map(len, life.model.values())):,} bytes; {stored:,} stored, {anew:,} anew"
        f" ({stored / anew - 1:+.1%})"
    )
    assert stored <= (1 + course.stored_more_max) * anew


def test_weeks_of_life_lose_nothing_and_leave_no_garbage(tmp_path: Path) -> None:
    live(tmp_path, Course(weeks=4, actions=25, size_bytes=800_000), seed=1)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(4))
def test_a_year_of_life_loses_nothing_and_leaves_no_garbage(tmp_path: Path, seed: int) -> None:
    live(tmp_path, Course(weeks=52, actions=60, size_bytes=3_000_000), seed=seed)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(2))
def test_months_of_refining_lose_nothing_and_leave_no_garbage(tmp_path: Path, seed: int) -> None:
    live(tmp_path, Course(16, 40, 800_000, JOBS_REFINED, POLICY_REFINED, 0.02), seed)
