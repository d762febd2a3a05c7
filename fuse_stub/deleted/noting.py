"""Records deletions before the mount makes them (docs/design/format.md, "Deletions").

If a deletion cannot be recorded, it still happens: users' operations never fail because of this.
"""

import logging
import os
import stat
import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

import trio

from dedupd_core import native
from dedupd_core.deleted.dropped import add_counts
from dedupd_core.deleted.writer import DeletionWriter
from dedupd_core.errors import DamagedStub, DedupdError, NoSpace
from dedupd_core.format.deletion import PATH_BYTES_MAX, Cause, Deletion
from dedupd_core.format.stub import Flag, StubAttribute, decode_stub
from dedupd_core.system.files import attributes_of, opened
from dedupd_core.system.paths import explain
from dedupd_core.system.tree.tree_paths import numbered, path_in_tree
from dedupd_core.units import KIB, in_64_bits
from dedupd_core.volume.volume import Volume
from fuse_stub.files.inodes import PATH_FLAGS
from fuse_stub.files.open_file import OpenFile
from fuse_stub.policy.watched_policy import WatchedPolicy

log = logging.getLogger("dedupd.mount")

SYNC_S = 5.0
"""The longest time until a record is durable: similar to the removal itself."""

NOTED_MAX = 4096
NOTED_S = 3600.0
"""How many recorded versions are remembered, and for how long; others are recorded again."""

KEEP_S_MAX = 0xFFFF_FFFF

ATTRIBUTES_BYTES_MAX = 256 * KIB
"""The limit for a file's attributes in a record. ext4 has less space for them; XFS allows several
of 64 KiB."""


class Deletions:
    """The deletions that a mount records. Used by the event-loop thread; methods do not wait."""

    def __init__(self, volume: Volume, policy: WatchedPolicy) -> None:
        self._volume = volume
        self._policy = policy
        self._writer = DeletionWriter(volume)
        self._noted: OrderedDict[tuple[int, int], float] = OrderedDict()
        self._failed = False

    def close(self) -> None:
        self._writer.close()

    def removing(self, dir_fd: int, name: bytes, cause: Cause) -> None:
        """Record a file whose last name is about to be removed."""
        if not self._keeps_any():
            return
        try:
            value = os.getxattr(b"/proc/self/fd/%d/%s" % (dir_fd, name), self._volume.space.name)
        except OSError:
            return  # it is plain, or was removed
        self._attempt(self._removing, dir_fd, name, value, cause)

    def _removing(self, dir_fd: int, name: bytes, value: bytes, cause: Cause) -> None:
        stub = decode_stub(value, self._volume.space.volume_id, "")
        with opened(os.open(name, PATH_FLAGS, dir_fd=dir_fd)) as fd:
            above = path_in_tree(self._volume.data_fd, dir_fd)
            path = None if above is None else os.path.join(above, name)
            self._note(fd, path, stub, cause)

    def changing(self, file: OpenFile, cause: Cause, size: int | None = None) -> None:
        """Record a stub that is about to be written to, or truncated to ``size``. Records it once
        per recipe, and only if it loses content of the store."""
        stub = file.stub
        if stub is None or not self._keeps_any():
            return
        attribute = stub.attribute
        if size is not None and size >= attribute.covered:
            return
        if attribute.is_clean or size == 0:
            self._attempt(self._changing, file, attribute, cause)

    def _changing(self, file: OpenFile, stub: StubAttribute, cause: Cause) -> None:
        key = (file.ino, stub.recipe)
        now_s = time.monotonic()
        is_known = now_s < self._noted.get(key, -NOTED_S) + NOTED_S
        if is_known or os.fstat(file.fd).st_nlink == 0:
            return
        self._note(file.fd, path_in_tree(self._volume.data_fd, file.fd), stub, cause)
        self._noted[key] = now_s
        if len(self._noted) > NOTED_MAX:
            self._noted.popitem(last=False)

    def _note(self, fd: int, path: bytes | None, stub: StubAttribute, cause: Cause) -> None:
        if stub.flags & Flag.PARTIAL:
            return  # its recipe is no complete version of the file
        if path is None or len(path) > PATH_BYTES_MAX:
            path = numbered(fd)
        keep_s = self._policy.now.keeps_deleted_s(path)
        status = os.fstat(fd)
        if keep_s <= 0 or not stat.S_ISREG(status.st_mode):
            return
        mtime_ns = stub.mtime_ns if stub.flags.transient else status.st_mtime_ns
        hidden = self._volume.space.name
        self._writer.append(
            Deletion(
                *(cause, time.time_ns(), min(int(keep_s), KEEP_S_MAX), path),
                *(status.st_mode, status.st_uid, status.st_gid),
                *(status.st_ino, native.system.generation(fd)),
                *(status.st_size, in_64_bits(status.st_atime_ns), in_64_bits(mtime_ns)),
                stub,
                tuple(kept_attributes(attributes_of(b"/proc/self/fd/%d" % fd, hidden))),
            )
        )

    def _attempt(self, note: Callable[..., None], *arguments: object) -> None:
        try:
            note(*arguments)
            self._failed = False
        except (OSError, DedupdError, ValueError, struct.error) as error:
            if not self._failed and not isinstance(error, DamagedStub):
                log.warning("deleted files cannot be restored at the moment: %s", explain(error))
                self._failed = True

    def _keeps_any(self) -> bool:
        # Otherwise the store deletes a recipe with its only file.
        shares = self._volume.store_kind.shares_recipes
        return shares and self._policy.now.keep_deleted_s_max > 0

    async def sync(self) -> None:
        """Make the records durable, until the mount ends."""
        while True:
            await trio.sleep(SYNC_S)
            try:
                await self._sync_once()
            except OSError as error:
                log.error("recorded deletions are not durable: %s", explain(error))
            await self._count_dropped()

    async def _count_dropped(self) -> None:
        """Add the number of dropped and failed records to their file; retry later if that fails."""
        counted = self._writer.take_counts()
        if counted:
            volume = self._volume
            try:
                await trio.to_thread.run_sync(add_counts, volume.base_fd, counted, volume.disk)
            except (OSError, NoSpace):
                self._writer.count(counted)

    async def _sync_once(self) -> None:
        fds = self._writer.unsynced()
        try:
            for fd in fds:
                await trio.to_thread.run_sync(self._volume.disk.sync_file, fd)
        except OSError:
            self._writer.finish()
            raise
        finally:
            for fd in fds:
                os.close(fd)


def kept_attributes(attributes: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the attributes that fit into a record, ACLs first."""
    left_bytes = ATTRIBUTES_BYTES_MAX
    for name, value in sorted(attributes, key=lambda row: not row[0].startswith(b"system.")):
        if len(name) + len(value) <= left_bytes:
            left_bytes -= len(name) + len(value)
            yield name, value
