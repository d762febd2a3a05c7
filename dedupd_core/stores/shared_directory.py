"""The directory of a shared store, opened: what it is, its locks, and its volumes.

The list of its volumes is truth: what no volume of it needs is garbage (docs/design/format.md,
"Shared stores").
"""

import errno
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    closing,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import replace
from functools import partial
from typing import Self

from dedupd_core.errors import (
    Damaged,
    NoSpace,
    NotAVolume,
    ReadOnlyVolume,
    StoreUnreachable,
    UnseenMember,
    UsageError,
)
from dedupd_core.failpoint import define, reach
from dedupd_core.format.volume_parameters import Parameters
from dedupd_core.store.beside.neighbours import GATE, LockedNeighbours, Neighbours
from dedupd_core.stores.membership import (
    Member,
    MemberList,
    Membership,
    VolumeIdentity,
    membership_at,
    new_token,
    put_membership,
)
from dedupd_core.stores.ownership import refuse_strangers
from dedupd_core.stub.instance import instance_of
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import (
    lock_range,
    locked,
    open_to_read,
    opened,
    read_file,
    unlock_range,
)
from dedupd_core.system.paths import lies_in

_log = logging.getLogger(__name__)

STORE_FILE = b"store.json"
MEMBERS_FILE = b"members.json"
LOCK, MEMBERS_LOCK = "lock", "members.lock"

_Lock = AbstractContextManager[None]

_OFFERED = define("shared.token-offered", "a store has the next tokens, its volumes do not")
_TAKEN = define("shared.token-taken", "a volume has its next token, the store still offers it")
_JOINED = define("shared.joined", "a shared store has registered a volume that is being enabled")
_LEFT = define("shared.left", "a shared store has removed a volume that is being disabled")


