#!/usr/bin/env python3
"""Read a volume of dedupd without dedupd: list, check and extract its files.

This is one file, written only from docs/design/format.md, whose headings are named in brackets.
Copy it to your backups. It needs Python 3.11 and two libraries, for example python3-zstandard and
python3-xxhash of Debian. The library blake3 is optional and makes it faster.

    python3 reader.py --help

It needs no table, no index and no mount: it scans containers. It writes nothing into a volume. The
tests also use it as an independent reader, to compare the program with it.
"""

import argparse
import errno
import fcntl
import hashlib
import heapq
import io
import json
import os
import signal
import stat
import struct
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

try:
    import xxhash
    import zstandard
except ImportError as missing:
    if __name__ != "__main__":
        raise
    print(
        f"dedupd-reader: the library {missing.name} is missing; run `apt install python3-xxhash"
        " python3-zstandard`, or `pip install xxhash zstandard`",
        file=sys.stderr,
    )
    sys.exit(2)

VOLUME_FORMAT = 3
CHUNKS, RECIPES, CHUNK_COPIES, RECIPE_COPIES = 1, 2, 3, 4
FOLDERS = {
    CHUNKS: "store/chunks",
    RECIPES: "store/recipes",
    CHUNK_COPIES: "store/copies/chunks",
    RECIPE_COPIES: "store/copies/recipes",
}
DATA, FORWARD, TOMBSTONE, COPY = range(4)
RAW, ZSTD, DELTA, DICTIONARY = range(4)
ORPHANED, MERGED, COLLECTED = 2, 3, 5  # states of an entry
COMMITTING, RESTORING, DIRECT, WRITTEN, PARTIAL = 1, 2, 4, 8, 16
CAUSES = {1: "removed", 2: "replaced", 3: "truncated", 4: "overwritten"}

HEADER = struct.Struct("<8sHBxII4x16s8xQ64xQ")
TABLE = struct.Struct("<8sHHII4xQQ")
RECORD = struct.Struct("<IIBBHIII32sQQQ")
ENTRY = struct.Struct("<32sQQIIIBBH")
NODE = struct.Struct("<IBBHIIQ16s")
STUB = struct.Struct("<BBHIQ16sQqQQ")
LOG = struct.Struct("<8sHHI16sQQIIQ")
DELETION = struct.Struct("<4sBBHHHIQIIIIQIIQqqQ16sQQQQ")

READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
RAW_BYTES_MAX = 64 << 20
PIECE_BYTES = 1 << 20
CHAIN_MAX = 64
"""The longest path over forwards, bases and dictionaries, in records."""
CONTAINERS_OPEN = 64
RECORDS_KEPT = 128
RANGES_SHOWN = 20
PATH_BYTES_MAX = 2048
GENERATIONS_TRIED = 64

Kept = TypeVar("Kept")
DONE, FINDINGS, USAGE, BUSY, DAMAGED = range(5)


class Damaged(Exception):
    """Some data cannot be read as it was written, or this program does not know it."""


class Refused(Exception):
    """The program cannot start, or cannot continue. ``status`` is its exit status."""

    def __init__(self, message: str, status: int = USAGE) -> None:
        super().__init__(message)
        self.status = status


def unknown(what: str) -> Damaged:
    return Damaged(f"{what}: this version does not know it; use the one of a newer dedupd")


def show(text: str) -> str:
    """Format a name or a message: escape bytes and characters that control a terminal."""
    text = os.fsencode(text).decode("utf-8", "backslashreplace")
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def show_id(id_: int) -> str:
    return f"{id_ >> 32}:{id_ & 0xFFFFFFFF}"


# --- digests ----------------------------------------------------------------------------------


def xxh3(data: bytes, seed: int = 0) -> int:
    return xxhash.xxh3_64_intdigest(data, seed=seed)


BLAKE3_START = (
    *(0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A),
    *(0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19),
)
BLAKE3_ORDER = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
BLAKE3_MIXED = (
    *((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)),
    *((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)),
)
FIRST_BLOCK, LAST_BLOCK, PARENT, ROOT = 1, 2, 4, 8


def side_by_side(words: Iterable[int]) -> int:
    """Pack words of 32 bits into one number, 64 bits apart, to operate on all at once."""
    words = tuple(words)
    return int.from_bytes(struct.pack(f"<{len(words)}Q", *words), "little")


def compressed(
    state: list[int], words: list[int], counter: int, length: int, flags: int, ones: int
) -> list[int]:
    """The compression of BLAKE3 for several parallel blocks: as many as ``ones`` has ones."""
    low = ones * 0xFFFFFFFF
    v = [*state, *(ones * word for word in BLAKE3_START[:4])]
    v += [counter, 0, ones * length, ones * flags]
    order = list(range(16))
    for _ in range(7):
        for number, (a, b, c, d) in enumerate(BLAKE3_MIXED):
            for word, right, shift in ((order[2 * number], 16, 12), (order[2 * number + 1], 8, 7)):
                v[a] = v[a] + v[b] + words[word] & low
                turned = v[d] ^ v[a]
                v[d] = (turned >> right | turned << 32 - right) & low
                v[c] = v[c] + v[d] & low
                turned = v[b] ^ v[c]
                v[b] = (turned >> shift | turned << 32 - shift) & low
        order = [order[at] for at in BLAKE3_ORDER]
    return [v[at] ^ v[at + 8] for at in range(8)]


def plain_blake3(data: bytes) -> bytes:
    """Compute BLAKE3 without its library: about 15 MB per second."""
    count = len(data) // 1024 if len(data) > 1024 else 0
    leaves = list[tuple[int, ...]]()
    if count:
        words = struct.unpack_from(f"<{count * 256}I", data)
        ones, counter = side_by_side([1] * count), side_by_side(range(count))
        state = [ones * word for word in BLAKE3_START]
        for block in range(16):
            flags = FIRST_BLOCK * (block == 0) | LAST_BLOCK * (block == 15)
            mixed = [side_by_side(words[block * 16 + at :: 256]) for at in range(16)]
            state = compressed(state, mixed, counter, 64, flags, ones)
        rows = [struct.unpack(f"<{count}Q", one.to_bytes(count * 8, "little")) for one in state]
        leaves = list(zip(*rows, strict=True))
    rest = data[count * 1024 :]
    if rest or not count:
        state = list(BLAKE3_START)
        for at in range(0, max(len(rest), 1), 64):
            block_data = rest[at : at + 64]
            is_last = at + 64 >= len(rest)
            flags = FIRST_BLOCK * (at == 0) | LAST_BLOCK * is_last | ROOT * (is_last and not count)
            mixed = list(struct.unpack("<16I", block_data.ljust(64, b"\0")))
            state = compressed(state, mixed, count, len(block_data), flags, 1)
        leaves.append(tuple(state))
    while len(leaves) > 1:
        pairs = len(leaves) // 2
        ones = side_by_side([1] * pairs)
        mixed = [
            side_by_side(leaf[at] for leaf in leaves[side : pairs * 2 : 2])
            for side in (0, 1)
            for at in range(8)
        ]
        flags = PARENT | ROOT * (len(leaves) == 2)
        state = compressed([ones * word for word in BLAKE3_START], mixed, 0, 64, flags, ones)
        rows = [struct.unpack(f"<{pairs}Q", one.to_bytes(pairs * 8, "little")) for one in state]
        leaves = [*zip(*rows, strict=True), *leaves[pairs * 2 :]]
    return struct.pack("<8I", *leaves[0])


def blake3(data: bytes) -> bytes:
    try:
        from blake3 import blake3 as fast
    except ImportError:
        return plain_blake3(data)
    return fast(data).digest()


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


HASHES: dict[str | None, tuple[Callable[[bytes], bytes], ...]] = {
    "blake3": (blake3,),
    "sha256": (sha256,),
    None: (blake3, sha256),
}
"""The hash functions by the ``fingerprint`` of ``volume.json``; None if that file is lost."""


# --- the store --------------------------------------------------------------------------------


def read_at(fd: int, length: int, offset: int) -> bytes:
    """Read bytes of a container, with zeros for unreadable blocks: checksums detect them."""
    try:
        return os.pread(fd, length, offset)
    except OSError:
        parts = []
        while length > 0:
            count = min(length, 4096 - offset % 4096)
            try:
                parts.append(os.pread(fd, count, offset))
            except OSError:
                parts.append(bytes(count))
            offset, length = offset + count, length - count
        return b"".join(parts)


def is_sealed(data: bytes, length: int) -> bool:
    """Return whether a header ends with the xxh3 of its other bytes."""
    if len(data) < length:
        return False
    return xxh3(data[: length - 8]) == int.from_bytes(data[length - 8 : length], "little")


