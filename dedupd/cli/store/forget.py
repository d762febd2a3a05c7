"""``dedupd store forget``: a volume that is gone for good."""

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
    """Have STORE forget the volume UUID, which is gone for good.

    What only that volume needs is garbage from then on: its stubs, should it come back, are lost.
    """
    with closing(SharedDirectory.named(store, Disk())) as shared, shared.job_lock():
        member = shared.members().get(uuid)
        if member is None:
            raise UsageError(
                f"{store}: has no volume {uuid}; `dedupd store status {store}` lists them"
            )
        if _is_there(member):
            raise UsageError(
                f"{member.root}: is there, and not gone; `dedupd disable --unoptimize"
                f" {member.root}` takes it off the store, and `dedupd store move` to another one"
            )
        shared.remove(uuid)
    answer(
        as_json,
        {"path": store, "forgotten": uuid},
        f"{store}: volume {uuid} ({member.root}) is forgotten; gc collects what it alone needed.",
    )


def _is_there(member: Member) -> bool:
    """Whether the volume is in its place, in whatever state. Raises DedupdError where that cannot
    be told, as where its mount does not answer."""
    try:
        with Volume.open(member.root) as volume:
            is_here = volume.membership is not None or volume.is_half_moved
            return volume.parameters.uuid == member.uuid and is_here
    except (NotAVolume, CopiedVolume):
        return False
