"""The programs that ingest is measured with: each takes in a data set, then a second copy of it.

Every program does so in its own way; what that means is in README.md.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import (
    DEDUPD,
    Measured,
    allocated_bytes,
    copy,
    enabling,
    measure,
    prepare,
)

BORG_OPTIONS = ("--compression", "zstd,3", "--chunker-params", "buzhash,15,17,16,4095")
"""Chunks of 32 to 128 KiB and zstd 3, as dedupd's default."""

PASSWORD = "benchmark"
FIRST, SECOND = "first", "second"


@dataclass(frozen=True, slots=True)
class Ingest:
    """One program's way through the data set. Sizes are in bytes on the disk."""

    first: Measured
    second: Measured
    stored_bytes: int
    """After the first ingest: the store, and what is left beside it."""
    plain_bytes: int
    """Part of ``stored_bytes`` that no program's store holds: files that stay as they are."""
    grown_bytes: int
    """What the duplicates added."""
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Setting:
    """What a run works with: a scratch directory, two copies of the data set, the cache's state."""

    work: Path
    sources: Path
    cold: bool

    def take_in(
        self, which: str, command: list[str], environment: Mapping[str, str], tree: Path
    ) -> Measured:
        prepare(tree, self.cold)
        return measure(command, environment, self.work / f"{which}.log")


def dedupd(setting: Setting, is_mounted: bool = False) -> Ingest:
    """A run on a volume; with ``is_mounted``, a mount serves the files at the same time."""
    compiled = {"PYTHONDONTWRITEBYTECODE": ""}  # as it is where it is installed
    volume = setting.work / "volume"
    volume.mkdir()
    for which in (FIRST, SECOND):
        copy(setting.sources / which, volume / which)
    measure(enabling(volume), compiled, setting.work / "enable.log")
    if not is_mounted:
        return _optimize(setting, volume, compiled)
    view = setting.work / "view"
    view.mkdir()
    measure([*DEDUPD, "mount", str(volume), str(view)], compiled, setting.work / "mount.log")
    try:
        return _optimize(setting, volume, compiled)
    finally:
        measure([*DEDUPD, "umount", str(view)], compiled, setting.work / "umount.log")


def _optimize(setting: Setting, volume: Path, environment: Mapping[str, str]) -> Ingest:
    def run(which: str) -> tuple[Measured, dict[str, Any]]:
        command = [*DEDUPD, "run", "optimize", str(volume / which), "--json"]
        measured = setting.take_in(which, command, environment, volume / ".dedupd/data" / which)
        return measured, json.loads((setting.work / f"{which}.log").read_text())

    def occupied(which: str) -> tuple[int, int]:
        stored = allocated_bytes(volume / ".dedupd/store")
        return stored, allocated_bytes(volume / ".dedupd/data" / which)

    first, first_report = run(FIRST)
    stored, plain = occupied(FIRST)
    second, second_report = run(SECOND)
    stored_later, plain_later = occupied(SECOND)
    details = {"first": first_report, "second": second_report}
    grown = stored_later - stored + plain_later
    return Ingest(first, second, stored + plain, plain, grown, details)


def borg(setting: Setting) -> Ingest:
    repository = setting.work / "borg"
    environment = {
        "BORG_BASE_DIR": str(setting.work / "borg-home"),
        "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
    }
    setup = ["borg", "init", "--encryption", "none", str(repository)]
    return _backup(
        setting,
        repository,
        environment,
        setup,
        lambda which, tree: ["borg", "create", *BORG_OPTIONS, f"{repository}::{which}", tree],
    )


def restic(setting: Setting) -> Ingest:
    repository = setting.work / "restic"
    environment = {
        "RESTIC_REPOSITORY": str(repository),
        "RESTIC_PASSWORD": PASSWORD,
        "RESTIC_CACHE_DIR": str(setting.work / "restic-cache"),
    }
    return _backup(
        setting,
        repository,
        environment,
        ["restic", "init"],
        lambda _which, tree: ["restic", "backup", "--quiet", "--compression", "auto", tree],
    )


