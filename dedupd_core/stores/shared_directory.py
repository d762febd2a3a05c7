"""The directory of a shared store, opened: what it is, its locks, and its volumes.

The list of its volumes is truth: what no volume of it needs is garbage (docs/design/format.md,
"Shared stores").
"""

import errno
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Self

from dedupd_core.errors import Damaged, NotAVolume, ReadOnlyVolume, StoreUnreachable, UnseenMember
from dedupd_core.failpoint import define, reach
from dedupd_core.format.volume_parameters import Parameters
from dedupd_core.store.beside.neighbours import GATE, LockedNeighbours, Neighbours
from dedupd_core.stores.membership import Member, MemberList, Membership, new_token
from dedupd_core.stores.ownership import refuse_strangers
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import (
    lock_range,
    locked,
    open_to_read,
    opened,
    read_file,
    unlock_range,
)

_log = logging.getLogger(__name__)

STORE_FILE = b"store.json"
MEMBERS_FILE = b"members.json"
LOCK, MEMBERS_LOCK = "lock", "members.lock"

_OFFERED = define("shared.token-offered", "a store knows the next tokens, its volumes not yet")
_TAKEN = define("shared.token-taken", "a volume has its next token, the store offers it still")


class SharedDirectory:
    """A shared store's directory. Closes what it has open."""

    def __init__(self, path: str, disk: Disk) -> None:
        """``path`` is absolute. Raises StoreUnreachable, UsageError, Damaged, UnknownFormat."""
        self.path, self.disk = path, disk
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        with ExitStack() as on_failure:
            try:
                self.fd = os.open(path, flags)
                on_failure.callback(os.close, self.fd)
                data = read_file(self.fd, STORE_FILE)
            except (FileNotFoundError, NotADirectoryError):
                raise StoreUnreachable(
                    f"{path}: there is no store; mount the file system that it lies on, or move it"
                    " back there"
                ) from None
            refuse_strangers(self.fd, path)
            self.parameters = Parameters.from_json(data, os.path.join(path, STORE_FILE.decode()))
            on_failure.pop_all()

    @classmethod
    def named(cls, path: str, disk: Disk) -> Self:
        """The store that a person names. Raises NotAVolume where there is none."""
        try:
            return cls(os.path.realpath(path), disk)
        except StoreUnreachable:
            raise NotAVolume(f"{path}: no store; `dedupd store create {path}` makes one") from None

    def close(self) -> None:
        os.close(self.fd)

    @property
    def base(self) -> str:
        """A path that leads to it wherever it is moved."""
        return f"/proc/self/fd/{self.fd}"

    def new_membership(self) -> Membership:
        """What says of a volume that it is on this store; with a token of its own."""
        return Membership(self.parameters.uuid, self.path, new_token())

    # --- locks --------------------------------------------------------------------------------

    @contextmanager
    def job_lock(self, *, wait: bool = False, reads_only: bool = False) -> Iterator[None]:
        """Hold the store for one job, alone. Raises Busy, ReadOnlyVolume."""
        with opened(self._open_lock(LOCK, reads_only)) as fd, ExitStack() as held:
            with self._in_line(fd, wait=wait and not reads_only):
                held.enter_context(locked(fd, self._held_by, wait=wait))
            yield

    @contextmanager
    def append_lock(self) -> Iterator[None]:
        """Hold the store for one job that appends to it beside its neighbours; waits for those
        that hold it alone. Raises ReadOnlyVolume."""
        with opened(self._open_lock(LOCK)) as fd, ExitStack() as held:
            with self._in_line(fd, wait=True):
                held.enter_context(locked(fd, self._held_by, wait=True, alone=False))
            yield

    @contextmanager
    def _in_line(self, fd: int, *, wait: bool) -> Iterator[None]:
        """Wait for the lock after those that came before: else a job that needs the store alone
        might wait for as long as there are others."""
        if wait and not lock_range(fd, GATE, 1, wait=False):
            _log.warning("waits: %s: a job that came before waits for the store", self.path)
            lock_range(fd, GATE, 1, wait=True)
        try:
            yield
        finally:
            if wait:
                unlock_range(fd, GATE, 1)

    @property
    def _held_by(self) -> str:
        return f"{self.path}: another job holds the store; wait for it, or cancel it"

    def neighbours(self) -> Neighbours:
        """The jobs that append to the store beside this one; to be closed by the caller."""
        return LockedNeighbours(partial(self._open_lock, LOCK, reads_only=True))

    @contextmanager
    def _members_locked(self) -> Iterator[None]:
        """For the moment in which the list changes."""
        with opened(self._open_lock(MEMBERS_LOCK)) as fd, locked(fd, "", wait=True):
            yield

    def _open_lock(self, name: str, reads_only: bool = False) -> int:
        try:
            return os.open(name, os.O_RDWR | os.O_CLOEXEC, dir_fd=self.fd)
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
        if reads_only:
            return open_to_read(self.fd, name)
        raise ReadOnlyVolume(f"{self.path}: the file system is read-only, and takes no changes now")

    # --- members ------------------------------------------------------------------------------

    def members(self) -> dict[str, Member]:
        """Its volumes, by uuid. Raises Damaged."""
        where = os.path.join(self.path, MEMBERS_FILE.decode())
        try:
            found = MemberList.from_json(read_file(self.fd, MEMBERS_FILE), where)
        except FileNotFoundError:
            raise Damaged(
                f"{where} is missing: it says which volumes are on the store; restore it from a"
                " backup: without it nothing can be collected"
            ) from None
        return {one.uuid: one for one in found.members}

    def put(self, member: Member) -> None:
        """Add a volume, or replace what is known of it. Durable when this returns."""
        with self._members_locked():
            self._write({**self.members(), member.uuid: member})

    def remove(self, uuid: str) -> None:
        """Forget a volume: what only that one needs is garbage from here on."""
        with self._members_locked():
            members = self.members()
            if members.pop(uuid, None) is not None:
                self._write(members)

    def note_stubs(self, has_stubs: Mapping[str, bool]) -> None:
        """Say which volumes may have stubs."""
        with self._members_locked():
            before = self.members()
            after = {
                uuid: replace(member, has_stubs=has_stubs.get(uuid, member.has_stubs))
                for uuid, member in before.items()
            }
            if after != before:
                self._write(after)

    def member(self, uuid: str) -> Member:
        """What is known of a volume. Raises UnseenMember where it is none of this store's."""
        found = self.members().get(uuid)
        if found is None:
            raise UnseenMember(
                f"volume {uuid} is not known to its store {self.path}; `dedupd store rejoin` of the"
                " volume takes it in again"
            )
        return found

    def offer_tokens(self, held: Mapping[str, str]) -> dict[str, str]:
        """New tokens for volumes in place of those that they hold, durable here: each is to take
        its own, and is believed with either one until :meth:`settle_tokens`."""
        with self._members_locked():
            members = self.members()
            offered = {uuid: new_token() for uuid in held}
            for uuid, token in held.items():
                members[uuid] = replace(members[uuid], token=token, next_token=offered[uuid])
            self._write(members)
        reach(_OFFERED)
        return offered

    def settle_tokens(self, taken: Mapping[str, str]) -> None:
        """The volumes have these tokens, durably: no older one is believed any more."""
        reach(_TAKEN)
        with self._members_locked():
            members = self.members()
            for uuid, token in taken.items():
                members[uuid] = replace(members[uuid], token=token, next_token="")
            self._write(members)

    def _write(self, members: dict[str, Member]) -> None:
        self.disk.replace_file(self.fd, MEMBERS_FILE, MemberList([*members.values()]).to_json())
