"""What ties a volume and a shared store together: a record on each side (docs/design/format.md,
"Shared stores")."""

import uuid as uuidlib
from dataclasses import asdict, dataclass
from typing import Self

from dedupd_core.errors import Damaged
from dedupd_core.format.checked_json import NOT_VALID, decoded, encoded
from dedupd_core.format.instance import Instance


def new_token() -> str:
    return str(uuidlib.uuid4())


@dataclass(frozen=True, slots=True)
class Membership:
    """The volume's side: the uuid and the name of its ``store``, and the ``token`` that tells the
    volume of today from an older copy of it."""

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
        """Raises Damaged."""
        try:
            membership = cls(**decoded(data))
            uuidlib.UUID(membership.store)
        except NOT_VALID as error:
            raise Damaged(
                f"{where}: says which store the volume is on, and is damaged ({error}); restore it"
                " from a backup"
            ) from error
        return membership


@dataclass(frozen=True, slots=True)
class Member:
    """The store's side: a volume, the directory that it was last known at, and its instance.

    The volume has ``token``; or ``next_token`` where a step from one to the other was interrupted.
    ``has_stubs``: it may have some; where this is false, the last collection has seen none.
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
        """Whether a volume with this token is in the state that the store last knew."""
        return bool(token) and token in (self.token, self.next_token)


@dataclass(frozen=True, slots=True)
class MemberList:
    """All volumes of a store. One record, so that no member can be lost alone."""

    members: list[Member]

    def to_json(self) -> bytes:
        return encoded(asdict(self))

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Self:
        """Raises Damaged."""
        try:
            return cls([Member(**fields) for fields in decoded(data)["members"]])
        except NOT_VALID as error:
            raise Damaged(
                f"{where}: says which volumes are on the store, and is damaged ({error}); restore"
                " it from a backup: without it nothing can be collected"
            ) from error
