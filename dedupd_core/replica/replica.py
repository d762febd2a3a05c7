"""A replica: a volume that holds a state of another one, and takes no changes by users.

``replica.json`` says which state (docs/design/format.md, "Replica"); ``receive`` is where the next
one is put together.
"""

import json
from dataclasses import asdict, dataclass

from dedupd_core.errors import Busy, Damaged
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import is_there, read_if_there

REPLICA_FILE = b"replica.json"
RECEIVE_DIR = b"receive"


@dataclass(frozen=True, slots=True)
class Replica:
    """The uuid of the volume that was sent, the id of the state, and when that was."""

    volume: str
    point: str
    moment_ns: int


def is_replica(base_fd: int) -> bool:
    """Whether users may only read."""
    return is_there(base_fd, REPLICA_FILE)


def replica_of(base_fd: int, where: str) -> Replica | None:
    """What the volume is a replica of; None where it is none. Raises Damaged."""
    data = read_if_there(base_fd, REPLICA_FILE)
    if data is None:
        return None
    try:
        return Replica(**json.loads(data))
    except (ValueError, TypeError) as error:
        raise Damaged(
            f"{where}: {REPLICA_FILE.decode()} is not valid ({error}); receive a full stream"
        ) from error


def note_replica(base_fd: int, replica: Replica, disk: Disk) -> None:
    """Say which state the volume has, durably."""
    text = json.dumps(asdict(replica), indent=2, sort_keys=True)
    disk.replace_file(base_fd, REPLICA_FILE, text.encode() + b"\n")


def end_replica(base_fd: int, disk: Disk) -> None:
    """Have it be a replica no more, durably: users may write, and it receives nothing."""
    disk.unlink(base_fd, REPLICA_FILE)
    disk.sync_dir(base_fd)


def refuse_unfinished(base_fd: int, root: str) -> None:
    """Raises Busy while a stream is received in parts: the files that need its chunks are not in
    the tree yet."""
    if is_there(base_fd, RECEIVE_DIR):
        raise Busy(
            f"{root}: a stream was received only in part, and its chunks would become garbage;"
            f" receive the rest, or discard it with `dedupd receive --drop {root}`"
        )
