"""The ground of a run: file systems on loop devices, volumes on them, and their mounts."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from dedupd_core.system import mount_table
from dedupd_core.system.disk import Disk
from dedupd_core.volume.enabling.enable import enable
from dedupd_core.volume.volume import Volume
from fuse_stub.mounts import mount_process
from fuse_stub.mounts.mount_points import is_dead
from tests.suites.mounting import LOG, MAP
from tests.suites.results import BELOW
from tests.support.sources import ROOT
from tests.support.ways import WAY

PLACES = ("test", "scratch")
"""xfstests takes two file systems; the other suites take the first."""

SIZE_BYTES = 12 << 30
"""Of the image of each file system. It is sparse, and a suite fills little of it."""

SHOWN = "SUITES_SHOWN_TYPE"
"""In the environment: the type that ``df`` shows for mounts of volumes; ``fuse`` without it."""

MAKE = ("mkfs.ext4", "-q", "-F")

JOB_POLICY: dict[str, str | int] = {
    "min_age": "0s",
    "min_size": "1 B",
    "min_file_saving": 0,
    "stop_when_busy": False,
}
"""Of volumes beside whose tests jobs run: they take each file at once."""


@dataclass(frozen=True)
class Place:
    """A file system for tests: mounted at ``point``; ``source`` is its name in a list of mounts."""

    point: Path
    source: str
    volume: Path | None
    """The directory of the volume; None for ext4 itself."""


@dataclass(frozen=True)
class Ground:
    """What a suite runs on. ``side``: the transport of the mounts, or ext4."""

    side: str
    state: Path
    places: tuple[Place, ...]
    findings: list[str] = field(default_factory=list)
    """Faults that no result of a test shows."""

    @property
    def is_mount(self) -> bool:
        return self.side != BELOW

    @property
    def environment(self) -> dict[str, str]:
        """Programs that stand before those of the system: a ``mount`` that knows the volumes, and a
        ``df`` that shows the type that the suite expects."""
        # Without bytecode the process of a mount takes twice the time to start, and one test mounts
        # a volume 64 times (generic/366).
        compiled = {"PYTHONDONTWRITEBYTECODE": ""}
        ours = {"PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8", **compiled}
        if self.is_mount:
            ours |= {WAY: self.side, "PATH": f"{self.state / 'bin'}:{os.environ['PATH']}"}
        return {**os.environ, **ours}

    def ensure_mounted(self, place: Place) -> None:
        """Mount a place again if a test has unmounted it, or its mount is dead. Raises OSError."""
        while True:
            rows = [row for row in mount_table.all_mounts() if row.point == str(place.point)]
            if not rows:
                break
            is_ours = len(rows) == 1 and rows[0].source == place.source
            if is_ours and not self.note_if_dead(place):
                return
            _call(["umount", "-l", place.point])
        for point in reversed(mount_table.inside(str(place.point))):
            _call(["umount", "-l", point])
        if place.volume is None:
            _call(["mount", place.source, place.point])
            return
        kind = mount_table.FS_TYPE
        _call([self.state / "bin/mount", "-t", kind, place.source, place.point], self.environment)

    def note_if_dead(self, place: Place) -> bool:
        """Return whether the process of a mount has died, which is a finding."""
        if place.volume is None or not is_dead(str(place.point)):
            return False
        self.findings.append(f"{self.side}: {place.point.name}: the process of the mount has died")
        return True

    def note_stuck(self, test: str, stuck: Iterable[str]) -> None:
        """Processes of a test that did not end when they were killed are findings."""
        self.findings.extend(f"{self.side}: {test}: {one} did not end" for one in stuck)


@contextmanager
def ground(side: str, state: Path, *, with_jobs: bool = False) -> Iterator[Ground]:
    """File systems for the tests of one side, below ``state``; all is removed at the end."""
    state.mkdir(parents=True)
    with ExitStack() as stack:
        places = [stack.enter_context(_place(side, state, name, with_jobs)) for name in PLACES]
        found = Ground(side, state, tuple(places))
        volumes = {one.source: str(one.volume) for one in places if one.volume}
        (state / MAP).write_text(json.dumps(volumes))
        _write_programs(state)
        (state / LOG).touch()
        for place in places:
            found.ensure_mounted(place)
            place.point.chmod(0o777)
        yield found


@contextmanager
def _place(side: str, state: Path, name: str, with_jobs: bool) -> Iterator[Place]:
    image, low, point = state / f"{name}.image", state / "low" / name, state / "mnt" / name
    point.mkdir(parents=True)
    with ExitStack() as stack:
        stack.callback(image.unlink)
        with open(image, "xb") as file:
            file.truncate(SIZE_BYTES)
        _call([*MAKE, image])
        device = _call(["losetup", "--find", "--show", image]).strip()
        stack.callback(_call, ["losetup", "--detach", device])
        if side == BELOW:
            stack.callback(unmount_all, point)
            yield Place(point, device, None)
            return
        low.mkdir(parents=True)
        _call(["mount", device, low])
        stack.callback(unmount_all, low)
        root = low / "volume"
        root.mkdir()
        enable(str(root), policy_values=JOB_POLICY if with_jobs else {}, force=True, disk=Disk())
        with Volume.open(str(root)) as volume:
            source = f"{mount_table.SOURCE_PREFIX}{volume.parameters.uuid}"
        stack.callback(unmount_all, point)
        yield Place(point, source, root)


def _write_programs(state: Path) -> None:
    programs = {
        "mount": 'case " $* " in\n*" -t fuse.dedupd "*)\n'
        f'  exec "{sys.executable}" -m tests.suites.mounting "{state}" "$@" ;;\nesac\n'
        f'exec {_behind("mount")} "$@"\n',
        "df": f'{_behind("df")} "$@" | sed "s/ fuse\\.dedupd / ${{{SHOWN}:-fuse}} /"\n'
        'exit "${PIPESTATUS[0]}"\n',
    }
    (state / "bin").mkdir()
    for name, text in programs.items():
        path = state / "bin" / name
        path.write_text(f"#!/bin/bash\n{text}")
        path.chmod(0o755)


def _behind(name: str) -> str:
    for directory in os.environ["PATH"].split(":"):
        if (path := Path(directory, name)).is_file():
            return str(path)
    raise FileNotFoundError(f"{name}: no such program; install it")


def unmount_all(directory: Path) -> None:
    """Unmount a directory and what is mounted inside, and wait until the data is synced."""
    for point in [*reversed(mount_table.inside(str(directory))), str(directory)]:
        while any(row.point == point for row in mount_table.all_mounts()):
            if any(mount.point == point for mount in mount_table.volumes()):
                with suppress(Exception):
                    mount_process.unmount(point)
                    continue
            _call(["umount", "-l", point])


def _call(command: Sequence[str | Path], environment: dict[str, str] | None = None) -> str:
    """Run a command to its end; returns its output. Raises OSError with what it says."""
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if result.returncode:
        raise OSError(f"{' '.join(map(str, command))}: {result.stderr.strip()}")
    return result.stdout
