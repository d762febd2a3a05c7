"""Which version of the store the stub of a file names, found by inode and generation.

Not by its path: a file may be renamed at any time, and must never be taken for gone.
"""

import errno
import os
import struct

from dedupd_core import native
from dedupd_core.errors import Busy, Damaged
from dedupd_core.format.cluster.objects import FileId
from dedupd_core.rados.reading.content import version_in
from dedupd_core.system.files import opened
from dedupd_core.volume.volume import Volume
from jobs.backup.received import held_version

_HANDLE = struct.Struct("<i")
_INODE_32, _INODE_64, _BTRFS = 0x01, 0x81, 0x4D
_BTRFS_FORM = struct.Struct("<QQI")


class StubVersions:
    """Looks at the files of one volume. Needs root."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._sample = native.system.name_to_handle(volume.data_fd)

    def handle(self, file: FileId) -> bytes:
        """The handle of a file, in the form that the file system has. Raises Damaged."""
        (kind,) = _HANDLE.unpack_from(self._sample)
        head = self._sample[: _HANDLE.size]
        if kind == _INODE_32 and file.inode < 1 << 32:
            return head + struct.pack("<II", file.inode, file.generation)
        if kind == _INODE_64:
            return head + struct.pack("<QI", file.inode, file.generation)
        if kind == _BTRFS:
            _, root, _ = _BTRFS_FORM.unpack_from(self._sample, _HANDLE.size)
            return head + _BTRFS_FORM.pack(file.inode, root, file.generation)
        raise Damaged(f"{self._volume.root}: files cannot be found by their inodes here")

    def file_of(self, fd: int) -> FileId:
        """The open file, which is found again by this alone. Raises Damaged where it is not."""
        file = FileId(os.fstat(fd).st_ino, native.system.generation(fd))
        if self.handle(file) != native.system.name_to_handle(fd):
            raise Damaged(f"inode {file.inode}: it cannot be found by its number and generation")
        return file

    def settle(self, file: FileId) -> str | None:
        """The version that the stub of a file names; None where the file is gone, or is no stub.

        A file that was removed and is still open is there. Raises Busy where a commit of it is
        under way, DamagedStub, OSError.
        """
        volume = self._volume
        if file.is_held:
            return held_version(volume.base_fd, file.generation)
        try:
            fd = native.system.open_by_handle(
                volume.data_fd, self.handle(file), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW
            )
        except BlockingIOError as error:
            raise Busy(f"{volume.root}: inode {file.inode} is in use; try again") from error
        except OSError as error:
            if error.errno in (errno.ESTALE, errno.ENOENT):
                return None
            raise
        with opened(fd):
            stub = volume.space.read(fd, f"{volume.root}: inode {file.inode}")
        return None if stub is None else version_in(stub.recipe, stub.digest)