class Record(NamedTuple):
    """[Record header]"""

    ordinal: int
    kind: int
    codec: int
    collected: int
    raw_length: int
    stored_length: int
    hint: int
    fingerprint: bytes
    target: int
    checksum: int


class Container:
    """[Container] A scanned file of records: the places where records of each ordinal start.

    ``seed`` is None if it is lost. ``is_forgeable``: users can know the seed, or there is none.
    """

    def __init__(self, path: str, kind: int, owner: bytes, keys: list[bytes]) -> None:
        self.path, self.kind, self.number = path, kind, int(os.path.basename(path)[:-4])
        self.file = io.FileIO(path)  # closed with this object
        self.fd = self.file.fileno()
        self.size = os.fstat(self.fd).st_size
        self.seed, self.is_forgeable = self._stated_seed(owner, keys)
        self.places = dict[int, list[int]]()
        self.searched = dict[int, list[int]]()
        self.targets = dict[int, list[int]]()
        self.collected = list[tuple[int, int]]()
        self._scan()

    def _stated_seed(self, owner: bytes, keys: list[bytes]) -> tuple[int | None, bool]:
        """[Seeds] Return the seed from the header, the table, or the secret of the store."""
        head = read_at(self.fd, 128, 0)
        if is_sealed(head, 128):
            magic, version, kind, number, generation, volume, seed, _ = HEADER.unpack(head)
            if magic != b"DEDUPCNT" or (kind, number, volume) != (self.kind, self.number, owner):
                raise Damaged(f"{self.path}: this container belongs to another place or volume")
            if version not in (1, 2, 3):
                raise unknown(f"{self.path}: container format {version}")
            if version >= 2 and seed:
                return seed, False
            return self._public_seed(owner, generation), True
        try:
            with open(self.path[:-4] + ".dir", "rb", buffering=0) as file:
                table = read_at(file.fileno(), 64, 0)
        except OSError:
            table = b""
        if is_sealed(table, 64):
            magic, version, _, number, generation, check, seed = TABLE.unpack_from(table)
            public = self._public_seed(owner, generation)
            if (magic, number) == (b"DEDUPDIR", self.number):
                if version in (2, 3) and check == xxh3(owner):
                    return seed, seed == public
                if version == 1 and table[24:40] == owner:
                    return public, True
        return self._seed_of_secret(keys)

    def _public_seed(self, owner: bytes, generation: int) -> int:
        return xxh3(owner + struct.pack("<II", self.number, generation))

    def _seed_of_secret(self, keys: list[bytes]) -> tuple[int | None, bool]:
        start = read_at(self.fd, min(self.size, PIECE_BYTES), 0)
        found = [at for at in range(128, len(start) - 79, 8) if start.startswith(b"DDRC", at)][:8]
        for key in reversed(keys):
            for generation in range(1, GENERATIONS_TRIED + 1):
                name = struct.pack("<BII", self.kind, self.number, generation)
                digest = hashlib.blake2b(name, key=key, digest_size=8).digest()
                seed = int.from_bytes(digest, "little") or 1
                for at in found:
                    if xxh3(start[at : at + 72], seed) == RECORD.unpack_from(start, at)[-1]:
                        return seed, False
        return None, True

    def _scan(self) -> None:
        """Find every valid record header; after damage, search at each multiple of 8.

        Users choose the content of payloads. If they can know the seed, a record that was found by
        a search counts only for an ordinal that no other record has. If the seed is lost, headers
        cannot be verified: then the records up to the first damage count.
        """
        at, places = 128, self.places
        while at + RECORD.size <= self.size:
            record = self.header(at)
            if record is None or at + RECORD.size + record.stored_length > self.size:
                if self.seed is None:
                    return
                places = self.searched if self.is_forgeable else self.places
                at = self._next_magic(at + 8)
                continue
            places.setdefault(record.ordinal, []).append(at)
            if record.kind == COPY:
                self.targets.setdefault(record.target, []).append(record.ordinal)
            if places is self.places:
                count = max(1, record.target) if record.kind == TOMBSTONE else 0
                if record.collected or count:
                    start, end = record.ordinal - record.collected, record.ordinal + count
                    self.collected.append((start, end))
            at += (RECORD.size + record.stored_length + 7) & -8

    def _next_magic(self, at: int) -> int:
        while at + RECORD.size <= self.size:
            window = read_at(self.fd, min(PIECE_BYTES, self.size - at), at)
            found = window.find(b"DDRC")
            while found >= 0 and (at + found) % 8:
                found = window.find(b"DDRC", found + 1)
            if found >= 0:
                return at + found
            at += (len(window) - 79) & -8 if len(window) > 87 else 8
        return self.size

    def header(self, at: int) -> Record | None:
        data = read_at(self.fd, RECORD.size, at)
        if len(data) < RECORD.size:
            return None
        magic, *fields, check = RECORD.unpack(data)
        if magic != 0x43524444:
            return None
        if self.seed is not None and xxh3(data[:72], self.seed) != check:
            return None
        return Record(*fields)

    def records(self, ordinal: int) -> Iterator[tuple[int, Record]]:
        """Yield the possible places of the record of an ordinal, and its headers."""
        places = self.places.get(ordinal) or self.searched.get(ordinal, [])
        for at in places:
            record = self.header(at)
            if record is not None and (ordinal in self.places or record.kind in (DATA, COPY)):
                yield at, record

    def is_collected(self, ordinal: int) -> bool:
        return any(start <= ordinal < end for start, end in self.collected)

    def entry(self, ordinal: int) -> tuple[int, int, bytes] | None:
        """[Table entry] Return state, target and fingerprint; None if there is no valid entry."""
        if self.seed is None:
            return None
        try:
            with open(self.path[:-4] + ".dir", "rb") as table:
                place = self._entry_place(table.read(64), ordinal, table.fileno())
                data = b"" if place is None else os.pread(table.fileno(), ENTRY.size, place)
        except OSError:
            return None
        if len(data) < ENTRY.size:
            return None
        fingerprint, _, target, _, _, _, state, _, check = ENTRY.unpack(data)
        is_valid = xxh3(data[:62], self.seed) & 0xFFFF == check
        return (state, target, fingerprint) if is_valid else None

    def _entry_place(self, head: bytes, ordinal: int, fd: int) -> int | None:
        """[Table map] Return the start of an entry; None if there is none after a collection."""
        lines = int.from_bytes(head[46:48], "little")
        left_out = 0
        if lines and self.seed is not None:
            at = min(ordinal, lines * 256 - 1) // 64
            block = os.pread(fd, 16, 64 + at * 16).ljust(16, b"\0")
            before, check, present = struct.unpack("<IIQ", block)
            stated = xxh3(struct.pack("<IIQ", before, at, present), self.seed) & 0xFFFFFFFF
            if stated != check:
                return None
            below = present & ((1 << ordinal % 64) - 1)
            if ordinal >= lines * 256:
                left_out = lines * 256 - before - present.bit_count()
            elif present >> ordinal % 64 & 1:
                left_out = ordinal - before - below.bit_count()
            else:
                return None
        return 64 + lines * 64 + (ordinal - left_out) * 64


class Extent(NamedTuple):
    """[Recipe entry] A chunk of a file. With a ``problem``, these bytes cannot be read."""

    start: int
    end: int
    id: int = 0
    check: int = 0
    problem: str = ""


class Stub(NamedTuple):
    """[Stub attribute]"""

    store: "Store"
    flags: int
    recipe: int
    digest: bytes
    covered: int
    mtime_ns: int = 0
    binding: int = 0
    local: int = 0


def drop_oldest(kept: dict[tuple[int, int], Kept], count_max: int) -> None:
    if len(kept) >= count_max:
        del kept[next(iter(kept))]


