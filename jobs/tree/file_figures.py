"""One file: its state, its chunks, and which other files refer to these."""

import errno
import os
import stat
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class PlainFigures:
    """A plain file. ``local_bytes`` are its blocks; ``saving``: the fraction of these that optimize
    has found it to save, None if it has not looked, or the file has changed since."""

    path: str
    state: str
    length_bytes: int
    local_bytes: int
    saving: float | None


@dataclass(frozen=True, slots=True)
class StubFigures:
    """A stub. ``state`` is "partly local" if ranges of it, ``local_ranges`` in number, lie in its
    own blocks; ``local_bytes`` are all of these.

    Of its recipe: the length that it covers, its distinct chunks, what these occupy in the store,
    in how many containers, its zeros, and the digest of the content.
    """

    path: str
    state: str
    length_bytes: int
    local_bytes: int
    covered_bytes: int
    local_ranges: int
    chunks: int
    chunk_stored_bytes: int
    containers: int
    hole_bytes: int
    content: str


@dataclass(frozen=True, slots=True)
class Sharing:
    """How many bytes of a file's chunks ``files`` others use as well."""

    shared_bytes: int
    files: int


def file_figures(volume: Volume, below: bytes, path: str) -> PlainFigures | StubFigures:
    """The figures of one file; messages call it ``path``. Raises UsageError, Damaged, OSError."""
    with opened(_open(volume, below, path)) as fd:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{path}: not a regular file")
        local_bytes = status.st_blocks * 512
        stub = volume.space.read(fd, path)
        if stub is None:
            ledger = load_ledger(volume, volume.policy())
            saving = ledger.saving_of(FileIdentity.of(status))
            return PlainFigures(path, "plain", status.st_size, local_bytes, saving)
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
    return StubFigures(
        path=path,
        state="stub" if not local else "partly local",
        length_bytes=status.st_size,
        local_bytes=local_bytes,
        covered_bytes=stub.covered,
        local_ranges=len(local),
        chunks=len(chunks),
        chunk_stored_bytes=sum(chunks.values()),
        containers=len(containers),
        hole_bytes=holes,
        content=recipe.content.hex(),
    )


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


def sharing(volume: Volume, path: bytes) -> Sharing:
    """What a file shares with others: a scan of all recipes."""
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
    return Sharing(sum(own[chunk] for chunk in shared), files)
