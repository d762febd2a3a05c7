"""What a soak tells: what the jobs did, and what processes take, with their descriptors by kind."""

import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from dedupd_core.errors import DedupdError
from dedupd_core.system.control_socket import ControlClient, socket_path
from dedupd_core.volume.volume import Volume

JOBS = ("optimize", "gc", "compact", "reconcile", "scrub", "full scrub")
"""What the schedules of a soak ask for."""

COMPLETED = ("done", "clean", "repaired", "nothing has changed since the last run")
"""Outcomes of runs that had nothing against anything; others that got through say why not."""

BYTES_OF = {
    "optimize": "logical_bytes",
    "gc": "orphaned_bytes",
    "compact": "freed_bytes",
    "scrub": "read_bytes",
}
"""What of a report says how much a run has moved."""

RUNS_MAX = 100_000

KNOWN, OPEN, CONTAINERS = "inodes that are known", "files that are open", "containers"
DELETED = ", deleted"
SLACK = 8
"""Descriptors that a process may have beyond what the volume explains: something is always going
on."""


@dataclass
class JobFigures:
    """The runs of one kind of job. ``bytes`` were optimized, orphaned, freed or read."""

    completed: int = 0
    stopped: int = 0
    killed: int = 0
    files: int = 0
    bytes: int = 0
    others: Counter[str] = field(default_factory=Counter)
    """How the rest ended."""

    def as_dict(self) -> dict[str, Any]:
        # asdict() counts the pairs of a Counter.
        return {**vars(self), "others": dict(self.others)}


def job_figures(roots: Sequence[Path]) -> dict[str, JobFigures]:
    """Figures from the histories of volumes that no other process uses."""
    figures = {name: JobFigures() for name in JOBS}
    for root in roots:
        with Volume.open(str(root)) as volume:
            for report in volume.hints.runs(RUNS_MAX):
                _account(figures, report)
    return figures


def _account(figures: dict[str, JobFigures], report: dict[str, Any]) -> None:
    name = "full scrub" if report.get("depth") == "full" else report["job"]
    one = figures.setdefault(name, JobFigures())
    outcome: str = report["outcome"]
    if outcome in COMPLETED:
        one.completed += 1
    elif "stopped" in outcome.partition(";")[0]:
        one.stopped += 1
    elif outcome == "ended with status -9":
        one.killed += 1
    else:
        one.others[outcome[:100]] += 1
    one.files += report.get("files_optimized", 0)
    one.bytes += report.get(BYTES_OF.get(report["job"], ""), 0)


def lacking(figures: dict[str, JobFigures]) -> list[str]:
    """What a soak should have shown of its jobs, and did not."""
    found = [f"no run of {name} completed" for name, one in figures.items() if not one.completed]
    if not figures["optimize"].files:
        found.append("no file was optimized")
    return found


@dataclass(frozen=True)
class Sample:
    """What a process takes at a time. Of a mount also how many files its volume has, directories
    among them, how many inodes the kernel may ask for, and how many files are open."""

    time_s: float
    rss_bytes: int
    processes: int
    descriptors: dict[str, int]
    files: int = 0
    known: int = 0
    open: int = 0
    containers: int = 0


def sample(pid: int, root: Path | None = None) -> Sample | None:
    """A look at a process, which serves the volume at ``root``; None where it has just ended."""
    with suppress(psutil.Error, OSError, DedupdError):
        process = psutil.Process(pid)
        taken = Sample(
            time.time(),
            process.memory_info().rss,
            len(process.children(recursive=True)),
            dict(sorted(descriptors(pid).items())),
        )
        if root is None:
            return taken
        with Volume.open(str(root)) as volume:
            with ControlClient(socket_path(volume.parameters.uuid)) as client:
                status = client.call("status")
            # Below the mount: to look at it must not add to what is known.
            tree = os.walk(f"/proc/self/fd/{volume.data_fd}")
            files = sum(len(below) + len(there) for _, below, there in tree)
            store = os.walk(os.path.join(volume.base, "store"))
            names = [name for _, _, there in store for name in there]
        return replace(
            taken,
            files=files,
            known=status["inodes_known"],
            open=status["files_open"],
            containers=sum(name.endswith((".dat", ".dir")) for name in names),
        )
    return None


def descriptors(pid: int) -> Counter[str]:
    """How many descriptors a process has, by what they are open on."""
    found: Counter[str] = Counter()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            target = os.readlink(f"/proc/{pid}/fd/{name}")
            with open(f"/proc/{pid}/fdinfo/{name}", encoding="ascii") as file:
                flags = int(file.read().partition("flags:")[2].split()[0], 8)
            found[_kind(target, flags)] += 1
    return found


def _kind(target: str, flags: int) -> str:
    deleted = DELETED if target.endswith(" (deleted)") else ""
    path = target.removesuffix(" (deleted)")
    if not path.startswith("/"):
        return path.partition(":")[0]  # a socket, a pipe, an object of the kernel
    if "/.dedupd/store/" in path or path.endswith((".dat", ".dir")):
        return CONTAINERS + deleted
    if "/.dedupd/data" not in path:
        return f"other files{deleted}"
    return (KNOWN if flags & os.O_PATH else OPEN) + deleted


def leaks(samples: dict[str, list[Sample]]) -> list[str]:
    """What processes hold without a reason that shows, at the end."""
    found = []
    for name, taken in samples.items():
        last, kinds = taken[-1], Counter(taken[-1].descriptors)
        limits = {
            KNOWN: last.files + SLACK,
            KNOWN + DELETED: SLACK,
            OPEN: last.open + SLACK,
            OPEN + DELETED: SLACK,
            CONTAINERS: last.containers,
            CONTAINERS + DELETED: SLACK,
            "all others": 64,
        }
        kinds["all others"] = sum(count for kind, count in kinds.items() if kind not in limits)
        found += [
            f"{name}: {kinds[kind]} descriptors of {kind}, and no reason for more than {limit}"
            for kind, limit in limits.items()
            if kinds[kind] > limit
        ]
    return found


def growth(samples: dict[str, list[Sample]]) -> dict[str, list[dict[str, Any]]]:
    """First, middle and last sample of those processes that lived through the quiet third, and the
    one after some users had removed their files."""
    return {
        name: [_shown(taken[at]) for at in (0, (len(taken) - 1) // 2, -2, -1)]
        for name, taken in samples.items()
        if len(taken) >= 4
    }


def _shown(one: Sample) -> dict[str, Any]:
    return {**asdict(one), "time_s": round(one.time_s), "all": sum(one.descriptors.values())}
