"""All volumes of a shared store, held for one job that looks at what they need."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from dedupd_core.errors import Busy, DedupdError, UnseenMember
from dedupd_core.stores.membership import Member
from dedupd_core.stores.shared_directory import SharedDirectory
from dedupd_core.stores.standing import renew_tokens, require_known
from dedupd_core.system.disk import Disk
from dedupd_core.system.paths import explain
from dedupd_core.volume.volume import Volume


@contextmanager
def all_held(volume: Volume, *, reads_only: bool = False) -> Iterator[None]:
    """Hold a volume, its store and all other volumes of that, which ``volume.fellows`` are then.

    No volume of the store makes a reference meanwhile: each job that could needs one of these
    locks. Raises UnseenMember, naming it, where one of the volumes cannot be seen, or is not as the
    store last knew it; Busy, StoreUnreachable, ReadOnlyVolume.
    """
    shared = volume.shared
    if shared is None:
        with volume.job_lock(reads_only=reads_only):
            yield
        return
    with ExitStack() as held:
        held.enter_context(volume.tree_lock(reads_only=reads_only))
        own = volume.parameters.uuid
        members = {one.uuid: one for one in shared.members().values() if one.uuid != own}
        fellows = []
        for uuid in sorted(members):
            fellow = held.enter_context(opened_member(shared, members[uuid], volume.disk))
            held.enter_context(fellow.tree_lock(reads_only=reads_only))
            fellows.append(fellow)
        held.enter_context(shared.job_lock(reads_only=reads_only))
        # From here on no volume comes to the store that has a stub.
        if shared.members().keys() - {own} != members.keys():
            raise Busy(f"{shared.path}: volumes have just come or gone; run the job again")
        standings = [one.standing for one in (volume, *fellows)]
        if reads_only:
            for standing in standings:
                require_known(shared, standing)
        else:
            renew_tokens(shared, standings, volume.disk)
        volume.fellows = tuple(fellows)
        held.callback(setattr, volume, "fellows", ())
        yield


def require_all(volume: Volume) -> None:
    """Raises UnseenMember where a volume of the store is not held: nothing may be collected."""
    shared = volume.shared
    if shared is not None:
        seen = {one.parameters.uuid for one in (volume, *volume.fellows)}
        for member in shared.members().values():
            if member.uuid not in seen:
                raise _unseen(shared, member, "it is not held")


def opened_member(shared: SharedDirectory, member: Member, disk: Disk) -> Volume:
    """A volume of the store, to be closed by the caller. Raises UnseenMember where it cannot be
    seen in its place, or is not the one that the store knows."""
    try:
        volume = Volume.open(member.root, disk)
    except DedupdError as error:
        raise _unseen(shared, member, str(error)) from error
    except OSError as error:
        raise _unseen(shared, member, explain(error)) from error
    with ExitStack() as on_failure:
        on_failure.callback(volume.close)
        if volume.parameters.uuid != member.uuid:
            raise _unseen(shared, member, "another volume lies there now")
        if volume.shared is None or not os.path.samestat(
            os.fstat(volume.shared.fd), os.fstat(shared.fd)
        ):
            raise _unseen(shared, member, "it is on another store now")
        require_known(shared, volume.standing)
        on_failure.pop_all()
    return volume


def _unseen(shared: SharedDirectory, member: Member, reason: str) -> UnseenMember:
    return UnseenMember(
        f"{member.root}: a volume of the store {shared.path} that cannot be seen ({reason}); files"
        f" of it may need any chunk, so nothing was changed. Bring it back; if it was moved, run"
        f" `dedupd store rejoin` with its new place; if it is gone for good,"
        f" `dedupd store forget {shared.path} {member.uuid}`"
    )
