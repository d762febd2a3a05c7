"""Finding an inode by its number alone.

NFS clients use a handle of an inode's number and generation, also long after the kernel has
forgotten the inode, or with a new mount process. The kernel then asks for "." in that inode and
compares the generation of the answer. The file system below opens inodes by a handle of its own,
which can be made from the number: ext4 and btrfs take generation 0 for any, XFS reports it.

So a client could make handles by itself, of inodes outside of the tree, too, if it knew their
generations, which btrfs counts up. Hence the kernel is told others: a code of number and generation
that only a process with the volume's secret can make.
"""

import errno
import fcntl
import logging
import os
import struct

from dedupd_core import native
from dedupd_core.errors import NoSpace
from dedupd_core.system.files import read_if_there
from dedupd_core.system.paths import explain
from dedupd_core.system.tree.tree_paths import lies_elsewhere
from dedupd_core.volume.volume import Volume

log = logging.getLogger("dedupd.mount")

_XFS_IOC_BULKSTAT = 0x8040_587F
_BULK_HEAD = struct.Struct("<QIIII40x")
_BULK_BYTES = 192
_BULK_GENERATION = struct.Struct("<I")
_BULK_GENERATION_AT = 64


SECRET_FILE = b"handles.key"
SECRET_BYTES = 32


def load_secret(volume: Volume) -> bytes:
    """The secret of a volume, which is made where there is none.

    Where it cannot be kept (a file system that is full, or takes no changes), it is one for this
    mount: clients have to open their files again after the next one.
    """
    secret = read_if_there(volume.base_fd, SECRET_FILE)
    if secret is not None and len(secret) == SECRET_BYTES:
        return secret
    secret = os.urandom(SECRET_BYTES)
    try:
        volume.disk.replace_file(volume.base_fd, SECRET_FILE, secret)
    except (OSError, NoSpace) as error:
        log.warning(
            "%s: file handles are valid only until the volume is unmounted: %s",
            volume.root,
            explain(error),
        )
    return secret


def require_below(root_fd: int, fd: int) -> None:
    """Refuse an inode (``fd``) whose path is not below that of ``root_fd``. Raises OSError.

    The kernel knows the path of each directory, and of each other file that it was asked for by
    name lately. A file without a known path passes: then the generation alone tells.
    """
    if lies_elsewhere(root_fd, fd):
        raise _stale()


def open_number(root_fd: int, ino: int, flags: int) -> int:
    """Open the inode ``ino`` of the tree below ``root_fd``. Raises OSError (ESTALE)."""
    opens_any = native.system.file_system_kind(root_fd).opens_any_generation
    generation = 0 if opens_any else _xfs_generation(root_fd, ino)
    handle = native.system.handle_of(native.system.name_to_handle(root_fd), ino, generation)
    if handle is None:
        raise _stale()
    fd = native.system.open_by_handle(root_fd, handle, flags)
    try:
        status = os.fstat(fd)
        if status.st_ino != ino or status.st_nlink == 0:
            raise _stale()
        require_below(root_fd, fd)
    except OSError:
        os.close(fd)
        raise
    return fd


def _xfs_generation(fd: int, ino: int) -> int:
    buffer = bytearray(_BULK_HEAD.size + _BULK_BYTES)
    _BULK_HEAD.pack_into(buffer, 0, ino, 0, 1, 0, 0)
    fcntl.ioctl(fd, _XFS_IOC_BULKSTAT, buffer)
    (found,) = struct.unpack_from("<Q", buffer, _BULK_HEAD.size)
    if _BULK_HEAD.unpack_from(buffer)[3] != 1 or found != ino:
        raise _stale()
    (generation,) = _BULK_GENERATION.unpack_from(buffer, _BULK_HEAD.size + _BULK_GENERATION_AT)
    return int(generation)


def _stale() -> OSError:
    return OSError(errno.ESTALE, os.strerror(errno.ESTALE))
