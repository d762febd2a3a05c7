"""Quarantines the records that readers found damaged, before more files refer to them.

A user restores a damaged file from a backup. If the restored file referred to the damaged chunk, it
would be lost again. Instead, a quarantined record is stored again, which repairs every other file
that needs it (``jobs/repair/returning_records.py``).
"""

from collections.abc import Callable
from contextlib import suppress

from dedupd_core.errors import Damaged
from dedupd_core.format import table as tbl
from dedupd_core.format.container import Kind
from dedupd_core.format.ids import container_of, ordinal_of
from dedupd_core.store.container.container import Container
from dedupd_core.store.container.directory import ContainerDirectory, OpenContainers
from dedupd_core.store.container.record_states import set_states
from dedupd_core.store.container.recovery import recover
from dedupd_core.system.files import UNREADABLE
from dedupd_core.volume.volume import Volume


def quarantine_noted(volume: Volume, safe_point: Callable[[], None]) -> None:
    """Check the noted records, and quarantine the damaged ones, durably.

    The notes remain for scrub. ``safe_point`` is called between two records. Needs the job lock.
    Raises NoSpace.
    """
    noted: dict[Kind, list[int]] = {}
    for kind, record_id in volume.repairs.pending():
        noted.setdefault(kind, []).append(record_id)
    for kind, record_ids in noted.items():
        with volume.containers(kind) as directory:
            for number in sorted({container_of(record_id) for record_id in record_ids}):
                # A recovery that replaces a table would lose the changes to it.
                with suppress(Damaged, FileNotFoundError), directory.neighbours.turn():
                    if directory.neighbours.theirs(kind, number) is None:
                        recover(directory, number)
            containers = OpenContainers(directory)
            for record_id in record_ids:
                safe_point()
                container = containers.get(container_of(record_id))
                if container is not None:
                    with directory.neighbours.turn():
                        _quarantine(directory, container, record_id)


def _quarantine(directory: ContainerDirectory, container: Container, record_id: int) -> None:
    entry = container.entry(ordinal_of(record_id))
    if entry is None or entry.state not in tbl.USABLE or _is_intact(container, record_id):
        return
    with suppress(Damaged):  # the rebuild of a table checks every payload
        set_states(directory, {record_id: entry._replace(state=tbl.State.QUARANTINED)})


def _is_intact(container: Container, record_id: int) -> bool:
    try:
        container.read_own(ordinal_of(record_id))
    except Damaged:
        return False
    except OSError as error:
        return error.errno not in UNREADABLE
    return True