class Store:
    """Chunks and recipes by id. Each read verifies all checksums, up to the fingerprint."""

    def __init__(self, base: str, owner: bytes, fingerprint: str | None) -> None:
        if fingerprint not in HASHES:
            raise unknown(f"{base}: fingerprint {fingerprint}")
        self.base, self.owner, self.hashes = base, owner, HASHES[fingerprint]
        self.keys = self._keys()
        self.containers = dict[tuple[int, int], Container]()
        self.records = dict[tuple[int, int], tuple[bytes, bytes]]()
        self.lost = dict[str, str]()
        self.unchecked = set[str]()
        """Containers whose seed is lost."""
        self.repeated = dict[int, dict[int, list[tuple[int, int, int]]]]()
        self.chain = list[tuple[int, int]]()

    def _keys(self) -> list[bytes]:
        """Return the keys of the secret of the store, from the copy that has more keys."""
        found = list[list[bytes]]()
        for folder in ("store", "store/copies"):
            try:
                fields = read_json(os.path.join(self.base, folder, "secret.json"))
                found.append([bytes.fromhex(key) for key in fields["keys"]])
            except (Damaged, OSError, KeyError, TypeError, ValueError):
                continue
        return [key for key in max(found, key=len, default=[]) if len(key) == 32]

    def numbers(self, kind: int) -> list[int]:
        folder = os.path.join(self.base, FOLDERS[kind])
        names = os.listdir(folder) if os.path.isdir(folder) else ()
        stems = (name[:-4] for name in names if name.endswith(".dat"))
        return sorted(int(stem) for stem in stems if stem.isdecimal() and stem.isascii())

    def container(self, kind: int, number: int) -> Container:
        key = (kind, number)
        if key not in self.containers:
            drop_oldest(self.containers, CONTAINERS_OPEN)
            self.containers[key] = self._scanned(kind, number)
        return self.containers[key]

    def _scanned(self, kind: int, number: int) -> Container:
        path = os.path.join(self.base, FOLDERS[kind], f"{number:08d}.dat")
        if path not in self.lost:
            try:
                found = Container(path, kind, self.owner, self.keys)
                if found.seed is None:
                    self.unchecked.add(path)
                return found
            except FileNotFoundError:
                self.lost[path] = f"{path}: the container is missing"
            except Damaged as error:
                self.lost[path] = str(error)
            except OSError as error:
                self.lost[path] = f"{path}: {error.strerror}"
        raise Damaged(self.lost[path])

    def read(self, kind: int, id_: int) -> tuple[bytes, bytes]:
        """Return fingerprint and bytes of a record."""
        key = (kind, id_)
        if key not in self.records:
            drop_oldest(self.records, RECORDS_KEPT)
            self.records[key] = self._read(kind, id_)
        return self.records[key]

    def _read(self, kind: int, id_: int) -> tuple[bytes, bytes]:
        """Read a record in its place, or its merge target, or a second copy."""
        if (kind, id_) in self.chain or len(self.chain) > CHAIN_MAX:
            raise Damaged(f"record {show_id(id_)}: it leads in a circle")
        self.chain.append((kind, id_))
        problem = ""
        try:
            for source in (self._own, self._merged, self._repeated):
                try:
                    return source(kind, id_)
                except Damaged as error:
                    problem = problem or str(error)
        finally:
            self.chain.pop()
        raise Damaged(problem)

    def _own(self, kind: int, id_: int) -> tuple[bytes, bytes]:
        return self.stated(kind, id_, kind)

    def stated(self, kind: int, id_: int, folder: int) -> tuple[bytes, bytes]:
        """Read a record from its container; it is a second copy if ``folder`` is not ``kind``."""
        container, ordinal = self.container(folder, id_ >> 32), id_ & 0xFFFFFFFF
        what = "record" if kind == folder else "second copy"
        problem = "it was collected" if container.is_collected(ordinal) else "it is missing"
        for at, record in container.records(ordinal):
            try:
                return self._decoded(kind, container, at, record)
            except Damaged as error:
                problem = str(error)
        raise Damaged(f"{what} {show_id(id_)}: {problem}")

    def _merged(self, kind: int, id_: int) -> tuple[bytes, bytes]:
        """[What the states mean] Read the target of a merged record, by its entry."""
        entry = self.container(kind, id_ >> 32).entry(id_ & 0xFFFFFFFF)
        if entry is None or entry[0] != MERGED:
            raise Damaged(f"record {show_id(id_)}: it was not merged")
        return self._same(kind, entry[1], entry[2])

    def _repeated(self, kind: int, id_: int) -> tuple[bytes, bytes]:
        """[Copies] Read a second copy, or the record that a scrub has written as a replacement."""
        if kind not in self.repeated:
            found = self.repeated[kind] = {}
            for folder in (kind, kind + 2):
                for number in self.numbers(folder):
                    try:
                        targets = self.container(folder, number).targets
                    except Damaged:
                        continue
                    for target, ordinals in targets.items():
                        places = [(folder, number, ordinal) for ordinal in ordinals]
                        found.setdefault(target, []).extend(places)
        for folder, number, ordinal in self.repeated[kind].get(id_, ()):
            try:
                return self.stated(kind, number << 32 | ordinal, folder)
            except Damaged:
                continue
        raise Damaged(f"record {show_id(id_)}: it has no second copy")

    def _same(self, kind: int, target: int, fingerprint: bytes) -> tuple[bytes, bytes]:
        found = self.read(kind, target)
        if found[0] != fingerprint:
            raise Damaged(f"record {show_id(target)} differs from the record that leads to it")
        return found

    def _decoded(
        self, kind: int, container: Container, at: int, record: Record
    ) -> tuple[bytes, bytes]:
        if record.kind == TOMBSTONE:
            raise Damaged("it was collected")
        if record.kind == FORWARD:
            return self._same(kind, record.target, record.fingerprint)
        if record.kind not in (DATA, COPY):
            raise unknown(f"kind {record.kind}")
        if record.codec not in (RAW, ZSTD, DELTA, DICTIONARY):
            raise unknown(f"codec {record.codec}")
        payload = read_at(container.fd, record.stored_length, at + RECORD.size)
        if len(payload) != record.stored_length or xxh3(payload) != record.checksum:
            raise Damaged("its payload does not match its checksum")
        base = b""
        if record.codec in (DELTA, DICTIONARY):
            if record.kind == COPY:
                raise Damaged("a second copy cannot depend on another record")
            base = self.read(kind, record.target)[1]
        data = payload if record.codec == RAW else expanded(payload, record, base)
        if len(data) != record.raw_length:
            raise Damaged("it has another length than its header states")
        if all(one(data) != record.fingerprint for one in self.hashes):
            raise Damaged("its bytes do not match its fingerprint")
        return record.fingerprint, data

    def extents(self, stub: Stub) -> Iterator[Extent]:
        """[Recipe] Yield the chunks of a stub in order, without holes."""
        if not stub.flags & DIRECT:
            yield from self._node(stub.recipe, 0, stub.covered, None, stub.digest)
            return
        try:
            fingerprint, data = self.read(CHUNKS, stub.recipe)
            if fingerprint[:16] != stub.digest or len(data) < stub.covered:
                raise Damaged(f"chunk {show_id(stub.recipe)} is not the one of this file")
        except Damaged as error:
            yield Extent(0, stub.covered, problem=str(error))
        else:
            yield Extent(0, len(data), stub.recipe, int.from_bytes(fingerprint[:4], "little"))

    def _node(
        self, id_: int, start: int, end: int, level: int | None, digest: bytes | None
    ) -> Iterator[Extent]:
        """Yield the chunks below a node. The root has a ``digest``, the others have a ``level``."""
        try:
            own_level, entries = self._entries(id_, end - start, level, digest)
        except Damaged as error:
            yield Extent(start, end, problem=str(error))
            return
        for below, word in entries:
            length = word if own_level or not below else word & 0xFFFFFFFF
            if own_level:
                yield from self._node(below, start, start + length, own_level - 1, None)
            elif below:
                yield Extent(start, start + length, below, word >> 32)
            start += length

    def _entries(
        self, id_: int, length: int, level: int | None, digest: bytes | None
    ) -> tuple[int, list[tuple[int, int]]]:
        fingerprint, node = self.read(RECIPES, id_)
        if len(node) < NODE.size:
            raise Damaged(f"recipe {show_id(id_)}: this record is no recipe")
        magic, version, own_level, _, count, _, own_length, _ = NODE.unpack_from(node)
        if magic != 0x50524444 or len(node) != NODE.size + 16 * count:
            raise Damaged(f"recipe {show_id(id_)}: this record is no recipe")
        if version != 1:
            raise unknown(f"recipe {show_id(id_)}: format {version}")
        entries = list(struct.iter_unpack("<QQ", node[NODE.size :]))
        total = sum(word if own_level or not id_ else word & 0xFFFFFFFF for id_, word in entries)
        is_root = digest is not None and fingerprint[:16] == digest and own_length >= length
        if not (is_root or (own_level, own_length) == (level, length)) or total != own_length:
            raise Damaged(f"recipe {show_id(id_)}: it is not the one of this file")
        return own_level, entries

    def chunk(self, extent: Extent) -> bytes:
        fingerprint, data = self.read(CHUNKS, extent.id)
        check = int.from_bytes(fingerprint[:4], "little")
        if (len(data), check) != (extent.end - extent.start, extent.check):
            raise Damaged(f"chunk {show_id(extent.id)} has other bytes than the recipe states")
        return data


