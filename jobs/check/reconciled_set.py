"""The part of verify that looks at reconciliation: the set, the partitions, the log."""

import os
from collections.abc import Iterator
from itertools import chain

from dedupd_core import native
from dedupd_core.errors import DamagedTable
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.domain import VOLUME, salt_of, show_domain
from dedupd_core.format.ids import container_of, make_id, show_id, unpack_pairs
from dedupd_core.store.container.table_scan import loaded_tables
from dedupd_core.store.container.table_totals import census
from dedupd_core.store.forwards import FORWARDS_MAX
from dedupd_core.store.merge_log import MergeLog
from dedupd_core.stores.local_store import MERGE_DIR
from dedupd_core.system.files import opened
from dedupd_core.volume.volume import Volume
from jobs.check.deltas import deltas
from jobs.check.invariants import Finding, Invariant
from jobs.check.record_census import RecordCensus
from jobs.frame.run import JobRun


def check_partitions(volume: Volume, run: JobRun, kind: fmt.Kind) -> Iterator[Finding]:
    """Containers and tables that name different partitions, or count records that are not there."""
    with volume.containers(kind) as directory:
        for header, mark, _ in loaded_tables(directory, run.safe_point):
            where = directory.where(header.container)
            if mark.partition != header.partition:
                detail = f"the table says {mark.partition}, the container {header.partition}"
                yield Finding(Invariant.PARTITION_AGREES, where, detail)
            if mark.reconciled > mark.synced_count:
                detail = f"{mark.reconciled} of {mark.synced_count} records are reconciled"
                yield Finding(Invariant.TABLE_AGREES, where, detail)


def check_domains(
    volume: Volume, run: JobRun, kind: fmt.Kind, known: RecordCensus
) -> Iterator[Finding]:
    """Records that lead to, or lean on, one of another domain."""
    with volume.containers(kind) as directory:
        domains = {container.number: container.key.domain for container in census(directory.fd)}
        if not any(domain != VOLUME for domain in domains.values()):
            return
        merged = ((record_id, entry.target) for record_id, entry in known.merged.items())
        numbers = list(domains)
        found = deltas(directory, numbers, run.safe_point)
        leaning = ((delta.record_id, delta.base) for delta in found)
        for own, other in run.checked(chain(merged, leaning)):
            here, there = domains.get(container_of(own)), domains.get(container_of(other))
            if here is not None and there is not None and here != there:
                detail = f"is of {show_domain(here)}, and {show_id(other)} of {show_domain(there)}"
                yield Finding(Invariant.DOMAIN_AGREES, show_id(own), detail)


def check_set(volume: Volume, run: JobRun) -> Iterator[Finding]:
    """Chunks that are twice in the reconciled set of their domain. 14 bytes of memory for each."""
    with volume.containers(fmt.Kind.CHUNKS) as directory:
        tables = loaded_tables(directory, run.safe_point)
        join = native.upkeep.Join(sum(table.mark.reconciled for table in tables))
        for header, mark, body in loaded_tables(directory, run.safe_point):
            in_set = memoryview(body)[: mark.reconciled * tbl.ENTRY_BYTES]
            first_id = make_id(header.container, 0)
            join.add(in_set, fmt.seed_of(header), first_id, salt_of(header.domain))
        for own, other in unpack_pairs(join.finish()):
            first, second = directory.entry(own), directory.entry(other)
            if first is not None and second is not None and _are_twice(first, second):
                detail = f"is the same as {show_id(other)}"
                yield Finding(Invariant.SET_DISTINCT, show_id(own), detail)


def check_merges(known: RecordCensus, run: JobRun) -> Iterator[Finding]:
    """Merged records that lead to merged records without an end."""
    for record_id in run.checked(known.merged):
        if known.end_of(record_id) in known.merged:
            detail = f"leads on after {FORWARDS_MAX} steps"
            yield Finding(Invariant.MERGE_ENDS, show_id(record_id), detail)


def check_log(volume: Volume) -> Iterator[Finding]:
    """A merge log that is not whole."""
    try:
        fd = os.open(os.path.join(volume.store.base, MERGE_DIR), os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return
    with opened(fd):
        try:
            MergeLog(fd, volume.space.volume_id).close()
        except FileNotFoundError:
            return
        except DamagedTable as error:
            yield Finding(Invariant.MERGE_LOG, MERGE_DIR, str(error))


def _are_twice(first: tbl.TableEntry, second: tbl.TableEntry) -> bool:
    is_live = first.state == second.state == tbl.State.LIVE
    return is_live and first.fingerprint == second.fingerprint
