"""The native calls on files: scanning, reading what has not changed, and the steps of a commit."""

import errno
import mmap
import os
import resource
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import xxhash

from dedupd_core import native
from dedupd_core.format.stub import Flag, StubAttribute, attribute_seed, encode_stub
from dedupd_core.stub.transition import FileIdentity
from dedupd_core.system.files import opened
from tests.support.lab import SETTLE_NS, as_user, noise, public_directory

NAME = b"user.dedupd"
OLD_NS = 1_500_000_000_123_456_789


def make(path: Path, content: bytes) -> FileIdentity:
    """A file of long ago, as far as its modification time goes."""
    path.write_bytes(content)
    os.utime(path, ns=(OLD_NS, OLD_NS))
    return FileIdentity.of(path.stat())


@pytest.fixture
def directory(tmp_path: Path) -> int:
    return os.open(tmp_path, os.O_RDONLY)


# --- scan_directory ---------------------------------------------------------------------------


def test_a_scan_tells_files_and_directories_apart(tmp_path: Path, directory: int) -> None:
    names = {b"plain", b"with \xff byte", b"n" * 255}
    for name in names:
        (tmp_path / os.fsdecode(name)).write_bytes(name)
    (tmp_path / "below").mkdir()
    (tmp_path / "link").symlink_to("plain")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
    here = native.tree.scan_directory(directory, NAME)
    assert here.directories == [b"below"]
    assert {file.name for file in here.files} == names


def test_a_scan_says_what_stat_says(tmp_path: Path, directory: int) -> None:
    path = tmp_path / "file"
    make(path, b"x" * 10_000)
    os.link(path, tmp_path / "other")
    os.setxattr(path, NAME, b"a value")
    files = native.tree.scan_directory(directory, NAME).files
    status = path.stat()
    for file in files:
        assert file.name in (b"file", b"other")
        assert file.identity == FileIdentity.of(status)
        values = file.links, file.allocated_bytes, file.attribute
        assert values == (2, status.st_blocks * 512, b"a value")
    assert len(files) == 2


def test_a_scan_brings_long_attributes_along(tmp_path: Path, directory: int) -> None:
    path = tmp_path / "file"
    path.touch()
    os.setxattr(path, NAME, b"v" * 3000)
    [file] = native.tree.scan_directory(directory, NAME).files
    assert file.attribute == b"v" * 3000


def test_a_scan_finds_thousands_of_names(tmp_path: Path, directory: int) -> None:
    names = {b"%05d-%s" % (n, b"n" * (n % 200)) for n in range(3000)}
    for name in names:
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=directory))
    files = native.tree.scan_directory(directory, NAME).files
    assert sorted(file.name for file in files) == sorted(names)
    inodes = [file.identity[0] for file in files]
    assert inodes == sorted(inodes)


def test_a_scan_of_a_large_directory_reaches_safe_points(tmp_path: Path, directory: int) -> None:
    (tmp_path / "0").touch()
    for number in range(1, 20_000):
        os.link("0", str(number), src_dir_fd=directory, dst_dir_fd=directory)
    says: list[None] = []
    files = native.tree.scan_directory(directory, NAME, lambda: says.append(None)).files
    assert (len(files), len(says)) == (20_000, 4)

    class Enough(Exception):
        pass

    def stop() -> None:
        raise Enough

    with pytest.raises(Enough):
        native.tree.scan_directory(directory, NAME, stop)
    with pytest.raises(Enough):
        find(directory, check=stop)


