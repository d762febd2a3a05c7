"""The mount's native loop: answers requests of the kernel without Python."""

from collections.abc import Callable, Sequence
from typing import Self, final

from dedupd_core.native.store import StubBytes, Unreadable

READ: int
WRITE: int
FSYNC: int
FSYNCDIR: int
FALLOCATE: int
LSEEK: int
COPY_FILE_RANGE: int
COPY_FILE_RANGE_64: int
TMPFILE: int
IOCTL: int
SETXATTR: int
CREATE: int
"""Kinds of requests, by the kernel's numbers."""

GET_FLAGS: int
SET_FLAGS: int
GET_EXTENDED: int
SET_EXTENDED: int
"""Commands of ioctl(2): read or set the flags of an inode; the last two with its project."""

class Inodes:
    """The inodes that the kernel may ask for by number, and descriptors to reach them by.

    Durable effect: what users write to stubs, by the door.
    """

    by_handle: bool
    """Whether inodes can be opened by their handles, so that none must stay open."""
    device: int
    descriptors: int
    """Number of open descriptors of inodes."""

    def __new__(
        cls,
        root_fd: int,
        reserved: bytes,
        base_name: bytes,
        secret: bytes,
        descriptors_max: int,
        pins_max: int,
    ) -> Self:
        """``root_fd`` stays the caller's. ``reserved``: an extended attribute that is hidden from
        users. ``base_name``: a name that users cannot use in the root directory. ``secret``: 32
        bytes. ``pins_max``: maximum of inodes without a name. Raises OSError."""

    def __len__(self) -> int: ...
    def number(self, ino: int) -> int:
        """Return the kernel's number of an inode."""

    def fd(self, ino: int) -> int:
        """Return an ``O_PATH`` descriptor of a known inode, the table's. It is valid until the next
        await, or until a few other requests. Raises OSError (ESTALE) for unknown inodes."""

    def remember(self, ino: int, fd: int) -> int:
        """Count a lookup of the inode that ``fd`` (``O_PATH``, taken over) is open on. Returns the
        generation for the kernel, which distinguishes it from an earlier inode of the same number.
        Raises OSError."""

    def may_keep_open(self, uid: int) -> bool:
        """Return whether a user may remove the last name of another known inode."""

    def keep_open(self, ino: int, fd: int, uid: int) -> None:
        """Keep ``fd`` (taken over) until the inode is forgotten: a user removes its last name."""

    def pinned(self) -> list[int]:
        """Return inodes with a kept descriptor, including all known inodes without a name."""

    def knows(self, ino: int) -> bool:
        """Return whether the kernel may still refer to the inode."""

    def forget(self, ino: int, lookups: int) -> None:
        """Subtract lookups that the kernel has dropped."""

    def read_stubs(
        self,
        stub_bytes: StubBytes,
        seeds: tuple[int, int],
        block_bytes: int,
        door: Callable[..., int] | None,
    ) -> None:
        """From now on native code reads stubs, and writes to those that are lent. ``seeds``: those
        of the attribute's checksum and of its binding. ``block_bytes``: of a file's blocks."""

    def ask_for_pages(self, command: list[str], environment: list[tuple[str, str]]) -> None:
        """Start a process with ``command`` that reports which pages the kernel has newer."""

    def first_newer(self, ino: int, start: int, end: int) -> int | None:
        """Return the first offset in a range that may be in a page that is newer in the kernel.
        Such a page was written through a mapping. None if the file system below is up to date.
        Waits until the pages are written back: the caller must hold no lock that a write needs.
        Raises OSError."""

    def lend(self, ino: int) -> None:
        """Read and write a stub here until :meth:`take_back`, even if it has local blocks. The
        caller has examined the stub, and the stub is settled."""

    def take_back(self, ino: int) -> bool:
        """End :meth:`lend`, and watch the inode. Returns False if a write has failed, so that
        allocated blocks may exist that were never written."""

    def was_used(self, ino: int) -> bool:
        """Return whether a lent stub was used since the last call."""

    def watch(self, ino: int) -> None:
        """Hand over requests that change an inode, its content or its last name, from now on.
        Nothing of its content stays open here. Each call needs one :meth:`unwatch`."""

    def unwatch(self, ino: int) -> None: ...
    def close_idle(self) -> None:
        """Close files that are open for writing and were not written to since the last call."""

    def let_go(self) -> None:
        """Close all files that are open for writing."""

    def delay_files(self, are_delayed: bool) -> None:
        """Set whether requests that make regular files are handed over."""

    def allow_writes(self, size_bytes: int | None) -> None:
        """Hand over writes after ``size_bytes`` were written; None: no limit."""

    def keep_reserved_blocks(self, user: int, group: int, other: int) -> bool:
        """Keep users' requests from using blocks that the file system reserves for root. Exempt are
        ``user`` and ``group`` (0: none). ``other`` is a user without access to these blocks.
        Returns False if threads cannot change to this user."""

    def may_have_reserved(self, uid: int, pid: int, mapped: int | None = None) -> bool:
        """Return whether a caller may use reserved blocks: a user's thread, or, if ``mapped`` is an
        inode, the kernel, which writes changes through a mapping of it."""

    def note_names(self, are_noted: bool) -> None:
        """Set whether requests that add or remove names of files are handed over."""

    def ignore_case(self) -> None:
        """Prevent the kernel from caching names: the file system below may ignore their case."""

    def note_writes(self, times: WriteTimes) -> None:
        """Make native code record its writes to files there."""

    def close(self) -> None:
        """Close everything that is open below. Then the file system below can be unmounted before
        this process ends. Afterwards, no request is allowed."""

