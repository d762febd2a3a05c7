"""Which other files refer to the chunks of one file: a scan of all recipes."""

import os
from typing import Any

from dedupd.errors import Damaged
from dedupd.format.ids import HOLE
from dedupd.system.files import opened
from dedupd.system.paths import open_beneath, show_path
from dedupd.volume.volume import Volume
from jobs.tree.walk import walk


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
    """How many bytes of a file's chunks other files use too, and how many files that are."""
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