def test_what_is_no_directory_cannot_be_scanned(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    with pytest.raises(NotADirectoryError):
        native.tree.scan_directory(fd, NAME)
    os.close(fd)


# --- find_candidates --------------------------------------------------------------------------


def find(
    directory: int,
    size_min: int = 1,
    newest_ns: int = 2**63 - 1,
    check: Callable[[], None] = lambda: None,
) -> native.tree.DirectoryCandidates:
    """What there is to do in a directory."""
    (found,) = native.tree.find_candidates(
        directory,
        [b"."],
        NAME,
        2,
        check,
        rules(size_min, newest_ns),
    )
    assert isinstance(found, native.tree.DirectoryCandidates)
    return found


@pytest.mark.parametrize("older_ns", [-1, 0, 1])
def test_a_file_is_judged_alike_where_it_is_one_of_many_and_where_it_is_alone(
    tmp_path: Path, directory: int, older_ns: int
) -> None:
    """Python asks of the files that are left what native code asks of the others."""
    for name, size in (("empty", 0), ("small", 99), ("fits", 100), ("large", 5000)):
        make(tmp_path / name, bytes(size))
        identity = FileIdentity.of((tmp_path / name).stat())
        asked = rules(100, identity.changed_ns + older_ns)
        [here] = native.tree.find_candidates(directory, [b"."], NAME, 1, lambda: None, asked)
        assert isinstance(here, native.tree.DirectoryCandidates)
        reasons = {asked.reason(identity)} - {None}
        assert here.passed.keys() == reasons
        assert asked.is_young(identity) == (older_ns < 0)
        assert ("young" in reasons) == (older_ns < 0 and size >= 100)
        (tmp_path / name).unlink()


def rules(size_min: int = 1, newest_ns: int = 2**63 - 1) -> native.tree.Rules:
    return native.tree.Rules(
        seed=attribute_seed(VOLUME), size_min=size_min, newest_ns=newest_ns, chunk_bytes=1000
    )


VOLUME = b"v" * 16
STUB = StubAttribute(7 << 32, bytes(16), 5000, OLD_NS)


def stub(directory: Path, name: str, attribute: StubAttribute, volume: bytes = VOLUME) -> None:
    with open(directory / name, "wb") as file:
        file.truncate(5000)
    os.setxattr(directory / name, NAME, encode_stub(attribute, volume, 0))


def test_a_scan_for_work_leaves_out_what_is_in_the_store_as_it_is(
    tmp_path: Path, directory: int
) -> None:
    stub(tmp_path, "whole", STUB)
    stub(tmp_path, "one chunk", replace(STUB, flags=Flag.DIRECT))
    stub(tmp_path, "truncated", replace(STUB, covered=6000))
    stub(tmp_path, "committing", replace(STUB, flags=Flag.COMMITTING))
    stub(tmp_path, "restoring", replace(STUB, flags=Flag.RESTORING | Flag.DIRECT))
    stub(tmp_path, "longer", replace(STUB, covered=4999))
    stub(tmp_path, "of another volume", STUB, b"o" * 16)
    stub(tmp_path, "of unknown parts", STUB)
    value = bytearray(encode_stub(STUB, VOLUME, 0))
    value[2] = 1
    value[4:8] = bytes(4)
    check = xxhash.xxh3_64_intdigest(bytes(value), seed=attribute_seed(VOLUME))
    value[4:8] = check.to_bytes(8, "little")[:4]
    os.setxattr(tmp_path / "of unknown parts", NAME, bytes(value))
    stub(tmp_path, "written", STUB)
    with open(tmp_path / "written", "r+b") as file:
        file.write(b"new")
    stub(tmp_path, "linked", STUB)
    os.link(tmp_path / "linked", tmp_path / "link")
    stub(tmp_path, "damaged", STUB)
    value = bytearray(encode_stub(STUB, VOLUME, 0))
    value[20] ^= 1
    os.setxattr(tmp_path / "damaged", NAME, bytes(value))
    make(tmp_path / "plain", b"content")
    everything = {file.name for file in native.tree.scan_directory(directory, NAME).files}
    here = find(directory)
    [plain] = here.plain
    found = {file.name for file in here.files} | {b"plain"}
    assert everything - found == {b"whole", b"one chunk", b"truncated"}
    assert (here.directories, plain.count) == ([], 1)
    assert here.passed == {"optimized": (3, 15_000)}
    assert [path for path, *_ in native.ingest.FileList(b"", plain.packed)] == [b"plain"]


def test_plain_files_are_sorted_out_by_size_and_age(tmp_path: Path, directory: int) -> None:
    sizes = {
        b"empty": 0,
        b"small.x": 99,
        b"odd.\xff": 100,
        b".dot": 2500,
        b"a.x": 5000,
        b"b.x": 999,
    }
    identities = {
        name: make(tmp_path / os.fsdecode(name), bytes(size)) for name, size in sizes.items()
    }
    (tmp_path / "below").mkdir()
    now_ns = max(identity.ctime_ns for identity in identities.values())
    here = find(directory, 100, now_ns)
    assert (here.directories, here.files) == ([b"below"], [])
    assert here.passed == {"empty": (1, 0), "small": (1, 99)}
    [plain] = here.plain
    assert (plain.count, plain.size_bytes) == (4, 100 + 2500 + 5000 + 999)
    assert dict(plain.chunks) == {b"\xff": 1, b"": 3, b"x": 6 + 1}
    packed = plain.packed
    files = [(path, identity) for path, identity, _ in native.ingest.FileList(b"in/", packed)]
    assert [identity[0] for _, identity in files] == sorted(identity[0] for _, identity in files)
    wanted = {b"in/" + name: identity for name, identity in identities.items() if sizes[name] > 99}
    assert dict(files) == wanted
    for suffixes in (set(), {b"x"}, {b"", b"\xff"}, {b"X", b"a"}):
        some = native.ingest.FileList(b"", packed, suffixes)
        ends = {b"odd.\xff": b"\xff", b".dot": b"", b"a.x": b"x", b"b.x": b"x"}
        assert {path for path, *_ in some} == {n for n, end in ends.items() if end in suffixes}
        marked = native.ingest.FileList(b"", packed, as_is=suffixes)
        assert {path: as_is for path, _, as_is in marked} == {
            name: end in suffixes for name, end in ends.items()
        }
    assert find(directory, 100, now_ns - 1).passed["young"][0] > 0


def test_the_files_of_a_large_directory_come_some_at_a_time(tmp_path: Path, directory: int) -> None:
    names = {b"%d.%d" % (number, number % 3) for number in range(9000)}
    for name in names:
        with open(tmp_path / os.fsdecode(name), "wb") as file:
            file.write(b"content")
    plain = find(directory).plain
    assert [one.count for one in plain] == [4096, 4096, 9000 - 8192]
    files = [file[:2] for one in plain for file in native.ingest.FileList(b"", one.packed)]
    assert {path for path, _ in files} == names
    assert [identity[0] for _, identity in files] == sorted(one[0] for _, one in files)
    assert sum(one.size_bytes for one in plain) == 7 * 9000
    assert sum(chunks for one in plain for _, chunks in one.chunks) == 9000


def test_where_a_directory_is_none_there_is_the_error(tmp_path: Path, directory: int) -> None:
    make(tmp_path / "file", b"content")
    (tmp_path / "link").symlink_to(".")
    names = [b"file", b"none", b"link"]
    found = native.tree.find_candidates(directory, names, NAME, 2, lambda: None, rules())
    errors = errno.ENOTDIR, errno.ENOENT, errno.ENOTDIR
    assert found == [native.tree.Unreadable(error) for error in errors]
    with pytest.raises(ValueError, match="chunk_bytes"):
        native.tree.Rules(seed=0, size_min=1, newest_ns=0, chunk_bytes=0)


@pytest.mark.parametrize("packed", [b"x", bytes(32), bytes(32) + b"name"])
def test_only_what_was_packed_is_unpacked(packed: bytes) -> None:
    with pytest.raises(ValueError, match="packed"):
        native.ingest.FileList(b"", packed)


# --- reading: one file ------------------------------------------------------------------------


Fields = tuple[int, int, int, int]


def read_files(
    directory: int,
    files: Sequence[tuple[bytes, Fields]],
    buffer: bytes | bytearray | mmap.mmap,
    offset: int,
    threads: int = 1,
) -> bytes:
    """1 for each file that was read, else 0."""
    several = native.ingest.FileList()
    for path, identity in files:
        several.add(path, identity, as_is=False)
    left = several.read(directory, buffer, offset, threads)
    read = [path for path, *_ in several]
    assert sorted(read + [path for (path, *_), _ in left]) == sorted(path for path, _ in files)
    REASONS.update({path: unread.why for (path, *_), unread in left})
    return bytes(path in read for path, _ in files)


REASONS: "dict[bytes, native.ingest.Why]" = {}
"""Why files were not read."""


def read(directory: int, name: bytes, identity: FileIdentity) -> bytes | None:
    """The file's bytes, or None where it was not read; nothing else in the buffer may change."""
    buffer = mmap.mmap(-1, 1 << 20)
    buffer[:] = b"\xee" * len(buffer)
    (done,) = read_files(directory, [(name, identity)], buffer, 4096)
    end = 4096 + identity.size
    assert buffer[:4096] == b"\xee" * 4096
    assert buffer[end:] == b"\xee" * (len(buffer) - end)
    return buffer[4096:end] if done else None


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 900_000])
def test_a_file_that_has_not_changed_is_read(tmp_path: Path, directory: int, size: int) -> None:
    content = os.urandom(size)
    identity = make(tmp_path / "file", content)
    assert read(directory, b"file", identity) == content


