"""The attribute ``user.dedupd.content``: a digest of a file that the store vouches for.

Only clean stubs have it, which are all in the store: equal digests mean equal content. It is in no
list of attributes, so that no program copies it.
"""

import os

from dedupd_core.stub.local_blocks import checked_stub
from dedupd_core.system.files import opened
from dedupd_core.volume.volume import Volume

CONTENT_ATTRIBUTE = b"user.dedupd.content"


def content_of(volume: Volume, path: bytes) -> bytes | None:
    """The value for the file at ``path``; None where it has none. Raises Damaged, OSError.

    It is the digest of the recipe (docs/design/format.md, "Recipe") in hex.
    """
    with opened(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)) as fd:
        before = os.fstat(fd)
        stub = checked_stub(fd, volume.stub_files, os.fsdecode(path))
        if stub is None or not stub.is_clean or stub.covered != before.st_size:
            return None
        recipe = volume.content(stub, os.fsdecode(path)).recipe
        if recipe.length != stub.covered:
            return None  # the file was cut: the digest is that of more
        after = os.fstat(fd)
        if (before.st_mtime_ns, before.st_ctime_ns, before.st_size) != (
            after.st_mtime_ns,
            after.st_ctime_ns,
            after.st_size,
        ):
            return None
        return recipe.content.hex().encode()