GRAIN_BYTES: int
"""Size of the parts of a file whose writes are distinguished."""

def answer_for_pages(
    control_fd: int, mountpoint: str, device: int, closes_write_back: bool
) -> None:
    """Answer a mount process's questions for newer pages. Ends when that process closes its end of
    ``control_fd``, which stays the caller's. ``device``: the number of the mount's file system.
    ``closes_write_back``: a close of a file in the mount writes its pages back. Raises OSError."""

@final
class WriteTimes:
    """Times of users' last writes to parts of files, since it was made. Memory is bounded: when it
    is full, half of the files are forgotten. Any thread may use it."""

    def __new__(cls) -> WriteTimes: ...
    def note(self, ino: int, start: int, end: int) -> None:
        """Record a write of bytes [start, end)."""

    def quiet(
        self, ino: int, size: int, age_s: float, *, passed_over: bool = False
    ) -> list[tuple[int, int]]:
        """Return (start, end) ranges of the first ``size`` bytes without a write for ``age_s``.
        They are in order and separate. Unknown parts count as written when they became unknown. For
        0 seconds all parts are quiet; after :meth:`pass_over`, only with ``passed_over``."""

    def files(self) -> list[int]:
        """Return the inodes that were written to."""

    def pass_over(self, ino: int, start: int, end: int) -> None:
        """Exclude the parts in [start, end) from :meth:`quiet` until they are written to."""

    def forget(self, ino: int) -> None: ...

@final
class Request:
    """A request of the kernel that the mount's operations answer.

    ``uid`` and ``pid``: the user and the thread that made it. The thread is 0 in a PID namespace
    that this process cannot see.

    ``flags``: of a write, whether it clears set-user-id and set-group-id; of a sync, whether it is
    only for the data; of an allocation its mode. For a search it is the kind, for an ioctl the
    command, with room for ``size`` bytes. ``offset`` and ``length``: of a copy those of the source,
    which goes to ``offset_to`` of ``node_to``. ``length`` of a write: the bytes that are delayed if
    space is low, 0 for changes through a mapping (``is_mapping``). ``data``: of a write; of a new
    file the entire message.

    For a set attribute: ``name`` and ``data``; ``flags`` as of ``os.setxattr``; ``size``, whether
    it is an ACL that clears the set-group-id bit.

    ``reasons``: the parts of a stub that native code could not read; empty for other requests.
    """

    opcode: int
    unique: int
    node: int
    uid: int
    pid: int
    offset: int
    size: int
    flags: int
    is_mapping: bool
    length: int
    node_to: int
    offset_to: int
    name: bytes
    data: bytes
    reasons: list[Unreadable]

