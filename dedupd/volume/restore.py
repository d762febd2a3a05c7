"""Making one file plain: by the mount process, where there is one, and else here."""

import os
from collections.abc import Callable, Iterator
from functools import partial

from dedupd.errors import Damaged, NoSpace
from dedupd.stub.transition import RecipeBytes, is_missing_any, restore, settle
from dedupd.system.control_socket import ControlClient
from dedupd.system.files import opened
from dedupd.system.paths import open_beneath, show_path
from dedupd.volume.commit import settle_noted
from dedupd.volume.volume import Volume


def restore_file(
    volume: Volume, path: bytes, safe_point: Callable[[], None] = lambda: None
) -> bool:
    """Make one file plain; False where it already was.

    ``safe_point`` is called while that takes long. An error that it raises ends the wait: the mount
    process goes on with the file; without one, the file stays the stub that it was. Raises NoSpace,
    Damaged, ServiceUnreachable, OSError.
    """
    with volume.mount_or_lock(safe_point) as held:
        if isinstance(held, ControlClient):
            return _restored_by_mount(held, path, safe_point)
        settle_noted(volume, held)
        with held.under_way([path]):
            return _restored_here(volume, path, safe_point)


def _restored_by_mount(client: ControlClient, path: bytes, safe_point: Callable[[], None]) -> bool:
    reply = client.call_patiently("restore", safe_point, path=os.fsdecode(path))
    if "error" in reply:
        kind = NoSpace if reply.get("kind") == "NoSpace" else Damaged
        raise kind(reply["error"])
    return bool(reply["restored"])


class _InterruptibleBytes(RecipeBytes):
    """A recipe's content, with a safe point before each read."""

    def __init__(self, content: RecipeBytes, safe_point: Callable[[], None]) -> None:
        self._content = content
        self._safe_point = safe_point

    def data_ranges(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        return self._content.data_ranges(start, end)

    def read(self, start: int, end: int) -> bytes:
        self._safe_point()
        return self._content.read(start, end)


def _restored_here(volume: Volume, path: bytes, safe_point: Callable[[], None]) -> bool:
    with opened(open_beneath(volume.data_fd, path, os.O_RDWR | os.O_NONBLOCK)) as fd:
        where = show_path(path)
        stub = volume.space.read(fd, where)
        if stub is None:
            return False
        load = partial(volume.content, stub, where)
        stub = settle(fd, stub, load, volume.stub_files)
        content = load() if is_missing_any(fd, stub) else RecipeBytes()
        safe_content = _InterruptibleBytes(content, safe_point)
        restore(fd, stub, safe_content, volume.stub_files)
        return True
