"""The mount's native loop: requests of the kernel, answered below the interpreter."""

from collections.abc import Sequence
from typing import Self, final

from dedupd_core.native.store import StubBytes, Unreadable

BACKGROUND_MAX: int
"""Requests for which no program waits that the kernel sends at a time."""
CONGESTED_FROM: int
"""With so many of them the kernel ceases to read ahead."""

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
    """The inodes that the kernel may ask for by number, and descriptors to reach them by."""

    by_handle: bool
    """Whether inodes can be opened by their handles, so that none has to stay open."""
    device: int
    descriptors: int
    """How many descriptors of inodes are held."""

    def __new__(
        cls,
        root_fd: int,
        reserved: bytes,
        base_name: bytes,
        secret: bytes,
        descriptors_max: int,
        pins_max: int,
    ) -> Self:
        """``root_fd`` stays the caller's. ``reserved``: an extended attribute that does not exist
        to users. ``base_name``: a name that users cannot give to an entry of the root directory.
        ``secret``: 32 bytes. ``pins_max``: most inodes without a name. Raises OSError."""

    def __len__(self) -> int: ...
    def number(self, ino: int) -> int:
        """The number by which the kernel knows an inode."""

    def fd(self, ino: int) -> int:
        """An ``O_PATH`` descriptor of a known inode, the table's, valid until the next await, or
        until a few others were asked for. Raises OSError (ESTALE) where it is not known or gone."""

    def remember(self, ino: int, fd: int) -> int:
        """Count a lookup of the inode that ``fd`` (``O_PATH``, taken over) is open on. Returns the
        generation to tell the kernel, which tells it from an earlier inode of the same number.
        Raises OSError."""

    def may_keep_open(self, uid: int) -> bool:
        """Whether a user may remove one more last name of a known inode."""

    def keep_open(self, ino: int, fd: int, uid: int) -> None:
        """Hold ``fd`` (taken over) until the inode is forgotten: a user removes its last name."""

    def pinned(self) -> list[int]:
        """Inodes that are held by a descriptor: among them all known ones without a name."""

    def knows(self, ino: int) -> bool:
        """Whether the kernel may still refer to the inode."""

    def forget(self, ino: int, lookups: int) -> None:
        """The kernel takes so many lookups back."""

    def read_stubs(self, stub_bytes: StubBytes, seeds: tuple[int, int], block_bytes: int) -> None:
        """From now on stubs are read here. ``seeds``: those of the attribute's checksum and of its
        binding. ``block_bytes``: of a file's blocks."""

    def ask_for_pages(self, command: list[str], environment: list[tuple[str, str]]) -> None:
        """From now on a process that ``command`` starts tells which pages the kernel has newer."""

    def first_newer(self, ino: int, start: int, end: int) -> int | None:
        """The first offset in a range that may lie in a page that the kernel has newer, written
        through a mapping; None where what the file system below has is as new. Waits until such
        pages are written back: the caller holds no lock that a write needs. Raises OSError."""

    def lend(self, ino: int, takes_writes: bool) -> None:
        """Have a stub, whatever blocks it has of its own, be read here until it is taken back:
        it was looked at, and is settled. ``takes_writes``: native code writes to it as well."""

    def take_back(self, ino: int) -> bool:
        """End :meth:`lend`, and watch the inode. False where a write has failed so that blocks may
        be there that are allocated and were never written."""

    def was_used(self, ino: int) -> bool:
        """Whether a stub that is lent was used since the last call."""

    def watch(self, ino: int) -> None:
        """From now on requests that change an inode, its content or its last name are handed over,
        and nothing of its content is open here. As often as :meth:`unwatch` is to come."""

    def unwatch(self, ino: int) -> None: ...
    def close_idle(self) -> None:
        """Close files that are open for writing and were not written to since the last call."""

    def let_go(self) -> None:
        """Close all files that are open for writing."""

    def delay_files(self, are_delayed: bool) -> None:
        """Whether requests are handed over that make regular files."""

    def allow_writes(self, size_bytes: int | None) -> None:
        """From now on writes are handed over after those of so many bytes; None: no bound."""

    def keep_reserved_blocks(self, user: int, group: int, other: int) -> bool:
        """From now on what users ask for takes no block that the file system reserves for root, for
        ``user`` and for ``group`` (0: none); ``other`` is a user who may not have them. False where
        threads cannot become that."""

    def may_have_reserved(self, uid: int, pid: int, mapped: int | None = None) -> bool:
        """Whether a caller may have these blocks: a user's thread. Where ``mapped`` is an inode, it
        is the kernel, which writes what a mapping of it has changed."""

    def note_names(self, are_noted: bool) -> None:
        """Whether requests are handed over that add or remove names of files."""

    def ignore_case(self) -> None:
        """Keep the kernel from caching names: the file system below may ignore their case."""

    def note_writes(self, times: WriteTimes) -> None:
        """Have native code note there what it writes to files."""

    def close(self) -> None:
        """Close all that is open below, so that the file system below can be unmounted before this
        process has ended. Nothing may be asked any more."""

GRAIN_BYTES: int
"""The parts of files whose writes are told apart."""

def answer_for_pages(
    control_fd: int, mountpoint: str, device: int, closes_write_back: bool
) -> None:
    """Answer the questions of a mount process for newer pages, until it closes its end of
    ``control_fd``, which stays the caller's. ``device``: the number of the mount's file system.
    ``closes_write_back``: a close of a file in the mount writes its pages back. Raises OSError."""

