"""What must hold of each decoder, whatever it is given: targets for fuzzing.

A decoder raises one of its own errors or returns a value; it takes no more time and memory than
its input warrants; and what a checksum covers is refused once it has changed. The samples are files
of a real volume, so that no layout is known here.
"""

import os
import resource
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash
from hypothesis import strategies as st

from dedupd_core import native
from dedupd_core.config.policy import KEYS, parse_policy
from dedupd_core.config.policy_file import policy_text, set_in_text
from dedupd_core.config.room import NO_RESERVE, Room
from dedupd_core.config.schedule import parse_schedule
from dedupd_core.errors import (
    Damaged,
    DamagedContainer,
    DamagedRecipe,
    DamagedStub,
    DamagedTable,
    PolicyError,
    UnknownFormat,
    UsageError,
)
from dedupd_core.format import container, merge_log, recipe, stub, table
from dedupd_core.format.container import Kind
from dedupd_core.format.derived import saved_marks, saved_notes
from dedupd_core.format.ids import PackedPairs, make_id
from dedupd_core.index.bloom_index import BloomIndex
from dedupd_core.index.saved_index import SavedFile
from dedupd_core.index.table_index import TableIndex
from dedupd_core.store.container.recovery import recover_sound
from dedupd_core.store.merge_log import NAME as LOG_NAME
from dedupd_core.store.merge_log import MergeLog, MergeLogWriter
from dedupd_core.store.saved_marks import NAME as MARKS_NAME
from dedupd_core.store.saved_marks import SavedMarks
from dedupd_core.store.saved_notes import NAME as NOTES_NAME
from dedupd_core.store.saved_notes import SavedNotes
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened
from tests.support import crash
from tests.support.formats import U32, U64, UUID
from tests.support.fuzzing import damaged
from tests.support.lab import Lab
from tests.support.malformed import malformed
from tests.support.recipe_nodes import decode_node

MEMORY_BYTES = 512 << 20
"""That no decoder needs for inputs of some KiB."""


@dataclass(frozen=True, slots=True)
class Target:
    """Inputs, and what is checked with each."""

    inputs: st.SearchStrategy[Any]
    check: Callable[[Any], None]