def expanded(payload: bytes, record: Record, base: bytes) -> bytes:
    """[Delta records] [Dictionaries] Decode a zstd frame, with ``base`` unless it is empty."""
    kind = zstandard.DICT_TYPE_FULLDICT
    if record.codec == DELTA:
        kind = zstandard.DICT_TYPE_RAWCONTENT
    try:
        stated = zstandard.get_frame_parameters(payload).content_size
        if record.raw_length > RAW_BYTES_MAX or stated not in (record.raw_length, (1 << 64) - 1):
            raise Damaged("its payload has another length than its header states")
        prefix = zstandard.ZstdCompressionDict(base, dict_type=kind) if base else None
        decoder = zstandard.ZstdDecompressor(dict_data=prefix)
        return decoder.decompress(payload, max_output_size=record.raw_length)
    except (zstandard.ZstdError, MemoryError) as error:
        raise Damaged(f"its payload cannot be decompressed ({error})") from None


# --- the volume -------------------------------------------------------------------------------


def read_json(path: str) -> dict[str, Any]:
    """[The directory] Read a JSON file with a checksum."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        fields = json.loads(data)
        check = fields.pop("check")
        if xxhash.xxh3_64_hexdigest(json.dumps(fields, sort_keys=True).encode()) == check:
            return dict(fields)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        pass
    raise Damaged(f"{path}: it does not match its checksum")


def written_extents(fd: int, size: int) -> list[tuple[int, int]]:
    """[Stub] Return the ranges of a stub in local blocks (FS_IOC_FIEMAP, synced)."""
    found, at = list[tuple[int, int]](), 0
    while at < size:
        buffer = bytearray(struct.pack("<QQIIII", at, (1 << 64) - 1 - at, 1, 0, 512, 0))
        buffer += bytes(512 * 56)
        try:
            fcntl.ioctl(fd, 0xC020660B, buffer)
        except OSError:
            return data_ranges(fd, size)
        (count,) = struct.unpack_from("<I", buffer, 20)
        flags = 0
        for number in range(count):
            start, _, length, _, _, flags = struct.unpack_from("<QQQQQI", buffer, 32 + number * 56)
            if not flags & 0x800 and start < size:  # not allocated and unwritten
                found.append((start, min(start + length, size)))
            at = start + length
        if count == 0 or flags & 1:  # the last extent
            break
    return found


def data_ranges(fd: int, size: int) -> list[tuple[int, int]]:
    """Return the same by SEEK_DATA: for plain files, and for file systems without an extent map."""
    found, at = list[tuple[int, int]](), 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break
            raise
        at = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        found.append((start, at))
    return found


def generation(fd: int) -> int:
    """Return FS_IOC_GETVERSION; 0 if the file system has no generations."""
    try:
        return int(struct.unpack("<I", fcntl.ioctl(fd, 0x80087601, bytes(8))[:4])[0])
    except OSError:
        return 0


def file_system(fd: int) -> str:
    """[Instance] Return the name of the file system of a file."""
    try:  # XFS_IOC_FSGEOMETRY
        return "xfs:" + fcntl.ioctl(fd, 0x8100587E, bytes(256))[64:80].hex()
    except OSError:
        pass
    try:  # BTRFS_IOC_FS_INFO
        asked = bytearray(1024)
        struct.pack_into("<Q", asked, 48, 4)
        fcntl.ioctl(fd, 0x8400941F, asked)
        has_metadata_uuid = struct.unpack_from("<Q", asked, 48)[0] & 4
        return "btrfs:" + bytes(asked[64:80] if has_metadata_uuid else asked[16:32]).hex()
    except OSError:
        return f"ext4:{os.fstatvfs(fd).f_fsid & (1 << 64) - 1:016x}"


def without(present: list[tuple[int, int]], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of [start, end) that are in none of ``present``."""
    for low, high in present:
        if low < end and high > start:
            if start < low:
                yield start, low
            start = max(start, high)
    if start < end:
        yield start, end


class Piece(NamedTuple):
    """Bytes of a file. ``data`` is None if they cannot be read; ``problem`` is the reason."""

    start: int
    end: int
    data: bytes | None
    problem: str = ""


class StoreLock:
    """Keeps mounts and jobs away while this program reads. Raises Refused if one is active."""

    def __init__(self, base: str, names: tuple[str, ...]) -> None:
        self.files = []
        for name in names:
            try:
                file = io.FileIO(os.path.join(base, name))
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                self.files.append(file)
            except BlockingIOError:
                raise Refused(
                    f"{base}: a mount or a job of dedupd is active there; unmount the volume, or"
                    " read a snapshot of it",
                    BUSY,
                ) from None
            except OSError:
                continue  # a copy without locks, or a file system without locks


