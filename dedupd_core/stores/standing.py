"""How a volume stands to its shared store: in its place, and in the state that the store last knew.

A job that makes or drops references renews the tokens of both sides before it begins. So a volume,
or a store, that was brought back from an older copy is told from the one of today.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from dedupd_core.errors import NoSpace, UnseenMember
from dedupd_core.format.instance import Instance
from dedupd_core.format.store_kinds import MEMBERSHIP_FILE
from dedupd_core.stores.membership import Member, Membership
from dedupd_core.stores.shared_directory import SharedDirectory
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import read_file

MOVING_FILE = b"moving"
"""There while a volume is half moved from one store to another."""


class Standing(NamedTuple):
    """A volume as its store sees it. ``base_fd`` is borrowed: its ``.dedupd``."""

    uuid: str
    instance: Instance
    base_fd: int

    @property
    def root(self) -> str:
        """The directory that was enabled, also where a mount covers it."""
        return os.path.dirname(os.readlink(f"/proc/self/fd/{self.base_fd}"))

    def membership(self) -> Membership:
        """As it is on the disk now. Raises Damaged, FileNotFoundError."""
        return _membership(self.base_fd)

    def as_member(self, token: str, *, has_stubs: bool) -> Member:
        place = self.instance
        return Member(
            *(self.uuid, self.root, place.file_system, place.inode, place.generation),
            token=token,
            has_stubs=has_stubs,
        )


def require_known(shared: SharedDirectory, volume: Standing) -> str:
    """The token of a volume that stands as its store last knew it. Raises UnseenMember, Damaged."""
    member, own = shared.member(volume.uuid), volume.membership()
    remedy = f"`dedupd store rejoin {volume.root}` checks it, and takes it in as it is"
    if own.store != shared.parameters.uuid:
        raise UnseenMember(f"{volume.root}: is on another store now, {own.name}; {remedy}")
    if member.root != volume.root:
        raise UnseenMember(
            f"{volume.root}: its store {shared.path} knows this volume at {member.root}: it was"
            f" moved, or this is a copy; if there is no other one, {remedy}"
        )
    if member.instance != volume.instance:
        raise UnseenMember(f"{volume.root}: not the directory that its store knows; {remedy}")
    if not member.knows(own.token):
        raise UnseenMember(
            f"{volume.root}: the volume, or its store {shared.path}, was brought back from an older"
            f" copy: files may need what was collected since; {remedy}"
        )
    return own.token


def renew_tokens(shared: SharedDirectory, volumes: Sequence[Standing], disk: Disk) -> None:
    """Tell these volumes and their store from all copies that were made before. Durable when this
    returns. Needs the locks of all. Raises UnseenMember, Damaged.

    On a full disk the tokens may stay as they are, or half renewed, which is all the same to a
    volume of today: else nothing could be collected there.
    """
    held = {one.uuid: require_known(shared, one) for one in volumes}
    with suppress(NoSpace):
        offered = shared.offer_tokens(held)
        for one in volumes:
            put_membership(one.base_fd, replace(one.membership(), token=offered[one.uuid]), disk)
        shared.settle_tokens(offered)


def membership_at(base_fd: int) -> Membership | None:
    """What the ``.dedupd`` that ``base_fd`` is open on says; None where it has its own store."""
    try:
        return _membership(base_fd)
    except FileNotFoundError:
        return None


def _membership(base_fd: int) -> Membership:
    where = os.readlink(f"/proc/self/fd/{base_fd}")
    data = read_file(base_fd, MEMBERSHIP_FILE)
    return Membership.from_json(data, f"{where}/{MEMBERSHIP_FILE.decode()}")


def put_membership(base_fd: int, membership: Membership, disk: Disk) -> None:
    """Say which store a volume is on. Durable when this returns."""
    disk.replace_file(base_fd, MEMBERSHIP_FILE, membership.to_json())
