"""Logs of deletions: appends that fail, damage, and ids that no log has."""

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedupd_core.deleted.log import DeletionId, DeletionLogs, made_directory, name_of
from dedupd_core.deleted.writer import DeletionWriter
from dedupd_core.errors import NoSpace, UsageError
from dedupd_core.format.deletion import (
    LOG_HEADER_BYTES,
    Cause,
    Deletion,
    decode_header,
    encode_deletion,
)
from dedupd_core.format.stub import StubAttribute
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened
from dedupd_core.volume.volume import Volume
from tests.support.deletions import newest_first, unproven_deletion, unproven_header
from tests.support.lab import new_lab, run_cli
from tests.support.stores import FullDisk

KIB = 1 << 10


class FailingDisk(FullDisk):
    """A full disk that, once told so, does not truncate files."""

    truncates = True

    def truncate(self, fd: int, length: int) -> None:
        if not self.truncates:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().truncate(fd, length)


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    lab = new_lab(tmp_path / "volume")
    with Volume.open(str(lab.root)) as one:
        yield one


@pytest.fixture
def disk(volume: Volume) -> FailingDisk:
    volume.disk = FailingDisk()
    return volume.disk


@pytest.fixture
def writer(volume: Volume, disk: FailingDisk) -> Iterator[DeletionWriter]:
    one = DeletionWriter(volume)
    yield one
    one.close()


def deletion(path: bytes, value: bytes = b"") -> Deletion:
    stub = StubAttribute(1, bytes(16), 10, 0)
    attributes = ((b"user.x", value),) if value else ()
    return Deletion(
        *(Cause.REMOVED, time.time_ns(), 3600, path, 0o100644, 7, 8, 5, 6, 10, 0, 0),
        *(stub, attributes),
    )


def rows(volume: Volume) -> list[tuple[DeletionId, bytes]]:
    logs = DeletionLogs(volume)
    return [(at, one.path) for number in logs.numbers() for at, one in logs.read(number)]


def paths(volume: Volume) -> list[bytes]:
    return [path for _, path in rows(volume)]


def log_path(volume: Volume, number: int) -> Path:
    return Path(volume.base) / "deleted" / os.fsdecode(name_of(number))


def unproven_log(volume: Volume, deletions: list[Deletion]) -> int:
    """A log of the format that had no seed; returns its number."""
    number = max([0, *DeletionLogs(volume).numbers()]) + 1
    header = unproven_header(number, volume.space.volume_id)
    seed = decode_header(header, "").seed
    os.close(made_directory(volume.base_fd, Disk()))
    text = header + b"".join(unproven_deletion(one, seed) for one in deletions)
    log_path(volume, number).write_bytes(text)
    return number


def evil_bytes(volume: Volume) -> bytes:
    """Deletions as users can make them, for every offset at which one may come to lie."""
    evil = deletion(b"evil")._replace(mode=0o104755, uid=0)
    public = decode_header(unproven_header(1, volume.space.volume_id), "").seed
    return b"".join(
        one
        for offset in range(LOG_HEADER_BYTES, 40 * KIB, 512)
        for one in (unproven_deletion(evil, public), encode_deletion(evil, public, offset))
    )


@pytest.mark.parametrize("room", [0, 1, 100, 4096, 20_000])
def test_what_a_failed_append_leaves_is_never_read(
    volume: Volume, disk: FailingDisk, writer: DeletionWriter, room: int
) -> None:
    writer.append(deletion(b"first"))
    disk.room = room
    with pytest.raises(NoSpace):
        writer.append(deletion(b"fails", evil_bytes(volume)))
    assert paths(volume) == [b"first"]
    disk.room = 1 << 40
    writer.append(deletion(b"x"))
    writer.append(deletion(b"y"))
    assert paths(volume) == [b"first", b"x", b"y"]
    assert DeletionLogs(volume).numbers() == [1], "the log was cut, and goes on"
    size = log_path(volume, 1).stat().st_size
    assert size < 2 * KIB


def test_a_log_that_cannot_be_cut_after_a_failed_append_is_finished(
    volume: Volume, disk: FailingDisk, writer: DeletionWriter
) -> None:
    writer.append(deletion(b"first"))
    disk.room, disk.truncates = 4096, False
    with pytest.raises(NoSpace):
        writer.append(deletion(b"fails", evil_bytes(volume)))
    disk.room = 1 << 40
    writer.append(deletion(b"x"))
    assert [(at.log, path) for at, path in rows(volume)] == [(1, b"first"), (2, b"x")]
    for fd in (pending := writer.unsynced()):
        os.close(fd)
    assert len(pending) == 4, "both logs, and the two directories"


