"""The mount's native loop: requests of the kernel, answered below the interpreter."""

BACKGROUND_MAX: int
"""Requests for which no program waits that the kernel sends at a time."""
CONGESTED_FROM: int
"""With so many of them the kernel ceases to read ahead."""

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

def relay(device_fd: int, ring: bool) -> tuple[Loop, int]:
    """Take the requests of the session of ``device_fd``, and hand them all to libfuse.

    Returns libfuse's end of the socket that they go by, the caller's to close. It hangs up once the
    mount has gone. Raises OSError.
    """

def forget_attributes(inode: int) -> None:
    """Have the kernel ask again for an inode's attributes, in the session of :func:`relay`.

    Does nothing where there is no session. Raises OSError (ENOENT: the kernel does not know it).
    """
