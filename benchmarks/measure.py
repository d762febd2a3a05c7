"""Running a command as a benchmark: what it took, and what it found on the disk."""

import json
import os
import platform
import stat
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dedupd_core.units import MIB

DEDUPD = (sys.executable, "-m", "dedupd.cli.main")

STOLEN_MAX = 0.03
"""Of the processors' time: where a host gave more to others, a run says little."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One command, as the kernel accounts for it (all threads, largest process).

    ``stolen`` is the share of the processors' time that a virtual machine's host gave to others
    meanwhile.
    """

    wall_s: float
    cpu_s: float
    memory_bytes_peak: int
    stolen: float = 0.0


def processor_ticks() -> tuple[int, int]:
    """All of the processors' time so far, and how much of it the host gave to others."""
    with open("/proc/stat") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    return sum(ticks), ticks[7]


def stolen_since(before: tuple[int, int]) -> float:
    """The share of the processors' time that the host gave to others since these ticks."""
    ticks, stolen = processor_ticks()
    return (stolen - before[1]) / max(1, ticks - before[0])


class Failed(Exception):
    """A program did not do what it was asked; the message has its output."""


def measure(command: list[str], environment: Mapping[str, str], log: Path) -> Measured:
    """Run a command to its end. Raises Failed."""
    with open(log, "wb") as output:
        ticks = processor_ticks()
        began = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **environment}
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began
        stolen = stolen_since(ticks)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        tail = log.read_text(errors="replace")[-2000:]
        raise Failed(f"{' '.join(command)}: exit status {process.returncode}\n{tail}")
    return Measured(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, stolen)


def dedupd(*arguments: str | Path) -> str:
    """The output of a command. Raises subprocess.CalledProcessError."""
    command = [*DEDUPD, *map(str, arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def report_of(*arguments: str | Path) -> dict[str, Any]:
    """The report of a run; what it has found is shown. Raises Failed."""
    command = [*DEDUPD, *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise Failed(done.stderr)
    report: dict[str, Any] = json.loads(done.stdout)
    if done.returncode:
        print(report.get("messages"), report.get("findings"), file=sys.stderr)
    return report


def enabling(root: Path) -> list[str]:
    """The command that makes a volume that takes every file, however young and small."""
    options = ("--force", "--no-mount", "--min-age", "0s", "--min-size", "1")
    return [*DEDUPD, "enable", str(root), *options]


def processor_s(pid: int) -> float:
    """The processor time that a process has used so far, with its threads that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def drop_caches() -> None:
    """Nothing waits to be written, and the next reads come from the disk. Needs root."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def prepare(tree: Path, cold: bool) -> None:
    """Nothing waits to be written, and the tree's pages are all in memory, or none are."""
    if cold:
        drop_caches()
        return
    os.sync()
    for path in paths_of(tree):
        if stat.S_ISREG(os.lstat(path).st_mode):
            read_through(path)


def read_through(path: str | Path, step_bytes: int = MIB) -> int:
    """Read a file into memory that is used again; its bytes."""
    buffer, total = bytearray(step_bytes), 0
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            total += count
    return total


def drop_pages(path: Path) -> None:
    """Have no page of a file in memory."""
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def logical_bytes(tree: Path) -> int:
    return sum(os.lstat(path).st_size for path in paths_of(tree))


def allocated_bytes(tree: Path) -> int:
    return sum(os.lstat(path).st_blocks * 512 for path in paths_of(tree))


def files_of(tree: Path) -> list[str]:
    return list(paths_of(tree))


def paths_of(tree: Path) -> Iterator[str]:
    """One by one: what a million take here would count as memory of the programs started later."""
    for directory, _, names in os.walk(tree):
        for name in names:
            yield os.path.join(directory, name)


def copy(dataset: Path, to: Path) -> None:
    """A copy that shares no block with the data set, also where the file system could."""
    subprocess.run(["cp", "-a", "--reflink=never", str(dataset), str(to)], check=True)


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def machine(work: Path) -> str:
    kind = subprocess.run(
        ["findmnt", "-no", "FSTYPE", "-T", str(work)], capture_output=True, text=True, check=False
    )
    return f"{os.cpu_count()} × {processor()}, Linux {platform.release()}, {kind.stdout.strip()}"


def keep(found: object, path: Path | None) -> None:
    """Write figures to a file, where one was named for them."""
    if path is not None:
        path.write_text(json.dumps(found, indent=2) + "\n")


def typical(measured: list[Measured]) -> Measured:
    """The median of each figure."""
    return Measured(
        statistics.median(one.wall_s for one in measured),
        statistics.median(one.cpu_s for one in measured),
        int(statistics.median(one.memory_bytes_peak for one in measured)),
        statistics.median(one.stolen for one in measured),
    )
