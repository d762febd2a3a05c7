"""Plain files whose commits native code has begun, many at once, and which no user has open.

There is no object for each of them: a group of files has one. A user who comes to one of them takes
it over first: then it is an open file whose commit has begun, like one that was committed alone.
"""

from array import array
from collections.abc import Callable, Iterator

import trio

from dedupd_core import native
from dedupd_core.format.recipe import RecipeRef
from dedupd_core.format.stub import StubAttribute
from dedupd_core.stub.commit_steps import OpenCommit
from dedupd_core.stub.transition import FileIdentity
from fuse_stub.files.inodes import Inodes


class HeldGroup:
    """Files whose commits begin, finish or are taken back in one native call.

    ``resting`` is None while no such call works on them; else it is set at its end.
    """

    __slots__ = ("batch", "inodes", "requests", "resting")

    def __init__(
        self, batch: native.commit.CommitBatch, requests: native.commit.CommitRequests
    ) -> None:
        self.batch = batch
        self.requests = requests
        self.inodes = array("Q", requests.inodes)
        self.resting: trio.Event | None = None

    def begun(self, place: int, identity: "native.tree.Identity | None" = None) -> OpenCommit:
        """The commit of a file, which is ``identity`` with the attribute."""
        _, read, recipe, _, _ = self.requests[place]
        expected = FileIdentity._make(read)
        return OpenCommit(FileIdentity._make(identity or read), expected, RecipeRef._make(recipe))


class HeldFiles:
    """The held files of a mount, by inode. Used by the thread of the event loop, between awaits."""

    def __init__(self, inodes: Inodes) -> None:
        self._inodes = inodes
        self._files: dict[int, tuple[HeldGroup, int]] = {}
        self.adopt: Callable[[int, OpenCommit], None] = _nobody
        """Makes an open file of a descriptor, with a commit that has begun."""

    def __contains__(self, ino: int) -> bool:
        return ino in self._files

    def attributes(self) -> Iterator[StubAttribute]:
        """Those with which the files are committed."""
        for group, place in self._files.values():
            yield group.begun(place).stub

    def hold(self, group: HeldGroup) -> None:
        """Before a native call begins the commits of a group: ``group.resting`` is there."""
        for place, ino in enumerate(group.inodes):
            self._inodes.watch(ino)
            self._files[ino] = group, place

    def places(self, group: HeldGroup) -> list[int]:
        """Those of the files of a group that it still has."""
        found = (self._files.get(ino) for ino in group.inodes)
        return [one[1] for one in found if one is not None and one[0] is group]

    def drop(self, group: HeldGroup, place: int) -> None:
        """A file that is held no more."""
        ino = group.inodes[place]
        del self._files[ino]
        self._inodes.unwatch(ino)

    async def take_over(self, ino: int) -> None:
        """Make an open file of a held one, once no native call works on it."""
        while (found := self._files.get(ino)) is not None:
            group, place = found
            if group.resting is not None:
                await group.resting.wait()
            else:
                self.hand_over(group, place)

    def hand_over(self, group: HeldGroup, place: int) -> bool:
        """Make an open file of a held one, on which no native call works; False if its commit has
        ended."""
        self.drop(group, place)
        taken = group.batch.take(place)
        if taken is None:
            return False
        fd, identity = taken
        self.adopt(fd, group.begun(place, identity))
        return True


def _nobody(_: int, __: OpenCommit) -> None:
    raise AssertionError("no commit lane takes files over")
