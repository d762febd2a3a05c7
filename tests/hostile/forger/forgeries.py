"""Bytes that a user can write to pass for the program's own: the formats, and what is public, are
known to the user."""

import random
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from dedupd_core import native
from dedupd_core.format import container as fmt
from dedupd_core.format import recipe
from dedupd_core.format import table as tbl
from dedupd_core.format.container import Kind
from dedupd_core.format.deletion import HEAD_BYTES, Cause, Deletion, encode_deletion
from dedupd_core.format.ids import make_id
from dedupd_core.format.stub import Flag, StubAttribute
from tests.support.deletions import unproven_deletion

MALLORY = 6666
"""The user who forges."""
TOOL, PROFILE = b"bin/tool", b"home1001/.profile"
"""Places where no user has a file."""
NUMBERS = 4
"""Containers of a small volume have lower numbers."""
_PLACE = struct.Struct("<16sI")


def seed_of_container(volume_id: bytes, number: int, generation: int) -> int:
    """The seed that a user takes for that of a container."""
    return fmt.public_seed(volume_id, number, generation)


def seed_of_log(volume_id: bytes, number: int) -> int:
    """The seed that a user takes for that of a log of deletions."""
    return native.hashing.xxh3_64(_PLACE.pack(volume_id, number))


@dataclass(frozen=True, slots=True)
class Known:
    """What a user knows of a volume, and of files of others that everybody can read.

    ``victims`` are their contents. ``ordinals`` are the records of those that are stored, as the
    user knows who has counted what was stored before; ``next_ordinal`` is that of the next record.
    """

    volume_id: bytes
    rng: random.Random
    victims: Sequence[bytes]
    ordinals: dict[int, bytes] = field(default_factory=dict)
    next_ordinal: list[int] = field(default_factory=lambda: [0])

    def target(self) -> tuple[int, bytes]:
        """An ordinal, and the content that is there, or may come to be there."""
        if self.ordinals and self.rng.random() < 0.7:
            return self.rng.choice(sorted(self.ordinals.items()))
        near = self.next_ordinal[0] + self.rng.randrange(1, 5)
        return self.rng.choice((near, self.rng.randrange(12))), self.rng.choice(self.victims)

    def container_seed(self) -> int:
        """A seed that the user can compute, or chooses."""
        rng = self.rng
        if rng.random() < 0.1:
            return rng.choice((0, 1, 0x5EED))
        number, generation = rng.choice((1, 1, 1, 2, 3)), rng.choice((1, 1, 1, 2))
        return seed_of_container(self.volume_id, number, generation)


def record(known: Known, ordinal: int, victim: bytes, seed: int) -> bytes:
    """A record of any kind: of a victim's chunk with other bytes, or one that leads elsewhere."""
    rng = known.rng
    payload = rng.randbytes(len(victim))
    kinds = fmt.RecordKind
    kind = rng.choice((kinds.DATA,) * 5 + (kinds.FORWARD, kinds.TOMBSTONE, kinds.COPY))
    shown = victim if rng.random() < 0.7 else payload
    if rng.random() < 0.15:
        payload = node(known)
        shown = payload
    target = make_id(rng.randrange(1, NUMBERS), rng.randrange(12)) if kind != kinds.DATA else 0
    if kind in (kinds.FORWARD, kinds.TOMBSTONE):
        payload, target = b"", target if kind == kinds.FORWARD else rng.randrange(1, 9)
    collected = rng.choice((0, 0, 0, ordinal))
    one = fmt.Record(
        ordinal=ordinal,
        kind=kind,
        codec=fmt.Codec.RAW,
        raw_length=len(payload) or len(victim),
        stored_length=len(payload),
        fingerprint=native.hashing.fingerprint(shown),
        target=target,
        checksum=native.hashing.xxh3_64(payload),
        collected=collected,
    )
    buffer = bytearray(fmt.record_size(len(payload)))
    fmt.pack_record_into(memoryview(buffer), 0, one, seed)
    buffer[fmt.RECORD_HEADER_BYTES : fmt.RECORD_HEADER_BYTES + len(payload)] = payload
    return bytes(buffer)


