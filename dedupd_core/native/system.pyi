"""System calls that Python's os module lacks.

All raise OSError, release the GIL and retry EINTR.
"""

from typing import Final, Self, final

from typing_extensions import Buffer

def punch_hole(fd: int, offset: int, length: int) -> None:
    """Durable effect: frees the blocks of a range."""

def fallocate_keep_size(fd: int, offset: int, length: int) -> None:
    """Durable effect: gives a range blocks, beyond the file's end as well."""

def present_ranges(fd: int, start: int, end: int) -> list[tuple[int, int]]:
    """(start, end) ranges in [start, end) whose data is in the stub itself, ascending.

    These have blocks or dirty pages, according to ``SEEK_DATA``; on XFS according to the extent map
    (``FS_IOC_FIEMAP``) as well, because ``SEEK_DATA`` reports blocks that XFS reserved for copies
    of shared ones as data where the page cache has pages of them. Where the two differ, dirty pages
    are written first. The file's position is moved.
    """

def unwritten_ranges(fd: int, end: int, sync: bool) -> list[tuple[int, int]]:
    """(start, end) of extents below ``end`` that are allocated and were never written, ascending.

    The last one may go on beyond ``end``. Dirty pages count as unwritten; with ``sync`` they are
    written first, by the call that reads the map. Empty on a file system without an extent map
    (``FS_IOC_FIEMAP``), such as tmpfs, whose files do not survive a crash.
    """

def local_bytes(fd: int, end: int, sync: bool) -> tuple[int, int]:
    """How many bytes below ``end`` lie in blocks that were written and have their place on the
    disk, and how many in others.

    The others are allocated ones, and those of dirty pages that have no place yet; with ``sync``
    these are written first. (0, 0) on a file system without an extent map.
    """

def has_large_units(fd: int) -> bool:
    """Return whether the file system frees the blocks of this file only in units of several blocks.

    XFS does so on a realtime device with large extents. If a unit is punched in part, XFS
    overwrites that part with zeros, and the extent map shows these blocks as data. Raises OSError.
    """

@final
class FileSystemKind:
    """What is true of a file system (native/src/system/file_systems.rs has each)."""

    name: Final[str]
    """As the mount table has it; empty of one without a row."""
    title: Final[str]
    """As people write it."""
    magic: Final[int]
    """As ``statfs`` has it."""
    is_supported: Final[bool]
    punching_frees: Final[bool]
    opens_any_generation: Final[bool]
    """An inode is opened by its number alone: any generation in the handle will do."""
    has_random_generations: Final[bool]

def file_systems() -> list[FileSystemKind]:
    """All rows of the table."""

def file_system_kind(fd: int) -> FileSystemKind:
    """The row of the file system of ``fd``. Raises OSError."""

def shared_bytes(fd: int, end: int) -> int:
    """How many bytes below ``end`` lie in blocks that other files or snapshots have as well.

    They come back to nobody where this file gives them up. 0 on a file system that shares no
    blocks (ext4), or cannot tell. Raises OSError.
    """

def syncfs(fd: int) -> None:
    """Durable effect: makes the file system of ``fd`` durable as it is."""

def renameat2(old_dir_fd: int, old: bytes, new_dir_fd: int, new: bytes, flags: int) -> None:
    """Durable effect: names."""

def name_to_handle(fd: int) -> bytes:
    """Opaque handle of an open file (``name_to_handle_at``), its type included."""

def handle_of(sample: bytes, inode: int, generation: int) -> bytes | None:
    """The handle of an inode, in the form of a ``sample``: that of any other inode of the same file
    system, or subvolume. None where the form is not known, or has no room for the number."""

def generation(fd: int) -> int:
    """Generation of the inode that ``fd`` (``O_PATH``, too) is open on: it tells the inode from an
    earlier one of the same number. 0 where the file system has none."""

def become_file_user(uid: int) -> None:
    """Has this thread use file systems as a user, with the rights of the process, until it is
    another one."""

def give_up_capability(name: str) -> None:
    """Drops a capability, such as ``CAP_FSETID``, in this thread and in those that it starts."""

def bound_capabilities(kept: list[str]) -> bool:
    """Drops all capabilities except ``kept`` in this thread, in the threads that it starts, and in
    all programs that these run. Returns whether the bounding set is limited, which takes
    ``CAP_SETPCAP``. Other threads of the process keep what they have."""

def deny_calls() -> None:
    """Denies all threads of this process, and the programs that they run, the system calls that a
    mount process does not make. These fail with EPERM, and calls of later kernels with ENOSYS.
    Programs that are run get no new rights.

    Raises OSError on a kernel or a processor for which there is no such filter."""

def open_by_handle(mount_fd: int, handle: bytes, flags: int) -> int: ...
def fgetxattr(fd: int, name: bytes) -> bytes | None:
    """Attribute of an open file; None where it has none (ENODATA)."""

def lmdb_is_sound(data: Buffer) -> bool:
    """Whether LMDB can go through a file with these bytes, and write to it: every page of both
    trees is what it should be, and is in one place, and none of them is free as well."""

@final
class OpenGuard:
    """Refuses opens of stubs on a file system, by permission events of fanotify, until it is
    deleted or the process ends.

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
