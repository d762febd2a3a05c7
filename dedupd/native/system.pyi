"""System calls that Python's os module lacks, and directories.

All raise OSError, release the GIL and retry EINTR.
"""

from collections.abc import Sequence

def look_up(
    dir_fd: int, names: Sequence[bytes]
) -> list[
    tuple[
        tuple[int, int, bytes],
        tuple[int, int, int, int, int],
        tuple[int, int, int],
        tuple[int, int, int],
    ]
    | None
]:
    """What names of a directory are; None where there is no such name. No link is followed.

    Inode, device, handle (as :func:`name_to_handle`, empty where there is none); mode, links, uid,
    gid, device number; size, block size, blocks; atime, mtime, ctime in ns. Raises OSError.
    """

def list_names(dir_fd: int, start: int, count: int) -> tuple[list[bytes], bytes]:
    """Names in a directory, ``.`` and ``..`` among them, and a place (i64) behind each.

    ``start`` is 0 or one of these places, from which the listing goes on, also that of somebody
    else. All names that are left, or ``count`` and as many more as are read with them. The
    directory's own position is moved. Raises OSError.
    """

def punch_hole(fd: int, offset: int, length: int) -> None:
    """Durable effect: frees the blocks of a range."""

def fallocate_keep_size(fd: int, offset: int, length: int) -> None:
    """Durable effect: gives a range blocks, beyond the file's end as well."""

def present_ranges(fd: int, start: int, end: int) -> list[tuple[int, int]]:
    """(start, end) ranges of a stub in [start, end) that are the file's own, ascending.

    They have blocks, or dirty pages. ``SEEK_DATA`` tells, and on XFS the extent map as well
    (``FS_IOC_FIEMAP``): blocks that XFS has reserved for copies of shared ones are data to the
    former where the page cache has anything of them, and holes in the file. Where the two differ,
    what is dirty is written first. The file's position is moved.
    """

def unwritten_ranges(fd: int, end: int, sync: bool) -> list[tuple[int, int]]:
    """(start, end) of extents below ``end`` that are allocated and were never written, ascending.

    The last one may go on beyond ``end``. What is dirty counts as unwritten; with ``sync`` it is
    written first, by the very call that then tells. None on a file system that has no extent map
    (``FS_IOC_FIEMAP``), which is one that does not outlive the machine (tmpfs).
    """

def syncfs(fd: int) -> None:
    """Durable effect: makes the file system of ``fd`` durable as it is."""

def renameat2(old_dir_fd: int, old: bytes, new_dir_fd: int, new: bytes, flags: int) -> None:
    """Durable effect: names."""

def name_to_handle(fd: int) -> bytes:
    """Opaque handle of an open file (``name_to_handle_at``), its type included."""

def open_by_handle(mount_fd: int, handle: bytes, flags: int) -> int: ...
def fgetxattr(fd: int, name: bytes) -> bytes | None:
    """Attribute of an open file; None where it has none (ENODATA)."""

def interrupt_reads(fd: int, thread: int) -> None:
    """From now on, interrupt a thread of this process wherever it is found waiting in ``read(fd)``.

    ``thread`` is its ``threading.get_native_id()``. The read fails with EINTR within half a second,
    also where the thread holds the GIL. Uses SIGURG. Raises OSError.
    """
