"""The walk of garbage collection beside moves at every step of it: no stub of the tree is missed.

The operations and the notes are those of a mount; moves happen at the walk's safe points and
between its questions, so that a seed tells each history.
"""

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyfuse3
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupd_core.format.ids import make_id
from dedupd_core.format.stub import Flag, StubAttribute
from dedupd_core.native.upkeep import Marks, Needs
from dedupd_core.system.files import opened
from fuse_stub import gc_names
from fuse_stub.gc_names import MarkLog
from fuse_stub.mounted_volume import MountedVolume
from fuse_stub.operations import StubOperations
from jobs.frame.run import JobRun
from jobs.gc import tree_marker
from jobs.gc.tree_marker import InodeSet, MountSession, MoveNotes, TreeMarker
from tests.support.lab import Lab, new_lab

pytestmark = pytest.mark.root

RECORDS = 4096


class Root:
    """The user that asks."""

    uid = gid = pid = 0
    umask = 0


ROOT = Root()


class Users:
    """Users of a mount, but for the kernel; they do something at random at each :meth:`turn`."""

    def __init__(self, lab: Lab, one: MountedVolume, seed: int) -> None:
        self.data = lab.data
        self.operations = StubOperations(one)
        self.space = one.volume.space
        self.rng = random.Random(seed)
        self.made = 0
        self.actions_per_turn = self.rng.choice([0, 1, 3])

    def make_tree(self) -> None:
        """A few directories, one below the other or side by side, with stubs in all of them."""
        places = [self.data]
        for _ in range(self.rng.randrange(1, 14)):
            path = self.rng.choice(places) / self._name("d")
            path.mkdir()
            places.append(path)
        for _ in range(self.rng.randrange(1, 10)):
            path = self.rng.choice(places) / self._name("f")
            path.touch()
            os.truncate(path, 100)
            stub = StubAttribute(make_id(1, self.made), bytes(16), 100, 0, Flag.DIRECT)
            with opened(os.open(path, os.O_RDWR)) as fd:
                os.setxattr(fd, self.space.name, self.space.encode(stub, fd))

    def _name(self, kind: str) -> str:
        self.made += 1
        return f"{kind}{self.made}"

    def entries(self, kind: str) -> list[Path]:
        return sorted(path for path in self.data.rglob(f"{kind}*"))

    def turn(self) -> None:
        for _ in range(self.rng.randrange(self.actions_per_turn + 1)):
            with suppress(OSError, pyfuse3.FUSEError):  # into itself, or to a place that is gone
                trio.run(self._act)

    async def _act(self) -> None:
        directories = [self.data, *self.entries("d")]
        kind = self.rng.choice("ddf")
        found = self.entries(kind)
        action = self.rng.choice(["move", "move", "move", "exchange", "link", "mkdir", "rmdir"])
        target = self.rng.choice(directories)
        operations = self.operations
        if action == "mkdir":
            (target / self._name("d")).mkdir()
        elif action == "rmdir" and target != self.data:
            target.rmdir()
        elif found:
            path = self.rng.choice(found)
            if action == "link":
                ino, parent = await self._ino(path), await self._ino(target)
                await operations.link(ino, parent, self._name("f").encode(), ROOT)  # type: ignore[arg-type]
                await operations.unlink(await self._ino(path.parent), os.fsencode(path.name), ROOT)  # type: ignore[arg-type]
            elif action == "exchange":
                await self._rename(path, self.rng.choice(found), pyfuse3.RENAME_EXCHANGE)
            else:
                await self._rename(path, target / self._name(kind), 0)

    async def _rename(self, old: Path, new: Path, flags: int) -> None:
        await self._ino(old)
        parents = await self._ino(old.parent), await self._ino(new.parent)
        await self.operations.rename(
            parents[0],
            os.fsencode(old.name),
            parents[1],
            os.fsencode(new.name),
            flags,
            ROOT,  # type: ignore[arg-type]
        )

    async def _ino(self, path: Path) -> pyfuse3.InodeT:
        ino = pyfuse3.ROOT_INODE
        for name in path.relative_to(self.data).parts:
            entry = await self.operations.lookup(ino, name.encode(), ROOT)  # type: ignore[arg-type]
            ino = pyfuse3.InodeT(entry.st_ino)
        return ino

    def named(self) -> set[int]:
        """The records that the stubs of the tree name."""
        found = set()
        for path in self.entries("f"):
            fd = os.open(path, os.O_RDONLY)
            try:
                stub = self.space.read(fd, "")
            finally:
                os.close(fd)
            assert stub is not None
            found.add(stub.recipe)
        return found