def _backup(
    setting: Setting,
    repository: Path,
    environment: Mapping[str, str],
    setup: list[str],
    command: Callable[[str, str], list[str]],
) -> Ingest:
    """A backup program: everything that it stores is in its repository."""
    measure(setup, environment, setting.work / "setup.log")
    measured, sizes = [], [allocated_bytes(repository)]
    for which in (FIRST, SECOND):
        tree = setting.sources / which
        measured.append(setting.take_in(which, command(which, str(tree)), environment, tree))
        sizes.append(allocated_bytes(repository))
    return Ingest(measured[0], measured[1], sizes[1] - sizes[0], 0, sizes[2] - sizes[1])


def rustic(setting: Setting) -> Ingest:
    repository = setting.work / "rustic"
    environment = {
        "RUSTIC_REPOSITORY": str(repository),
        "RUSTIC_PASSWORD": PASSWORD,
        "RUSTIC_CACHE_DIR": str(setting.work / "rustic-cache"),
        "RUSTIC_NO_PROGRESS": "true",
    }
    return _backup(
        setting,
        repository,
        environment,
        ["rustic", "init"],
        lambda _which, tree: ["rustic", "backup", tree],
    )


def casync(setting: Setting) -> Ingest:
    store = setting.work / "casync.castr"
    return _backup(
        setting,
        store,
        {},
        ["mkdir", str(store)],
        lambda which, tree: [
            *("casync", "make", "--chunk-size=64K", f"--store={store}"),
            *(str(store / f"{which}.caidx"), tree),
        ],
    )


def duperemove(setting: Setting) -> Ingest:
    """Merges equal blocks of 64 KiB in place, on an XFS of its own; stores nothing elsewhere."""
    sizes = [allocated_bytes(setting.sources / which) for which in (FIRST, SECOND)]
    with _xfs(setting.work, 2 * sum(sizes)) as root:
        empty = _used_bytes(root)
        hashes = root.with_name("duperemove.hashes")
        command = ["duperemove", "-rdq", "-b", "64K", f"--hashfile={hashes}"]
        measured, used = [], []
        for which in (FIRST, SECOND):
            tree = root / which
            copy(setting.sources / which, tree)
            measured.append(setting.take_in(which, [*command, str(tree)], {}, tree))
            os.sync()
            used.append(_used_bytes(root))
    return Ingest(measured[0], measured[1], used[0] - empty, 0, used[1] - used[0])


@contextmanager
def _xfs(work: Path, size_bytes: int) -> Iterator[Path]:
    """An XFS with room for that much, in a file that takes what is used of it."""
    image, root = work / "xfs.img", work / "xfs"
    root.mkdir()
    with open(image, "xb") as file:
        file.truncate(size_bytes + (1 << 30))
    subprocess.run(["mkfs.xfs", "-q", "-m", "reflink=1", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, root], check=True)
    try:
        yield root
    finally:
        subprocess.run(["umount", root], check=True)


def _used_bytes(root: Path) -> int:
    usage = os.statvfs(root)
    return (usage.f_blocks - usage.f_bfree) * usage.f_frsize


@dataclass(frozen=True, slots=True)
class Program:
    """A program to compare: how it is measured, and how it tells its version."""

    ingest: Callable[[Setting], Ingest]
    version: tuple[str, ...]

    def is_installed(self) -> bool:
        return shutil.which(self.version[0]) is not None

    def tell_version(self) -> str:
        told = subprocess.run(self.version, capture_output=True, text=True, check=False)
        return (told.stdout or told.stderr).strip().splitlines()[0]


PROGRAMS = {
    "dedupd": Program(dedupd, (*DEDUPD, "--version")),
    "mounted": Program(partial(dedupd, is_mounted=True), (*DEDUPD, "--version")),
    "borg": Program(borg, ("borg", "--version")),
    "restic": Program(restic, ("restic", "version")),
    "rustic": Program(rustic, ("rustic", "--version")),
    "casync": Program(casync, ("casync", "--version")),
    "duperemove": Program(duperemove, ("duperemove", "--version")),
}
