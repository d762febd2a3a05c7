"""What the kernel and libfuse agree on when a session begins, with one thing more.

Before every write the kernel makes sure that the file has no privileges that a write takes away
(set-user-id, set-group-id, ``security.capability``), and asks the file system for the last of them:
a request for every write. It stops once it knows that a file has none, on file systems that promise
to take them away by themselves (``FUSE_HANDLE_KILLPRIV_V2``, Linux 5.12), which
:class:`~fuse_stub.operations.StubOperations` does. pyfuse3 has no way to promise that, so the
promise is put into libfuse's answer here.
"""

import os
import socket
import struct

HANDLE_KILLPRIV_V2 = 1 << 28

_INIT = 26
_MESSAGE_BYTES_MAX = 1 << 20
"""The kernel wants room for 8 KiB at least; its request and the answer have about 100 bytes."""

_OPCODE = struct.Struct("<4xI")
_OFFERED = struct.Struct("<52xI")
"""Flags of ``fuse_init_in``, behind a header of 40 bytes and three numbers."""
_ACCEPTED = struct.Struct("<4xi20xI")
"""Error of the header of 16 bytes, and the flags of ``fuse_init_out``, behind three numbers."""
_ACCEPTED_AT = 28


class Handshake:
    """Puts a channel of its own in the session's place, for as long as its first request takes."""

    def __init__(self, session_fd: int) -> None:
        """Take the first request from the kernel, which must be there, and pass it to libfuse.

        Raises OSError.
        """
        self._session_fd = session_fd
        request = os.read(session_fd, _MESSAGE_BYTES_MAX)
        self._is_offered = offers(request)
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
        os.write(self._session_fd, promising(answer) if self._is_offered else answer)


def offers(request: bytes) -> bool:
    """Whether the kernel knows the promise: ``request`` is what a session begins with."""
    (opcode,) = _OPCODE.unpack_from(request)
    if opcode != _INIT or len(request) < _OFFERED.size:
        return False
    (flags,) = _OFFERED.unpack_from(request)
    return bool(flags & HANDLE_KILLPRIV_V2)


def promising(answer: bytes) -> bytes:
    """libfuse's answer with the promise; one that is an error stays as it is."""
    if len(answer) < _ACCEPTED.size:
        return answer
    error, flags = _ACCEPTED.unpack_from(answer)
    if error:
        return answer
    changed = bytearray(answer)
    struct.pack_into("<I", changed, _ACCEPTED_AT, flags | HANDLE_KILLPRIV_V2)
    return bytes(changed)
