"""One file: its state, its chunks, and which other files refer to these."""

import errno
import os
import stat
from typing import Any

from dedupd_core.errors import Damaged, UsageError
from dedupd_core.format.ids import HOLE, container_of
from dedupd_core.stub.transition import FileIdentity, local_ranges
from dedupd_core.system.files import opened
from dedupd_core.system.paths import named, open_beneath, show_path
from dedupd_core.volume.volume import Volume
from jobs.tree.judged_files import load_ledger
from jobs.tree.walk import walk


def is_folder(volume: Volume, below: bytes) -> bool:
    """Whether a path of the tree is a directory. Raises OSError."""
    if not below:
        return True
    with opened(open_beneath(volume.data_fd, below, os.O_PATH)) as fd:
        return stat.S_ISDIR(os.fstat(fd).st_mode)


def file_figures(volume: Volume, below: bytes, path: str) -> dict[str, Any]:
    """The figures of one file; messages call it ``path``. Raises UsageError, Damaged, OSError.

    ``saving`` is the fraction of its blocks that optimize has found a plain file to save, None
    where it has not looked, or the file has changed since.
    """
    with opened(_open(volume, below, path)) as fd:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{path}: not a regular file")
        row: dict[str, Any] = {
            "path": path,
            "state": "plain",
            "length_bytes": status.st_size,
            "local_bytes": status.st_blocks * 512,
        }
        stub = volume.space.read(fd, path)
        if stub is None:
            ledger = load_ledger(volume, volume.policy())
            row["saving"] = ledger.saving_of(FileIdentity.of(status))
            return row
        local = local_ranges(fd, status.st_size)
    recipe = volume.content(stub, path).recipe
    chunks: dict[int, int] = {}
    containers: set[int] = set()
    holes = 0
    for span in recipe.spans(0, stub.covered):
        if span.chunk == HOLE:
            holes += span.length
            continue
        containers.add(container_of(span.chunk))
        if span.chunk not in chunks:
            chunks[span.chunk] = volume.chunk_records.describe(span.chunk).stored_length
    row |= {
        "state": "stub" if not local else "partly local",
        "covered_bytes": stub.covered,
        "local_ranges": len(local),
        "chunks": len(chunks),
        "chunk_stored_bytes": sum(chunks.values()),
        "containers": len(containers),
        "hole_bytes": holes,
        "content": recipe.content.hex(),
    }
    return row


def _open(volume: Volume, below: bytes, path: str) -> int:
    try:
        with named(path):
            return open_beneath(volume.data_fd, below, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UsageError(f"{path}: not a regular file, but a link") from None
        raise


def chunks_of(volume: Volume, path: bytes) -> dict[int, int]:
    """Chunk id → raw length of a file; empty where it is plain. Raises Damaged, OSError."""
    where = show_path(path)
    with opened(open_beneath(volume.data_fd, path, os.O_RDONLY | os.O_NONBLOCK)) as fd:
        stub = volume.space.read(fd, where)
    if stub is None:
        return {}
    recipe = volume.content(stub, where).recipe
    return {s.chunk: s.length for s in recipe.spans(0, stub.covered) if s.chunk != HOLE}


def sharing(volume: Volume, path: bytes) -> dict[str, Any]:
    """How many bytes of a file's chunks other files use too, and how many files these are: a scan
    of all recipes."""
    own = chunks_of(volume, path)
    shared: set[int] = set()
    files = 0
    for found in walk(volume):
        if not found.is_stub or found.path == path:
            continue
        try:
            common = own.keys() & chunks_of(volume, found.path).keys()
        except (Damaged, OSError):
            continue
        if common:
            files += 1
            shared |= common
    return {"shared_bytes": sum(own[chunk] for chunk in shared), "files": files}
