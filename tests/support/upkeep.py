"""Scrubbing and reconciling a volume, reading its tables, and damaging single records of it."""

from pathlib import Path

from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.container import Kind
from dedupd_core.format.ids import container_of
from dedupd_core.system.disk import Disk
from dedupd_core.volume.volume import Volume
from jobs.frame.run import JobRun
from jobs.reconcile.reconcile_job import Reconcile, ReconcileReport, Strategy
from jobs.scrub.scrub_job import Depth, Scrub, ScrubReport
from tests.support.lab import Lab, flip_bit

PLAIN = 'min_age = "0s"\nmin_size = "1"\ncompaction_min_dead = 0\n'
"""A policy under which everything is optimized, compacted and reconciled at once."""


def reconcile(
    lab: Lab, strategy: Strategy = Strategy.ALL, *, dry_run: bool = False
) -> ReconcileReport:
    with lab.opened() as volume, volume.job_lock():
        return Reconcile(volume, JobRun("reconcile"), strategy, dry_run=dry_run).run()


def scrub(
    root: Path,
    depth: Depth = Depth.FULL,
    *,
    disk: Disk | None = None,
    bytes_per_s: float | None = None,
) -> ScrubReport:
    with Volume.open(str(root), disk) as volume, volume.job_lock():
        return Scrub(volume, JobRun("scrub"), depth, bytes_per_s).run()


def chunks_of(lab: Lab, name: str) -> list[tuple[int, int, int]]:
    """(chunk, start, end) of a file."""
    with lab.opened() as volume:
        stub = lab.stub(name)
        assert stub is not None
        spans = volume.content(stub, name).recipe.spans(0, stub.covered)
        return [(s.chunk, s.offset, s.offset + s.length) for s in spans]


def entry(lab: Lab, kind: Kind, record_id: int) -> tbl.TableEntry:
    """What the table says of a record."""
    with lab.opened() as volume:
        directory = volume.containers(kind)
        found = directory.entry(record_id)
        directory.close()
    assert found is not None
    return found


def damage_record(lab: Lab, kind: Kind, record_id: int) -> None:
    """Flip a bit of a payload; a second time, it is as it was."""
    at = entry(lab, kind, record_id).offset + fmt.RECORD_HEADER_BYTES + 7
    flip_bit(lab.container(kind, container_of(record_id)), at)


def damage_with_second_sources(root: Path, *, header: bool) -> None:
    """Damage an optimized volume so that every byte can still be read: a copy is there of all.

    ``header``: only the header of a container of copies is lost.
    """
    lab = Lab(root)
    lab.set_policy('min_age = "0s"\nredundancy_threshold = 1\n')
    assert scrub(root).copies_written
    if header:
        with open(lab.container(Kind.CHUNK_COPIES), "r+b") as file:
            file.write(bytes(fmt.FILE_HEADER_BYTES))
        return
    damage_record(lab, Kind.CHUNKS, chunks_of(lab, "base.bin")[0][0])
    lab.container(Kind.RECIPES).unlink()
