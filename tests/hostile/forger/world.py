"""A volume of three honest users and a forger, and what a plain model knows of it."""

import os
import random
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dedupd_core import native
from dedupd_core.deleted.log import DeletionId, DeletionLogs
from dedupd_core.deleted.writer import DeletionWriter
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.container import Kind
from dedupd_core.format.deletion import LOG_HEADER_BYTES, Cause, Deletion
from dedupd_core.store.writer import ContainerWriter
from dedupd_core.stores.local_store import STORE_DIRS
from dedupd_core.system.disk import Disk
from dedupd_core.volume.enabling.enable import enable
from tests.hostile.forger import forgeries
from tests.hostile.forger.forgeries import MALLORY
from tests.support.deletions import unproven_deletion, unproven_header
from tests.support.lab import Lab
from tests.support.old_containers import make_old
from tests.support.upkeep import scrub

ROOT, ALICE, BOB = 0, 1001, 1002
MARK = "user.mark"
KEEP_S = 7 * 86400
OLD_LOG = 900
"""A log of the first format, all of which the forger could have written."""
SMALL_CONTAINER_BYTES = 12 << 10


@dataclass(frozen=True, slots=True)
class File:
    """A file as its user made it."""

    content: bytes
    uid: int
    gid: int
    mode: int
    mark: bytes = b""


@dataclass(slots=True)
class World:
    """A volume on a disk, and what every user had in it.

    ``deleted`` are the files that a mount has recorded as deleted, by id. ``spots`` are bytes by
    their use, as (path below ``.dedupd``, offset, length). ``forged_ids`` name places in logs
    where the forger's bytes are.
    """

    root: Path
    files: dict[str, File] = field(default_factory=dict)
    deleted: dict[str, tuple[str, File]] = field(default_factory=dict)
    spots: dict[str, list[tuple[str, int, int]]] = field(default_factory=dict)
    forged_ids: list[DeletionId] = field(default_factory=list)
    is_old: bool = False

    @property
    def base(self) -> Path:
        return self.root / ".dedupd"


@contextmanager
def known_randomness(seed: str) -> Iterator[None]:
    """Make secrets and ids the same in each run of a seed."""
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "urandom", rng.randbytes)
        yield


def make_world(root: Path, seed: int) -> World:
    """A volume with files of all users, some of them deleted since."""
    rng = random.Random(f"world {seed}")
    with ExitStack() as stack:
        stack.enter_context(known_randomness(f"secrets {seed}"))
        if rng.random() < 0.3:
            defaults = ContainerWriter.__init__.__kwdefaults__ or {}
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setitem(defaults, "container_bytes_max", SMALL_CONTAINER_BYTES)
        return _Builder(root, rng).built()


