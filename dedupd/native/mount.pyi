"""The mount's native loop: requests of the kernel, answered below the interpreter."""

BACKGROUND_MAX: int
"""Requests for which no program waits that the kernel sends at a time."""
CONGESTED_FROM: int
"""With so many of them the kernel ceases to read ahead."""

OPEN: int
READ: int
WRITE: int
RELEASE: int
FSYNC: int
FSYNCDIR: int
FALLOCATE: int
LSEEK: int
COPY_FILE_RANGE: int
COPY_FILE_RANGE_64: int
TMPFILE: int
IOCTL: int
"""Kinds of requests, by the kernel's numbers."""

GET_FLAGS: int
SET_FLAGS: int
"""What an ioctl asks for: the flags of an inode, to read or to set them."""

class Inodes:
    """The inodes that the kernel may ask for by number, and descriptors to reach them by."""

    by_handle: bool
    """Whether inodes can be opened by their handles, so that none has to stay open."""
    device: int
    descriptors: int
    """How many inodes have a descriptor here."""

    def __new__(cls, root_fd: int, reserved: bytes, secret: bytes, descriptors_max: int) -> Inodes:
        """``root_fd`` stays the caller's. ``reserved``: an extended attribute that does not exist
        to users. ``secret``: 32 bytes. Raises OSError."""

    def __len__(self) -> int: ...
    def number(self, ino: int) -> int:
        """The number by which the kernel knows an inode."""

    def fd(self, ino: int) -> int:
        """An ``O_PATH`` descriptor, the table's. Raises OSError (ESTALE)."""

    def remember(self, ino: int, fd: int) -> int:
        """Count a lookup of the inode of ``fd`` (taken over); its generation. Raises OSError."""

    def keep_open(self, ino: int, fd: int) -> None:
        """Hold ``fd`` (taken over) until the inode is forgotten."""

    def pinned(self) -> list[int]:
        """Inodes that are held by a descriptor."""

    def knows(self, ino: int) -> bool: ...
    def forget(self, ino: int, lookups: int) -> None: ...
    def close(self) -> None:
        """Close all that is open below. Nothing may be asked any more."""

class Request:
    """A request of the kernel that the mount's operations answer.

    ``flags``: of an opening those of ``open(2)``; of a write, whether it clears set-user-id and
    set-group-id; of a sync, whether it is of the data alone; of an allocation its mode; of a search
    what is looked for; of an ioctl its command, with room for ``size`` bytes. ``offset`` and
    ``length``: of a copy those of the source, which goes to ``offset_to`` of ``node_to``. ``mode``
    and ``umask``: of a file without a name.
    """

    opcode: int
    unique: int
    node: int
    uid: int
    gid: int
    pid: int
    handle: int
    offset: int
    size: int
    flags: int
    length: int
    node_to: int
    offset_to: int
    mode: int
    umask: int
    data: bytes

class Line:
    """The line between the kernel, libfuse and the operations of a mount. Used by one thread."""

    says_what_writes_clear: bool
    """Whether the kernel says which writes clear set-user-id and set-group-id."""

    @staticmethod
    def between(device_fd: int, inodes: Inodes) -> tuple[Line, int]:
        """The line, and libfuse's end of it, the caller's. ``device_fd`` stays the caller's, which
        reads nothing from it any more. Raises OSError."""

    def next(self, count: int, linger_ns: int) -> Request | bool | None:
        """Answer up to ``count`` requests in a row, until one comes that is for others.

        A request is for the caller to be answered; True: libfuse has one at its end. None: there is
        none, also after waiting for ``linger_ns``, or ``count`` were answered. False: the mount has
        gone. Raises OSError.
        """

    def pass_answers_on(self) -> None:
        """Give the kernel the answers that libfuse has given. Raises OSError."""

    def answer(self, unique: int, data: bytes | bytearray | memoryview) -> None: ...
    def answer_open(self, unique: int, handle: int) -> None: ...
    def answer_written(self, unique: int, size: int) -> None: ...
    def answer_offset(self, unique: int, offset: int) -> None: ...
    def answer_control(self, unique: int, data: bytes) -> None: ...
    def answer_nameless(self, unique: int, fd: int, handle: int) -> None:
        """Answer with the file without a name that ``fd`` (taken over) is open on."""

    def refuse(self, unique: int, number: int) -> None:
        """Answer with an error number."""

    def close(self) -> None:
        """Let the kernel's end go; every other method but :meth:`requests` raises OSError then."""

    def forget_attributes(self, ino: int) -> None:
        """Have the kernel ask again for an inode's attributes. Raises OSError (ENOENT) where it
        does not know the inode."""

    def requests(self) -> dict[str, int]:
        """How many requests of each kind have come, by the kernel's name of the kind."""

class Loop:
    """A session that native threads serve until the mount ends."""

    def requests(self) -> dict[str, int]:
        """How many requests of each kind have come, by the kernel's name of the kind."""

    def inodes_known(self) -> int:
        """How many inodes the kernel may ask for."""

def serve_tree(
    device_fd: int, root_fd: int, reserved: bytes | None, ring: bool, descriptors_max: int
) -> Loop:
    """Serve the directory ``root_fd`` to the session of ``device_fd``, plain files only.

    Both descriptors stay the caller's. ``reserved``: an extended attribute that does not exist to
    users. ``ring``: by io_uring, where the kernel offers it. ``descriptors_max``: most inodes at a
    time that have open descriptors, those without a name apart. Returns once the session has begun.
    Raises OSError.
    """
