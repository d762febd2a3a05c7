"""``dedupd store forget``: remove a permanently lost volume from a store."""

from contextlib import closing

import click

from dedupd.cli.common import PATH, answer, exits, json_option
from dedupd_core.errors import CopiedVolume, NotAVolume, UsageError
from dedupd_core.stores.membership import Member
from dedupd_core.stores.shared_directory import SharedDirectory
from dedupd_core.system.disk import Disk
from dedupd_core.volume.volume import Volume


@click.command("forget")
@click.argument("store", type=PATH)
@click.argument("uuid")
@json_option
@exits
def command(store: str, uuid: str, as_json: bool) -> None:
    """Remove a lost volume, given by its UUID, permanently from STORE.

    Chunks that only this volume references become garbage. If the volume becomes available again
    later, its stubs are lost.
    """
    with closing(SharedDirectory.named(store, Disk())) as shared, shared.job_lock():
        member = shared.members().get(uuid)
        if member is None:
            raise UsageError(
                f"{store}: has no volume {uuid}; `dedupd store status {store}` lists its volumes"
            )
        if _is_there(member):
            raise UsageError(
                f"{member.root}: exists, so it is not lost; to remove it from the store, run"
                f" `dedupd disable --unoptimize {member.root}` or `dedupd store move`"
            )
        shared.remove(uuid)
    answer(
        as_json,
        {"path": store, "forgotten": uuid},
        f"{store}: volume {uuid} ({member.root}) is removed; gc collects the chunks that only"
        " it referenced.",
    )


def _is_there(member: Member) -> bool:
    """Return whether the volume is in its place, in any state. Raises DedupdError if that is
    unknown, for example because its mount does not answer."""
    try:
        with Volume.open(member.root) as volume:
            is_here = volume.membership is not None or volume.is_half_moved
            return volume.parameters.uuid == member.uuid and is_here
    except (NotAVolume, CopiedVolume):
        return False
