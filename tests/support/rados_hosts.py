"""Hosts with volumes on a store in a cluster, without file systems: a stub is a line of a file."""

import hashlib
import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from dedupd import native
from dedupd.format.rados_objects import FileId, frame_of
from dedupd.rados.audit import Audit, AuditReport
from dedupd.rados.chunks import NewChunk
from dedupd.rados.cluster.address import StoreAddress
from dedupd.rados.cluster.connection import Cluster
from dedupd.rados.collection import Collection
from dedupd.rados.recovery import Recovery
from dedupd.rados.store import RadosStore
from dedupd.rados.writer import FileChunk, NewFile, Prepared, Writer

PIECE_BYTES = 4096
SHARDS = 2


def fingerprint(raw: bytes) -> bytes:
    return native.hashing.fingerprint(raw, "blake3")


def new_chunk(raw: bytes, *, is_expected: bool = False) -> NewChunk:
    own = fingerprint(raw)
    return NewChunk(own, lambda: frame_of(raw, own), is_expected)


def pieces(content: bytes) -> list[tuple[int, bytes]]:
    """A content in chunks of one length; those of zeros are left out."""
    cut = [(at, content[at : at + PIECE_BYTES]) for at in range(0, len(content), PIECE_BYTES)]
    return [(at, piece) for at, piece in cut if piece.strip(b"\0")]


def new_file(file: FileId, content: bytes, *, is_expected: bool = False) -> NewFile:
    chunks = [
        FileChunk(at, len(piece), new_chunk(piece, is_expected=is_expected))
        for at, piece in pieces(content)
    ]
    return NewFile(file, len(content), chunks)


def random_content(seed: int, count: int = 3) -> bytes:
    """So many chunks that nothing else has."""
    return random.Random(seed).randbytes(count * PIECE_BYTES)


def content_of(store: RadosStore, version: str) -> bytes:
    """What a reader of a version gets."""
    recipe = store.recipes.read(version)
    assert recipe is not None, f"no recipe of version {version}"
    content = bytearray(recipe.length)
    for entry in recipe.entries:
        raw = store.chunks.read(entry.fingerprint)
        assert len(raw) == entry.length
        content[entry.offset : entry.offset + entry.length] = raw
    return bytes(content)


@dataclass
class Stubs:
    """The durable part of a host: what each file's stub names, and what it should read as."""

    path: Path
    versions: dict[str, str] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Self:
        return cls(path, json.loads(path.read_text()) if path.exists() else {})

    def name(self, file: FileId, version: str | None) -> None:
        """One durable step: the stub of a file is another one, or gone."""
        if version is None:
            self.versions.pop(file.text, None)
        else:
            self.versions[file.text] = version
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self.versions))
        os.replace(new, self.path)

    def settle(self, file: FileId) -> str | None:
        return self.versions.get(file.text)


class Host:
    """A host with one volume, in a session of its own."""

    def __init__(
        self,
        address: StoreAddress,
        directory: Path,
        name: str,
        *,
        operations_at_once: int = 1,
        lease_s: float = 30.0,
        after: Callable[[str], None] = lambda step: None,
        breaks_lease: bool = True,
    ) -> None:
        self.name, self.after = name, after
        self.volume = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
        self.stubs = Stubs.load(directory / f"{name}.json")
        self.store = RadosStore.open(address, operations_at_once=operations_at_once)
        try:
            self.store.join(self.volume, f"/srv/{name}", host=name, shards=SHARDS)
            self.writer, self.recovery = self.open_writer(lease_s, breaks_lease)
        except BaseException:
            self.store.close()
            raise

    def open_writer(self, lease_s: float, breaks_lease: bool) -> tuple[Writer, Recovery]:
        return self.store.writer(
            self.volume,
            self.stubs.settle,
            host=self.name,
            lease_s=lease_s,
            is_holder_dead=(lambda state: True) if breaks_lease else None,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.writer.close()
        else:
            self.writer.lease.leave()
        self.store.close()

    def die(self) -> None:
        """As a process that is killed: nothing is given back."""
        self.writer.lease.leave()
        self.store.close()

    def put(self, files: dict[int, bytes], *, is_expected: bool = False) -> list[Prepared]:
        """Store the contents of files, by their inodes, and let their stubs name them."""
        new = [
            new_file(FileId(inode, 1), content, is_expected=is_expected)
            for inode, content in files.items()
        ]
        prepared = self.writer.prepare(new)
        self.writer.commit(prepared)
        for one in prepared:
            self.stubs.name(one.file, one.version)
            self.after("stub")
        self.writer.finish(prepared)
        self.writer.retire()
        return prepared

    def delete(self, inodes: Sequence[int]) -> None:
        gone = []
        for inode in inodes:
            file = FileId(inode, 1)
            version = self.stubs.versions[file.text]
            self.stubs.name(file, None)
            self.after("unlink")
            gone.append((file, version))
        self.writer.delete(gone)
        self.writer.retire()

    def read(self, inode: int) -> bytes:
        return content_of(self.store, self.stubs.versions[FileId(inode, 1).text])


class Site:
    """A store and its hosts."""

    def __init__(self, store: RadosStore, directory: Path) -> None:
        self.store, self.directory = store, directory
        self.address = store.cluster.address

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *arguments: object) -> None:
        self.store.close()

    def another(self) -> "Site":
        """The same store by another connection."""
        return Site(RadosStore.open(self.address), self.directory)

    @property
    def cluster(self) -> Cluster:
        return self.store.cluster

    def host(self, name: str = "a", **options: object) -> Host:
        """To be closed by the caller."""
        return Host(self.address, self.directory, name, **options)  # type: ignore[arg-type]

    def audit(self, *, reads_chunks: bool = False) -> AuditReport:
        return Audit(self.store, reads_chunks=reads_chunks).run()

    def collect(self, grace_s: float = 0.0) -> Collection:
        collection = Collection(self.store.chunks, grace_s)
        collection.run()
        return collection

    def assert_whole(self) -> AuditReport:
        """Nothing that a file needs is missing, nothing else is there."""
        report = self.audit()
        assert (report.dangling, report.damaged, report.leaked) == ([], [], [])
        return report
