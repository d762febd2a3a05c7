"""Locks all volumes of a shared store for a job that examines their references."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from dedupd_core.errors import Busy, DedupdError, UnseenMember
from dedupd_core.stores.membership import Member
from dedupd_core.stores.shared_directory import SharedDirectory
from dedupd_core.system.paths import explain
from dedupd_core.volume.volume import Volume


@contextmanager
def all_held(volume: Volume, *, reads_only: bool = False) -> Iterator[None]:
    """Hold a volume, its store and all other volumes of the store: ``volume.fellows``.

    No volume of the store can make a reference during this: each job that could needs one of these
    locks. Raises UnseenMember, with its name, if a volume is unreachable, or not as the store last
    recorded it; Busy, StoreUnreachable, ReadOnlyVolume.
    """
    shared, sharing = volume.shared, volume.sharing
    with ExitStack() as held:
        held.enter_context(volume.tree_lock(reads_only=reads_only))
        members = others(volume)
        fellows = []
        for uuid in sorted(members):
            assert shared is not None, "a store of its own has no other volume"
            fellow = held.enter_context(opened_member(shared, members[uuid]))
            held.enter_context(fellow.tree_lock(reads_only=reads_only))
            fellows.append(fellow)
        held.enter_context(sharing.job_lock(reads_only=reads_only))
        # From here on no volume with a stub can join the store.
        if others(volume).keys() != members.keys():
            raise Busy(
                f"{volume.store.where}: volumes were added or removed at the same time; run the job"
                " again"
            )
        sharing.admit([one.identity for one in (volume, *fellows)], reads_only=reads_only)
        volume.fellows = tuple(fellows)
        held.callback(setattr, volume, "fellows", ())
        yield


def require_all(volume: Volume) -> None:
    """Raise UnseenMember if a volume of the store is not locked: then nothing may be collected."""
    seen = {one.parameters.uuid for one in (volume, *volume.fellows)}
    for member in volume.sharing.members().values():
        if member.uuid not in seen:
            raise _unseen(volume.store.where, member, "it is not locked")


def unknown_members(volume: Volume) -> Iterator[str]:
    """Yield the reasons why nothing can be collected in a volume's store: each volume that is
    unreachable, or not as the store last recorded it. Raises StoreUnreachable, Damaged."""
    shared = volume.shared
    if shared is None:
        return
    try:
        shared.require_known(volume.identity)
    except UnseenMember as error:
        yield str(error)
    for member in others(volume).values():
        try:
            opened_member(shared, member).close()
        except UnseenMember as error:
            yield str(error)


def others(volume: Volume) -> dict[str, Member]:
    """Return the other volumes of its store, by uuid."""
    members = volume.sharing.members()
    members.pop(volume.parameters.uuid, None)
    return members


def opened_member(shared: SharedDirectory, member: Member) -> Volume:
    """Open a volume of the store; the caller closes it. Raises UnseenMember if it is unreachable in
    its place, or is not the recorded volume."""
    try:
        volume = Volume.open(member.root, shared.disk)
    except DedupdError as error:
        raise _unseen(shared.path, member, str(error)) from error
    except OSError as error:
        raise _unseen(shared.path, member, explain(error)) from error
    with ExitStack() as on_failure:
        on_failure.callback(volume.close)
        if volume.parameters.uuid != member.uuid:
            raise _unseen(shared.path, member, "another volume has its path")
        if volume.shared is None or not os.path.samestat(
            os.fstat(volume.shared.fd), os.fstat(shared.fd)
        ):
            raise _unseen(shared.path, member, "it is now on another store")
        shared.require_known(volume.identity)
        on_failure.pop_all()
    return volume


def _unseen(store: str, member: Member, reason: str) -> UnseenMember:
    return UnseenMember(
        f"{member.root}: this volume of the store {store} is not accessible ({reason}). Its files"
        " may need any chunk, so nothing was changed. Make it accessible; if it was moved, run"
        " `dedupd store rejoin` with its new path; if it is lost permanently, run `dedupd store"
        f" forget {store} {member.uuid}`"
    )
