"""What an administrator is told about the store of a volume."""

import os
from collections.abc import Iterator

from dedupd_core import native
from dedupd_core.errors import UnseenMember
from dedupd_core.format.container import Kind
from dedupd_core.shared.fellows import opened_member
from dedupd_core.stores.standing import require_known
from dedupd_core.system.files import opened
from dedupd_core.volume.volume import Volume


def kept_elsewhere(volume: Volume) -> int:
    """How many bytes of the containers of a volume's store snapshots have, too."""
    total = 0
    for kind in Kind:
        with volume.containers(kind) as directory:
            for number in directory.numbers():
                with opened(directory.open_data(number)) as fd:
                    total += native.system.shared_bytes(fd, os.fstat(fd).st_size)
    return total


def unknown_members(volume: Volume) -> Iterator[str]:
    """Why nothing can be collected in the shared store of a volume: of each volume on it that
    cannot be seen, or is not as the store last knew it. Raises StoreUnreachable, Damaged."""
    shared = volume.shared
    if shared is None:
        return
    try:
        require_known(shared, volume.standing)
    except UnseenMember as error:
        yield str(error)
    for member in shared.members().values():
        if member.uuid == volume.parameters.uuid:
            continue
        try:
            opened_member(shared, member, volume.disk).close()
        except UnseenMember as error:
            yield str(error)
