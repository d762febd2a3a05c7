"""System calls that Python's os module lacks.

All raise OSError, release the GIL and retry EINTR.
"""

from typing import Final, Self, final

from typing_extensions import Buffer

def punch_hole(fd: int, offset: int, length: int) -> None:
    """Durable effect: frees the blocks of a range."""

def fallocate_keep_size(fd: int, offset: int, length: int) -> None:
    """Durable effect: allocates blocks for a range, even beyond the file's end."""

def present_ranges(fd: int, start: int, end: int) -> list[tuple[int, int]]:
    """Return (start, end) ranges in [start, end) whose data is in the stub itself, ascending.

    These have blocks or dirty pages, according to ``SEEK_DATA``. On XFS the extent map
    (``FS_IOC_FIEMAP``) must agree: XFS reserves blocks for copies of shared ones, and ``SEEK_DATA``
    reports them as data if they have pages in the page cache. If the two differ, dirty pages are
    written first. The file's position is moved.
    """

def unwritten_ranges(fd: int, end: int, sync: bool) -> list[tuple[int, int]]:
    """Return (start, end) of allocated but never written extents below ``end``, ascending.

    The last one may extend beyond ``end``. Dirty pages count as unwritten; with ``sync`` they are
    written first, by the call that reads the map. Empty on a file system without an extent map
    (``FS_IOC_FIEMAP``), for example tmpfs, whose files do not survive a crash.
    """

def written_ranges(fd: int, end: int) -> list[tuple[int, int]]:
    """(start, end) ranges below ``end`` that were written, and not just allocated, ascending. For
    readers; a caller that may change the file punches the others."""

def local_bytes(fd: int, end: int, sync: bool) -> tuple[int, int]:
    """Return the bytes below ``end`` in blocks that are written and placed on disk, and in others.

    The others are allocated ones, and those of dirty pages that have no place yet; with ``sync``
    these are written first. (0, 0) on a file system without an extent map.
    """

def read_uncached(fd: int, view: Buffer, offset: int) -> int:
    """Fill a buffer from a file, and leave no new pages in the page cache. Returns the bytes read:
    fewer only at the end of the file. Raises OSError."""

def has_large_units(fd: int) -> bool:
    """Return whether the file system frees the blocks of this file only in units of several blocks.

    XFS does so on a realtime device with large extents. If a unit is punched in part, XFS
    overwrites that part with zeros, and the extent map shows these blocks as data. Raises OSError.
    """

@final
class FileSystemKind:
    """Properties of a file system (native/src/system/file_systems.rs has all)."""

    name: Final[str]
    """Name in the mount table; empty if there is no row."""
    title: Final[str]
    """Name for people."""
    magic: Final[int]
    """Magic number in ``statfs``."""
    is_supported: Final[bool]
    punching_frees: Final[bool]
    opens_any_generation: Final[bool]
    """An inode is opened by its number alone, with any generation in the handle."""
    has_random_generations: Final[bool]

def file_systems() -> list[FileSystemKind]:
    """Return all rows of the table."""

def file_system_kind(fd: int) -> FileSystemKind:
    """Return the row of the file system of ``fd``. Raises OSError."""

def shared_bytes(fd: int, end: int) -> int:
    """Return the bytes below ``end`` in blocks that other files or snapshots also have.

    Freeing them in this file frees no space. 0 on a file system that shares no blocks (ext4), or
    does not report them. Raises OSError.
    """

def syncfs(fd: int) -> None:
    """Durable effect: makes all changes to the file system of ``fd`` durable."""

def renameat2(old_dir_fd: int, old: bytes, new_dir_fd: int, new: bytes, flags: int) -> None:
    """Durable effect: names."""

def name_to_handle(fd: int) -> bytes:
    """Return the opaque handle of an open file (``name_to_handle_at``), with its type."""

def handle_of(sample: bytes, inode: int, generation: int) -> bytes | None:
    """Return an inode's handle in the form of ``sample``. Both are of the same file system and
    subvolume. None if the form is unknown, or has no room for the number."""

def generation(fd: int) -> int:
    """Return the generation of the inode of ``fd``, which may be ``O_PATH``. It distinguishes the
    inode from an earlier one of the same number. 0 if the file system has none."""

def become_file_user(uid: int) -> None:
    """Make this thread use file systems as a user, with the rights of the process. Another call
    changes the user."""

def give_up_capability(name: str) -> None:
    """Drops a capability, such as ``CAP_FSETID``, in this thread and in those that it starts."""

def bound_capabilities(kept: list[str]) -> bool:
    """Drops all capabilities except ``kept`` in this thread, and in its later threads and programs.
    Returns whether the bounding set is limited, which needs ``CAP_SETPCAP``. Other threads of the
    process keep their capabilities."""

def deny_calls() -> None:
    """Denies this process and its programs the system calls that a mount process does not make.
    These fail with EPERM, calls of later kernels with ENOSYS. Programs that are run get no new
    rights.

    Raises OSError on a kernel or a processor for which there is no such filter.
    """

def open_by_handle(mount_fd: int, handle: bytes, flags: int) -> int: ...
def fgetxattr(fd: int, name: bytes) -> bytes | None:
    """Return an attribute of an open file; None if it has none (ENODATA)."""

def lmdb_is_sound(data: Buffer) -> bool:
    """Return whether LMDB can read a file with these bytes completely, and write to it: every page
    of both trees is valid, is in one place, and is not free."""

@final
class OpenGuard:
    """Refuses opens of stubs on a file system, by permission events of fanotify. The guard is
    active until it is deleted or the process ends.

    Opens through the mounts that ``exempt_fds`` lie in cause no event. A process that holds the
    ``flock`` of ``register`` may open stubs. Threads answer without the GIL. An event that takes
    too long ends the process, and the kernel then allows all opens.
    """

    def __new__(cls, directory_fd: int, exempt_fds: list[int], register: bytes) -> Self:
        """``register`` is ``major:minor:inode`` as ``/proc/locks`` shows it. Raises OSError."""

    def take(self, seconds: float) -> tuple[list[tuple[int, int, bytes, bytes]], int]:
        """Wait for refused opens. Returns pid, effective user, program and path of each, and the
        number of all refused opens so far. A burst is counted, and not listed completely."""

    @property
    def is_open(self) -> bool:
        """Whether the guard answers."""