@final
class WriteTimes:
    """When users wrote to which parts of files last, since it was made. Memory is bounded: half of
    the files are forgotten where it is full. Any thread may use it."""

    def __new__(cls) -> WriteTimes: ...
    def note(self, ino: int, start: int, end: int) -> None:
        """A write of bytes [start, end)."""

    def quiet(
        self, ino: int, size: int, age_s: float, *, passed_over: bool = False
    ) -> list[tuple[int, int]]:
        """(start, end) ranges of the first ``size`` bytes, ascending and apart, that have not been
        written to for so long, and were not passed over. What is not known counts as written when
        it became so. For 0 seconds all is quiet, with ``passed_over`` also what was."""

    def files(self) -> list[int]:
        """The inodes that were written to."""

    def pass_over(self, ino: int, start: int, end: int) -> None:
        """Do not call the parts in [start, end) quiet again before they are written to."""

    def forget(self, ino: int) -> None: ...

@final
class Request:
    """A request of the kernel that the mount's operations answer.

    ``uid`` and ``pid``: the user and the thread that made it. The thread is 0 in a PID namespace
    that this process cannot see.

    ``flags``: of a write, whether it clears set-user-id and set-group-id; of a sync, whether it is
    of the data alone; of an allocation its mode; of a search what is looked for; of an ioctl its
    command, with room for ``size`` bytes. ``offset`` and ``length``: of a copy those of the source,
    which goes to ``offset_to`` of ``node_to``; of a write how much of it waits where room is short:
    nothing of what a mapping has changed (``is_mapping``). ``data``: of a write; of a new file the
    whole message.

    Of an attribute that is set: ``name`` and ``data``; ``flags`` as of ``os.setxattr``; ``size``,
    whether it is an ACL that takes the set-group-id bit.

    ``reasons``: of a read, what native code could not read of the stub, if that is why it is here.
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
    """The turn of a mount's event loop: what happens with it happens between two awaits.

    An instrument of trio, by which the loop's thread gives it while it waits for something to do.
    """

    def __new__(cls, inodes: Inodes) -> Self:
        """The caller's thread, that of the loop, has it."""

    def before_io_wait(self, timeout: float) -> None: ...
    def after_io_wait(self, timeout: float) -> None: ...

@final
class Line:
    """The line between the kernel, libfuse and the operations of a mount. Used by one thread."""

    wake_fd: int
    """Readable while :meth:`next` may find something; the line's."""

    is_by_ring: bool
    """Whether requests come by io_uring."""

    ring_failure: int | None
    """The error number because of which they come by ``/dev/fuse`` although the kernel offers
    io_uring; None where nothing has failed."""

    says_what_writes_clear: bool
    """Whether the kernel says which writes clear set-user-id and set-group-id."""

    @staticmethod
    def between(
        device_fd: int,
        inodes: Inodes,
        turn: Turn,
        stand_ins: int,
        always: bool,
        ring_at: str | None,
        absent: int,
    ) -> tuple[Line, int]:
        """The line, and libfuse's end of it, the caller's. ``device_fd`` stays the caller's, which
        reads nothing from it any more. Raises OSError.

        Up to ``stand_ins`` threads answer what needs no state of Python's beside the caller's
        thread, while that does not keep up; ``always``: all the time.

        Requests come by io_uring where the kernel offers it and ``ring_at`` says where the mount
        shows. Their threads answer by themselves whatever native code answers, with the ``turn``
        where more than the table of inodes is concerned.

        ``absent``: flags of the kernel's offer (``FUSE_INIT``) that count as not offered.
        """

    def next(self, count: int, linger_ns: int) -> Request | bool | None:
        """Answer up to ``count`` requests in a row, until one comes that is for others.

        A request is for the caller to be answered; True: libfuse has one at its end. None: there is
        none, also after waiting for ``linger_ns``, or ``count`` were answered. False: the mount has
        gone. Raises OSError.
        """

    def pass_answers_on(self) -> None:
        """Give the kernel the answers that libfuse has given. Raises OSError."""

    def answer(self, unique: int, data: bytes | bytearray | memoryview) -> None: ...
    def answer_written(self, unique: int, size: int) -> None: ...
    def answer_offset(self, unique: int, offset: int) -> None: ...
    def answer_control(self, unique: int, data: bytes) -> None: ...
    def make_file(self, message: bytes) -> None:
        """Make the file that a message asks for, and answer it. Raises OSError."""

    def refuse(self, unique: int, number: int) -> None:
        """Answer with an error number."""

    def close(self) -> None:
        """Let the kernel's end go, once the threads beside the caller's have ended; methods that do
        not count requests raise OSError then."""

    def finish_notifications(self) -> bool:
        """Send the kernel no further notifications of refused writes. Returns whether one is in
        progress: it ends only while requests are answered. Raises OSError (ENOTCONN) after
        :meth:`close`."""

    def forget_attributes(self, ino: int) -> None:
        """Have the kernel ask again for an inode's attributes. Raises OSError (ENOENT) where it
        does not know the inode."""

    def begin_steps(self, inodes: Sequence[int]) -> None:
        """A job begins a step that changes inodes and nothing that users see of them but the number
        of blocks: those that the kernel knows keep their time of change for users. No two steps of
        an inode overlap. Raises OSError (ENOTCONN) after :meth:`close`."""

    def end_steps(self, inodes: Sequence[int]) -> None:
        """Such a step has ended, also by an error. The kernel asks for the attributes again. Raises
        as :meth:`begin_steps`."""

    def requests(self) -> dict[str, int]:
        """How many requests of each kind have come, by the kernel's name of the kind."""

    def busy_s(self) -> float:
        """How long the answers of native code took, added up."""

    def handed_over(self) -> dict[str, int]:
        """Of these, those that native code has not answered."""