@final
class Turn:
    """The turn of a mount's event loop: work with the turn happens between two awaits.

    An instrument of trio: the event-loop thread passes the turn on while it waits for work.
    """

    def __new__(cls, inodes: Inodes) -> Self:
        """The calling thread, which is the event-loop thread, has the turn."""

    def before_io_wait(self, timeout: float) -> None: ...
    def after_io_wait(self, timeout: float) -> None: ...

@final
class Line:
    """The connection between the kernel, libfuse and the operations of a mount. For one thread."""

    wake_fd: int
    """Readable while :meth:`next` may find something; the line's."""

    is_by_ring: bool
    """Whether requests come by io_uring."""

    ring_failure: int | None
    """The error number of io_uring, if requests come by ``/dev/fuse`` because of it, or None."""

    says_what_writes_clear: bool
    """Whether the kernel reports which writes clear set-user-id and set-group-id."""

    @staticmethod
    def between(
        device_fd: int,
        inodes: Inodes,
        turn: Turn,
        overflow_readers: int,
        always: bool,
        ring_at: str | None,
        absent: int,
    ) -> tuple[Line, int]:
        """Return the line, and libfuse's end of it, which is the caller's. ``device_fd`` stays the
        caller's, which must no longer read from it. Raises OSError.

        While the caller's thread is overloaded, up to ``overflow_readers`` threads answer requests
        that need no state of Python; ``always``: all the time.

        Requests come by io_uring if the kernel offers it and ``ring_at`` is the path of the mount.
        Ring threads answer all native requests themselves, and take the ``turn`` if more than the
        table of inodes is concerned.

        ``absent``: flags of the kernel's offer (``FUSE_INIT``) to ignore.
        """

    def next(self, count: int, linger_ns: int) -> Request | bool | None:
        """Answer up to ``count`` requests in a row, until a request must be handed over.

        A request is for the caller to answer. True: libfuse has one at its end. None: there is
        none, including after waiting for ``linger_ns``, or ``count`` were answered. False: the
        mount has ended. Raises OSError.
        """

    def pass_answers_on(self) -> None:
        """Pass the answers of libfuse to the kernel. Raises OSError."""

    def answer(self, unique: int, data: bytes | bytearray | memoryview) -> None: ...
    def answer_written(self, unique: int, size: int) -> None: ...
    def answer_offset(self, unique: int, offset: int) -> None: ...
    def answer_control(self, unique: int, data: bytes) -> None: ...
    def make_file(self, message: bytes) -> None:
        """Make the file that a message requests, and answer it. Raises OSError."""

    def refuse(self, unique: int, number: int) -> None:
        """Answer with an error number."""

    def close(self) -> None:
        """Close the kernel's end, after the other threads have ended. Then all methods except the
        counters raise OSError."""

    def finish_notifications(self) -> bool:
        """Stop sending notifications of refused writes to the kernel. Returns whether one is in
        progress: it ends only while requests are answered. Raises OSError (ENOTCONN) after
        :meth:`close`."""

    def forget_attributes(self, ino: int) -> None:
        """Make the kernel request an inode's attributes again. Raises OSError (ENOENT) if the
        kernel does not know the inode."""

    def begin_steps(self, inodes: Sequence[int]) -> None:
        """Start a step of a job. For users, it only changes the number of blocks of the inodes:
        inodes that the kernel knows keep their time of change for users. Steps of an inode must not
        overlap. Raises OSError (ENOTCONN) after :meth:`close`."""

    def end_steps(self, inodes: Sequence[int]) -> None:
        """End a step, even after an error. The kernel requests the attributes again. Raises
        like :meth:`begin_steps`."""

    def requests(self) -> dict[str, int]:
        """Return the number of requests by kind, with the kernel's names."""

    def busy_s(self) -> float:
        """Return the total time of the answers of native code."""

    def handed_over(self) -> dict[str, int]:
        """Return the number of these requests that native code has not answered."""
