"""The open directory of a shared store: its parameters, its locks, and its volumes.

The list of its volumes decides: chunks that no volume of it needs are garbage
(docs/design/format.md, "Shared stores").
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


class OwnStore:
    """The interface of a shared store for a volume's own store, which has no other volume: the lock
    of the volume also protects the store."""

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
    """A shared store's directory. Closes its open files."""

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
        """Open the store with this name. Raises NotAVolume if it does not exist."""
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
        """A path that stays valid if the directory is moved."""
        return f"/proc/self/fd/{self.fd}"

    def new_membership(self) -> Membership:
        """Return a record that links a volume to this store, with a new token."""
        return Membership(self.parameters.uuid, self.path, new_token())

    # --- locks --------------------------------------------------------------------------------

    @contextmanager
    def job_lock(self, *, wait: bool = False, reads_only: bool = False) -> Iterator[None]:
        """Hold the store exclusively for one job. Raises Busy, ReadOnlyVolume."""
        with opened(self._open_lock(LOCK, reads_only)) as fd, ExitStack() as held:
            with self._in_line(fd, wait=wait and not reads_only):
                held.enter_context(locked(fd, self._held_by, wait=wait))
            yield

    @contextmanager
    def append_lock(self) -> Iterator[None]:
        """Hold the store for one job that appends to it alongside its neighbours; wait for
        exclusive holders. Raises ReadOnlyVolume."""
        with opened(self._open_lock(LOCK)) as fd, ExitStack() as held:
            with self._in_line(fd, wait=True):
                held.enter_context(locked(fd, self._held_by, wait=True, alone=False))
            yield

    @contextmanager
    def _in_line(self, fd: int, *, wait: bool) -> Iterator[None]:
        """Wait in line for the lock: otherwise a job that needs the store exclusively might wait as
        long as other jobs keep coming."""
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
        """Return the jobs that append to the store alongside this one; the caller closes them."""
        return LockedNeighbours(partial(self._open_lock, LOCK, reads_only=True))

    @contextmanager
    def _members_locked(self) -> Iterator[None]:
        """Hold the lock of the list during a change."""
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
        """Return its volumes, by uuid. Raises Damaged."""
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
        """Add a volume, or replace its entry. Durable when this returns."""
        with self._members_locked():
            self._write({**self.members(), member.uuid: member})

    def remove(self, uuid: str) -> None:
        """Remove a volume: chunks that only this volume needs become garbage."""
        with self._members_locked():
            members = self.members()
            if members.pop(uuid, None) is not None:
                self._write(members)

    def note_stubs(self, has_stubs: Mapping[str, bool]) -> None:
        """Record which volumes may have stubs."""
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
        """Return the entry of a volume. Raises UnseenMember if it is no member of this store."""
        found = self.members().get(uuid)
        if found is None:
            raise UnseenMember(
                f"volume {uuid}: not registered with its store {self.path}; register it with"
                " `dedupd store rejoin`"
            )
        return found

    def sync(self) -> None:
        """Make all writes to its file system durable."""
        self.disk.sync_file_system(self.fd)

    def require_known(self, volume: VolumeIdentity) -> str:
        """Return the token of a volume in the last recorded state. Raises UnseenMember, Damaged."""
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
        """Admit a job that works for these volumes, which must be in the last recorded state.

        From here on they differ from all earlier copies, unless the job ``reads_only``. Durable
        when this returns. Needs the locks of all. Raises UnseenMember, Damaged.

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
        """Record new tokens for volumes durably, and return them. Until :meth:`settle_tokens`, a
        volume is accepted with its old or its new token."""
        with self._members_locked():
            members = self.members()
            offered = {uuid: new_token() for uuid in held}
            for uuid, token in held.items():
                members[uuid] = replace(members[uuid], token=token, next_token=offered[uuid])
            self._write(members)
        reach(_OFFERED)
        return offered

    def settle_tokens(self, taken: Mapping[str, str]) -> None:
        """Accept only these tokens from now on: the volumes have them, durably."""
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
    """Add the volume of a ``.dedupd`` to its shared store, if it has one, durably. Call this before
    anything of the volume needs the store. Raises StoreUnreachable, Damaged."""
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
    """Remove the volume of a ``.dedupd`` from its shared store. No file of it may need the store.

    Raises StoreUnreachable, Damaged.
    """
    membership = membership_at(base_fd)
    if membership is not None:
        with closing(SharedDirectory(membership.name, disk)) as shared:
            shared.remove(uuid)
        reach(_LEFT)


def refuse_overlap(root: str, store: str) -> None:
    """Raise UsageError if a volume and a store (absolute paths) would be inside each other."""
    for inner, outer in ((root, store), (store, root)):
        if lies_in(inner, outer):
            raise UsageError(f"{inner}: is inside {outer}; the store must be outside its volumes")


def refuse_other_store(base_fd: int, shared: SharedDirectory | None, path: str) -> None:
    """Raise UsageError if an interrupted call was to put a volume on another store."""
    begun = membership_at(base_fd)
    if (begun and begun.store) != (shared and shared.parameters.uuid):
        there = f"with `--store {begun.name}`" if begun else "without `--store`"
        raise UsageError(
            f"{path}: enabling was started {there}; run it again like this, or disable it first"
        )