class Unshared:
    """What is asked of a shared store, where a volume has a store of its own: it has no other
    volume, and who holds the volume holds the store."""

    def members(self) -> dict[str, Member]:
        return {}

    def note_stubs(self, has_stubs: Mapping[str, bool]) -> None:
        pass

    def may_have_stubs(self, uuid: str) -> bool:
        return True

    def sync(self) -> None:
        pass

    def job_lock(self, *, wait: bool = False, reads_only: bool = False) -> _Lock:
        return nullcontext()

    def append_lock(self) -> _Lock:
        return nullcontext()

    def admit(self, volumes: Sequence[VolumeIdentity], *, reads_only: bool = False) -> None:
        pass


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
                    f"{path}: no store exists here; mount its file system, or move the store back"
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
            raise NotAVolume(
                f"{path}: not a store; create one with `dedupd store create {path}`"
            ) from None

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
            _log.warning("waiting: %s: an earlier job waits for the store", self.path)
            lock_range(fd, GATE, 1, wait=True)
        try:
            yield
        finally:
            if wait:
                unlock_range(fd, GATE, 1)

    @property
    def _held_by(self) -> str:
        return f"{self.path}: another job uses the store; wait for it, or cancel it"

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
        raise ReadOnlyVolume(f"{self.path}: the file system is read-only; make it writable first")

    # --- members ------------------------------------------------------------------------------

    def members(self) -> dict[str, Member]:
        """Its volumes, by uuid. Raises Damaged."""
        where = os.path.join(self.path, MEMBERS_FILE.decode())
        try:
            found = MemberList.from_json(read_file(self.fd, MEMBERS_FILE), where)
        except FileNotFoundError:
            raise Damaged(
                f"{where}: is missing; it lists the volumes of the store. Restore it from a"
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

    def may_have_stubs(self, uuid: str) -> bool:
        return self.member(uuid).has_stubs

    def member(self, uuid: str) -> Member:
        """What is known of a volume. Raises UnseenMember where it is none of this store's."""
        found = self.members().get(uuid)
        if found is None:
            raise UnseenMember(
                f"volume {uuid}: not registered with its store {self.path}; register it with"
                " `dedupd store rejoin`"
            )
        return found

    def sync(self) -> None:
        """Make everything durable that was written to its file system."""
        self.disk.sync_file_system(self.fd)

    def require_known(self, volume: VolumeIdentity) -> str:
        """The token of a volume that is as the store last knew it. Raises UnseenMember, Damaged."""
        member, own = self.member(volume.uuid), volume.membership()
        remedy = f"`dedupd store rejoin {volume.root}` checks it and registers it again"
        if own.store != self.parameters.uuid:
            raise UnseenMember(f"{volume.root}: is now on another store, {own.name}; {remedy}")
        if member.root != volume.root:
            raise UnseenMember(
                f"{volume.root}: its store {self.path} knows this volume at {member.root}: it was"
                f" moved, or this is a copy; if no other copy exists, {remedy}"
            )
        if member.instance != volume.instance:
            raise UnseenMember(f"{volume.root}: not the directory that its store knows; {remedy}")
        if not member.knows(own.token):
            raise UnseenMember(
                f"{volume.root}: the volume, or its store {self.path}, was restored from an older"
                f" copy, so files may need collected chunks; {remedy}"
            )
        return own.token

    def admit(self, volumes: Sequence[VolumeIdentity], *, reads_only: bool = False) -> None:
        """Let a job begin that works for these volumes. Each is in the state that the store last
        recorded. From here on it differs from all earlier copies, unless the job ``reads_only``.

        Durable when this returns. Needs the locks of all. Raises UnseenMember, Damaged.

        On a full disk the tokens may stay unchanged, or half renewed. A current volume works with
        both: otherwise nothing could be collected there.
        """
        held = {one.uuid: self.require_known(one) for one in volumes}
        if reads_only:
            return
        with suppress(NoSpace):
            offered = self.offer_tokens(held)
            for one in volumes:
                renewed = replace(one.membership(), token=offered[one.uuid])
                put_membership(one.base_fd, renewed, self.disk)
            self.settle_tokens(offered)

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


# --- volumes come and go ----------------------------------------------------------------------


def join(base_fd: int, uuid: str, disk: Disk) -> None:
    """Have the shared store know the volume of a ``.dedupd``, if it is to be on one: durably,
    before anything of the volume needs the store. Raises StoreUnreachable, Damaged."""
    membership = membership_at(base_fd)
    if membership is None:
        return
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    with (
        closing(SharedDirectory(membership.name, disk)) as shared,
        opened(os.open("data", flags, dir_fd=base_fd)) as data_fd,
    ):
        identity = VolumeIdentity(uuid, instance_of(data_fd), base_fd)
        shared.put(identity.as_member(membership.token, has_stubs=False))
    reach(_JOINED)


def leave(base_fd: int, uuid: str, disk: Disk) -> None:
    """Remove the volume of a ``.dedupd`` from its shared store. No file of it needs the store.

    Raises StoreUnreachable, Damaged.
    """
    membership = membership_at(base_fd)
    if membership is not None:
        with closing(SharedDirectory(membership.name, disk)) as shared:
            shared.remove(uuid)
        reach(_LEFT)


def refuse_overlap(root: str, store: str) -> None:
    """Raises UsageError if a volume and a store (absolute paths) would be inside each other."""
    for inner, outer in ((root, store), (store, root)):
        if lies_in(inner, outer):
            raise UsageError(f"{inner}: is inside {outer}; the store must be outside its volumes")


def refuse_other_store(base_fd: int, shared: SharedDirectory | None, path: str) -> None:
    """Raises UsageError if an interrupted call was to put a volume on another store."""
    begun = membership_at(base_fd)
    if (begun and begun.store) != (shared and shared.parameters.uuid):
        there = f"with `--store {begun.name}`" if begun else "without `--store`"
        raise UsageError(
            f"{path}: enabling was started {there}; run it again like this, or disable it first"
        )
