"""A volume to be damaged in every way, and a model of what that must cost."""

import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from dedupd_core import native
from dedupd_core.byte_ranges import missing_ranges
from dedupd_core.errors import Damaged
from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.container import COPIES_OF, Kind
from dedupd_core.format.ids import HOLE, container_of, make_id, ordinal_of
from dedupd_core.format.stub import Flag
from dedupd_core.store.writer import ContainerWriter
from dedupd_core.stores.local_store import STORE_DIRS
from tests.support.lab import Lab, new_lab, prose
from tests.support.upkeep import scrub

CONTAINER_BYTES = 24 << 10
"""Small enough for several containers, so that a lost one is not the whole store."""

LOCAL_BYTES = 16 << 10
MOVED = ("swapped", "torn")
"""Damages that put bytes where others belong: blocks that changed places, or half of a write."""

POLICY = 'min_age = "0s"\nmin_size = "1"\nredundancy_threshold = 2\nexclude = ["*.plain"]\n'


@dataclass(frozen=True, slots=True)
class Span:
    """A chunk in a file."""

    start: int
    end: int
    chunk: int


@dataclass(slots=True)
class Model:
    """What the volume was before it was damaged: everything that the drill compares with."""

    contents: dict[str, bytes] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    spans: dict[str, list[Span]] = field(default_factory=dict)
    recipes: dict[str, int] = field(default_factory=dict)
    local: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    entries: dict[tuple[Kind, int], tbl.TableEntry] = field(default_factory=dict)
    in_files: set[bytes] = field(default_factory=set)


