"""Finding files: every inode of the tree once, and which of them the policy wants optimised."""

import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from dedupd.errors import DamagedStub
from dedupd.format.stub import decode_stub
from dedupd.fsutil import open_beneath, opened, show_path
from dedupd.policy import Policy
from dedupd.stub import FileIdentity
from dedupd.volume import Volume


@dataclass(frozen=True, slots=True)
class Found:
    """A regular file of the tree. ``path`` is relative to the tree.

    ``attribute`` is the stub attribute as it was found, None for a plain file.
    """

    path: bytes
    status: os.stat_result
    attribute: bytes | None

    @property
    def is_stub(self) -> bool:
        return self.attribute is not None


@dataclass(slots=True)
class Skipped:
    """Why files were not candidates: counts of files and bytes by reason.

    ``unsettled`` are stubs that an interrupted job left in the middle of a transition.
    """

    files: dict[str, int] = field(default_factory=dict)
    size_bytes: dict[str, int] = field(default_factory=dict)
    unsettled: list[bytes] = field(default_factory=list)

    def add(self, reason: str, size_bytes: int) -> None:
        self.files[reason] = self.files.get(reason, 0) + 1
        self.size_bytes[reason] = self.size_bytes.get(reason, 0) + size_bytes


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file to optimise, as it was when it was found."""

    path: bytes
    identity: FileIdentity


def walk(volume: Volume, below: bytes = b"", errors: list[str] | None = None) -> Iterator[Found]:
    """Every regular file below a path of the tree, hard links once, other file systems never.

    Follows no link. What vanishes meanwhile is passed over; what cannot be read is added to
    ``errors``.
    """
    device = os.fstat(volume.data_fd).st_dev
    seen: set[int] = set()
    pending = [below]
    while pending:
        directory = pending.pop()
        try:
            fd = open_beneath(volume.data_fd, directory, os.O_RDONLY)
        except FileNotFoundError:
            continue
        except OSError as error:
            if errors is not None:
                errors.append(f"{os.fsdecode(directory)}: {error.strerror}")
            continue
        with opened(fd):
            status = os.fstat(fd)
            if status.st_dev != device:
                continue
            if stat.S_ISDIR(status.st_mode):
                yield from _walk_directory(volume, fd, directory, device, seen, pending)
            elif stat.S_ISREG(status.st_mode):
                yield Found(directory, status, _attribute(volume, fd, b"."))


def _walk_directory(
    volume: Volume, fd: int, directory: bytes, device: int, seen: set[int], pending: list[bytes]
) -> Iterator[Found]:
    prefix = directory + b"/" if directory else b""
    below = []
    with os.scandir(fd) as entries:
        for entry in entries:
            name = os.fsencode(entry.name)
            try:
                if entry.is_dir(follow_symlinks=False):
                    below.append(prefix + name)
                    continue
                if not entry.is_file(follow_symlinks=False):
                    continue
                status = entry.stat(follow_symlinks=False)
                if status.st_dev != device:
                    continue
                if status.st_nlink > 1:
                    if status.st_ino in seen:
                        continue
                    seen.add(status.st_ino)
                yield Found(prefix + name, status, _attribute(volume, fd, name))
            except FileNotFoundError:
                continue
    pending.extend(sorted(below, reverse=True))


def _attribute(volume: Volume, dir_fd: int, name: bytes) -> bytes | None:
    path = b"/proc/self/fd/%d" % dir_fd + (b"" if name == b"." else b"/" + name)
    try:
        return os.getxattr(path, volume.space.name, follow_symlinks=name == b".")
    except OSError:
        return None


def candidates(
    volume: Volume, policy: Policy, below: bytes, skipped: Skipped, errors: list[str]
) -> Iterator[Candidate]:
    """The files that the policy wants optimised and that are not yet."""
    newest_ns = time.time_ns() - int(policy.age_s_min * 1e9)
    for found in walk(volume, below, errors):
        status = found.status
        reason = (
            _stub_state(volume, found, skipped, errors)
            if found.attribute is not None
            else "empty"
            if status.st_size == 0
            else "below the minimum size"
            if status.st_size < policy.size_bytes_min
            else "too young"
            if policy.age_s_min > 0 and max(status.st_mtime_ns, status.st_ctime_ns) > newest_ns
            else "excluded"
            if policy.excludes(found.path)
            else ""
        )
        if reason:
            skipped.add(reason, status.st_size)
        else:
            yield Candidate(found.path, FileIdentity.of(status))


def _stub_state(volume: Volume, found: Found, skipped: Skipped, errors: list[str]) -> str:
    """Why a stub is no candidate; notes what is not in order about it."""
    assert found.attribute is not None
    try:
        stub = decode_stub(found.attribute, volume.space.volume, show_path(found.path))
    except DamagedStub as error:
        errors.append(str(error))
        return "has a damaged attribute"
    if stub.flags.transient:
        skipped.unsettled.append(found.path)
    return "already optimised"
