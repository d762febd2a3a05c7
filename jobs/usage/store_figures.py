"""The space that a shared store uses, and its volumes."""

import os
from dataclasses import dataclass
from itertools import chain

from dedupd_core import native
from dedupd_core.config.policy import Policy
from dedupd_core.errors import DedupdError
from dedupd_core.format.container import Kind
from dedupd_core.shared.fellows import opened_member
from dedupd_core.store.garbage import Garbage, garbage_of, weights
from dedupd_core.stores.local_store import STORE_DIRS
from dedupd_core.stores.shared_directory import SharedDirectory
from dedupd_core.system.files import opened
from dedupd_core.volume.volume import Volume
from jobs.usage.volume_figures import directory_bytes


@dataclass(frozen=True, slots=True)
class MemberFigures:
    """A volume on a shared store. ``problem``: why it is unreachable, or how it differs from
    the store's last state of it; empty if there is no problem."""

    path: str
    uuid: str
    has_stubs: bool
    problem: str


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """The space that a shared store uses. ``store_bytes``: blocks by kind of container.
    ``size_bytes`` and ``free_bytes`` are those of its file system."""

    path: str
    uuid: str
    volumes: list[MemberFigures]
    store_bytes: dict[str, int]
    garbage: Garbage
    size_bytes: int
    free_bytes: int


def store_figures(shared: SharedDirectory) -> StoreFigures:
    """Return the current figures of a store, without a walk of any tree. Raises Damaged."""
    volumes = []
    for member in shared.members().values():
        problem = ""
        try:
            opened_member(shared, member).close()
        except DedupdError as error:
            problem = str(error.__cause__ or error)
        volumes.append(MemberFigures(member.root, member.uuid, member.has_stubs, problem))
    directories = {kind: os.path.join(shared.base, STORE_DIRS[kind]) for kind in Kind}
    dead_min = Policy().compaction_min_dead
    kinds = map(weights, directories.values())
    space = os.fstatvfs(shared.fd)
    return StoreFigures(
        path=shared.path,
        uuid=shared.parameters.uuid,
        volumes=volumes,
        store_bytes={kind.name.lower(): directory_bytes(directories[kind]) for kind in Kind},
        garbage=garbage_of(chain.from_iterable(kinds), dead_min),
        size_bytes=space.f_blocks * space.f_frsize,
        free_bytes=space.f_bavail * space.f_frsize,
    )


def kept_elsewhere(volume: Volume) -> int:
    """Return the bytes of the containers of a volume's store that snapshots share."""
    total = 0
    for kind in Kind:
        with volume.containers(kind) as directory:
            for number in directory.numbers():
                with opened(directory.open_data(number)) as fd:
                    total += native.system.shared_bytes(fd, os.fstat(fd).st_size)
    return total
