"""The handshake of kernel and libfuse when a session begins, with other promises and a limit.

Before every write the kernel makes sure that the file has no privileges that a write takes away
(set-user-id, set-group-id, ``security.capability``), and asks the file system for the last of them:
a request for every write. It stops once it knows that a file has none, on file systems that promise
to take them away by themselves (``FUSE_HANDLE_KILLPRIV_V2``, Linux 5.12), as
:class:`~fuse_stub.operations.StubOperations` does.

The kernel also applies the umask to the mode of new files, though the umask has no say where the
directory has a default ACL. It leaves that to file systems that ask for it (``FUSE_DONT_MASK``),
which get the umask with the request.

libfuse promises by itself that times tell when a file's content has changed
(``FUSE_AUTO_INVAL_DATA``). Then the kernel asks for the attributes after each write, finds a new
time, and drops all pages of the file, also those just written. Here every change comes through the
kernel, so its pages are right, and the mount says that it would tell of any other change
(``FUSE_EXPLICIT_INVAL_DATA``, Linux 5.1). For the same reason the kernel may keep the targets of
symbolic links (``FUSE_CACHE_SYMLINKS``, Linux 4.20).

The kernel sends only so many requests at a time for which no program waits, or of which a program
has several (reading ahead, reads and writes with ``O_DIRECT``): 12, if it is not told otherwise.
All users share them: a dozen readers of one slow file would keep all others from reading.

pyfuse3 supports none of this, so it is put into libfuse's answer here.
"""

import os
import socket
import struct

DONT_MASK = 1 << 6
AUTO_INVAL_DATA = 1 << 12
CACHE_SYMLINKS = 1 << 23
EXPLICIT_INVAL_DATA = 1 << 25
HANDLE_KILLPRIV_V2 = 1 << 28

PROMISES = DONT_MASK | CACHE_SYMLINKS | EXPLICIT_INVAL_DATA | HANDLE_KILLPRIV_V2
"""What pyfuse3 does not promise, and the mount does."""

_INIT = 26
_MESSAGE_BYTES_MAX = 1 << 20
"""The kernel requires room for 8 KiB; its request and the answer have about 100 bytes."""

BACKGROUND_MAX = 128
"""Requests of that kind. Fewer than the tasks that serve requests, so that some are left for those
that a program waits for."""
CONGESTED_FROM = 96
"""With so many the kernel ceases to read ahead; three quarters, as by its default."""

_OPCODE = struct.Struct("<4xI")
_OFFERED = struct.Struct("<52xI")
"""Flags of ``fuse_init_in``, after a header of 40 bytes and three numbers."""
_ACCEPTED = struct.Struct("<4xi20xI")
"""Error of the header of 16 bytes, and the flags of ``fuse_init_out``, after three numbers."""
_ACCEPTED_AT = 28
_BACKGROUND = struct.Struct("<HH")
_BACKGROUND_AT = 32
"""``max_background`` and ``congestion_threshold``, after the flags."""


class Handshake:
    """Replaces the session's descriptor by a channel of its own until libfuse has answered."""

    def __init__(self, session_fd: int) -> None:
        """Take the first request from the kernel, which must be there, and pass it to libfuse.

        Raises OSError.
        """
        self._session_fd = session_fd
        request = os.read(session_fd, _MESSAGE_BYTES_MAX)
        self._promises = offered(request)
        self._kernel_fd = os.dup(session_fd)
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            os.dup2(theirs.fileno(), session_fd, inheritable=False)
        self._ours.send(request)

    def finish(self) -> None:
        """Pass libfuse's answer on, and leave the session to it. Raises OSError."""
        with self._ours:
            answer = self._ours.recv(_MESSAGE_BYTES_MAX)
        os.dup2(self._kernel_fd, self._session_fd, inheritable=False)
        os.close(self._kernel_fd)
        os.write(self._session_fd, promising(answer, self._promises))


def offered(request: bytes) -> int:
    """Which of :data:`PROMISES` the kernel knows, by the first ``request`` of a session."""
    (opcode,) = _OPCODE.unpack_from(request)
    if opcode != _INIT or len(request) < _OFFERED.size:
        return 0
    (flags,) = _OFFERED.unpack_from(request)
    return int(flags) & PROMISES


def promising(answer: bytes, promises: int) -> bytes:
    """libfuse's answer with ``promises``, and with room for as many requests as are served at a
    time; one that is an error stays as it is."""
    if len(answer) < _BACKGROUND_AT + _BACKGROUND.size:
        return answer
    error, flags = _ACCEPTED.unpack_from(answer)
    if error:
        return answer
    changed = bytearray(answer)
    kept = flags & ~AUTO_INVAL_DATA if promises & EXPLICIT_INVAL_DATA else flags
    struct.pack_into("<I", changed, _ACCEPTED_AT, kept | promises)
    _BACKGROUND.pack_into(changed, _BACKGROUND_AT, BACKGROUND_MAX, CONGESTED_FROM)
    return bytes(changed)
