"""Rights of a calling program that the kernel does not pass with a request."""

from functools import cache
from typing import Protocol

_CAP_FSETID = 1 << 4
_EFFECTIVE = b"\nCapEff:\t"

_ID_MAPS = ("uid_map", "gid_map", "projid_map")
"""Files that identify a user namespace. The link ``ns/user`` of root's processes is hidden from
this process, which has fewer capabilities."""


class Caller(Protocol):
    """The caller of a request: of libfuse's requests and of native ones.

    ``pid`` is the id of the calling thread; 0 in a PID namespace that is not visible here.
    """

    @property
    def uid(self) -> int: ...
    @property
    def pid(self) -> int: ...


def keeps_set_ids(caller: Caller) -> bool:
    """Return whether a change by the caller keeps set-user-id and set-group-id (``CAP_FSETID``).

    True for root with that right in the user namespace of this process. Root in a container may
    lack the right, or have it only in another namespace. Other users count as without it, even if
    they have it. So do users whose processes ``/proc`` hides (``hidepid=``).
    """
    if caller.uid != 0:
        return False
    try:
        if _id_maps(str(caller.pid)) != _own_id_maps():
            return False
        with open(f"/proc/{caller.pid}/status", "rb") as file:
            status = file.read()
        start = status.index(_EFFECTIVE) + len(_EFFECTIVE)
        return bool(int(status[start : start + 16], 16) & _CAP_FSETID)
    except (OSError, ValueError):
        return False  # the caller was killed, or is in a namespace that is not visible here


@cache
def _own_id_maps() -> list[bytes]:
    return _id_maps("self")


def _id_maps(process: str) -> list[bytes]:
    maps = []
    for name in _ID_MAPS:
        with open(f"/proc/{process}/{name}", "rb") as file:
            maps.append(file.read())
    return maps