@contextmanager
def bounded_memory() -> Iterator[None]:
    """An allocation beyond what a decoder may need is a MemoryError, for its test to fail with."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


class Samples:
    """A real volume, with a file of each format."""

    def __init__(self, root: Path, scratch: Path) -> None:
        crash.make_volume(root)
        with open(root / ".dedupd/policy.toml", "a") as policy:
            policy.write("redundancy_threshold = 1\n")
        crash.optimize_volume(root)
        crash.collect_garbage(root)
        self.lab = lab = Lab(root)
        self.scratch = scratch
        with lab.opened() as volume:
            self.volume_id = volume.space.volume_id
            self.attribute = volume.space.name
        self.container = lab.container(Kind.CHUNKS).read_bytes()
        self.table = lab.table(Kind.CHUNKS).read_bytes()
        self.marks = (root / ".dedupd" / os.fsdecode(MARKS_NAME)).read_bytes()
        self.stubs = sorted(
            {
                os.getxattr(path, self.attribute)
                for path in lab.data.rglob("*")
                if path.is_file()
                and not path.is_symlink()
                and os.fsdecode(self.attribute) in os.listxattr(path)
            }
        )
        self.seed = container.seed_of(container.decode_file_header(self.container, "sample"))
        self.log = self._log()
        self.nodes = list(self._nodes())
        self.indexes = {kind: self._index(kind) for kind in ("table", "bloom")}

    def _log(self) -> bytes:
        with opened(os.open(self.scratch, os.O_RDONLY)) as dir_fd:
            room = Room(dir_fd, NO_RESERVE, "scratch")
            writer = MergeLogWriter(dir_fd, self.volume_id, Disk(), room)
            writer.add(PackedPairs(bytes(range(256))))
            writer.complete()
            writer.close()
        return (self.scratch / os.fsdecode(LOG_NAME)).read_bytes()

    def _nodes(self) -> Iterator[bytes]:
        for count in (1, 3, 200):
            rows = [(n * 7 % 5, 1000 + n, bytes([n]) * 32) for n in range(count)]
            content = recipe.content_digest([(fingerprint, n) for _, n, fingerprint in rows])
            yield recipe.encode_node(0, content, rows)
            yield recipe.encode_node(1, content, [(n + 1, length, fp) for n, length, fp in rows])

    def _index(self, kind: str) -> bytes:
        with self._opened_index(kind) as index:
            index.save()
        return (self.scratch / "saved").read_bytes()

    @contextmanager
    def _opened_index(self, kind: str) -> Iterator[Any]:
        with self.lab.opened() as volume, opened(os.open(self.scratch, os.O_RDONLY)) as dir_fd:
            directory = volume.containers(Kind.CHUNKS)
            saved = SavedFile(Disk(), dir_fd, b"saved", volume.room)
            make = TableIndex if kind == "table" else BloomIndex
            with closing(directory):
                index = make(directory, saved, capacity=1000, saved_entries_min=1)
                for container_state in recover_sound(directory):
                    index.load(container_state)
                yield index

    # --- targets ------------------------------------------------------------------------------

    def targets(self) -> dict[str, Target]:
        head = self.container[: container.FILE_HEADER_BYTES]
        records = self.container[container.FILE_HEADER_BYTES :][:20_000]
        rows = self.table[table.HEADER_BYTES :]
        return {
            "container header": Target(damaged([head]), self._container_header),
            "container header, made": Target(_file_headers(), _container_header_made),
            "records": Target(damaged([records, records[:200]]), self._records),
            "table header": Target(damaged([self.table[: table.HEADER_BYTES]]), self._table_header),
            "table entries": Target(damaged([rows, rows[:64]]), self._table_entries),
            "recipe": Target(damaged(self.nodes), _recipe),
            "stub attribute": Target(damaged(self.stubs), self._stub),
            "merge log": Target(damaged([self.log]), self._merge_log),
            "merge log, made": Target(_log_headers(), self._merge_log_made),
            "saved marks": Target(damaged([self.marks]), self._saved_marks),
            "saved marks, made": Target(_marks_headers(), self._saved_marks_made),
            "saved notes": Target(damaged(_notes(self.volume_id)), self._saved_notes),
            "saved notes, made": Target(_notes_made(self.volume_id), self._saved_notes),
            "saved table": Target(damaged([self.indexes["table"]]), self._saved_index("table")),
            "saved chains": Target(damaged([self.indexes["bloom"]]), self._saved_index("bloom")),
            "policy": Target(malformed(KEYS), _policy),
            "policy key": Target(st.tuples(st.sampled_from([*KEYS]), st.text(max_size=40)), _key),
            "schedule": Target(_schedules(), _schedule),
        }

    def _container_header(self, data: bytes) -> None:
        size = container.FILE_HEADER_BYTES
        with suppress(DamagedContainer, UnknownFormat):
            container.decode_file_header(data, "here")
            assert data[:size] == self.container[:size], "a changed header is accepted"

    def _records(self, data: bytes) -> None:
        head = bytes(container.FILE_HEADER_BYTES)
        with tempfile.TemporaryFile() as file:
            file.write(head + data)
            file.flush()
            end = len(head) + len(data)
            check = native.store.ContainerCheck(
                file.fileno(),
                b"",
                seed=self.seed,
                start=len(head),
                end=end,
                is_forgeable=True,
                algorithm="blake3",
                threads=1,
            )
            while check.reached.offset < end:
                check.step(1 << 30)
            check.finish()
            assert check.reached.offset == end
        for at in range(0, len(data), container.ALIGN_BYTES):
            if data[at : at + 4] == b"DDRC":
                container.unpack_record(data, at, self.seed)

    def _table_header(self, data: bytes) -> None:
        with suppress(DamagedTable):
            table.decode_header(data, "here")
            size = table.HEADER_BYTES
            assert data[:size] == self.table[:size], "a changed header is accepted"

    def _table_entries(self, data: bytes) -> None:
        for entry in table.decode_entries(data, self.seed):
            if entry is not None:
                again = table.encode_entry(entry, self.seed)
                assert again in data
                assert table.decode_entry(again, self.seed) == entry

    def _stub(self, value: bytes) -> None:
        with suppress(DamagedStub):
            stub.decode_stub(value, self.volume_id, "here")
            assert value in self.stubs, "a changed attribute is accepted"

    def _merge_log(self, data: bytes) -> None:
        self._put(LOG_NAME, data)
        with (
            suppress(DamagedTable),
            opened(os.open(self.scratch, os.O_RDONLY)) as dir_fd,
            closing(MergeLog(dir_fd, self.volume_id)) as log,
        ):
            assert data == self.log, "a changed log is accepted"
            assert sum(map(len, log.pairs())) == log.header.pairs

    def _merge_log_made(self, made: tuple[merge_log.LogHeader, bytes]) -> None:
        header, body = made
        assert merge_log.decode_header(merge_log.encode_header(header), "here") == header
        self._put(LOG_NAME, merge_log.encode_header(header) + body)
        with (
            suppress(DamagedTable),
            opened(os.open(self.scratch, os.O_RDONLY)) as dir_fd,
            closing(MergeLog(dir_fd, header.volume_id)) as log,
        ):
            assert sum(map(len, log.pairs())) * merge_log.PAIR_BYTES == len(body)

    def _saved_marks(self, data: bytes) -> None:
        self._put(MARKS_NAME, data)
        with (
            suppress(DamagedTable),
            opened(os.open(self.scratch, os.O_RDONLY)) as dir_fd,
            closing(SavedMarks(dir_fd, self.volume_id)) as marks,
        ):
            assert data == self.marks, "changed marks are accepted"
            list(marks.sections())

    def _saved_marks_made(self, made: tuple[saved_marks.MarksHeader, bytes]) -> None:
        header, body = made
        assert saved_marks.decode_header(saved_marks.encode_header(header), "here") == header
        self._put(MARKS_NAME, saved_marks.encode_header(header) + body)
        with (
            suppress(DamagedTable),
            opened(os.open(self.scratch, os.O_RDONLY)) as dir_fd,
            closing(SavedMarks(dir_fd, header.volume_id)) as marks,
        ):
            for section in marks.sections():
                assert section.records <= 8 * len(body)

    def _saved_notes(self, data: bytes) -> None:
        self._put(NOTES_NAME, data)
        with (
            suppress(DamagedTable, OSError),
            opened(os.open(self.scratch, os.O_RDONLY)) as dir_fd,
            closing(SavedNotes(dir_fd, self.volume_id)) as saved,
        ):
            ledger = native.admission.Ledger(saved.rows, 0.05, rows_max=100, notes_max=100)
            ledger.leave((7, 1, 1, 1), 0.0, 1)
            ledger.note(7, bytes(range(64)))
            snapshot = ledger.snapshot(False)
            assert len(snapshot.join(saved.notes, 50)) <= saved.header.judged + 1
            sizes = sum(map(len, snapshot.notes(saved.notes, False)))
            assert sizes <= saved_notes.ROW_BYTES * (saved.header.notes + 8)

    def _saved_index(self, kind: str) -> Callable[[bytes], None]:
        def check(data: bytes) -> None:
            self._put(b"saved", data)
            with suppress(Damaged), self._opened_index(kind) as index:
                index.lookup(bytes(32))
                if data != self.indexes[kind] and kind == "table":
                    assert not index.was_restored, "a changed index is accepted"

        return check

    def _put(self, name: bytes, data: bytes) -> None:
        (self.scratch / os.fsdecode(name)).write_bytes(data)


def _file_headers() -> st.SearchStrategy[container.FileHeader]:
    return st.builds(container.FileHeader, st.sampled_from(Kind), U32, U32, U32, UUID, U64)


def _container_header_made(header: container.FileHeader) -> None:
    assert container.decode_file_header(container.encode_file_header(header), "here") == header


def _log_headers() -> st.SearchStrategy[tuple[merge_log.LogHeader, bytes]]:
    def made(pairs: int, volume_id: bytes, body: bytes, is_true: bool) -> Any:
        count = len(body) // merge_log.PAIR_BYTES if is_true else pairs
        return merge_log.LogHeader(count, volume_id, xxhash.xxh3_64_intdigest(body)), body

    return st.builds(made, U64, UUID, st.binary(max_size=200), st.booleans())


def _marks_headers() -> st.SearchStrategy[tuple[saved_marks.MarksHeader, bytes]]:
    def made(counts: tuple[int, int], volume_id: bytes, body: bytes, length: int | None) -> Any:
        size = len(body) if length is None else length
        checksum = xxhash.xxh3_64_intdigest(body)
        header = saved_marks.MarksHeader(*counts, volume_id, size, checksum)
        return header, body

    small = st.integers(0, 3) | U32
    length = st.none() | U64
    return st.builds(made, st.tuples(small, small), UUID, st.binary(max_size=300), length)


def _notes_of(
    volume_id: bytes, rows: list[bytes], notes: list[tuple[int, int]], is_joined: bool
) -> bytes:
    """A file of notes, in order or not."""
    body = b"".join(rows)
    checksum = xxhash.xxh3_64_intdigest(body)
    header = saved_notes.NotesHeader(volume_id, len(rows), 5, len(notes), checksum, is_joined)
    packed = b"".join(struct.pack("<QQ", *note) for note in notes)
    return saved_notes.encode_header(header) + body + packed


def _notes(volume_id: bytes) -> list[bytes]:
    rows = [struct.pack("<QIHH", inode, inode * 77, inode, 1) for inode in range(1, 30)]
    notes = [(at // 3, at % 29 + 1 | (at % 2) << 63) for at in range(200)]
    return [_notes_of(volume_id, rows, notes, False), _notes_of(volume_id, [], [], True)]


def _notes_made(volume_id: bytes) -> st.SearchStrategy[bytes]:
    small = st.integers(0, 9)
    row = st.builds(lambda *fields: struct.pack("<QIHH", *fields), small | U64, U32, small, small)
    owner = small | U64 | small.map(lambda inode: inode | 1 << 63)
    notes = st.lists(st.tuples(small | U64, owner), max_size=30)
    some = notes.map(sorted) | notes
    return st.builds(_notes_of, st.just(volume_id), st.lists(row, max_size=9), some, st.booleans())


def _recipe(payload: bytes) -> None:
    nodes, end = native.upkeep.Needs({1: 1}), 1 << 20
    nodes.need(make_id(1, 0), end)
    rows = nodes.add_node(make_id(1, 0), payload, native.upkeep.Marks({}))
    try:
        node = decode_node(payload, "here")
    except DamagedRecipe:
        return
    assert 0 < len(node.ids) <= recipe.FANOUT_MAX
    assert sum(node.lengths) == node.length
    assert all(node.lengths)
    assert rows == sum(offset < end for offset in node.offsets)


def _policy(text: str) -> None:
    try:
        policy = parse_policy(text, "here")
    except PolicyError as error:
        assert len(str(error)) < 4000
        return
    assert parse_policy(text, "here") == policy
    assert parse_policy(policy_text({}), "here") == parse_policy("", "here")


def _key(pair: tuple[str, str]) -> None:
    name, value = pair
    with suppress(PolicyError):
        text = set_in_text(policy_text({}), name, value, "here")
        parse_policy(text, "here")


def _schedules() -> st.SearchStrategy[str]:
    words = ["every", "daily", "for", "Mon-Fri", "off", "01:00", "24:00", "1h", "0s", "-", ",", "9"]
    return st.lists(st.sampled_from(words) | st.text(max_size=5), max_size=6).map(" ".join)


def _schedule(text: str) -> None:
    with suppress(UsageError):
        parse_schedule(text)
