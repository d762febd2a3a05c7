"""Costs follow what is done, and not what is stored: with some ten thousand chunks."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.rados_hosts import Host, Site

PIECE_BYTES = 80 << 10
FILE_PIECES = 64
FILES = 480
FEW = 24
GONE = 12
BATCH = 12

pytestmark = pytest.mark.slow


class Operations:
    """How many there were, of all connections that are counted."""

    def __init__(self) -> None:
        self.count = 0

    def note(self, operation: str) -> None:
        self.count += 1

    @contextmanager
    def counted(self, *sites: Site | Host) -> Iterator[None]:
        self.count = 0
        clusters = [
            c
            for one in sites
            for c in (
                [one.cluster] if isinstance(one, Site) else [one.store.cluster, one.writer.cluster]
            )
        ]
        for cluster in clusters:
            cluster.gate = self.note
        yield
        for cluster in clusters:
            cluster.gate = None


def content_of(file: int) -> bytes:
    """Chunks that no other file has, and that take a hundred bytes each: OSDs are in memory."""
    seeds = (hashlib.blake2b(b"%d.%d" % (file, n)).digest() for n in range(FILE_PIECES))
    return b"".join(seed * (PIECE_BYTES // len(seed)) for seed in seeds)


def put(host: Host, files: range) -> None:
    for first in range(files.start, files.stop, BATCH):
        batch = range(first, min(first + BATCH, files.stop))
        host.put({file + 1: content_of(file) for file in batch}, is_expected=host.name == "b")


def collection_cost(site: Site, hosts: list[Host]) -> int:
    """Operations of a collection, after all hosts have deleted the same files."""
    for host in hosts:
        host.delete(range(1, GONE + 1))
    operations = Operations()
    with operations.counted(site):
        assert site.collect().removed == GONE * FILE_PIECES
    return operations.count


def test_a_chunk_is_one_operation_and_a_collection_is_what_was_deleted(site: Site) -> None:
    operations = Operations()
    options = {"operations_at_once": 16, "piece_bytes": PIECE_BYTES}
    with site.host("a", **options) as a, site.host("b", **options) as b:
        put(a, range(FEW))
        small = collection_cost(site, [a])
        put(a, range(GONE))
        with operations.counted(a):
            put(a, range(FEW, FILES))
        # One a chunk, new or known; the rest are those of files and of the lease.
        assert 1 <= operations.count / ((FILES - FEW) * FILE_PIECES) < 1.1
        with operations.counted(b):
            put(b, range(FILES))
        assert 1 <= operations.count / (FILES * FILE_PIECES) < 1.1
        names = [name for name in site.cluster.names() if name.startswith("c.")]
        assert len(names) == len(set(names)) == FILES * FILE_PIECES
        large = collection_cost(site, [a, b])
        assert GONE * FILE_PIECES < large <= 1.2 * small, (small, large)
        for file in (GONE, FILES - 1):
            assert b.read(file + 1) == content_of(file)
    site.assert_whole()