def records(known: Known) -> bytes:
    """A record or two in a row, as in a container, mostly for a victim's ordinal."""
    seed = known.container_seed()
    rows = [known.target() for _ in range(known.rng.choice((1, 1, 1, 2)))]
    return b"".join(record(known, ordinal, victim, seed) for ordinal, victim in rows)


def container(known: Known) -> bytes:
    """A whole container, header and all."""
    rng = known.rng
    number, generation = rng.randrange(1, NUMBERS), rng.choice((1, 1, 2, 3))
    seed = rng.choice((0, 1, seed_of_container(known.volume_id, number, generation)))
    kind = rng.choice((Kind.CHUNKS, Kind.CHUNKS, Kind.RECIPES, Kind.CHUNK_COPIES))
    header = fmt.FileHeader(kind, number, generation, 0, known.volume_id, 1, 0, seed=seed)
    rows = [record(known, *known.target(), fmt.seed_of(header))]
    return fmt.encode_file_header(header) + b"".join(rows)


def table(known: Known) -> bytes:
    """Entries of a table, each a victim's chunk at another place."""
    rng, seed = known.rng, known.container_seed()
    rows = [
        tbl.TableEntry(
            native.hashing.fingerprint(rng.choice(known.victims)),
            rng.randrange(16, 2000) * 8,
            0,
            3000,
            3000,
            0,
            rng.choice(list(tbl.State)),
            0,
        )
        for _ in range(rng.randrange(1, 8))
    ]
    return b"".join(tbl.encode_entry(one, seed) for one in rows)


def node(known: Known) -> bytes:
    """A node of a recipe of other users' chunks."""
    rng = known.rng
    count = rng.randrange(1, 4)
    rows = [
        (
            make_id(rng.randrange(1, NUMBERS), rng.randrange(12)),
            len(content := rng.choice(known.victims)),
            native.hashing.fingerprint(content),
        )
        for _ in range(count)
    ]
    digest = recipe.content_digest([(fingerprint, length) for _, length, fingerprint in rows])
    return recipe.encode_node(rng.choice((0, 0, 1)), digest, rows)


def deletion_of_none(known: Known) -> Deletion:
    """A deletion of a file that was none, of any owner, with a content of the store."""
    rng = known.rng
    ordinal, content = known.target()
    digest, length = native.hashing.fingerprint(content)[:16], len(content)
    stub = StubAttribute(make_id(1, ordinal), digest, length, 0, Flag.DIRECT)
    return Deletion(
        *(Cause.REMOVED, time.time_ns(), 7 * 86400, rng.choice((TOOL, PROFILE)), 0o104755),
        *(rng.choice((0, 1001, MALLORY, MALLORY)), rng.choice((0, MALLORY)), 77, 5, length, 0, 0),
        stub,
    )


def deletion(known: Known, log: int, offset: int) -> bytes:
    """Such a deletion as a log has it, in the format of today or in the first one."""
    one, seed = deletion_of_none(known), seed_of_log(known.volume_id, log)
    if known.rng.random() < 0.3:
        return unproven_deletion(one, seed)
    return encode_deletion(one, seed, offset)


def deletions(known: Known, log: int, start: int) -> tuple[list[int], bytes]:
    """Deletions to lie at ``start`` of a log and behind it, each valid at its own offset, if any;
    these offsets, and the bytes."""
    offsets, parts = list[int](), [bytes(-start % 8)]
    at = start + len(parts[0])
    for _ in range(known.rng.choice((1, 2, 4))):
        offsets.append(at)
        parts.append(deletion(known, log, at))
        at += len(parts[-1])
    return offsets, b"".join(parts)


def tail_start(path: bytes, name: bytes) -> int:
    """How far behind the start of a deletion the value of its only attribute begins."""
    return HEAD_BYTES + len(path) + 6 + len(name)


def content(known: Known) -> bytes:
    """A file of a few forgeries between bytes that do not compress."""
    rng = known.rng
    parts = list[bytes]()
    kinds = rng.choices((records, container, table, node), (8, 2, 1, 1), k=rng.choice((1, 1, 1, 2)))
    for make in kinds:
        parts += [rng.randbytes(8 * rng.randrange(6)), make(known)]
    return b"".join(parts) + rng.randbytes(rng.randrange(8, 400))