class Volume:
    """[The directory] A volume, or a copy of one. ``notes`` list restrictions of its checks."""

    def __init__(
        self,
        path: str,
        *,
        store_paths: list[str] | None = None,
        trusts_holes: bool = False,
        locks: bool = True,
    ) -> None:
        """Raises Damaged, Refused, OSError."""
        self.path, self.trusts_holes = path, trusts_holes
        self.notes = list[str]()
        self.stubs_seen = self.content_seen = 0
        inner = os.path.join(path, ".dedupd")
        self.base = inner if os.path.isdir(os.path.join(inner, "data")) else path
        self.data = os.path.join(self.base, "data")
        if os.path.islink(self.data) or not os.path.isdir(self.data):
            raise Refused(
                f"{path}: no volume, and no copy of one; name the directory that contains .dedupd,"
                " or a copy of .dedupd. If the volume is mounted, copy files out of the mount"
            )
        self.locks = [StoreLock(self.base, ("lock", "mount.lock"))] if locks else []
        try:
            fields = read_json(os.path.join(self.base, "volume.json"))
        except (Damaged, OSError) as error:
            fields = self._fields_without_file(error)
        if fields["format"] != VOLUME_FORMAT:
            raise unknown(f"{path}: volume format {fields['format']}")
        self.id = uuid.UUID(fields["uuid"]).bytes
        self.attribute: str = fields["attribute"]
        if self.attribute.startswith("trusted.") and os.geteuid() != 0:
            raise Refused(f"{path}: only root sees its {self.attribute}; run this as root")
        self.fingerprint: str | None = fields["fingerprint"]
        self.stores = self._stores(store_paths or [], locks)
        self.seed = self._instance_seed()

    def _fields_without_file(self, error: Exception) -> dict[str, Any]:
        """Return the fields of ``volume.json``, derived from a container and the owner."""
        for folder in FOLDERS.values():
            names = os.path.join(self.base, folder)
            for name in sorted(os.listdir(names)) if os.path.isdir(names) else ():
                with open(os.path.join(names, name), "rb", buffering=0) as file:
                    head = read_at(file.fileno(), 128, 0)
                if head.startswith(b"DEDUPCNT") and is_sealed(head, 128):
                    owner = uuid.UUID(bytes=HEADER.unpack(head)[5])
                    is_of_root = os.stat(self.base).st_uid == 0
                    attribute = "trusted.dedupd" if is_of_root else "user.dedupd"
                    self.notes.append(
                        f"{self.base}/volume.json cannot be read ({error}); {name} states the uuid"
                        f" {owner}, and {attribute} is taken for the attribute of stubs"
                    )
                    fields = {"uuid": str(owner), "attribute": attribute, "fingerprint": None}
                    return {"format": VOLUME_FORMAT, **fields}
        raise Damaged(f"{error}; copy this file from a backup, it never changes")

    def _stores(self, store_paths: list[str], locks: bool) -> list[Store]:
        """Return the store of the volume; two if it is half moved. Each stub names its store."""
        found = list[Store]()
        own = os.path.join(self.base, "store")
        if os.path.exists(os.path.join(self.base, "cluster.json")):
            self.notes.append(
                f"{self.path}: its store is in a Ceph cluster, which this program does not read;"
                " only plain files can be read here. Use `dedupd restore` for the others"
            )
            return found
        if os.path.isdir(own):
            found.append(Store(self.base, self.id, self.fingerprint))
        for path in store_paths or self._stated_stores():
            try:
                fields = read_json(os.path.join(path, "store.json"))
            except OSError as error:
                raise Refused(
                    f"{path}: the shared store of this volume cannot be read ({error.strerror});"
                    " name its directory with --store"
                ) from None
            if locks:
                self.locks.append(StoreLock(path, ("lock",)))
            found.append(Store(path, uuid.UUID(fields["uuid"]).bytes, fields["fingerprint"]))
        if not found:
            raise Damaged(f"{own}: the store of this volume is missing; copy it from a backup")
        return found

    def _stated_stores(self) -> list[str]:
        """[Shared stores] Return the directories of the stores that the volume names."""
        found = list[str]()
        try:
            found.append(read_json(os.path.join(self.base, "membership.json"))["name"])
        except FileNotFoundError:
            pass  # it has a store of its own
        try:
            with open(os.path.join(self.base, "moving"), "rb") as file:
                route = json.load(file)
            found += [route["origin"], route["where"] if route["to"] else ""]
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError):
            raise Damaged(f"{self.base}/moving is damaged; name the stores with --store") from None
        return [path for path in dict.fromkeys(found) if path]

    def _instance_seed(self) -> int | None:
        """[Instance] Return the seed of bindings; None for a copy that was made file by file."""
        try:
            stated = read_json(os.path.join(self.base, "instance.json"))
            fd = os.open(self.data, os.O_RDONLY | os.O_DIRECTORY)
            try:
                here = (file_system(fd), os.fstat(fd).st_ino, generation(fd))
            finally:
                os.close(fd)
            if here != (stated["file_system"], stated["inode"], stated["generation"]):
                return None
        except (OSError, Damaged, KeyError):
            return None
        return xxh3(self.id + struct.pack("<QI", here[1], here[2]) + here[0].encode())

    def stub(self, fd: int) -> Stub | None:
        """[Stub attribute] Return the stub; None for a plain file."""
        try:
            value = os.getxattr(fd, self.attribute)
        except OSError as error:
            if error.errno in (errno.ENODATA, errno.EOPNOTSUPP):
                return None
            raise
        self.stubs_seen += 1
        if len(value) < STUB.size:
            raise Damaged("its stub attribute is damaged")
        format_, flags, reserved, check, recipe, *others = STUB.unpack_from(value)
        blank = value[:4] + bytes(4) + value[8:]
        for store in self.stores:
            if xxh3(blank, xxh3(store.owner)) & 0xFFFFFFFF == check:
                break
        else:
            raise Damaged("its stub attribute is damaged, or belongs to another volume or store")
        if format_ != 2 or flags & ~31 or reserved or len(value) != STUB.size:
            raise unknown(f"stub format {format_}, flags {flags:#x}")
        stub = Stub(store, flags, recipe, *others)
        self._prove(fd, stub)
        return stub

    def _prove(self, fd: int, stub: Stub) -> None:
        """[Stub] Raise Damaged unless the stub has the holes that it had in the volume."""
        status = os.fstat(fd)
        place = struct.pack("<QI", status.st_ino, generation(fd))
        is_own = self.seed is not None and xxh3(place, self.seed) == stub.binding
        extents = written_extents(fd, status.st_size + 4095 & -4096)
        own = sum(end - start for start, end in extents)
        is_open = stub.flags & (COMMITTING | RESTORING | WRITTEN)
        if own < stub.local and not stub.flags & (COMMITTING | RESTORING):
            raise Damaged("it has holes instead of blocks of its own; take it from another backup")
        if own > stub.local and not is_open:
            raise Damaged("it has blocks instead of holes; take it from another backup")
        is_clean = not is_open and not stub.local and status.st_size >= stub.covered
        if not (is_own or is_clean or self.trusts_holes):
            raise Damaged(
                "it was copied and has blocks of its own; use --trust-holes if the program that"
                " made the copy preserved holes"
            )

    def pieces(self, fd: int, stub: Stub | None) -> Iterator[Piece]:
        """[Stub] Yield a file without holes, in order. Its local blocks are the newest data."""
        size = os.fstat(fd).st_size
        own = data_ranges(fd, size) if stub is None else written_extents(fd, size)
        self.content_seen += size
        plain = (
            Extent(at, min(at + PIECE_BYTES, end))
            for start, end in own
            for at in range(start, end, PIECE_BYTES)
        )
        stored = () if stub is None else missing_parts(stub, own, min(stub.covered, size))
        for start, end, extent in heapq.merge(((*one[:2], None) for one in plain), stored):
            if extent is None:
                yield from own_pieces(fd, start, end)
            else:
                assert stub is not None
                yield stored_piece(stub.store, start, end, extent)

    def content(self, name: str) -> bytes:
        """Read all bytes of a file. Raises Damaged, Refused, OSError."""
        fd = os.open(self.node(name), READ_FLAGS)
        try:
            found = bytearray(os.fstat(fd).st_size)
            for piece in self.pieces(fd, self.stub(fd)):
                if piece.data is None:
                    raise Damaged(f"{name}: {piece.problem}")
                found[piece.start : piece.end] = piece.data
            return bytes(found)
        finally:
            os.close(fd)

    def node(self, name: str) -> str:
        """Return the path of a name below the tree; no link may lead out of it. Raises Refused."""
        parts = [part for part in name.split("/") if part not in ("", ".")]
        path = self.data
        for part in parts:
            if part == ".." or not stat.S_ISDIR(os.lstat(path).st_mode):
                raise Refused(f"{name}: this name does not lead through directories of the volume")
            path = os.path.join(path, part)
        if not os.path.lexists(path):
            raise Refused(f"{name}: the volume has no such file; list its files with `list`")
        return path


class StoredPart(NamedTuple):
    """A part of a chunk that the file does not have in local blocks."""

    start: int
    end: int
    extent: Extent | None


def missing_parts(stub: Stub, own: list[tuple[int, int]], covered: int) -> Iterator[StoredPart]:
    at = 0
    for extent in stub.store.extents(stub):
        while at < len(own) and own[at][1] <= extent.start:
            at += 1
        end = min(extent.end, covered)
        for start, stop in without(own[at:] if at else own, extent.start, end):
            yield StoredPart(start, stop, extent)


def own_pieces(fd: int, start: int, end: int) -> Iterator[Piece]:
    """Yield the local blocks of a file. If the disk cannot read some, only these are missing."""
    try:
        data = os.pread(fd, end - start, start)
        if len(data) == end - start:
            yield Piece(start, end, data)
            return
        problem = "the file became shorter while it was read"
    except OSError as error:
        problem = f"the disk reports: {error.strerror}"
    while start < end:
        stop = min(end, start + 4096 - start % 4096)
        try:
            data = os.pread(fd, stop - start, start)
            yield Piece(start, stop, data if len(data) == stop - start else None, problem)
        except OSError:
            yield Piece(start, stop, None, problem)
        start = stop


def stored_piece(store: Store, start: int, end: int, extent: Extent) -> Piece:
    if extent.problem:
        return Piece(start, end, None, extent.problem)
    try:
        data = store.chunk(extent)
    except Damaged as error:
        return Piece(start, end, None, str(error))
    return Piece(start, end, data[start - extent.start : end - extent.start])


# --- deletions --------------------------------------------------------------------------------


class Deletion(NamedTuple):
    """[Deletion] The state of a file in the store, just before it was deleted or overwritten."""

    id: str
    name: str
    cause: int
    time_ns: int
    size: int
    status: "Status"
    stub: Stub
    lost_own_blocks: bool


def deletions(volume: Volume, tell: Callable[[str], None]) -> Iterator[Deletion]:
    """[Deletions] Yield what can be restored, in order of logs. ``tell`` gets each damage."""
    folder = os.path.join(volume.base, "deleted")
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        if name.endswith(".log") and name[:-4].isdecimal() and name.isascii():
            with open(os.path.join(folder, name), "rb") as file:
                data = file.read()
            try:
                yield from log_deletions(volume, data, int(name[:-4]), tell)
            except Damaged as error:
                tell(f"{os.path.join(folder, name)}: {error}")


def log_deletions(
    volume: Volume, data: bytes, number: int, tell: Callable[[str], None]
) -> Iterator[Deletion]:
    if not is_sealed(data[:64], 64):
        raise Damaged("its header is damaged; its deletions cannot be restored")
    magic, version, _, stated, volume_id, _, seed, uid, first, _ = LOG.unpack_from(data)
    if (magic, stated, volume_id) != (b"DEDUPDEL", number, volume.id):
        raise Damaged("it belongs to another volume")
    if version == 1:
        raise Damaged("format 1 proves nothing; use `dedupd undelete --force`")
    if version != 2:
        raise unknown(f"log format {version}")
    if not seed or first < LOG.size or first % 8:
        raise Damaged("its header is invalid; its deletions cannot be restored")
    at = end = first
    while at + DELETION.size <= len(data):
        place = xxh3(struct.pack("<Q", at), seed)
        fields = DELETION.unpack_from(data, at)
        if fields[0] == b"DDDL" and xxh3(data[at : at + 128], place) == fields[-1]:
            if at > end:
                tell(f"deletion log {number}: {at - end} bytes are damaged")
            tail = data[at + DELETION.size : at + DELETION.size + fields[3] + fields[6]]
            deletion = None
            if xxh3(tail, place) == fields[-2] and uid in (0xFFFFFFFF, fields[10]):
                deletion = one_deletion(volume, f"{number}:{at}", data[at:][:136], tail)
            if deletion is None:
                tell(f"deletion {number}:{at}: it is damaged")
            else:
                yield deletion
            at = end = at + DELETION.size + (len(tail) + 7 & -8)
        else:
            at = data.find(b"DDDL", at + 8)
            while at >= 0 and at % 8:
                at = data.find(b"DDDL", at + 1)
            if at < 0:
                break
    if len(data) - end >= DELETION.size and any(data[end:]):
        tell(f"deletion log {number}: {len(data) - end} bytes are damaged")