class Turns(JobRun):
    """A run at whose safe points users have their turn."""

    def __init__(self, users: Users) -> None:
        super().__init__("gc")
        self._users = users

    def safe_point(self) -> None:
        self._users.turn()


class DirectSession(MountSession):
    """The notes of a mount, without a socket; users have their turn before each question."""

    def __init__(self, one: MountedVolume, users: Users) -> None:
        self._users = users
        self._sessions = one.marking_sessions
        self._log: MarkLog = trio.run(one.marking_sessions.begin)

    def drain(self) -> MoveNotes | None:
        self._users.turn()
        notes = self._log.take()
        assert not self._log.overflowed
        return MoveNotes(
            notes.chunks, notes.recipes, notes.damaged, notes.directories, self._log.has_more
        )

    def hold(self) -> None:
        self._users.actions_per_turn = 0

    def end(self) -> None:
        self._sessions.end(self._log)


@contextmanager
def served(lab: Lab) -> Iterator[MountedVolume]:
    with lab.opened() as volume, volume.mount_lock() as transitions:
        one = MountedVolume(volume, transitions, "/nowhere", 1 << 20, 1)
        try:
            yield one
        finally:
            one.close()


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lab, MountedVolume]]:
    lab = new_lab(tmp_path_factory.mktemp("walk") / "volume", "4k")
    with served(lab) as one:
        yield lab, one


def walk_beside_moves(lab: Lab, one: MountedVolume, seed: int) -> None:
    for entry in lab.data.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    for ino in one.inodes.pinned():
        one.inodes.forget(ino, 1 << 32)  # as often as it was looked up, and more
    users = Users(lab, one, seed)
    users.make_tree()

    @contextmanager
    def session(_: object) -> Iterator[DirectSession]:
        direct = DirectSession(one, users)
        yield direct
        direct.end()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree_marker, "open_session", session)
        patch.setattr(tree_marker, "DIRECTORIES_PER_DRAIN", users.rng.choice([1, 2, 64]))
        patch.setattr(gc_names, "DIRECTORIES_PER_DRAIN", users.rng.choice([1, 32]))
        patch.setattr(gc_names, "REFERENCES_PER_DRAIN", users.rng.choice([1, 32]))
        chunks, recipes = Marks({1: RECORDS}), Needs({1: RECORDS})
        roots = TreeMarker(one.volume, Turns(users), chunks, recipes).mark()
    assert roots.problems == []
    missed = {record for record in users.named() if record not in chunks}
    assert missed == set()


@settings(max_examples=80)
@given(seed=st.integers(0, 1 << 32))
def test_no_stub_of_the_tree_is_missed_whatever_moves_at_any_step(
    one: tuple[Lab, MountedVolume], seed: int
) -> None:
    walk_beside_moves(*one, seed)


@pytest.mark.slow
def test_no_stub_is_missed_in_ten_thousand_histories(one: tuple[Lab, MountedVolume]) -> None:
    for seed in range(10_000):
        walk_beside_moves(*one, seed)


@given(st.lists(st.integers(0, 1 << 64) | st.integers(0, 5000)))
def test_a_set_of_inodes_is_a_set(numbers: list[int]) -> None:
    inodes, model = InodeSet(), set[int]()
    for ino in numbers:
        assert inodes.add(ino) == (ino not in model)
        model.add(ino)
    assert all(ino in inodes for ino in model)
    assert [ino for ino in range(5001) if ino in inodes] == sorted(
        ino for ino in model if ino <= 5000
    )
