"""A test that cannot fail proves nothing: with a step removed, or two exchanged, exploring fails.

There is such a bug for each kind of effect that keeps bytes; ``HARMLESS`` says of the others what
their loss costs.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dedupd_core.errors import DedupdError
from dedupd_core.system.disk import Disk
from dedupd_core.volume.volume import Volume
from dedupd_reader import reader
from tests.crash.exploring import SCENARIOS, explore, file_system_for_states
from tests.crash.scenarios import plain_volume
from tests.crash.sites import EFFECTS, effects_in_volumes
from tests.support import crash
from tests.support.simulated_disk import COMPOSED, SYNC_FS, Entry, Forgetful, RecordingDisk

pytestmark = pytest.mark.root

STATES = 400
"""So many at most until a bug must have been found; most are within some dozen."""


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with file_system_for_states(tmp_path_factory.mktemp("mutations")) as point:
        yield point


class LateOnDisk(RecordingDisk):
    """Has one kind of step reach the disk only after the next one of another kind."""

    def __init__(self, late: str, overtaking: str) -> None:
        super().__init__()
        held: list[Entry] = []

        def delayed(*arguments: Any) -> Any:
            before = len(self.log)
            result = getattr(RecordingDisk, late)(self, *arguments)
            held.extend(self.log[before:])
            del self.log[before:]
            return result

        def first(*arguments: Any) -> Any:
            result = getattr(RecordingDisk, overtaking)(self, *arguments)
            self.log += held
            held.clear()
            return result

        setattr(self, late, delayed)
        setattr(self, overtaking, first)


class LosesLast(RecordingDisk):
    """Carries a kind of step out for the program, and never for the disk."""

    def __init__(self, lost: str) -> None:
        super().__init__()

        def unlogged(*arguments: Any) -> Any:
            before = len(self.log)
            result = getattr(RecordingDisk, lost)(self, *arguments)
            del self.log[before:]
            return result

        setattr(self, lost, unlogged)


FORGOTTEN = [
    ("optimize", ["sync_data"]),
    ("optimize", ["set_attribute"]),
    ("unoptimize", ["sync_data", "sync_file"]),
    ("enable", ["sync_dir"]),
    ("remove, collect and compact", ["sync_file_system"]),
    ("compact", ["sync_file"]),
    ("compact without room", ["sync_file"]),
    ("adopt a copy", ["sync_file_system"]),
    ("punch", ["sync_data"]),
]

LOST = [
    ("optimize", "write_at"),
    ("optimize", "write_out"),
    ("optimize", "create"),
    ("unoptimize", "write_some"),
    ("write to stubs", "write_some"),
    ("write to stubs", "truncate"),
    ("enable", "make_dir"),
    ("enable", "rename_new"),
    ("enable", "rename"),
    ("disable", "remove_dir"),
]

EXCHANGED = [
    ("optimize", "set_attribute", "punch"),
    ("optimize", "sync_data", "sync_file_system"),
    ("compact", "sync_file", "rename"),
    ("punch", "sync_data", "punch"),
    ("unoptimize", "write_some", "remove_attribute"),
]

HARMLESS = {
    "punch": "space that is not given back, which settling does",
    "set_times": "times, which are not promised for the moment of a crash",
    "set_owner": "owner of the directory, which the next enable or disable sets again",
    "set_mode": "mode of the directory, likewise",
    "remove_attribute_of": "an inherited ACL of a new file, which is not in its place yet",
    "allocate": "a place for what is written next, which is not read",
    "exchange": "a user's own rename",
    "rename_leaving": "a user's own rename",
    "unlink": "a file that nothing names any more, which the next job removes",
}


def found(fast: Path, name: str, make_disk: Callable[[], RecordingDisk]) -> None:
    with pytest.raises((AssertionError, DedupdError, OSError, KeyError, reader.Damaged)):
        explore(fast, SCENARIOS[name], STATES, make_disk=make_disk)


@pytest.mark.parametrize(("name", "forgotten"), FORGOTTEN)
def test_a_forgotten_step_is_found(fast: Path, name: str, forgotten: Sequence[str]) -> None:
    found(fast, name, lambda: Forgetful(forgotten))


@pytest.mark.parametrize(("name", "lost"), LOST)
def test_a_step_that_never_reaches_the_disk_is_found(fast: Path, name: str, lost: str) -> None:
    found(fast, name, lambda: LosesLast(lost))


@pytest.mark.parametrize(("name", "late", "overtaking"), EXCHANGED)
def test_two_exchanged_steps_are_found(fast: Path, name: str, late: str, overtaking: str) -> None:
    found(fast, name, lambda: LateOnDisk(late, overtaking))


def test_each_kind_of_effect_has_its_bug() -> None:
    tried = {kind for _, kinds in FORGOTTEN for kind in kinds} | {kind for _, kind in LOST}
    tried |= {kind for _, *kinds in EXCHANGED for kind in kinds}
    assert tried | HARMLESS.keys() == effects_in_volumes() - COMPOSED
    assert vars(Disk).keys() >= EFFECTS


def _committed(root: Path, disk: RecordingDisk) -> dict[int, list[str]]:
    """What native code did to each file of a plain volume that became a stub, in order."""
    crash.remove(root)
    plain_volume(root, seed=1)
    crash.optimize_volume(root, disk)
    with Volume.open(str(root)) as volume:
        stubs = {path.lstat().st_ino for path in Path(volume.base, "data").rglob("*")}
    done: dict[int, list[str]] = {}
    for entry in disk.log:
        for inode in stubs if entry.inode == SYNC_FS else stubs & {entry.inode}:
            is_sync = entry.inode == SYNC_FS
            done.setdefault(inode, []).append("sync" if is_sync else type(entry.event).__name__)
    return {inode: steps for inode, steps in done.items() if "Punch" in steps}


COMMIT = ["SetAttribute", "sync", "Punch", "SetTimes", "SetAttribute"]
"""The steps of every file, the sync being one of all files together."""


@pytest.mark.parametrize("forgotten", [[], ["sync_file_system"]])
def test_every_file_of_a_batch_is_punched_only_after_its_attribute_is_durable(
    fast: Path, forgotten: list[str]
) -> None:
    commits = _committed(fast / "root", Forgetful(forgotten))
    assert len(commits) == 6
    is_right = [steps[steps.index("SetAttribute") :][:5] == COMMIT for steps in commits.values()]
    assert all(is_right) == (not forgotten)
