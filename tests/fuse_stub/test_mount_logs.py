"""A bug in an operation fails the test in which it shows, whatever the test expects."""

import errno
import os
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from dedupd_core.errors import Busy
from dedupd_core.system.files import opened
from fuse_stub.ranges import FileRanges
from tests.support.mount_logs import new_tracebacks
from tests.support.mounts import Nursery, mounted_lab, serve_for_test

pytestmark = pytest.mark.root


def serve_with_a_bug(path: str, mountpoint: str, cache_bytes: int, answer: Connection) -> None:
    async def allocate(*arguments: object) -> None:
        arguments[0].pid  # type: ignore[attr-defined]  # noqa: B018

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileRanges, "allocate", allocate)
        serve_for_test(path, mountpoint, cache_bytes, answer)


def test_a_traceback_that_a_mount_logs_is_found(tmp_path: Path) -> None:
    with mounted_lab(tmp_path, nursery=Nursery(serve_with_a_bug)) as lab:
        assert [*new_tracebacks()] == []
        with opened(os.open(lab.view / "f", os.O_RDWR | os.O_CREAT)) as fd:
            with pytest.raises(OSError) as caught:
                os.posix_fallocate(fd, 0, 4096)
            assert caught.value.errno == errno.EIO
        [text] = new_tracebacks()
        assert text.startswith(f"{lab.view}.log:\n")
        assert "'FileRanges' object has no attribute 'pid'" in text
        assert [*new_tracebacks()] == []


def test_a_refusal_to_mount_is_logged_without_a_traceback(tmp_path: Path) -> None:
    with mounted_lab(tmp_path) as lab:
        other = tmp_path / "other"
        other.mkdir()
        with pytest.raises(Busy):
            Nursery().serve(str(lab.root), str(other), cache_bytes=1 << 20)
        assert "is ending: " in Path(f"{other}.log").read_text()