def one_deletion(volume: Volume, id_: str, head: bytes, tail: bytes) -> Deletion | None:
    """Decode a deletion; None if it is damaged."""
    fields = DELETION.unpack(head)
    cause, flags, path_bytes, count = fields[1:5]
    time_ns, _, mode, uid, gid, inode, _, _, size, atime_ns, mtime_ns = fields[7:18]
    recipe, digest, covered, local = fields[18:22]
    path, rest = tail[:path_bytes], tail[path_bytes:]
    attributes = list[tuple[bytes, bytes]]()
    for _ in range(count):
        if len(rest) < 6:
            return None
        name_bytes, value_bytes = struct.unpack_from("<HI", rest)
        name, value = rest[6 : 6 + name_bytes], rest[6 + name_bytes :][:value_bytes]
        attributes.append((name, value))
        rest = rest[6 + name_bytes + value_bytes :]
    if rest or path.startswith(b"/") or b".." in path.split(b"/") or b"\0" in path or not path:
        return None
    if path == b"#%d" % inode:
        path = b"inode-%d" % inode
    lost_own_blocks = bool(local or flags & WRITTEN)
    if not volume.stores:
        return None
    stub = Stub(volume.stores[0], flags & DIRECT, recipe, digest, covered)
    named = {os.fsdecode(name): value for name, value in attributes}
    status = Status(mode, uid, gid, atime_ns, mtime_ns, named)
    size = covered if lost_own_blocks else size
    name_text = os.fsdecode(path)
    return Deletion(id_, name_text, cause, time_ns, size, status, stub, lost_own_blocks)


# --- extraction -------------------------------------------------------------------------------

ACLS = ("system.posix_acl_access", "system.posix_acl_default")
"""Attributes that the owner of a file may set, apart from ``user.*``."""


class Status(NamedTuple):
    """The properties of a file apart from its content."""

    mode: int
    uid: int
    gid: int
    atime_ns: int
    mtime_ns: int
    attributes: dict[str, bytes]


def status_of(path: str, status: os.stat_result, mtime_ns: int | None = None) -> Status:
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        names = []
    attributes = {name: os.getxattr(path, name, follow_symlinks=False) for name in names}
    times = (status.st_atime_ns, status.st_mtime_ns if mtime_ns is None else mtime_ns)
    return Status(status.st_mode, status.st_uid, status.st_gid, *times, attributes)


class Report:
    """The results of a run, as text or as JSON: one object per line."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self.files = self.bytes = self.damaged = self.findings = self.left_out = 0

    def note(self, text: str) -> None:
        """Report something that is no problem of a single file."""
        self.findings += 1
        self.print({"note": text}, text)

    def print(self, fields: dict[str, Any], text: str) -> None:
        if self.as_json:
            print(json.dumps(fields))
        else:
            print(f"dedupd-reader: {show(text)}", file=sys.stderr)

    def cannot(self, name: str, problem: str, ranges: list[Piece] | None = None) -> None:
        """Report that a file, or parts of it, are damaged."""
        self.damaged += 1
        rows = ranges or []
        fields: dict[str, Any] = {"path": name, "problem": problem}
        if rows:
            fields["ranges"] = [{"start": a, "end": b, "problem": p} for a, b, _, p in rows]
        if self.as_json:
            print(json.dumps(fields))
            return
        for start, end, _, reason in rows[:RANGES_SHOWN]:
            self.print({}, f"{name}: bytes {start} to {end - 1} cannot be read: {reason}")
        if len(rows) > RANGES_SHOWN:
            self.print({}, f"{name}: {len(rows) - RANGES_SHOWN} other ranges cannot be read")
        if problem or not rows:
            self.print({}, f"{name}: {problem}")

    def finding(self, name: str, problem: str) -> None:
        self.findings += 1
        self.print({"path": name, "finding": problem}, f"{name}: {problem}")

    @property
    def exit_status(self) -> int:
        return DAMAGED if self.damaged else FINDINGS if self.findings else DONE


class Extraction:
    """Extracts nodes of the tree into a directory, or only reads them (``target`` None)."""

    def __init__(
        self,
        volume: Volume,
        report: Report,
        target: str | None,
        *,
        privileges: bool = False,
        partial: bool = False,
    ) -> None:
        self.volume, self.report, self.target = volume, report, target
        self.privileges, self.partial = privileges, partial
        self.links = dict[int, str]()
        self.made = set[str]()

    def run(self, names: list[str]) -> None:
        """Extract these nodes and everything below them; the entire tree without names."""
        above = dict[str, str]()
        for name in names or [""]:
            path = self.volume.node(name)
            parts = os.path.relpath(path, self.volume.data).split("/")
            name = "" if parts == ["."] else "/".join(parts)
            if self.target is not None:
                for count in range(1, len(parts)):
                    folder = "/".join(parts[:count])
                    self._folder(self.place(folder))
                    above[folder] = self.place(folder)
            self.take(path, name, self.place(name))
        for name in sorted(above, key=len, reverse=True):
            path = os.path.join(self.volume.data, name)
            if above[name] in self.made:
                self.dress(name, above[name], status_of(path, os.lstat(path)))

    def place(self, name: str) -> str:
        """Return the target path of a node. The target must not look like a volume."""
        if name == ".dedupd" or name.startswith(".dedupd/"):
            name = "dedupd-of-a-user" + name[len(".dedupd") :]
        return os.path.join(self.target or "", name) if name else self.target or ""

    def take(self, path: str, name: str, place: str) -> None:
        """Extract one node, and everything below it."""
        try:
            status = os.lstat(path)
            if stat.S_ISDIR(status.st_mode):
                self._take_folder(path, name, place, status)
            elif self.target is not None and os.path.lexists(place):
                raise FileExistsError
            elif status.st_ino in self.links:
                os.link(self.links[status.st_ino], place, follow_symlinks=False)
            elif stat.S_ISREG(status.st_mode):
                self._take_file(path, name, place, status)
            elif self.target is not None:
                self._make_other(path, name, place, status)
        except Damaged as error:
            self.report.cannot(name, str(error))
        except FileExistsError:
            self.report.finding(name, "it exists in the target; name a new target")
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
                raise Refused(
                    f"{self.target}: {error.strerror}; name another target and the files that are"
                    f" missing, from {name} on",
                    FINDINGS,
                ) from None
            self.report.cannot(name, error.strerror or str(error))

    def _take_folder(self, path: str, name: str, place: str, status: os.stat_result) -> None:
        if self.target is not None:
            self._folder(place)
        with Shortened(path) as short_path, Shortened(place) as short_place:
            for entry in sorted(os.listdir(short_path)):
                below = os.path.join(name, entry) if name else entry
                there = os.path.join(short_place, entry) if name else self.place(entry)
                self.take(os.path.join(short_path, entry), below, there)
        if name and place in self.made:
            self.dress(name, place, status_of(path, status))

    def _folder(self, place: str) -> None:
        """Make a directory if it is missing. Only a new one gets an owner."""
        try:
            os.mkdir(place, 0o700)
            self.made.add(place)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(place).st_mode):
                raise

    def _take_file(self, path: str, name: str, place: str, status: os.stat_result) -> None:
        fd = os.open(path, READ_FLAGS)
        try:
            stub = self.volume.stub(fd)
            pieces = self.volume.pieces(fd, stub)
            changing = stub is not None and stub.flags & (COMMITTING | RESTORING)
            if self.target is None:
                self.write(name, None, pieces, status.st_size, None)
            else:
                times = stub.mtime_ns if stub is not None and changing else None
                what = status_of(path, status, times)
                is_whole = self.write(name, place, pieces, status.st_size, what)
                if is_whole and status.st_nlink > 1 and not place.startswith(Shortened.FOLDER):
                    self.links[status.st_ino] = place
        finally:
            os.close(fd)

    def write(
        self,
        name: str,
        place: str | None,
        pieces: Iterator[Piece],
        size: int,
        status: Status | None,
    ) -> bool:
        """Write a file, or only read it (``place`` None). It gets its name when it is complete."""
        lost = list[Piece]()
        part = None
        if place is not None:
            part = os.path.join(os.path.dirname(place), f".dedupd-reader-{os.getpid()}")
        try:
            with open(os.devnull if part is None else part, "wb" if part is None else "xb") as file:
                os.chmod(file.fileno(), 0o600) if part is not None else None
                for piece in pieces:
                    if piece.data is None:
                        if lost and lost[-1].end == piece.start:
                            lost[-1] = lost[-1]._replace(end=piece.end)
                        else:
                            lost.append(piece)
                    elif part is not None:
                        file.seek(piece.start)
                        file.write(piece.data)
                if part is not None:
                    file.truncate(size)
            self.report.files += not lost
            self.report.bytes += 0 if lost else size
            if part is None or place is None or status is None:
                if lost:
                    self.report.cannot(name, "", lost)
                return not lost
            if lost and not self.partial:
                problem = "it was not extracted; use --partial to extract its other bytes"
                self.report.cannot(name, problem, lost)
                return False
            if lost:
                place += ".damaged"
                if os.path.lexists(place):
                    problem = f"{os.path.basename(place)} exists in the target; name a new target"
                    self.report.cannot(name, problem, lost)
                    return False
                problem = f"extracted as {os.path.basename(place)}, with zeros for these bytes"
                self.report.cannot(name, problem, lost)
            if os.path.lexists(place):
                raise FileExistsError
            os.rename(part, place)
            part = None
            self.dress(name, place, status)
            return not lost
        finally:
            if part is not None and os.path.lexists(part):
                os.unlink(part)

    def _make_other(self, path: str, name: str, place: str, status: os.stat_result) -> None:
        """Make a link, a pipe, a socket or a device."""
        is_device = stat.S_ISBLK(status.st_mode) or stat.S_ISCHR(status.st_mode)
        if is_device and status.st_rdev and not self.privileges:
            self.report.left_out += 1
            return
        if stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(path), place)
        else:
            os.mknod(place, stat.S_IFMT(status.st_mode) | 0o600, status.st_rdev)
        self.dress(name, place, status_of(path, status))
        if status.st_nlink > 1 and not place.startswith(Shortened.FOLDER):
            self.links[status.st_ino] = place

    def dress(self, name: str, place: str, status: Status) -> None:
        """Give a new node its owner, mode, attributes (including ACLs) and times."""

        def attempt(what: str, step: Callable[[], None]) -> None:
            try:
                step()
            except OSError as error:
                self.report.finding(name, f"it lacks its {what} ({error.strerror})")

        def own() -> None:
            os.chown(place, status.uid, status.gid, follow_symlinks=False)

        def protect() -> None:
            for one in {*ACLS} & {*os.listxattr(place)}:  # inherited from the parent directory
                os.removexattr(place, one)
            os.chmod(place, mode & kept)

        if os.geteuid() == 0:
            attempt("owner", own)
        mode, kept = stat.S_IMODE(status.mode), 0o7777
        if not self.privileges:
            kept = 0o3777 if stat.S_ISDIR(status.mode) else 0o777
        lacks = bool(mode & ~kept & 0o6000)
        if not stat.S_ISLNK(status.mode):
            attempt("mode", protect)
        for one, value in status.attributes.items():
            if one == self.volume.attribute:
                continue
            if self.privileges or one.startswith("user.") or one in ACLS:
                attempt(f"attribute {one}", setting(place, one, value))
            else:
                lacks |= one != "security.selinux"
        self.report.left_out += lacks
        times = (status.atime_ns, status.mtime_ns)
        attempt("times", lambda: os.utime(place, ns=times, follow_symlinks=False))


def setting(place: str, name: str, value: bytes) -> Callable[[], None]:
    return lambda: os.setxattr(place, name, value, follow_symlinks=False)


class Shortened:
    """A directory at any depth, under a path that does not exceed the kernel's limit."""

    FOLDER = "/proc/self/fd/"

    def __init__(self, path: str) -> None:
        self.path, self.fd = path, -1

    def __enter__(self) -> str:
        if len(os.fsencode(self.path)) < PATH_BYTES_MAX:
            return self.path
        self.fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        return f"{self.FOLDER}{self.fd}"

    def __exit__(self, *_: object) -> None:
        if self.fd >= 0:
            os.close(self.fd)