def test_reading_leaves_the_access_time_alone(tmp_path: Path, directory: int) -> None:
    identity = make(tmp_path / "file", b"content")
    assert read(directory, b"file", identity) == b"content"
    assert (tmp_path / "file").stat().st_atime_ns == OLD_NS


@pytest.mark.parametrize("field", ["inode", "mtime_ns", "ctime_ns"])
def test_another_file_is_not_read(tmp_path: Path, directory: int, field: str) -> None:
    identity = make(tmp_path / "file", b"content")
    other = identity._replace(**{field: getattr(identity, field) + 1})
    assert read(directory, b"file", other) is None


@pytest.mark.parametrize("size", [6, 8])
def test_a_file_of_another_length_is_not_read(tmp_path: Path, directory: int, size: int) -> None:
    identity = make(tmp_path / "file", b"content")
    assert read(directory, b"file", identity._replace(size=size)) is None


def test_a_file_that_has_just_changed_is_read_when_it_has_settled(
    tmp_path: Path, directory: int
) -> None:
    identity = make(tmp_path / "file", b"content")
    assert read(directory, b"file", identity) == b"content"
    assert time.time_ns() - identity.ctime_ns >= SETTLE_NS


def test_a_file_that_is_open_for_writing_is_not_read(tmp_path: Path, directory: int) -> None:
    identity = make(tmp_path / "file", b"content")
    with opened(os.open(tmp_path / "file", os.O_RDWR)) as writer:
        assert read(directory, b"file", identity) is None and REASONS[b"file"] == "in use"
        mapping = mmap.mmap(writer, 7)
    assert read(directory, b"file", identity) is None
    mapping.close()
    assert read(directory, b"file", identity) == b"content"


