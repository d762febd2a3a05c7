"""``dedupd store forget``: a volume that is gone for good."""

from contextlib import closing, suppress

import click

from dedupd.cli.common import PATH, answer, exits, json_option
from dedupd.errors import UnseenMember, UsageError
from dedupd.shared.fellows import opened_member
from dedupd.stores.shared_directory import SharedDirectory
from dedupd.system.disk import Disk


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
        with suppress(UnseenMember), opened_member(shared, member, shared.disk):
            raise UsageError(
                f"{member.root}: is there, and not gone; `dedupd disable --unoptimize"
                f" {member.root}` takes it off the store"
            )
        shared.remove(uuid)
    answer(
        as_json,
        {"path": store, "forgotten": uuid},
        f"{store}: volume {uuid} ({member.root}) is forgotten; gc collects what it alone needed.",
    )