class Drill:
    """A volume, its model, and a way to put it back after each case."""

    def __init__(self, root: Path) -> None:
        self.root = root
        with pytest.MonkeyPatch.context() as patch:
            small = partial(ContainerWriter, container_bytes_max=CONTAINER_BYTES)
            patch.setattr("dedupd_core.volume.container_numbers.ContainerWriter", small)
            self.lab = self._build(root)
        self.model = self._model()

    def _build(self, root: Path) -> Lab:
        lab = new_lab(root, "4k")
        lab.set_policy(POLICY)
        rng = random.Random(1)
        shared, twin = rng.randbytes(14_000), rng.randbytes(12_000)
        files = {
            **{f"many{n}": shared + rng.randbytes(3000) for n in range(4)},
            **{f"alone{n}": rng.randbytes(9000 + 1000 * n) for n in range(3)},
            **{f"direct{n}": rng.randbytes(1500 + n) for n in range(3)},
            "text": prose(30_000),
            "holes": rng.randbytes(5000) + bytes(40_000) + rng.randbytes(5000),
            "twin": twin,
            "local": rng.randbytes(LOCAL_BYTES) + rng.randbytes(9000),
        }
        files["shares-local"] = files["local"][:LOCAL_BYTES] + rng.randbytes(2000)
        gone = {f"gone{n}": rng.randbytes(50_000) for n in range(2)}
        for name, content in (files | gone).items():
            lab.put(name, content)
        lab.optimize()
        for name in gone:
            (lab.data / name).unlink()
        assert lab.collect().punched
        lab.put("twin.plain", twin)
        with open(lab.let_write("local"), "r+b") as file:
            file.write(files["local"][:LOCAL_BYTES])
        assert scrub(root).copies_written
        return lab

    def _model(self) -> Model:
        lab, model = self.lab, Model()
        for path in sorted(lab.data.iterdir()):
            model.contents[path.name] = lab.read(path.name)
            stub = lab.stub(path.name)
            if stub is None:
                continue
            with lab.opened() as volume:
                recipe = volume.content(stub, path.name).recipe
                model.spans[path.name] = [
                    Span(s.offset, s.offset + s.length, s.chunk)
                    for s in recipe.spans(0, stub.covered)
                    if s.chunk != HOLE
                ]
            if Flag.DIRECT not in stub.flags:
                model.recipes[path.name] = stub.recipe
            model.local[path.name] = [(0, LOCAL_BYTES)] if path.name == "local" else []
        for kind in Kind:
            for path in (lab.base / STORE_DIRS[kind]).glob("*.dir"):
                number, data = int(path.stem), path.read_bytes()
                seed = lab.seed(kind, number)
                for ordinal in range((len(data) - tbl.HEADER_BYTES) // tbl.ENTRY_BYTES):
                    at = tbl.HEADER_BYTES + ordinal * tbl.ENTRY_BYTES
                    entry = tbl.decode_entry(data[at : at + tbl.ENTRY_BYTES], seed)
                    assert entry is not None
                    model.entries[kind, make_id(number, ordinal)] = entry
        with lab.opened() as volume:
            chunker = volume.parameters.chunker()
        twin = model.contents["twin.plain"]
        found = chunker.process(twin, [(0, len(twin), True)])
        size = native.hashing.HASH_BYTES
        model.in_files = {
            found.fingerprints[at : at + size] for at in range(0, len(found.fingerprints), size)
        }
        for span in model.spans["local"]:
            if span.end <= LOCAL_BYTES:
                model.in_files.add(model.entries[Kind.CHUNKS, span.chunk].fingerprint)
        for area in ("store", "catalog"):
            for path in (lab.base / area).rglob("*"):
                if path.is_file():
                    model.files[str(path.relative_to(lab.base))] = path.read_bytes()
        return model

    def reset(self) -> None:
        """Put the store and the catalogue back to what they were."""
        for area in ("store", "catalog"):
            for path in (self.lab.base / area).rglob("*"):
                name = str(path.relative_to(self.lab.base))
                if path.is_file() and name not in self.model.files:
                    path.unlink()
        for name, data in self.model.files.items():
            path = self.lab.base / name
            if not path.exists() or path.read_bytes() != data:
                path.write_bytes(data)

    # --- damage -------------------------------------------------------------------------------

    def targets(self) -> list[str]:
        """Files that may be damaged: all but LMDB's lock, which holds nothing."""
        return sorted(name for name in self.model.files if not name.endswith("lock.mdb"))

    def damage(self, rng: random.Random) -> str:
        """Damage one file, or two of them; says what was done."""
        targets = self.targets()
        chosen = rng.sample(targets, 2 if rng.random() < 0.2 else 1)
        return ", ".join(self._damage_one(name, rng) for name in chosen)

    def _damage_one(self, name: str, rng: random.Random) -> str:
        path, data = self.lab.base / name, bytearray(self.model.files[name])
        how = rng.choice(["bits", "bits", "bits", "zeros", "zeros", "cut", "missing", *MOVED])
        if how == "missing":
            path.unlink()
            return f"{name} is missing"
        at = rng.randrange(len(data))
        if how == "cut":
            os.truncate(path, at)
            return f"{name} is cut to {at}"
        if how == "zeros":
            length = rng.choice([64, 512, 4096])
            at -= at % length
            end = min(at + length, len(data))
            data[at:end] = bytes(end - at)
            path.write_bytes(data)
            return f"{name} is zeroed from {at} to {end}"
        if how in MOVED:
            length = rng.choice([64, 512, 4096])
            one, other = (rng.randrange(len(data)) // length * length for _ in range(2))
            length = min(length, len(data) - max(one, other))
            first, second = data[one : one + length], data[other : other + length]
            data[one : one + length] = second
            if how == "swapped":
                data[other : other + length] = first
            path.write_bytes(data)
            return f"{name} is {how}: {length} bytes at {one}, of those at {other}"
        flips = sorted(rng.sample(range(len(data)), min(len(data), rng.choice([1, 1, 1, 2, 5]))))
        for flip in flips:
            data[flip] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        return f"{name} has flipped bits at {flips}"

    def damage_attribute(self, rng: random.Random) -> tuple[str, str, bytes]:
        """Damage the attribute of a stub; returns the file, the attribute and its value before."""
        name = rng.choice(sorted(self.model.spans))
        with self.lab.opened() as volume:
            attribute = volume.space.name.decode()
        value = bytearray(os.getxattr(self.lab.data / name, attribute))
        before = bytes(value)
        how = rng.choice(["bits", "zeros", "cut", "longer", "swapped"])
        at = rng.randrange(len(value))
        if how == "bits":
            value[at] ^= 1 << rng.randrange(8)
        elif how == "zeros":
            value[at:] = bytes(len(value) - at)
        elif how == "cut":
            del value[at:]
        elif how == "longer":
            value += rng.randbytes(at + 1)
        else:
            value = value[at:] + value[:at]
        if bytes(value) == before:
            value[0] ^= 1
        os.setxattr(self.lab.data / name, attribute, bytes(value))
        return name, attribute, before

    # --- what it must cost --------------------------------------------------------------------

    def now(self, name: str) -> bytes:
        path = self.lab.base / name
        return path.read_bytes() if path.exists() else b""

    def is_hit(self, kind: Kind, record_id: int, *, header_only: bool = False) -> bool:
        """Whether a record is not what it was, padding aside. A header whose record does not end
        within the file tells nothing."""
        entry = self.model.entries[kind, record_id]
        name = f"{STORE_DIRS[kind]}/{container_of(record_id):08d}.dat"
        length = 0 if header_only else entry.stored_length
        if entry.offset + fmt.record_size(entry.stored_length) > len(self.now(name)):
            return True
        place = slice(entry.offset, entry.offset + fmt.RECORD_HEADER_BYTES + length)
        return self.now(name)[place] != self.model.files[name][place]

    def is_gone(self, kind: Kind, record_id: int) -> bool:
        """Whether a record is whole nowhere in its container: a write that went astray may have put
        it elsewhere, where its header tells it."""
        if not self.is_hit(kind, record_id):
            return False
        entry = self.model.entries[kind, record_id]
        name = f"{STORE_DIRS[kind]}/{container_of(record_id):08d}.dat"
        end = entry.offset + fmt.RECORD_HEADER_BYTES + entry.stored_length
        record, data = self.model.files[name][entry.offset : end], self.now(name)
        at = data.find(record, fmt.FILE_HEADER_BYTES)
        while at >= 0 and at % fmt.ALIGN_BYTES:
            at = data.find(record, at + 1)
        return at < 0

    def is_entry_hit(self, kind: Kind, record_id: int) -> bool:
        """Whether the table does not tell any more what a record was."""
        name = f"{STORE_DIRS[kind]}/{container_of(record_id):08d}.dir"
        data, was = self.now(name), self.model.files[name]
        at = tbl.HEADER_BYTES + ordinal_of(record_id) * tbl.ENTRY_BYTES
        head = slice(0, tbl.HEADER_BYTES)
        place = slice(at, at + tbl.ENTRY_BYTES)
        return data[head] != was[head] or data[place] != was[place]

    def has_copy(self, kind: Kind, record_id: int) -> bool:
        """Whether an intact second copy of a record is left, in a container that can be opened."""
        of = COPIES_OF[kind]
        for (other, copy_id), entry in self.model.entries.items():
            if other is of and entry.target == record_id and entry.state == tbl.State.LIVE:
                return not self.is_gone(of, copy_id)
        return False

    def is_lost(self, kind: Kind, record_id: int) -> bool:
        """Whether nothing holds the bytes of a record any more."""
        if not self.is_gone(kind, record_id) or self.has_copy(kind, record_id):
            return False
        if kind is not Kind.CHUNKS:
            return True
        if not self.is_in_files(record_id):
            return True
        return self.is_unknown(record_id) and record_id not in self.proven()

    def is_in_files(self, chunk: int) -> bool:
        return self.model.entries[Kind.CHUNKS, chunk].fingerprint in self.model.in_files

    def is_unknown(self, chunk: int) -> bool:
        """Whether neither its record nor its table nor a copy says what a chunk was."""
        return (
            self.is_hit(Kind.CHUNKS, chunk, header_only=True)
            and self.is_entry_hit(Kind.CHUNKS, chunk)
            and not self.has_copy(Kind.CHUNKS, chunk)
        )

    def proven(self) -> set[int]:
        """Unknown chunks that files hold and of which a stub, or a leaf of a recipe that misses no
        other, tells them apart."""
        proven: set[int] = set()
        before = -1
        while before != len(proven):
            before = len(proven)
            for name, spans in self.model.spans.items():
                recipe = self.model.recipes.get(name)
                if recipe is not None and self.is_lost(Kind.RECIPES, recipe):
                    continue
                chunks = {span.chunk for span in spans} - proven
                missing = {chunk for chunk in chunks if self.is_unknown(chunk)}
                if len(missing) == 1 and self.is_in_files(*missing):
                    proven |= missing
        return proven

    def expected_losses(self) -> set[tuple[str, int, int]]:
        """Files and ranges that must be named, and no other."""
        found: set[tuple[str, int, int]] = set()
        for name, spans in self.model.spans.items():
            recipe = self.model.recipes.get(name)
            size = len(self.model.contents[name])
            if recipe is not None and self.is_lost(Kind.RECIPES, recipe):
                ranges = [(0, size)]
            else:
                ranges = [(s.start, s.end) for s in spans if self.is_lost(Kind.CHUNKS, s.chunk)]
            for start, end in ranges:
                for begin, stop in missing_ranges(self.model.local[name], start, end):
                    found.add((name, begin, stop))
        return found

    def must_be_found(self) -> bool:
        """Whether anything is damaged that a checksum covers."""
        return any(
            self._is_table_hit(name) if name.endswith(".dir") else self._is_container_hit(name)
            for name in self.targets()
            if name.endswith((".dir", ".dat")) and not self._is_as_if_never_written(name)
        )

    def _is_as_if_never_written(self, name: str) -> bool:
        """Nothing names a container of copies: lost with its table, it is only written anew."""
        files = [(self.lab.base / name).with_suffix(suffix) for suffix in (".dat", ".dir")]
        return name.startswith("store/copies/") and not any(path.exists() for path in files)

    def _is_table_hit(self, name: str) -> bool:
        return self.now(name) != self.model.files[name]

    def _is_container_hit(self, name: str) -> bool:
        data, was = self.now(name), self.model.files[name]
        if len(data) != len(was) or data[: fmt.FILE_HEADER_BYTES] != was[: fmt.FILE_HEADER_BYTES]:
            return True
        kind = next(kind for kind in Kind if name.rpartition("/")[0] == STORE_DIRS[kind])
        number = int(Path(name).stem)
        return any(
            self.is_hit(of, one)
            for (of, one), entry in self.model.entries.items()
            # What was collected may be anything.
            if of is kind and container_of(one) == number and entry.state != tbl.State.TOMBSTONE
        )

    def read_all(self) -> Iterator[tuple[str, bytes | None]]:
        """What each file reads as; None where damage is reported."""
        for name in self.model.contents:
            try:
                yield name, self.lab.read(name)
            except Damaged:
                yield name, None


def remove(root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
