"""The link between a volume and a shared store: a record on each side.

See docs/design/format.md, "Shared stores". A job that makes or drops references renews the tokens
of both sides before it starts. So a volume, or a store, that was restored from an older copy
differs from the current one.
"""

import os
import uuid as uuidlib
from dataclasses import asdict, dataclass
from typing import NamedTuple, Self

from dedupd_core.errors import Damaged
from dedupd_core.format.checked_json import NOT_VALID, decoded, encoded
from dedupd_core.format.instance import Instance
from dedupd_core.format.store_kinds import MEMBERSHIP_FILE
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import read_file

MOVING_FILE = b"moving"
"""Exists while a volume is half moved from one store to another."""


def new_token() -> str:
    return str(uuidlib.uuid4())


@dataclass(frozen=True, slots=True)
class Membership:
    """The volume's side: uuid and name of its ``store``, and the ``token`` that distinguishes the
    current volume from an older copy of it."""

    store: str
    name: str
    token: str

    @property
    def store_id(self) -> bytes:
        return uuidlib.UUID(self.store).bytes

    def to_json(self) -> bytes:
        return encoded(asdict(self))

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Self:
        """Return the recipe with this number. Raises Damaged."""
        try:
            membership = cls(**decoded(data))
            uuidlib.UUID(membership.store)
        except NOT_VALID as error:
            raise Damaged(
                f"{where}: the file that names the store of the volume is damaged ({error});"
                " restore it from a backup"
            ) from error
        return membership


@dataclass(frozen=True, slots=True)
class Member:
    """The store's side: a volume, its last known directory, and its instance.

    The volume has ``token``, or ``next_token`` if a change of tokens was interrupted.
    ``has_stubs``: it may have some; if false, the last collection has found none.
    """

    uuid: str
    root: str
    file_system: str
    inode: int
    generation: int
    token: str
    next_token: str = ""
    has_stubs: bool = False

    @property
    def instance(self) -> Instance:
        return Instance(self.file_system, self.inode, self.generation)

    def knows(self, token: str) -> bool:
        """Return whether a volume with this token is in the state that the store last recorded."""
        return bool(token) and token in (self.token, self.next_token)


@dataclass(frozen=True, slots=True)
class MemberList:
    """All volumes of a store. One record, so that no single member can be lost."""

    members: list[Member]

    def to_json(self) -> bytes:
        return encoded(asdict(self))

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Self:
        """Return the recipe with this number. Raises Damaged."""
        try:
            return cls([Member(**fields) for fields in decoded(data)["members"]])
        except NOT_VALID as error:
            raise Damaged(
                f"{where}: the file that lists the volumes of the store is damaged ({error});"
                " restore it from a backup: without it nothing can be collected"
            ) from error


class VolumeIdentity(NamedTuple):
    """The properties that identify a volume to a store. ``base_fd``, its ``.dedupd``, is
    borrowed."""

    uuid: str
    instance: Instance
    base_fd: int

    @property
    def root(self) -> str:
        """The directory that was enabled, even if a mount covers it."""
        return os.path.dirname(os.readlink(f"/proc/self/fd/{self.base_fd}"))

    def membership(self) -> Membership:
        """Read the current record on the disk. Raises Damaged, FileNotFoundError."""
        return _membership(self.base_fd)

    def as_member(self, token: str, *, has_stubs: bool) -> Member:
        place = self.instance
        return Member(
            uuid=self.uuid,
            root=self.root,
            file_system=place.file_system,
            inode=place.inode,
            generation=place.generation,
            token=token,
            has_stubs=has_stubs,
        )


def membership_at(base_fd: int) -> Membership | None:
    """Return the membership in the ``.dedupd`` open as ``base_fd``; None without a shared store."""
    try:
        return _membership(base_fd)
    except FileNotFoundError:
        return None


def _membership(base_fd: int) -> Membership:
    where = os.readlink(f"/proc/self/fd/{base_fd}")
    data = read_file(base_fd, MEMBERSHIP_FILE)
    return Membership.from_json(data, f"{where}/{MEMBERSHIP_FILE.decode()}")


def put_membership(base_fd: int, membership: Membership, disk: Disk) -> None:
    """Record the store of a volume. Durable when this returns."""
    disk.replace_file(base_fd, MEMBERSHIP_FILE, membership.to_json())
