"""What every job that writes a container again has to see to."""

from collections.abc import Iterator
from contextlib import contextmanager

from dedupd_core.errors import DamagedChunk
from dedupd_core.format.ids import show_id
from dedupd_core.store.container.container import data_name
from dedupd_core.store.container.directory import ContainerDirectory, OpenContainers
from dedupd_core.store.container.table_file import Recovered
from dedupd_core.system.files import opened
from dedupd_core.volume.volume import Volume
from jobs.frame.run import JobRun
from jobs.reconcile.forwarded_records import MergedBytes


@contextmanager
def kept_open(directory: ContainerDirectory, number: int) -> Iterator[int]:
    """The old file of a container that goes: the last to close it frees its blocks, which takes
    long, so that is the job, and not the mount."""
    with opened(directory.open_data(number)) as fd:
        yield fd


def keep_last_bytes(
    volume: Volume, run: JobRun, directory: ContainerDirectory, state: Recovered
) -> None:
    """Raises DamagedChunk where a merged record has the only bytes left: the record that it
    leads to was lost since, and readers and scrub use its own."""
    number, algorithm = state.header.container, volume.parameters.fingerprint
    merged = MergedBytes(run, OpenContainers(directory), algorithm)
    found = merged.first_needed(state)
    if found is not None:
        needed, lost = found
        raise DamagedChunk(
            f"{data_name(number).decode()}: skipped: the record that {show_id(needed)} was merged"
            " into is damaged; run `dedupd run scrub`",
            lost,
        )
