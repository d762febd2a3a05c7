"""What the mount offers of files that users write to (``busy_files`` of the policy)."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from dedupd_core import native
from dedupd_core.config.policy import BusyFilesMode, Policy, RestoreMode, decided
from dedupd_core.errors import Busy, ServiceUnreachable
from dedupd_core.stub.transition import FileIdentity
from dedupd_core.system.control_socket import ControlClient
from dedupd_core.system.files import opened
from dedupd_core.system.paths import open_beneath
from dedupd_core.units import MIB
from dedupd_core.volume.volume import Volume
from jobs.tree.candidates import SAVES_LITTLE, Candidate
from jobs.tree.marked_directories import MarkedDirectories

LARGE_BYTES_MIN = 16 * MIB
"""A file that is taken by its parts while it is written to."""

STEP_SHARE = 0.5
"""Of the room: what is asked for of a file at once, all of which may be new."""

ALL_SHARE = 0.9
"""Of what was asked for: with so much there may be more."""

WRITTEN_S = 3.0
"""A file that was changed since is being written to. A writer that waits for room does not."""

LEFT_ALONE_S = 600.0
"""What of such a file still has blocks of its own stays plain, or is taken with the whole."""

GRAIN_BYTES = native.mount.GRAIN_BYTES

NANOSECONDS = 1e9


class BusyFile(NamedTuple):
    """An offer: the ``ranges`` of a file of ``size`` bytes that have been quiet. ``attribute`` is
    that of the stub that it is, None of a plain one. ``is_certain``: all is to be stored; another
    look at its beginning would say nothing new."""

    path: bytes
    inode: int
    size: int
    attribute: bytes | None
    ranges: list[tuple[int, int]]
    compresses: bool
    is_certain: bool
    owner: int

    @property
    def work_bytes(self) -> int:
        return sum(end - start for start, end in self.ranges)


class BusyFiles:
    """The offers of one run. None where the volume is not mounted: then nobody sees the writes."""

    def __init__(self, volume: Volume, policy: Policy, below: bytes) -> None:
        self._volume = volume
        self._policy = policy
        self._below = below
        self._client: ControlClient | None = None
        self._lock = threading.Lock()  # around each talk: the reader has a thread of its own
        self._done: set[bytes] = set()
        self._certain: set[int] = set()
        self._restores = policy.restore_mode is RestoreMode.ON
        self._room = volume.store_room()
        self._bytes_max = 0
        self._starts: dict[bytes, int] = {}
        self._asked: dict[bytes, None] = {}
        self.is_turn = False
        self.has_more = self._restores or policy.busy_files is BusyFilesMode.RANGES
        """Whether there may be offers that were not asked for."""
        if self.has_more:
            try:
                self._client = volume.mount_client()
            except Busy:
                pass  # a copy of the volume is mounted

    def take_turn(self) -> bool:
        """From now on it is the turn of busy files; whether there may be any more of them."""
        self.is_turn = True
        is_more, self.has_more = self.has_more, False
        return is_more

    def close(self) -> None:
        """The mount takes back what it has offered and was not committed."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def found(self) -> list[Candidate]:
        """The files that may be worth an offer; of their identities only the size is known."""
        rows = self._call("parts_written").get("files", [])
        named = ((os.fsencode(row["path"]), row["size"]) for row in rows)
        return [
            Candidate(path, FileIdentity(0, size, 0, 0), None, size)
            for path, size in named
            if self._is_wanted(path) and not (self._restores and self._is_done_with(path))
        ]

    def _is_done_with(self, path: bytes) -> bool:
        """Whether a file has no blocks to speak of, or was left alone since several runs have seen
        it: the mount names all that were written to since it began."""
        status = self._status(path)
        if status is None:
            return True
        is_left = time.time() - status.st_ctime > LEFT_ALONE_S
        return is_left or status.st_blocks * 512 < GRAIN_BYTES

    def _status(self, path: bytes) -> os.stat_result | None:
        try:
            return os.stat(path, dir_fd=self._volume.data_fd, follow_symlinks=False)
        except OSError:
            return None

    def _is_wanted(self, path: bytes) -> bool:
        if self._below and not (path + b"/").startswith(self._below + b"/"):
            return False
        if decided(self._policy, path).excluded:
            return False
        marked = MarkedDirectories(self._volume, self._policy.markers)
        marked.begin(path)
        return not marked.has(path)

    def offers(self, is_in: Callable[[bytes], bool]) -> Iterator[BusyFile]:
        """Yield each file once in a run, and again those that :meth:`decline` returns."""
        for path in self.waiting():
            if path in self._done or not is_in(path):
                continue
            self._done.add(path)
            reply = self._call("parts_offer", path=os.fsdecode(path), **self._request(path))
            if not reply.get("ranges"):
                continue
            offer = self._offer(path, reply)
            if offer is None:
                self._call("parts_end", inode=reply["inode"], saves_little=False)
            else:
                self._ask_again(offer)
                yield offer

    def waiting(self) -> list[bytes]:
        """The files of which something may be offered."""
        return list(dict.fromkeys([candidate.path for candidate in self.found()] + [*self._asked]))

    def owner(self, path: bytes) -> int | None:
        """The user whose file it is; None where it is gone."""
        status = self._status(path)
        return None if status is None else status.st_uid

    def ask_for(self, candidate: Candidate) -> bool:
        """Have a file that pays, and does not fit as a whole, taken by its parts in the turn of
        busy files; whether the mount can do that."""
        if not self._restores or self._client is None or candidate.path in self._asked:
            return False
        status = self._status(candidate.path)
        if status is None or status.st_nlink != 1:
            return False
        self._asked[candidate.path] = None
        self._certain.add(candidate.identity.inode)
        self._done.discard(candidate.path)
        self.has_more = True
        return True

    def _request(self, path: bytes) -> dict[str, Any]:
        """What is asked for of a file. While a restore fills the volume, what was written just now,
        and no more than has room as chunks; where all of it pays, also what saved little before."""
        if not self._restores:
            return {"age_s": decided(self._policy, path).min_age_s}
        left_bytes = self._room.left_bytes
        self._bytes_max = max(GRAIN_BYTES, int(left_bytes * STEP_SHARE))
        is_certain = path in self._asked
        return {"age_s": 0.0, "bytes_max": self._bytes_max, "passed_over": is_certain}

    def _ask_again(self, offer: BusyFile) -> None:
        """Where there was more of a file than was asked for, the rest is asked for once this is a
        stub; not where the same is offered again."""
        start = offer.ranges[0][0]
        goes_on = start > self._starts.get(offer.path, -1)
        if self._restores and goes_on and offer.work_bytes >= ALL_SHARE * self._bytes_max:
            self._starts[offer.path] = start
            self._done.discard(offer.path)
            self.has_more = True

    def defers(self, found: object) -> bool:
        """Whether a file that was found is rather taken by its parts: it is large, and a program
        that restores is writing to it, it seems."""
        if not (self._restores and isinstance(found, Candidate) and self._client is not None):
            return False
        written_s = time.time() - found.identity.mtime_ns / NANOSECONDS
        return found.identity.size >= LARGE_BYTES_MIN and 0 <= written_s < WRITTEN_S

    def _offer(self, path: bytes, reply: dict[str, Any]) -> BusyFile | None:
        """With the attribute that it has now: a later one ends the offer."""
        try:
            fd = open_beneath(self._volume.data_fd, path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            return None
        with opened(fd):
            status = os.fstat(fd)
            if status.st_ino != reply["inode"]:
                return None
            attribute = native.system.fgetxattr(fd, self._volume.space.name)
        ranges = [(start, end) for start, end in reply["ranges"]]
        inode = reply["inode"]
        return BusyFile(
            path=path,
            inode=inode,
            size=reply["size"],
            attribute=attribute,
            ranges=ranges,
            compresses=self._policy.compresses(path),
            is_certain=inode in self._certain,
            owner=status.st_uid,
        )

    def decline(self, candidate: Candidate, reason: str, is_promising: bool) -> None:
        """Return an offer. If only its beginning does not save space, the job asks for it again; if
        all of it does not, only after the next write to the file."""
        inode = candidate.identity.inode
        is_again = is_promising and inode not in self._certain
        if is_again:
            self._certain.add(inode)
            self._done.discard(candidate.path)
            self.has_more = True
        saves_little = reason == SAVES_LITTLE and not is_again
        self._call("parts_end", inode=inode, saves_little=saves_little)

    def _call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        with self._lock:
            if self._client is None:
                return {}
            try:
                return self._client.call(operation, **arguments)
            except ServiceUnreachable:
                self._client.close()
                self._client = None
                return {}
