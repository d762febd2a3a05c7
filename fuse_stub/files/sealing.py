"""Sealing: the attributes of stubs that were written to come to count their own blocks."""

import logging
import os
import time
from functools import partial

import trio

from dedupd_core.errors import DedupdError
from dedupd_core.stub.local_blocks import checked_stub
from dedupd_core.stub.stub_file import SparseStub
from dedupd_core.system.files import opened
from dedupd_core.system.paths import open_beneath
from dedupd_core.volume.volume import Volume
from fuse_stub.files.attributes import unseen_step
from fuse_stub.files.file_handles import open_number
from fuse_stub.files.open_files import OpenFiles
from fuse_stub.files.unsealed_stubs import is_still
from fuse_stub.mounts.tasks import failures

log = logging.getLogger("dedupd.mount")

TURN_S = 5.0
"""Between two looks for stubs whose time has come."""

STUBS_PER_TURN = 64

_FLAGS = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC


async def seal_closed(volume: Volume, files: OpenFiles) -> None:
    """Seal stubs as long as the mount lasts, some at a time."""
    while True:
        await trio.sleep(TURN_S)
        for ino, stub in files.unsealed.take_due(time.monotonic(), STUBS_PER_TURN):
            try:
                if await _sealed(volume, files, ino, stub.path):
                    files.unsealed.forget(ino)
            except (DedupdError, OSError) as error:
                log.debug("inode %d is not sealed: %s", ino, error)
            except Exception as error:
                failures.note("sealing a stub", error)
            await trio.lowlevel.checkpoint()


async def _sealed(volume: Volume, files: OpenFiles, ino: int, path: bytes | None) -> bool:
    """Seal a stub, unless it is in use: then its next close brings it back. False where its blocks
    are still on their way to the disk."""
    fd = _open(volume, ino, path)
    if not is_still(fd, ino):
        os.close(fd)
        return True  # it has another name now, by which it is noted when it is closed again
    file = await files.acquire_by_fd(fd)
    with files.using(file):
        async with file.lock.alone():
            if file.users > 1 or file.stub is None:
                return True
            with unseen_step([ino]):
                return await trio.to_thread.run_sync(file.stub.seal)


def _open(volume: Volume, ino: int, path: bytes | None) -> int:
    """Open a stub by its path, or by its number if no path is known. Raises OSError."""
    if path is None:
        return open_number(volume.data_fd, ino, _FLAGS)
    return open_beneath(volume.data_fd, path, _FLAGS)


def seal_at_the_end(volume: Volume, files: OpenFiles) -> None:
    """Seal all that is left, after the last write and a sync of the file system."""
    load = partial(volume.content, where="")
    for ino, path in files.unsealed.take_all():
        try:
            with opened(_open(volume, ino, path)) as fd:
                stub = checked_stub(fd, volume.stub_files, "") if is_still(fd, ino) else None
                if stub is not None:
                    SparseStub(fd, stub, volume.stub_files, load).seal()
        except (DedupdError, OSError) as error:
            log.debug("inode %d is not sealed: %s", ino, error)
        except Exception as error:
            failures.note("sealing a stub", error)
