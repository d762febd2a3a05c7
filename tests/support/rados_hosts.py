"""Hosts with volumes on a store in a cluster, without file systems: a stub is a line of a file."""

import hashlib
import json
import os
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from dedupd_core import native
from dedupd_core.format.cluster.address import StoreAddress, parse_address
from dedupd_core.format.cluster.objects import FileId, frame_of
from dedupd_core.rados.audit import Audit, AuditReport
from dedupd_core.rados.chunks import NewChunk
from dedupd_core.rados.cluster.connection import Cluster
from dedupd_core.rados.garbage import Collection
from dedupd_core.rados.recovery import Recovery
from dedupd_core.rados.store import RadosStore
from dedupd_core.rados.writer import FileChunk, NewFile, PreparedVersion, Writer

PIECE_BYTES = 4096
SHARDS = 2


def fingerprint(raw: bytes) -> bytes:
    return native.hashing.fingerprint(raw, "blake3")


def new_chunk(raw: bytes, *, is_expected: bool = False) -> NewChunk:
    own = fingerprint(raw)
    return NewChunk(own, lambda: frame_of(raw, own), is_expected)


def pieces(content: bytes, length: int = PIECE_BYTES) -> list[tuple[int, bytes]]:
    """A content in chunks of one length; those of zeros are left out."""
    cut = [(at, content[at : at + length]) for at in range(0, len(content), length)]
    return [(at, piece) for at, piece in cut if piece.strip(b"\0")]


def new_file(
    file: FileId, content: bytes, *, is_expected: bool = False, piece_bytes: int = PIECE_BYTES
) -> NewFile:
    chunks = [
        FileChunk(at, len(piece), new_chunk(piece, is_expected=is_expected))
        for at, piece in pieces(content, piece_bytes)
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
    digests: dict[str, str] = field(default_factory=dict)
    """Of each file's content, by what is written to it and not by what is read."""

    @classmethod
    def load(cls, path: Path) -> Self:
        return cls(path, *(json.loads(path.read_text()) if path.exists() else ()))

    def name(self, file: FileId, version: str | None, content: bytes = b"") -> None:
        """One durable step: the stub of a file is another one, or gone."""
        if version is None:
            self.versions.pop(file.text, None)
            self.digests.pop(file.text, None)
        else:
            self.versions[file.text] = version
            self.digests[file.text] = fingerprint(content).hex()
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps([self.versions, self.digests]))
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
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        self.name, self.after, self.piece_bytes = name, after, piece_bytes
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

    def put(self, files: dict[int, bytes], *, is_expected: bool = False) -> list[PreparedVersion]:
        """Store the contents of files, by their inodes, and let their stubs name them."""
        new = [
            new_file(
                FileId(inode, 1), content, is_expected=is_expected, piece_bytes=self.piece_bytes
            )
            for inode, content in files.items()
        ]
        prepared = self.writer.prepare(new)
        self.writer.commit(prepared)
        for one in prepared:
            self.stubs.name(one.file, one.version, files[one.file.inode])
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

    def assert_reads_right(self) -> None:
        """Every file has the content that it was given."""
        for name, digest in self.stubs.digests.items():
            content = content_of(self.store, self.stubs.versions[name])
            assert fingerprint(content).hex() == digest, name

    def delete_forgotten(self) -> None:
        """Delete what the store has of files whose stubs are gone, as a run does that looks for
        them: a crash may lie between an unlink and the store's knowing of it."""
        known = [(file, versions.new) for file, versions in self.writer.table.files()]
        self.writer.delete(one for one in known if one[0].text not in self.stubs.versions)
        self.writer.retire()

    def work(self, chance: random.Random, rounds: int) -> None:
        """Store, replace and delete files, of chunks that other hosts have, too."""
        for _ in range(rounds):
            inodes = chance.sample(range(1, 30), chance.randint(1, 4))
            here = [n for n in inodes if FileId(n, 1).text in self.stubs.versions]
            if here and chance.random() < 0.3:
                self.delete(here)
            else:
                some = {n: shared_content(chance) for n in inodes}
                self.put(some, is_expected=chance.random() < 0.5)


def shared_content(chance: random.Random) -> bytes:
    """Up to eight chunks, of the forty that all hosts draw from."""
    pieces = [random_content(chance.randrange(40), 1) for _ in range(chance.randint(0, 8))]
    return b"".join(pieces) + bytes(chance.randrange(2) * PIECE_BYTES)


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

    def recover(self, volume: str) -> None:
        """What the host of a volume has begun is taken back by another one, which has none of its
        stubs; then that collects. Nothing dangles at any time."""
        with Cluster(self.address) as cluster:
            writer, _ = self.store.writer(
                volume, None, is_holder_dead=lambda state: True, cluster=cluster
            )
            writer.close()
        assert self.audit().dangling == []
        self.collect()
        assert self.audit().dangling == []

    def collect(self, grace_s: float = 0.0) -> Collection:
        collection = Collection(self.store.chunks, grace_s)
        collection.run()
        return collection

    def assert_whole(self) -> AuditReport:
        """Nothing that a file needs is missing, nothing else is there."""
        report = self.audit()
        assert (report.dangling, report.damaged, report.leaked) == ([], [], [])
        return report


def main(address: str, directory: str, name: str, seed: str) -> None:
    """A host that works until it is killed."""
    chance = random.Random(seed)
    with Host(parse_address(address), Path(directory), name, operations_at_once=4) as host:
        while True:
            host.delete_forgotten()
            host.work(chance, 20)
            host.assert_reads_right()


if __name__ == "__main__":
    main(*sys.argv[1:])