def make_target(target: str) -> None:
    """Make the target. Raises Refused if other users can access it: files get owners later."""
    os.makedirs(target, mode=0o700, exist_ok=True)
    status = os.lstat(target)
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    if not is_own or status.st_mode & 0o077:
        raise Refused(
            f"{target}: other users may reach this directory; name a new one, or one of"
            " your own with mode 0700"
        )


def inside(directory: str, volume: Volume) -> bool:
    """Return whether a target is inside the volume: nothing may be written there."""
    base = os.path.realpath(volume.base)
    return os.path.commonpath([base, os.path.realpath(directory)]) == base


# --- commands ---------------------------------------------------------------------------------


def opened(given: argparse.Namespace, report: Report) -> Volume:
    volume = Volume(given.volume, store_paths=given.store, trusts_holes=given.trust_holes)
    for note in volume.notes:
        report.note(note)
    return volume


def finish(volume: Volume, report: Report, verb: str) -> int:
    """Report restrictions of the checks, and print the summary. Returns the exit status."""
    for store in volume.stores:
        for path in sorted(store.unchecked):
            report.note(
                f"{path}: its seed is lost, so the headers of its records cannot be checked; they"
                " count up to the first damage, and only if their bytes match their fingerprint"
            )
    if report.left_out:
        names = counted(report.left_out, "name")
        text = f"{names} without privileges; use --privileges for all rights"
        report.print({"note": text}, text)
    counts = {"files": report.files, "bytes": report.bytes, "damaged": report.damaged}
    if report.as_json:
        print(json.dumps({"summary": {**counts, "exit_status": report.exit_status}}))
    else:
        size = counted(report.bytes, "byte")
        print(f"{counted(report.files, 'file')} {verb}, {size}; {report.damaged:,} damaged")
    return report.exit_status


def require_stubs(volume: Volume, report: Report) -> None:
    """Check for stubs: without their attributes, all stubs would be read as files of zeros."""
    has_chunks = any(store.numbers(CHUNKS) for store in volume.stores)
    if volume.seed is None and has_chunks and volume.content_seen and not volume.stubs_seen:
        report.cannot(
            volume.path,
            f"no file of this copy has the attribute {volume.attribute}, so its stubs were read"
            " as zeros; use a copy that was made with extended attributes",
        )


def list_command(given: argparse.Namespace, report: Report) -> int:
    volume = opened(given, report)

    for name in given.paths or [""]:
        path = volume.node(name)
        list_node(volume, path, os.path.relpath(path, volume.data), report)
    return report.exit_status


def list_node(volume: Volume, path: str, name: str, report: Report) -> None:
    """List a file, or all files below a directory."""
    try:
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode):
            list_file(volume, path, name, status, report)
            return
        with Shortened(path) as short:
            for entry in sorted(os.listdir(short)):
                below = entry if name == "." else os.path.join(name, entry)
                list_node(volume, os.path.join(short, entry), below, report)
    except OSError as error:
        report.cannot(name, error.strerror or str(error))


def list_file(volume: Volume, path: str, name: str, status: os.stat_result, report: Report) -> None:
    kind = "other"
    if stat.S_ISREG(status.st_mode):
        attributes = os.listxattr(path, follow_symlinks=False)
        kind = "stub" if volume.attribute in attributes else "plain"
    elif stat.S_ISLNK(status.st_mode):
        kind = "link"
    if report.as_json:
        print(json.dumps({"path": name, "kind": kind, "size": status.st_size}))
    else:
        print(f"{kind:5} {status.st_size:15,} {show(name)}")


def cat_command(given: argparse.Namespace, report: Report) -> int:
    volume = opened(given, report)
    fd = os.open(volume.node(given.path), READ_FLAGS)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise Refused(f"{given.path}: not a regular file; `list` shows the regular files")
    size, at = os.fstat(fd).st_size, 0
    out = sys.stdout.buffer
    for piece in (*volume.pieces(fd, volume.stub(fd)), Piece(size, size, b"")):
        while at < piece.start:
            out.write(bytes(min(piece.start - at, PIECE_BYTES)))
            at += min(piece.start - at, PIECE_BYTES)
        if piece.data is None:
            text = "the output ends before them; use --partial for zeros instead of them"
            report.cannot(given.path, "" if given.partial else text, [piece])
            if not given.partial:
                break
            out.write(bytes(piece.end - piece.start))
        else:
            out.write(piece.data)
        at = piece.end
    out.flush()
    return report.exit_status


def extract_command(given: argparse.Namespace, report: Report) -> int:
    volume = opened(given, report)
    if inside(given.to, volume):
        raise Refused(f"{given.to}: this lies in the volume; name a target outside of it")
    make_target(given.to)
    extraction = Extraction(
        volume, report, given.to, privileges=given.privileges, partial=given.partial
    )
    extraction.run(given.paths)
    if not given.paths:
        require_stubs(volume, report)
    return finish(volume, report, "extracted")


