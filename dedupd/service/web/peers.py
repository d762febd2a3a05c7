"""The user at the other end of a connection, and the rights of that user."""

import socket
import struct
from dataclasses import dataclass
from enum import IntEnum

from dedupd.service.config import Readers
from dedupd_core.system.control_socket import peer_ids

_SO_PEERGROUPS = 59
"""The value from <asm-generic/socket.h>; Python has no name for it."""

_GROUPS_BYTES = 1024
"""The largest socket option in Python: 256 groups."""


class AccessLevel(IntEnum):
    """The rights of a user; a higher one includes the lower."""

    NOTHING = 0
    READ = 1
    ACT = 2


@dataclass(frozen=True, slots=True)
class Peer:
    """The process that connected, as verified by the kernel at that time."""

    pid: int
    uid: int
    groups: frozenset[int]


def peer_of(connection: socket.socket) -> Peer:
    """Return the process at the other end of a Unix socket."""
    pid, uid, gid = peer_ids(connection)
    try:
        others = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
        groups: tuple[int, ...] = struct.unpack(f"{len(others) // 4}I", others)
    except OSError:
        groups = ()  # there are too many groups; use only the primary group
    return Peer(pid, uid & 0xFFFF_FFFF, frozenset((*groups, gid & 0xFFFF_FFFF)))


def right_of(peer: Peer, own_uid: int, group: int | None, readers: Readers) -> AccessLevel:
    """Return the right of a peer: root, the service's user and the group act; readers read."""
    if peer.uid in (0, own_uid) or (group is not None and group in peer.groups):
        return AccessLevel.ACT
    return AccessLevel.READ if readers is Readers.EVERYONE else AccessLevel.NOTHING