def test_an_error_of_the_disk_finishes_a_log(volume: Volume, writer: DeletionWriter) -> None:
    writer.append(deletion(b"first"))
    writer.finish()
    writer.append(deletion(b"second"))
    assert [at.log for at, _ in rows(volume)] == [1, 2]


def test_damage_is_passed_over_and_reported(volume: Volume, writer: DeletionWriter) -> None:
    for name in (b"first", b"second", b"third"):
        writer.append(deletion(name, evil_bytes(volume)))
    start = rows(volume)[1][0].offset
    with opened(os.open(log_path(volume, 1), os.O_RDWR)) as fd:
        os.pwrite(fd, bytes(8), start + 8)
    assert paths(volume) == [b"first", b"third"]
    logs = DeletionLogs(volume)
    list(newest_first(logs))
    assert logs.lost_bytes.keys() == {1}
    result = run_cli("deleted", volume.root)
    assert f"{logs.lost_bytes[1]} bytes of deletion log 1 are damaged" in result.stderr


def test_an_id_is_one_that_reading_in_order_finds(volume: Volume, writer: DeletionWriter) -> None:
    writer.append(deletion(b"first", evil_bytes(volume)))
    logs = DeletionLogs(volume)
    assert logs.get(DeletionId(1, LOG_HEADER_BYTES)).path == b"first"
    size = log_path(volume, 1).stat().st_size
    for offset in range(size + 16):
        if offset != LOG_HEADER_BYTES:
            with pytest.raises(UsageError, match="no such deletion"):
                logs.get(DeletionId(1, offset))
    writer.append(deletion(b"second"))
    assert logs.get(DeletionId(1, size)).path == b"second", "the log has got longer"
    with pytest.raises(UsageError):
        logs.get(DeletionId(2, LOG_HEADER_BYTES))


def test_ids_are_right_after_a_log_was_cut(
    volume: Volume, disk: FailingDisk, writer: DeletionWriter
) -> None:
    logs = DeletionLogs(volume)
    writer.append(deletion(b"first"))
    start = log_path(volume, 1).stat().st_size
    with opened(os.open(log_path(volume, 1), os.O_RDWR)) as fd:
        os.pwrite(fd, bytes(range(1, 200)), start)
        with pytest.raises(UsageError):
            logs.get(DeletionId(1, start))
    disk.room = 0
    with pytest.raises(NoSpace):
        writer.append(deletion(b"fails"))
    disk.room = 1 << 40
    writer.append(deletion(b"second"))
    assert logs.get(DeletionId(1, start)).path == b"second"
    assert logs.get(DeletionId(1, LOG_HEADER_BYTES)).path == b"first"


def test_two_logs_have_two_seeds(volume: Volume, writer: DeletionWriter) -> None:
    writer.append(deletion(b"first"))
    writer.finish()
    writer.append(deletion(b"second"))
    one, two = (log_path(volume, number).read_bytes() for number in (1, 2))
    assert decode_header(one, "").seed not in (0, decode_header(two, "").seed)
    log_path(volume, 2).write_bytes(two[:LOG_HEADER_BYTES] + one[LOG_HEADER_BYTES:])
    assert paths(volume) == [b"first"]


def test_a_log_of_an_earlier_version_is_listed_and_proves_nothing(volume: Volume) -> None:
    number = unproven_log(volume, [deletion(b"old"), deletion(b"older")])
    assert paths(volume) == [b"old", b"older"]
    logs, first = DeletionLogs(volume), DeletionId(number, LOG_HEADER_BYTES)
    with pytest.raises(UsageError, match="--force"):
        logs.get(first)
    assert logs.get(first, unproven=True).path == b"old"
    with pytest.raises(UsageError, match="no such"):
        logs.get(DeletionId(number, LOG_HEADER_BYTES + 8), unproven=True)


def test_a_log_without_its_header_is_reported_as_damaged(
    volume: Volume, writer: DeletionWriter
) -> None:
    writer.append(deletion(b"first"))
    writer.finish()
    writer.append(deletion(b"second"))
    with opened(os.open(log_path(volume, 1), os.O_RDWR)) as fd:
        os.pwrite(fd, bytes(8), 40)
    assert paths(volume) == [b"second"]
    result = run_cli("deleted", volume.root)
    size = log_path(volume, 1).stat().st_size
    assert f"{size} bytes of deletion log 1 are damaged" in result.stderr
    with pytest.raises(UsageError, match="no such deletion"):
        DeletionLogs(volume).get(DeletionId(1, LOG_HEADER_BYTES))