@pytest.mark.parametrize("shape", [(1, 0, 0), (0, 1, 0), (1, 0, 1), (0, 0, 1), (0, 0, 0)])
def test_holes_are_read_as_zeros(tmp_path: Path, directory: int, shape: tuple[int, ...]) -> None:
    path, part = tmp_path / "file", 64 << 10
    content = b"".join(
        noise(part, n) if has_data else bytes(part) for n, has_data in enumerate(shape)
    )
    with open(path, "wb") as file:
        for n, has_data in enumerate(shape):
            if has_data:
                file.seek(n * part)
                file.write(content[n * part :][:part])
        file.truncate(len(content))
    os.utime(path, ns=(OLD_NS, OLD_NS))
    several = native.ingest.FileList()
    several.add(b"file", FileIdentity.of(path.stat()), as_is=False)
    buffer = bytearray(len(content))
    assert several.read(directory, buffer, 0) == []
    assert buffer == content
    freed = part * sum(shape)
    assert several.read_bytes == freed
    assert several.freed_bytes(4096) == freed.to_bytes(8, "little")


def test_links_and_pipes_are_not_read(tmp_path: Path, directory: int) -> None:
    identity = make(tmp_path / "file", b"content")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    for name in (b"link", b"pipe", b"missing"):
        assert read(directory, name, identity) is None
    assert REASONS[b"link"] == REASONS[b"missing"] == "unopened"


def test_a_buffer_without_room_is_refused(tmp_path: Path, directory: int) -> None:
    identity = make(tmp_path / "file", b"content")
    with pytest.raises(ValueError, match="7 bytes at 4"):
        read_files(directory, [(b"file", identity)], bytearray(10), 4)
    with pytest.raises(BufferError):
        read_files(directory, [(b"file", identity)], bytes(100), 0)


# --- reading: many ----------------------------------------------------------------------------


def test_each_file_takes_its_own_room_whether_it_was_read_or_not(
    tmp_path: Path, directory: int
) -> None:
    (tmp_path / "below").mkdir()
    contents = {b"first": b"1" * 5000, b"below/second": b"2" * 7, b"third": b"3" * 100}
    files = [(name, make(tmp_path / os.fsdecode(name), contents[name])) for name in contents]
    (tmp_path / "below/second").write_bytes(b"changed")
    buffer = bytearray(6000)
    assert read_files(directory, files, buffer, 10) == b"\1\0\1"
    assert buffer[10:5010] == contents[b"first"]
    assert buffer[5017:5117] == contents[b"third"]
    assert buffer[5117:] == bytes(6000 - 5117)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_many_files_are_the_same_with_any_number_of_threads(
    tmp_path: Path, directory: int, threads: int
) -> None:
    contents = [bytes([number]) * (1 + number * 37 % 4001) for number in range(150)]
    files = [
        (b"%d" % number, make(tmp_path / str(number), content))
        for number, content in enumerate(contents)
    ]
    (tmp_path / "77").write_bytes(b"changed")
    buffer = bytearray(sum(map(len, contents)) + 3)
    read = read_files(directory, files, buffer, 3, threads)
    assert read == bytes(number != 77 for number in range(150))
    at = 3
    for number, content in enumerate(contents):
        assert number == 77 or buffer[at : at + len(content)] == content, number
        at += len(content)


