"""The space that parts of a volume use and share, and that deleting them would free."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dedupd_core.errors import UsageError
from dedupd_core.volume.volume import Volume
from jobs.frame.run import JobRun
from jobs.usage.groups import By, GroupFiles, Groups
from jobs.usage.needs import REST, StoreNeeds


@dataclass(frozen=True, slots=True)
class UsageRow:
    """A part of a volume. Bytes.

    ``own``: blocks of its files and directories. ``store``: records that its stubs need, with
    second copies. ``takes``: the sum of both. ``frees``: the space that deleting only this part
    frees after gc and compaction. ``shared``: the rest, which other parts also need. ``share``:
    ``own``, and its part of the needed records if each is split among all references to it; None
    if not requested. The shares of all parts add up to the volume.
    """

    name: str
    files: int
    files_optimized: int
    logical_bytes: int
    own_bytes: int
    store_bytes: int
    takes_bytes: int
    frees_bytes: int
    shared_bytes: int
    chunks: int
    share_bytes: int | None


@dataclass(frozen=True, slots=True)
class Usage:
    """Parts of one volume, their sum, and the rest of the volume."""

    path: str
    rows: list[UsageRow]
    together: UsageRow
    rest: UsageRow
    messages: list[str]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def usage(
    volume: Volume,
    run: JobRun,
    paths: Sequence[tuple[bytes, str]],
    by: By = "",
    *,
    with_shares: bool = False,
) -> Usage:
    """Return the space that ``paths`` of a volume use, with the caller's names of the paths. Each
    path is a row, or all files are grouped by owner, type or folder. Needs no lock. Raises
    UsageError if a path lies in another path; Cancelled.
    """
    _refuse_nested(paths)
    needs = StoreNeeds(volume, run)
    groups = Groups(volume, run, needs)
    groups.by_path([path for path, _ in paths], [name for _, name in paths], by)
    return figures_of(volume, run, groups, needs, with_shares=with_shares)


def figures_of(
    volume: Volume, run: JobRun, groups: Groups, needs: StoreNeeds, *, with_shares: bool = False
) -> Usage:
    """Return the figures of groups whose files are known. Raises Cancelled."""
    count = len(groups.all) - 1
    needs.count(count)
    if with_shares:
        needs.count_shares(count)
    needs.weigh()
    rows = [_row(needs, number, groups.all[number]) for number in range(1, count + 1)]
    for number in range(count + 1):
        strays = needs.native.taken(number).strays
        if strays:
            name = groups.all[number].name or "the rest of the volume"
            run.findings.add(f"{name}: {strays} references to unknown chunks")
    return Usage(
        path=volume.root,
        rows=sorted(rows, key=lambda row: -row.takes_bytes) if len(rows) > 1 else rows,
        together=_together(needs, groups, rows),
        rest=_row(needs, REST, groups.all[REST]),
        messages=run.findings.messages,
    )


def _row(needs: StoreNeeds, number: int, files: GroupFiles) -> UsageRow:
    taken = needs.native.taken(number)
    takes = files.own_bytes + taken.bytes
    frees = min(takes, files.own_freed_bytes + needs.freed.get(number, 0))
    share = files.own_bytes + round(taken.share_bytes) if needs.shares_counted else None
    return UsageRow(
        name=files.name,
        files=files.files,
        files_optimized=files.files_optimized,
        logical_bytes=files.logical_bytes,
        own_bytes=files.own_bytes,
        store_bytes=taken.bytes,
        takes_bytes=takes,
        frees_bytes=frees,
        shared_bytes=takes - frees,
        chunks=taken.chunks,
        share_bytes=share,
    )


def _together(needs: StoreNeeds, groups: Groups, rows: list[UsageRow]) -> UsageRow:
    def total(name: str) -> int:
        return sum(getattr(row, name) or 0 for row in rows)

    store = sum(needs.native.taken(at).first_bytes for at in range(1, len(groups.all)))
    takes = total("own_bytes") + store
    frees = min(takes, groups.own_freed_together + needs.freed_together)
    return UsageRow(
        name="together",
        files=total("files"),
        files_optimized=total("files_optimized"),
        logical_bytes=total("logical_bytes"),
        own_bytes=total("own_bytes"),
        store_bytes=store,
        takes_bytes=takes,
        frees_bytes=frees,
        shared_bytes=takes - frees,
        chunks=0,
        share_bytes=total("share_bytes") if needs.shares_counted else None,
    )


def _refuse_nested(paths: Sequence[tuple[bytes, str]]) -> None:
    for path, name in paths:
        for other, its_name in paths:
            if path is not other and (path == other or not other or path.startswith(other + b"/")):
                raise UsageError(
                    f"{name}: is inside {its_name}, which is also listed; list only one of them"
                )
