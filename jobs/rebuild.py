"""The rebuild job: rebuilds all derived data from containers and stubs alone."""

import os
from dataclasses import dataclass, field

from dedupd_core.errors import CatalogUnusable, Damaged, DamagedChunk
from dedupd_core.format.container import COPIES_OF, Kind
from dedupd_core.format.ids import make_id
from dedupd_core.format.table import State
from dedupd_core.store import saved_marks
from dedupd_core.store.container.directory import OpenContainers
from dedupd_core.store.container.record_states import set_states
from dedupd_core.volume.catalog import Catalog
from dedupd_core.volume.volume import Volume
from jobs.check.losses import Loss
from jobs.frame.job import Job, Report
from jobs.frame.run import JobRun
from jobs.scrub.scrub_job import Depth, Scrub


@dataclass(slots=True)
class RebuildReport(Report):
    """The results of a run.

    ``orphans_released`` counts records that are no longer garbage in a table. ``not_rebuilt`` lists
    facts that the source data does not have, and losses of source data.
    """

    job: str = "rebuild"
    tables: int = 0
    tables_rebuilt: int = 0
    orphans_released: int = 0
    catalogue_is_new: bool = False
    records: int = 0
    stubs: int = 0
    repaired: dict[str, int] = field(default_factory=dict)
    not_rebuilt: list[str] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)


class Rebuild(Job[RebuildReport]):
    """One run over one volume. Needs the volume's job lock; the volume may be mounted.

    The index needs no step of its own: every job loads it from the tables.
    """

    def __init__(self, volume: Volume, run: JobRun) -> None:
        super().__init__(volume, run, RebuildReport())

    def run(self) -> RebuildReport:
        """Rebuild the catalogue and tables if they are damaged. Raises Cancelled, NoSpace."""
        report = self._report
        self._rebuild_catalogue()
        saved_marks.remove(self._volume.store.base_fd, self._volume.disk)
        for kind in Kind:
            self._count_tables(kind)
        scrub = Scrub(self._volume, self._run, Depth.QUICK).run()
        for kind in Kind:
            self._release_orphans(kind)
        report.records, report.stubs = scrub.records, scrub.stubs
        report.repaired, report.losses = scrub.repaired, scrub.losses
        if report.catalogue_is_new:
            report.not_rebuilt.append("the history of jobs, and the progress of interrupted jobs")
        if report.tables_rebuilt or report.orphans_released:
            report.not_rebuilt.append("which chunks are garbage: the next gc finds them")
        report.not_rebuilt += [f"{loss.path}: {loss.detail}" for loss in scrub.losses]
        if scrub.losses:
            report.outcome = "done, as far as containers exist"
        return self.report()

    def _rebuild_catalogue(self) -> None:
        """Open the catalogue, which replaces a damaged one by an empty one."""
        self._run.update(phase="catalogue")
        directory = self._volume.catalogue
        existed = os.path.exists(os.path.join(directory, "data.mdb"))
        try:
            with Catalog(directory) as catalog:
                self._report.catalogue_is_new = not existed or catalog.is_empty()
        except CatalogUnusable as error:
            self._report.not_rebuilt.append(str(error))

    def _release_orphans(self, kind: Kind) -> None:
        """Make all orphans live again, durably. An older copy of a table may record a record as
        garbage that files need by now, and a compaction would delete it."""
        self._run.update(phase=f"{kind.name.lower()} that were garbage")
        with self._volume.containers(kind) as directory:
            containers = OpenContainers(directory)
            for number in directory.numbers():
                self._run.safe_point()
                try:
                    changes = {
                        make_id(number, ordinal): entry._replace(state=State.LIVE, target=target)
                        for ordinal, entry in enumerate(directory.entries(number))
                        if entry is not None
                        and entry.state == State.ORPHANED
                        and (target := _target(containers, kind, number, ordinal)) is not None
                    }
                except (Damaged, OSError):
                    continue  # it is not compacted either
                set_states(directory, changes)
                self._report.orphans_released += len(changes)

    def _count_tables(self, kind: Kind) -> None:
        with self._volume.containers(kind) as directory:
            for number in directory.numbers():
                self._run.safe_point()
                self._report.tables += 1
                try:
                    is_whole = not directory.entries(number).damaged()
                except (Damaged, OSError):
                    is_whole = False
                self._report.tables_rebuilt += not is_whole


def _target(containers: OpenContainers, kind: Kind, number: int, ordinal: int) -> int | None:
    """Return the record that an orphan repeats or depends on; None if it is unknown or missing. The
    entry does not have it. Only second copies are found by the record that they repeat."""
    container = containers.get(number)
    entry = None if container is None else container.entry(ordinal)
    if kind in COPIES_OF and (entry is None or not entry.leans):
        return 0
    try:
        if container is None:
            return None
        if kind in COPIES_OF:
            base = container.describe_own(ordinal).base
            # The base of an orphan may have been collected.
            return base if containers.has_base(base) else None
        return container.describe_own(ordinal).target
    except DamagedChunk:
        return None