def test_files_are_not_read_over_a_link(tmp_path: Path, directory: int) -> None:
    (tmp_path / "real").mkdir()
    identity = make(tmp_path / "real/file", b"content")
    (tmp_path / "way").symlink_to("real")
    files = [(b"way/file", identity), (b"real/../real/file", identity), (b"real/file", identity)]
    assert read_files(directory, files, bytearray(100), 0) == b"\0\1\1"
    assert read_files(directory, [(b"../file", identity)], bytearray(100), 0) == b"\0"


def test_files_that_do_not_fit_are_refused(tmp_path: Path, directory: int) -> None:
    identity = make(tmp_path / "file", b"content")
    with pytest.raises(ValueError, match="too short"):
        read_files(directory, [(b"file", identity)] * 2, bytearray(20), 7)


# --- the steps of a commit --------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> int:
    make(tmp_path / "file", b"x" * 100_000)
    return os.open(tmp_path / "file", os.O_RDWR)


SPACE = (NAME, (0, 0), 4096)
RECIPE = (1 << 32, bytes(16), False)


def begin(fd: int, identity: FileIdentity, previous: bytes | None = None) -> FileIdentity | str:
    """Its identity with the attribute, or why it has none."""
    begun = native.commit.begin(fd, (identity, RECIPE, previous), SPACE, None)
    return begun.why if isinstance(begun, native.commit.Refusal) else FileIdentity._make(begun)


def finish(fd: int, begun: FileIdentity, read: FileIdentity) -> int | str:
    """How much the file has freed, or why it is no stub."""
    freed = native.commit.finish(fd, begun, (read, RECIPE, None), SPACE, None)
    return freed.why if isinstance(freed, native.commit.Refusal) else freed


def test_an_attribute_is_exchanged_for_the_one_expected(file: int) -> None:
    before = FileIdentity.of(os.fstat(file))
    after = begin(file, before)
    assert isinstance(after, FileIdentity) and after == FileIdentity.of(os.fstat(file))
    first = native.system.fgetxattr(file, NAME)
    assert first
    assert isinstance(begin(file, after, first), FileIdentity)


@pytest.mark.parametrize("previous", [None, b"", b"firsT"])
def test_another_attribute_stays(file: int, previous: bytes | None) -> None:
    os.setxattr(file, NAME, b"first")
    assert begin(file, FileIdentity.of(os.fstat(file)), previous) == "other stub"
    assert native.system.fgetxattr(file, NAME) == b"first"


@pytest.mark.parametrize("field", FileIdentity._fields)
def test_another_file_gets_no_attribute(file: int, field: str) -> None:
    before = FileIdentity.of(os.fstat(file))
    other = before._replace(**{field: getattr(before, field) + 1})
    assert begin(file, other) == "changed"
    assert native.system.fgetxattr(file, NAME) is None


@pytest.mark.parametrize("mtime_ns", [OLD_NS, -1, 0, -(10**18) + 7])
def test_punching_frees_the_blocks_and_restores_the_times(file: int, mtime_ns: int) -> None:
    os.utime(file, ns=(OLD_NS + 5, mtime_ns))
    before = FileIdentity.of(os.fstat(file))
    begun = begin(file, before)
    assert isinstance(begun, FileIdentity)
    freed = finish(file, begun, before)
    assert isinstance(freed, int) and freed >= 100_000
    status = os.fstat(file)
    assert (status.st_blocks, status.st_size) == (0, 100_000)
    assert (status.st_atime_ns, status.st_mtime_ns) == (OLD_NS + 5, mtime_ns)
    assert os.pread(file, 100_000, 0) == bytes(100_000)


def test_what_cannot_be_punched_keeps_its_attribute(tmp_path: Path, file: int) -> None:
    before = FileIdentity.of(os.fstat(file))
    begun = begin(file, before)
    assert isinstance(begun, FileIdentity)
    value = native.system.fgetxattr(file, NAME)
    with opened(os.open(tmp_path / "file", os.O_RDONLY)) as fd:
        assert finish(fd, begun, before) == "half way"
        assert os.pread(fd, 10, 0) == b"x" * 10
    assert native.system.fgetxattr(file, NAME) == value


@pytest.mark.root
def test_a_scan_for_work_does_without_threads_where_there_are_no_more() -> None:
    def look(directory: int) -> None:
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        found = native.tree.find_candidates(
            directory,
            [b".", b"."],
            NAME,
            8,
            lambda: None,
            rules(),
        )
        assert len(found) == 2 and not any(isinstance(one, native.tree.Unreadable) for one in found)

    with public_directory() as path:
        make(path / "f", b"x" * 5000)
        with opened(os.open(path, os.O_RDONLY)) as directory:
            as_user(lambda: look(directory))