def check_command(given: argparse.Namespace, report: Report) -> int:
    if os.path.exists(os.path.join(given.volume, "store.json")):
        fields = read_json(os.path.join(given.volume, "store.json"))
        lock = StoreLock(given.volume, ("lock",))
        owner = uuid.UUID(fields["uuid"]).bytes
        check_records(Store(given.volume, owner, fields["fingerprint"]), report)
        del lock
        return report.exit_status
    volume = opened(given, report)
    Extraction(volume, report, None).run(given.paths)
    if not given.paths:
        require_stubs(volume, report)
    for store in volume.stores if given.records else ():
        check_records(store, report)
    return finish(volume, report, "read")


def check_records(store: Store, report: Report) -> None:
    """Read every record of a store. Damage is a finding even if a second copy replaces it."""
    count = 0
    for kind, folder in FOLDERS.items():
        for number in store.numbers(kind):
            try:
                container = store.container(kind, number)
            except Damaged as error:
                report.cannot(folder, str(error))
                continue
            ordinals = max([*container.places, *container.searched], default=-1) + 1
            for ordinal in range(ordinals):
                if container.is_collected(ordinal):
                    continue
                count += 1
                check_record(store, kind, number << 32 | ordinal, container, report)
    text = f"{counted(count, 'record')} read in {store.base}"
    report.print({"records": count}, text) if report.as_json else print(show(text))


def check_record(store: Store, kind: int, id_: int, container: Container, report: Report) -> None:
    try:
        store.stated((kind - 1) % 2 + 1, id_, kind)
        return
    except Damaged as error:
        problem = str(error)
    entry = container.entry(id_ & 0xFFFFFFFF)
    if entry is not None and entry[0] == COLLECTED:
        return
    if kind in (CHUNKS, RECIPES):
        try:
            store.read(kind, id_)
        except Damaged:
            if entry is None or entry[0] != ORPHANED:
                report.cannot(FOLDERS[kind], problem)
                return
            problem += "; no file needs it"
        else:
            problem += "; another record replaces it"
    report.finding(FOLDERS[kind], problem)


def deleted_command(given: argparse.Namespace, report: Report) -> int:
    volume = opened(given, report)
    for one in deletions(volume, report.note):
        if report.as_json:
            fields = {"id": one.id, "path": one.name, "size": one.size, "time_ns": one.time_ns}
            fields |= {"cause": CAUSES.get(one.cause, ""), "lost_own_blocks": one.lost_own_blocks}
            print(json.dumps(fields))
        else:
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.time_ns // 10**9))
            older = ", without the changes since it was optimized" if one.lost_own_blocks else ""
            cause = CAUSES.get(one.cause, "deleted")
            print(f"{one.id:>12} {when} {one.size:15,} {show(one.name)}: {cause}{older}")
    return report.exit_status


def undelete_command(given: argparse.Namespace, report: Report) -> int:
    volume = opened(given, report)
    if inside(given.to, volume):
        raise Refused(f"{given.to}: this lies in the volume; name a target outside of it")
    make_target(given.to)
    work = Extraction(volume, report, given.to, privileges=given.privileges, partial=given.partial)
    wanted = set(given.ids)
    for one in deletions(volume, report.note):
        if one.id not in wanted:
            continue
        wanted.remove(one.id)
        place = work.place(one.name)
        try:
            os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
            if os.path.lexists(place):
                raise FileExistsError
            parts = missing_parts(one.stub, [], min(one.stub.covered, one.size))
            pieces = (
                stored_piece(one.stub.store, start, end, extent)
                for start, end, extent in parts
                if extent is not None
            )
            work.write(one.name, place, pieces, one.size, one.status)
        except FileExistsError:
            report.finding(one.name, "it exists in the target; name a new target")
        except (Damaged, OSError) as error:
            report.cannot(one.name, str(error))
    for id_ in sorted(wanted):
        report.finding(id_, "there is no such deletion; `deleted` lists the IDs")
    return finish(volume, report, "restored")


COMMANDS: dict[str, tuple[str, Callable[[argparse.Namespace, Report], int]]] = {
    "list": ("List the files of a volume.", list_command),
    "cat": ("Write the content of a file to the standard output.", cat_command),
    "extract": ("Extract files into a new directory.", extract_command),
    "check": ("Read all files, and report those that are damaged.", check_command),
    "deleted": ("List deleted and overwritten files that the store still has.", deleted_command),
    "undelete": ("Restore deleted or overwritten files into a new directory.", undelete_command),
}

DESCRIPTION = """\
Read a volume of dedupd, or a copy of one, without dedupd. VOLUME is the directory that contains
.dedupd, or a copy of .dedupd. It must not be mounted. Nothing in it is changed.

The program scans the containers of the store, so it works without tables, index and catalog.
Damaged records do not stop it: it names each file and the bytes that cannot be read, and continues
with the other files. A damaged record is replaced by its second copy if there is one.

Each container states a secret seed, with which the headers of its records are checked. If a
container and its table have lost the seed, it is computed from the secret of the store. If that is
lost, too, the records up to the first damage count, and only if their bytes match their
fingerprint. The program names such containers."""

STATUS = """\
Exit status: 0 done, 1 finished with findings, or stopped early, 2 wrong usage, 3 the volume is
in use, 4 damaged files."""


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="dedupd-reader",
        description=DESCRIPTION,
        epilog=STATUS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = f"dedupd-reader for volume format {VOLUME_FORMAT}, {os.path.abspath(__file__)}"
    found.add_argument(
        "--version",
        action="version",
        version=version,
        help="Print the volume format and the file of this program, which you can copy.",
    )
    commands = found.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, one in command_parsers().items():
        summary = COMMANDS[name][0]
        commands.add_parser(name, help=summary, description=summary, parents=[one], add_help=False)
    return found


def command_parsers() -> dict[str, argparse.ArgumentParser]:
    found = {}
    for name, (summary, _) in COMMANDS.items():
        one = argparse.ArgumentParser(prog=f"dedupd-reader {name}", description=summary)
        one.add_argument("volume", metavar="VOLUME", help="Directory of the volume or the copy.")
        add_arguments(one, name)
        one.add_argument(
            "--store",
            action="append",
            metavar="DIRECTORY",
            help="Directory of the shared store, if it is not where the volume expects it."
            " Repeatable, for a volume between two stores.",
        )
        one.add_argument(
            "--trust-holes",
            action="store_true",
            help="Also accept copied stubs with local blocks. Safe only if the program that made"
            " the copy preserved holes.",
        )
        if name == "cat":
            one.set_defaults(json=False)
        else:
            one.add_argument("--json", action="store_true", help="Print one JSON object per line.")
        found[name] = one
    return found


def add_arguments(one: argparse.ArgumentParser, name: str) -> None:
    paths = "File or directory in the volume. Default: everything."
    if name == "cat":
        one.add_argument("path", metavar="PATH", help="File in the volume.")
    elif name == "undelete":
        one.add_argument("ids", metavar="ID", nargs="+", help="ID that `deleted` lists.")
    elif name != "deleted":
        one.add_argument("paths", metavar="PATH", nargs="*", help=paths)
    if name in ("extract", "undelete"):
        one.add_argument(
            "--to",
            metavar="DIRECTORY",
            required=True,
            help="New directory, or one of yours with mode 0700. No file in it is overwritten.",
        )
        one.add_argument(
            "--privileges",
            action="store_true",
            help="Also extract set-user-ID bits, capabilities, labels and devices.",
        )
    if name in ("cat", "extract", "undelete"):
        ending = "" if name == "cat" else " Their names get the ending .damaged."
        one.add_argument(
            "--partial",
            action="store_true",
            help=f"Replace bytes that cannot be read by zeros, and keep the others.{ending}",
        )
    if name == "check":
        one.add_argument(
            "--records",
            action="store_true",
            help="Also read each record of the store, even if no file needs it.",
        )


def open_standard_streams() -> None:
    """Open /dev/null for streams that the caller has closed: no file may get their numbers."""
    fd = 0
    while fd < 3:
        fd = os.open(os.devnull, os.O_RDWR)
    os.close(fd)


def main() -> int:
    open_standard_streams()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # of `dedupd-reader list … | head`
    sys.setrecursionlimit(20_000)  # a directory in a directory, 2,000 times
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return run(sys.argv[1:])


def run(arguments: list[str]) -> int:
    """Execute a command. Returns the exit status."""
    given = parser().parse_args(arguments)
    report = Report(given.json)
    try:
        return COMMANDS[given.command][1](given, report)
    except Refused as error:
        status, problem = error.status, str(error)
    except (Damaged, OSError, KeyError, ValueError) as error:
        status, problem = DAMAGED, str(error)
    except KeyboardInterrupt:
        status, problem = FINDINGS, "stopped; files that were extracted are complete"
    if report.as_json:
        print(json.dumps({"error": problem, "exit_status": status}))
    print(f"dedupd-reader: {show(problem)}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
