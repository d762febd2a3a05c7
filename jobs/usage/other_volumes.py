"""What the other volumes of a shared store need: without this one, it would still be there."""

from collections.abc import Sequence

from dedupd_core.errors import DamagedStub, UnseenMember
from dedupd_core.format.stub import decode_stub
from dedupd_core.native.tree import StubUsage, Unreadable
from dedupd_core.shared.fellows import opened_member, others
from dedupd_core.volume.volume import Volume
from jobs.frame.run import JobRun, checked
from jobs.tree.walk import each_directory, unreadable
from jobs.usage.needs import REST, StoreNeeds, summed


def name_others(volume: Volume, run: JobRun, needs: StoreNeeds) -> None:
    """Name what the other volumes need as needed by the rest. One that cannot be seen is a finding:
    then the figures say that more would be freed than is true. Raises Cancelled."""
    shared = volume.shared
    if shared is None:
        return
    for member in others(volume).values():
        try:
            with opened_member(shared, member) as other:
                _name(other, run, needs)
        except UnseenMember as error:
            run.findings.add(f"its chunks are not counted: {error}")


def _name(other: Volume, run: JobRun, needs: StoreNeeds) -> None:
    def look(directories: Sequence[bytes]) -> Sequence[StubUsage | Unreadable]:
        return summed(other, directories, run.safe_point)

    for directory, _, here in each_directory(look, run.safe_point):
        if isinstance(here, Unreadable):
            run.findings.add(f"{other.root}: {unreadable(directory, here.errno)}")
            continue
        for sums in here.sums.values():
            needs.native.name(REST, sums.chunks, sums.recipes, sums.covered)
        for file in checked(here.files, run.safe_point):
            if file.attribute is None:
                continue
            try:
                needs.name(REST, decode_stub(file.attribute, other.space.volume_id, ""))
            except DamagedStub:
                continue  # a finding of that volume
