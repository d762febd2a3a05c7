"""A volume comes to a shared store, and leaves it."""

import os
from contextlib import closing

from dedupd_core.errors import UsageError
from dedupd_core.failpoint import define, reach
from dedupd_core.stores.shared_directory import SharedDirectory
from dedupd_core.stores.standing import Standing, membership_at
from dedupd_core.stub.instance import instance_of
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened
from dedupd_core.system.paths import lies_in

_JOINED = define("shared.joined", "a shared store knows a volume that is being enabled")
_LEFT = define("shared.left", "a shared store has forgotten a volume that is being disabled")


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
        standing = Standing(uuid, instance_of(data_fd), base_fd)
        shared.put(standing.as_member(membership.token, has_stubs=False))
    reach(_JOINED)


def leave(base_fd: int, uuid: str, disk: Disk) -> None:
    """Have the shared store forget the volume of a ``.dedupd``, of which no file needs it any more.

    Raises StoreUnreachable, Damaged.
    """
    membership = membership_at(base_fd)
    if membership is not None:
        with closing(SharedDirectory(membership.name, disk)) as shared:
            shared.remove(uuid)
        reach(_LEFT)


def refuse_overlap(root: str, store: str) -> None:
    """Raises UsageError where a volume and a store (absolute paths) would lie in each other."""
    for inner, outer in ((root, store), (store, root)):
        if lies_in(inner, outer):
            raise UsageError(f"{inner}: lies in {outer}; a store lies apart from its volumes")


def refuse_other_store(base_fd: int, shared: SharedDirectory | None, path: str) -> None:
    """Raises UsageError where an interrupted call was to put a volume on another store."""
    begun = membership_at(base_fd)
    if (begun and begun.store) != (shared and shared.parameters.uuid):
        there = f"with `--store {begun.name}`" if begun else "without `--store`"
        raise UsageError(f"{path}: enabling was begun {there}; finish it so, or disable it first")