class _Builder:
    def __init__(self, root: Path, rng: random.Random) -> None:
        root.mkdir()
        copies = rng.choice((1, 100))
        enable(
            str(root),
            chunk_size="16k",
            fingerprint="blake3",
            policy_values={
                "min_age": "0s",
                "min_size": "1",
                "min_file_saving": 0,
                "compaction_min_dead": 0,
                "redundancy_threshold": copies,
                "keep_deleted": "7d",
            },
            force=True,
            disk=Disk(),
        )
        self._lab = Lab(root)
        self._rng = rng
        self._world = World(root, is_old=rng.random() < 0.3)
        victims = [rng.randbytes(rng.choice((1500, 3000, 3000))) for _ in range(3)]
        with self._lab.opened() as volume:
            self._known = forgeries.Known(volume.space.volume_id, rng, victims)
        self._own_chunks: set[bytes] = set()

    def built(self) -> World:
        rng, known = self._rng, self._known
        steps: list[Callable[[], None]] = [
            *(lambda n=n: self._put_victim(n) for n in range(len(known.victims))),
            *([self._put_forged] * rng.choice((2, 3))),
            self._put_large,
        ]
        rng.shuffle(steps)
        for step in steps:
            step()
            self._lab.optimize()
            self._count_records()
        self._delete_some()
        if rng.random() < 0.5:
            scrub(self._lab.root)
        if self._world.is_old:
            self._write_old_log()
            self._make_old()
        self._find_spots()
        return self._world

    def _count_records(self) -> None:
        """What the forger may know by now: which record of the first container is whose."""
        contents = {native.hashing.fingerprint(one): one for one in self._known.victims}
        for one, _ in records_of(self._lab.container(Kind.CHUNKS)):
            self._known.next_ordinal[0] = one.ordinal + 1
            if one.fingerprint in contents:
                self._known.ordinals[one.ordinal] = contents[one.fingerprint]

    def _put(self, name: str, one: File) -> None:
        path = self._lab.put(name, one.content)
        if one.mark:
            os.setxattr(path, MARK, one.mark)
        for place, mode in ((path.parent, 0o755), (path, one.mode)):
            os.chown(place, one.uid, one.gid)
            os.chmod(place, mode)
        self._world.files[name] = one

    def _put_victim(self, number: int) -> None:
        uid = (ROOT, ALICE, BOB)[number]
        mode = self._rng.choice((0o100644, 0o100600, 0o104755))
        content = self._known.victims[number]
        self._put(f"home{uid}/victim", File(content, uid, uid, mode, b"of %d" % uid))

    def _put_large(self) -> None:
        """A recipe, and chunks that a difference saves."""
        base = self._rng.randbytes(30_000)
        self._put(f"home{ALICE}/large", File(base, ALICE, BOB, 0o100640))
        edited = base[:12_000] + b"an edit" + base[12_000:]
        self._put(f"home{BOB}/edited", File(edited, BOB, BOB, 0o100644))

    def _put_forged(self) -> None:
        content = forgeries.content(self._known)
        number = len(self._world.files)
        self._put(f"home{MALLORY}/forged{number}", File(content, MALLORY, MALLORY, 0o100644))
        self._own_chunks.add(native.hashing.fingerprint(content))

    def _delete_some(self) -> None:
        names = [name for name in self._world.files if self._rng.random() < 0.35]
        for name in sorted(names, key=lambda _: self._rng.random()):
            with self._lab.opened() as volume:
                writer = DeletionWriter(volume)
                self._delete(writer, DeletionLogs(volume), name)
                for fd in writer.unsynced():
                    os.close(fd)
                writer.close()

    def _delete(self, writer: DeletionWriter, logs: DeletionLogs, name: str) -> None:
        one = self._world.files.pop(name)
        path = self._lab.data / name
        stub = self._lab.stub(name)
        assert stub is not None
        status, attributes = path.stat(), list[tuple[bytes, bytes]]()
        if one.mark:
            attributes.append((MARK.encode(), one.mark))
        if one.uid == MALLORY:
            # The forger knows which log is next: each process begins one of each user.
            log = max([0, *logs.numbers()]) + 1
            start = LOG_HEADER_BYTES + forgeries.tail_start(name.encode(), MARK.encode())
            offsets, value = forgeries.deletions(self._known, log, start)
            attributes = [(MARK.encode(), value)]
            self._world.forged_ids += [DeletionId(log, offset) for offset in offsets]
            one = File(one.content, one.uid, one.gid, one.mode, attributes[0][1])
        writer.append(
            Deletion(
                *(Cause.REMOVED, time.time_ns(), KEEP_S, name.encode(), status.st_mode),
                *(one.uid, one.gid, status.st_ino, 0, status.st_size, status.st_atime_ns),
                *(status.st_mtime_ns, stub),
                tuple(attributes),
            )
        )
        path.unlink()
        ids = [str(at) for number in logs.numbers() for at, _ in logs.read(number)]
        (new,) = set(ids) - self._world.deleted.keys()
        self._world.deleted[new] = (name, one)

    def _write_old_log(self) -> None:
        known, directory = self._known, self._world.base / "deleted"
        directory.mkdir(exist_ok=True, mode=0o700)
        seed = forgeries.seed_of_log(known.volume_id, OLD_LOG)
        one = forgeries.deletion_of_none(known)
        body = unproven_header(OLD_LOG, known.volume_id) + unproven_deletion(one, seed)
        (directory / f"{OLD_LOG:08}.log").write_bytes(body)

    def _make_old(self) -> None:
        for kind in Kind:
            for path in (self._world.base / STORE_DIRS[kind]).glob("*.dat"):
                make_old(path)

    # --- what a disk may damage ---------------------------------------------------------------

    def _find_spots(self) -> None:
        spots = self._world.spots
        for kind in Kind:
            for path in sorted((self._world.base / STORE_DIRS[kind]).glob("*.dat")):
                self._spots_of_container(path)
        for path in sorted((self._world.base / "deleted").glob("*.log")):
            name = self._name(path)
            spots.setdefault("log", []).append((name, 0, LOG_HEADER_BYTES))
            size = path.stat().st_size
            spots["log"].append((name, LOG_HEADER_BYTES, min(160, size - LOG_HEADER_BYTES)))
            spots["log"].append((name, 0, size))
        for path in sorted(self._world.base.rglob("*")):
            if stat.S_ISREG(path.lstat().st_mode) and self._is_fair(path):
                spots.setdefault("any", []).append((self._name(path), 0, path.stat().st_size))
        spots["any"] = [spot for spot in spots["any"] if spot[2]]

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._world.base))

    def _is_fair(self, path: Path) -> bool:
        """What users or administrators write has no checksum: plain files, and the policy."""
        name = self._name(path)
        return not name.startswith(("data/", "policy", "lock", "mount.lock"))

    def _spots_of_container(self, path: Path) -> None:
        spots, name = self._world.spots, self._name(path)
        table = path.with_suffix(".dir")
        victims = {native.hashing.fingerprint(one) for one in self._known.victims}
        spots.setdefault("head", []).append((name, 0, fmt.FILE_HEADER_BYTES))
        for one, at in records_of(path):
            use = "forged" if one.fingerprint in self._own_chunks else "other"
            if one.fingerprint in victims:
                use = "victim"
                entry = tbl.HEADER_BYTES + one.ordinal * tbl.ENTRY_BYTES
                where = (self._name(table), entry, tbl.ENTRY_BYTES)
                spots.setdefault("victim's entry", []).append(where)
            spots.setdefault(use, []).append((name, at, fmt.RECORD_HEADER_BYTES))
            if one.stored_length:
                spots[use].append((name, at + fmt.RECORD_HEADER_BYTES, one.stored_length))
        size = table.stat().st_size - tbl.HEADER_BYTES
        spots.setdefault("table", []).append((self._name(table), tbl.HEADER_BYTES, size))
        spots.setdefault("table head", []).append((self._name(table), 0, tbl.HEADER_BYTES))


def records_of(path: Path) -> Iterator[tuple[fmt.Record, int]]:
    """The records of a container that is intact, and where each begins."""
    data, at = path.read_bytes(), fmt.FILE_HEADER_BYTES
    seed = fmt.seed_of(fmt.decode_file_header(data[:at], ""))
    while (one := fmt.unpack_record(data, at, seed)) is not None:
        yield one, at
        at += fmt.record_size(one.stored_length)
