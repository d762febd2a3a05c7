"""Making one file plain: by the mount process, where there is one, and else here."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from dedupd_core.byte_ranges import missing_ranges
from dedupd_core.errors import Damaged, NoSpace, error_named
from dedupd_core.stub.content import StoreContent
from dedupd_core.stub.filling import StubFill, make_plain
from dedupd_core.stub.local_blocks import checked_stub
from dedupd_core.stub.stub_file import SparseStub
from dedupd_core.stub.transition import local_ranges, settle
from dedupd_core.system.control_socket import ControlClient
from dedupd_core.system.files import opened
from dedupd_core.system.paths import open_beneath, show_path
from dedupd_core.volume.commit import settle_noted
from dedupd_core.volume.volume import Volume


class RestoreResult(NamedTuple):
    """What became of a file that was to be plain."""

    was_stub: bool
    filled_bytes: int
    """Written into it."""


def restore_file(
    volume: Volume, path: bytes, safe_point: Callable[[], None] = lambda: None
) -> RestoreResult:
    """Make one file plain, a piece at a time; users read and write it meanwhile.

    ``safe_point`` is called between the pieces. Whatever error it raises ends that: the file is the
    stub that it was, with what users have written since. So it is where the reserve would be
    touched. Raises NoSpace, Damaged, Busy, ServiceUnreachable, OSError.
    """
    with volume.mount_or_lock(safe_point) as held:
        if isinstance(held, ControlClient):
            return _restored_by_mount(held, path, safe_point)
        settle_noted(volume, held)
        with held.under_way([path]):
            return _restored_here(volume, path, safe_point)


def require_room(volume: Volume, path: bytes, safe_point: Callable[[], None]) -> None:
    """Look whether a stub fits into the free space as a plain file, before it is begun.

    Raises NoSpace, Damaged, OSError.
    """
    room, where = volume.room(), show_path(path)
    with opened(open_beneath(volume.data_fd, path, os.O_RDONLY | os.O_NONBLOCK)) as fd:
        if os.fstat(fd).st_size <= room.left_bytes:
            return
    need_bytes = 0
    for number, (_, start, end) in enumerate(missing_data(volume, path)):
        need_bytes += end - start
        if number % _RANGES_BETWEEN_CHECKS == 0:
            safe_point()
    room.require(need_bytes, f"expanding {where}")


_RANGES_BETWEEN_CHECKS = 1024


def missing_data(volume: Volume, path: bytes) -> Iterator[tuple[StoreContent, int, int]]:
    """The ranges of a stub that its recipe says are data and that are not in the file itself.

    Raises Damaged, OSError.
    """
    where = show_path(path)
    with opened(open_beneath(volume.data_fd, path, os.O_RDONLY | os.O_NONBLOCK)) as fd:
        stub = checked_stub(fd, volume.stub_files, where)
        if stub is None:
            return
        size = os.fstat(fd).st_size
        local = local_ranges(fd, size)
    content = volume.content(stub, where)
    for gap_start, gap_end in missing_ranges(local, 0, min(stub.covered, size)):
        for start, end in content.data_ranges(gap_start, gap_end):
            yield content, start, end


def filling_of(volume: Volume, stub: SparseStub, where: str) -> StubFill:
    """What fills up an open stub of a volume, by the reserve of its policy as it is now.

    Raises PolicyError, OSError.
    """
    room = volume.room()

    def require(need_bytes: int) -> None:
        try:
            room.require(need_bytes, f"the next piece of {where}")
        except NoSpace as error:
            raise NoSpace(f"{error}; it stays a stub") from None

    load = partial(volume.content, where=where)
    return StubFill(stub, load, volume.stub_files, require)


# --- by the mount process -----------------------------------------------------------------------


def _restored_by_mount(
    client: ControlClient, path: bytes, safe_point: Callable[[], None]
) -> RestoreResult:
    """When this ends early, the connection ends, and the mount process takes back what it did."""
    begun = _asked(client, safe_point, "fill_begin", path=os.fsdecode(path))
    if begun["is_plain"]:
        return RestoreResult(was_stub=False, filled_bytes=0)
    while True:
        state = _asked(client, safe_point, "fill")
        if state["is_plain"]:
            return RestoreResult(was_stub=True, filled_bytes=state["filled_bytes"])
        safe_point()


def _asked(
    client: ControlClient, safe_point: Callable[[], None], operation: str, **arguments: Any
) -> dict[str, Any]:
    reply = client.call_patiently(operation, safe_point, **arguments)
    if "error" in reply:
        known = reply.get("kind") in ("NoSpace", "OverQuota", "Busy")
        raise error_named(reply["kind"], reply["error"]) if known else Damaged(reply["error"])
    return reply


# --- here ---------------------------------------------------------------------------------------


def _restored_here(volume: Volume, path: bytes, safe_point: Callable[[], None]) -> RestoreResult:
    with opened(open_beneath(volume.data_fd, path, os.O_RDWR | os.O_NONBLOCK)) as fd:
        where = show_path(path)
        attribute = checked_stub(fd, volume.stub_files, where)
        if attribute is None:
            return RestoreResult(was_stub=False, filled_bytes=0)
        load = partial(volume.content, where=where)
        attribute = settle(fd, attribute, partial(load, attribute), volume.stub_files)
        stub = SparseStub(fd, attribute, volume.stub_files, load)
        filling = filling_of(volume, stub, where)
        make_plain(filling, safe_point)
        return RestoreResult(was_stub=True, filled_bytes=filling.filled_bytes)
