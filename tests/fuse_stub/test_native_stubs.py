"""Stubs, which native code reads by itself, in all that may become of them meanwhile.

Each way makes new bytes of a file, or leaves it without a name: what is read afterwards, past the
kernel's cache, is the new content and never what the store has.
"""

import itertools
import mmap
import os
import random
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from dedupd_core.format.stub import Flag
from dedupd_core.system.files import opened
from dedupd_core.units import KIB, MIB
from tests.fuse_stub.test_line import handed_over, read_anew, wait_for
from tests.support.lab import flip_bit, noise, prose
from tests.support.mounts import MountedLab, mounted_lab

pytestmark = pytest.mark.root

CONTENT = noise(9000)
LARGE = noise(600_000, 3)
"""Of several chunks."""

WARM = noise(5000, 1)
FRESH = b"fresh"


@pytest.fixture(scope="module")
def lab(way: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MountedLab]:
    """With a stub that native code reads already."""
    with mounted_lab(tmp_path_factory.mktemp("stubs")) as lab:
        stubs(lab, {"warm": WARM})
        yield lab


def stubs(lab: MountedLab, files: dict[str, bytes]) -> list[Path]:
    """Stubs of this content, known to nobody but the file system below, and read natively."""
    for name, content in files.items():
        (lab.view / name).write_bytes(content)
    lab.optimize()
    for name in files:
        assert lab.stub(name) is not None
    paths = [lab.view / name for name in files]
    for path in paths:
        # Until the mount has closed the file, open for its commit, and opened the container.
        wait_for(partial(is_read_natively, lab, path))
    return paths


def is_read_natively(lab: MountedLab, path: Path) -> bool:
    return handed_over(lab, lambda: read_anew(path)) == 0


def content_of(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def append(path: Path, content: bytes) -> bytes:
    with open(path, "ab", buffering=0) as file:
        file.write(FRESH)
    return content + FRESH


def write_directly(path: Path, content: bytes) -> bytes:
    with opened(os.open(path, os.O_RDWR | os.O_DIRECT)) as fd, mmap.mmap(-1, 4096) as block:
        block.write(bytes(4096))
        assert os.pwrite(fd, block, 4096) == 4096
    return content[:4096] + bytes(4096) + content[8192:]


def empty_and_write(path: Path, content: bytes) -> bytes:
    path.write_bytes(FRESH)
    return FRESH


def write_by_another_name(path: Path, content: bytes) -> bytes:
    other = path.with_name(path.name + "-2")
    os.link(path, other)
    with open(other, "r+b", buffering=0) as file:
        file.write(FRESH)
    other.unlink()
    return FRESH + content[len(FRESH) :]


def grow_and_write(path: Path, content: bytes) -> bytes:
    os.truncate(path, len(content) + 11_000)
    with opened(os.open(path, os.O_WRONLY)) as fd:
        os.pwrite(fd, FRESH, len(content) + 6000)
    return content + bytes(6000) + FRESH + bytes(4995)


def cut_to_nothing_and_grow(path: Path, content: bytes) -> bytes:
    os.truncate(path, 0)
    os.truncate(path, len(content))
    return bytes(len(content))


def punch(path: Path, content: bytes) -> bytes:
    with opened(os.open(path, os.O_RDWR)) as fd:
        os.posix_fallocate(fd, 0, 4096)
        os.pwrite(fd, bytes(4096), 0)
    return bytes(4096) + content[4096:]


def write_blocks(path: Path, content: bytes) -> bytes:
    """The first one by Python, which has the attribute allow for it, the others by native code."""
    blocks = noise(3 * 4096, 4)
    with opened(os.open(path, os.O_WRONLY)) as fd:
        for at in range(0, len(blocks), 4096):
            # The last block of the small stub is one that the file ends in.
            part = blocks[at : min(at + 4096, len(content))]
            assert os.pwrite(fd, part, at) == len(part)
    return blocks[: len(content)] + content[len(blocks) :]


def direct(path: Path, at: int) -> bytes:
    """A block of a file, past the kernel's pages."""
    with opened(os.open(path, os.O_RDONLY | os.O_DIRECT)) as fd, mmap.mmap(-1, 4096) as block:
        return block[: os.preadv(fd, [block], at)]


def copy_over(path: Path, content: bytes) -> bytes:
    with (
        opened(os.open(path.with_name("warm"), os.O_RDONLY)) as source,
        opened(os.open(path, os.O_WRONLY)) as fd,
    ):
        assert os.copy_file_range(source, fd, 5000, 0, 0) == 5000
    return WARM + content[5000:]


@pytest.mark.parametrize("content", [CONTENT, LARGE], ids=["one chunk", "several chunks"])
@pytest.mark.parametrize(
    "change",
    [
        append,
        write_directly,
        empty_and_write,
        write_by_another_name,
        grow_and_write,
        cut_to_nothing_and_grow,
        punch,
        copy_over,
        write_blocks,
    ],
)
def test_a_stub_that_was_changed_is_read_as_it_is_now(
    lab: MountedLab, change: Callable[[Path, bytes], bytes], content: bytes
) -> None:
    (path,) = stubs(lab, {f"{change.__name__}-{len(content)}": content})
    with opened(os.open(path, os.O_RDONLY)) as fd:
        expected = change(path, content)
        assert read_anew(path) == expected
        assert os.pread(fd, MIB, 0) == expected
        assert [direct(path, at) for at in (0, 8192)] == [
            expected[at : at + 4096] for at in (0, 8192)
        ]
    # Also once the mount has nothing of it open any more, and has counted its blocks.
    lab.unmount()
    lab.mount()
    assert read_anew(path) == expected


def test_what_a_mapping_has_is_written_to_the_stub_that_the_file_became(lab: MountedLab) -> None:
    path = lab.view / "mapped"
    path.write_bytes(CONTENT)
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), len(CONTENT)) as mapping:
        lab.optimize()
        assert lab.stub("mapped") is not None
        wait_for(lambda: handed_over(lab, lambda: read_anew(path)) == 0)
        mapping[4096 : 4096 + len(FRESH)] = FRESH
        mapping.flush()
        expected = CONTENT[:4096] + FRESH + CONTENT[4096 + len(FRESH) :]
        assert read_anew(path) == expected
    lab.unmount()
    lab.mount()
    assert read_anew(path) == expected


def test_a_stub_that_is_replaced_or_removed_lives_on_for_its_readers(lab: MountedLab) -> None:
    replaced, removed = stubs(lab, {"replaced": CONTENT, "removed": CONTENT[::-1]})
    new = replaced.with_name("new")
    new.write_bytes(FRESH)
    with (
        opened(os.open(replaced, os.O_RDONLY)) as first,
        opened(os.open(removed, os.O_RDWR)) as second,
    ):
        new.rename(replaced)
        removed.unlink()
        lab.collect(full=True, all_garbage=True)
        lab.compact()
        for fd, content in ((first, CONTENT), (second, CONTENT[::-1])):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(fd, MIB, 0) == content
        os.pwrite(second, FRESH, 0)
        os.posix_fadvise(second, 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(second, MIB, 0) == FRESH + CONTENT[::-1][len(FRESH) :]
    assert read_anew(replaced) == FRESH


def test_stubs_of_several_chunks_are_read_without_python(lab: MountedLab) -> None:
    """In any piece, by any number of readers, and also while nothing of it is in memory."""
    content = prose(3 * MIB, 1) + noise(2 * MIB, 2) + bytes(MIB) + noise(77, 3)
    path = lab.view / "large"
    path.write_bytes(content)
    lab.optimize()
    assert lab.stub("large") is not None
    lab.unmount()
    lab.mount()
    before = path.stat().st_atime_ns

    def read_parts(seed: int) -> None:
        choose = random.Random(seed)
        with opened(os.open(path, os.O_RDONLY)) as fd:
            for _ in range(40):
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                start = choose.randrange(len(content) + 5000)
                length = choose.choice([1, 5000, 100_000, 2 * MIB])
                assert os.pread(fd, length, start) == content[start : start + length]

    def read_all() -> None:
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(read_parts, seed) for seed in range(4)]:
                done.result()
        assert path.read_bytes() == content

    assert handed_over(lab, read_all) == 0
    assert path.stat().st_atime_ns > before


def read_from_disk(lab: MountedLab, name: str) -> bytes:
    """Past the pages of the mount and of the file system below."""
    with opened(os.open(lab.data / name, os.O_RDONLY)) as fd:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return read_anew(lab.view / name)


def test_a_plain_file_that_memory_lacks_is_read_without_python(lab: MountedLab) -> None:
    path = lab.view / "cold"
    path.write_bytes(LARGE)
    for _ in range(3):
        path.read_bytes()
        before = path.stat().st_atime_ns
        assert handed_over(lab, lambda: read_from_disk(lab, "cold")) == 0
        assert read_from_disk(lab, "cold") == LARGE
    assert path.stat().st_atime_ns >= before


def test_files_that_memory_lacks_are_read_while_they_become_stubs(lab: MountedLab) -> None:
    contents = {f"becoming-{seed}": noise(200_000, 50 + seed) for seed in range(10)}
    has_ended = threading.Event()

    def read_all() -> int:
        reads = 0
        while not has_ended.is_set():
            for name, content in contents.items():
                assert read_from_disk(lab, name) == content
                reads += 1
        return reads

    def make_plain() -> None:
        for name, content in contents.items():
            (lab.view / "new").write_bytes(content)
            os.replace(lab.view / "new", lab.view / name)

    make_plain()
    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read_all) for _ in range(3)]
        try:
            for _ in range(4):
                lab.optimize()
                make_plain()
        finally:
            has_ended.set()
        assert all(reader.result() > 0 for reader in readers)


def reading_threads(lab: MountedLab) -> int:
    names = []
    for task in Path(f"/proc/{lab.pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            names.append(task.joinpath("comm").read_text())
    return names.count("reads\n")


def test_a_short_stub_of_several_chunks_wakes_no_thread(lab: MountedLab) -> None:
    """Where memory has its recipe and its chunks: also those that the mount has not read before."""
    contents = {f"short-{seed}": noise(128 * KIB - seed, 20 + seed) for seed in range(8)}
    for name, content in contents.items():
        (lab.view / name).write_bytes(content)
    lab.optimize()
    found = {name: lab.stub(name) for name in contents}
    several = [name for name, stub in found.items() if stub and Flag.DIRECT not in stub.flags]
    lab.unmount()
    lab.mount()
    read_anew(lab.view / several[0])  # opens the containers
    for part in (lab.root / ".dedupd").rglob("*"):
        if part.is_file() and "data" not in part.relative_to(lab.root).parts:
            part.read_bytes()  # a run leaves no pages of the store in memory
    for name in several[1:]:
        wait_for(lambda: reading_threads(lab) == 0)
        assert read_anew(lab.view / name) == contents[name]
        if reading_threads(lab) == 0:
            return
    pytest.fail("each has woken a thread")


def test_whole_blocks_are_written_to_a_stub_without_python(lab: MountedLab) -> None:
    (path,) = stubs(lab, {"blocks": LARGE})
    expected = bytearray(LARGE)
    with opened(os.open(path, os.O_RDWR)) as fd:

        def write(at: int, data: bytes) -> None:
            assert os.pwrite(fd, data, at) == len(data)
            expected[at : at + len(data)] = data

        write(40_960, noise(4096, 99))  # from now on the attribute allows for such blocks

        def write_blocks() -> None:
            for number in range(10):
                write(4096 * (20 + 3 * number), noise(8192, 100 + number))
            write(4096 * 21 + 100, FRESH)  # the stub has this block by now
            write(len(LARGE) // 4096 * 4096, noise(len(LARGE) % 4096))  # and this one ends it
            assert read_anew(path) == expected

        wait_for(lambda: handed_over(lab, write_blocks) == 0)
        os.fsync(fd)
    crash_and_compare(lab, path, expected)


def crash_and_compare(lab: MountedLab, path: Path, expected: bytes | bytearray) -> None:
    assert read_anew(path) == expected
    assert lab.stub(path.name) is not None
    lab.kill()
    lab.mount()
    assert read_anew(path) == expected
    lab.optimize()
    assert read_anew(path) == expected


def test_small_writes_and_what_is_appended_go_to_a_stub_without_python(lab: MountedLab) -> None:
    """The rest of a block that is the store's comes from the cache."""
    (path,) = stubs(lab, {"small-writes": LARGE})
    expected = bytearray(LARGE)
    numbers = itertools.count(100)
    with opened(os.open(path, os.O_RDWR)) as fd:

        def write(at: int, length: int) -> None:
            data = noise(length, next(numbers))
            assert os.pwrite(fd, data, at) == length
            expected[at : at + length] = data

        def write_around() -> None:
            """Within a block, over borders, to whole blocks, and in the block of the end."""
            os.pread(fd, len(LARGE), 0)
            at = 4096 * next(numbers)
            for offset, length in (
                (10, 50),
                (4000, 200),
                (8192 + 4000, 4096 + 200),
                (24_576, 9000),
            ):
                write(at % 600_000 + offset, length)
            assert read_anew(path) == expected

        def append() -> None:
            for length in (1, 100, 4096, 9000):
                write(len(expected), length)
            assert read_anew(path) == expected

        def write_beyond() -> None:
            for gap in (10, 6000):
                expected.extend(bytes(gap))
                write(len(expected), 100)
            assert read_anew(path) == expected

        write(0, 100)
        wait_for(lambda: read_anew(path) == expected and handed_over(lab, write_around) == 0)
        wait_for(lambda: read_anew(path) == expected and handed_over(lab, write_beyond) == 0)
        write(len(expected), 100)  # fills the block that the file ends in
        wait_for(lambda: read_anew(path) == expected and handed_over(lab, append) == 0)
        os.ftruncate(fd, len(expected) + 6000)
        expected.extend(bytes(6000))
        wait_for(lambda: read_anew(path) == expected and handed_over(lab, append) == 0)
        os.fsync(fd)
    assert path.stat().st_size == len(expected)
    crash_and_compare(lab, path, expected)


def test_readers_see_what_was_written_before_they_began(lab: MountedLab) -> None:
    """Blocks say which version they are. Beside the readers they are written, and jobs store them,
    collect and compact what was, and make the file plain."""
    count = 64
    path = lab.view / "versions"

    def block(number: int, version: int) -> bytes:
        return struct.pack("<QQ", number, version).ljust(4096, b"v")

    path.write_bytes(b"".join(block(number, 0) for number in range(count)))
    written = [0] * count  # the version that a read which begins now has to show
    ending = threading.Event()

    def read_blocks(seed: int) -> int:
        choose, flags, reads = random.Random(seed), (os.O_RDONLY, os.O_RDONLY | os.O_DIRECT), 0
        with opened(os.open(path, flags[seed % 2])) as fd, mmap.mmap(-1, 16 * 4096) as room:
            while not ending.is_set():
                first = choose.randrange(count)
                length = choose.choice([1, 16]) * 4096
                least = written[first : first + length // 4096]
                if seed % 2 == 0:
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                done = os.preadv(fd, [memoryview(room)[:length]], first * 4096)
                for at, version in enumerate(least):
                    found = struct.unpack_from("<QQ", room, at * 4096)
                    assert at * 4096 < done
                    assert found[0] == first + at
                    assert found[1] >= version, f"block {first + at}"
                reads += 1
        return reads

    def write_versions() -> int:
        choose, version = random.Random(9), 0
        with opened(os.open(path, os.O_RDWR)) as fd, mmap.mmap(-1, 4096) as room:
            directly = os.open(path, os.O_RDWR | os.O_DIRECT)
            with opened(directly):
                while not ending.is_set():
                    version += 1
                    number = choose.randrange(count)
                    room[:] = block(number, version)
                    assert os.pwrite(choose.choice([fd, directly]), room, number * 4096) == 4096
                    written[number] = version
        return version

    with ThreadPoolExecutor(5) as pool:
        tasks = [pool.submit(read_blocks, seed) for seed in range(4)]
        tasks.append(pool.submit(write_versions))
        try:
            for _ in range(3):
                lab.optimize()
                lab.collect(full=True, all_garbage=True)
                lab.compact()
            lab.unoptimize(b"versions")
        finally:
            ending.set()
        assert all(task.result() > 10 for task in tasks)
    expected = b"".join(block(number, written[number]) for number in range(count))
    assert read_anew(path) == expected
    lab.unmount()
    lab.mount()
    assert read_anew(path) == expected


def test_a_stub_is_read_while_it_is_made_plain_and_when_it_is(lab: MountedLab) -> None:
    (path,) = stubs(lab, {"expanded": CONTENT})
    lab.unoptimize(b"expanded")
    assert lab.stub("expanded") is None
    assert read_anew(path) == CONTENT
    expected = append(path, CONTENT)
    assert read_anew(path) == expected


def test_a_plain_file_is_copied_at_once_and_a_stub_is_not(lab: MountedLab) -> None:
    (stub,) = stubs(lab, {"source": CONTENT})
    plain, target = lab.view / "plain", lab.view / "target"
    plain.write_bytes(FRESH * 1000)
    assert handed_over(lab, lambda: holes(plain, 5000)) == 0
    assert handed_over(lab, lambda: holes(stub, len(CONTENT))) == 0

    def copy(source: Path) -> None:
        with open(source, "rb") as file, open(target, "wb") as other:
            left = os.fstat(file.fileno()).st_size
            while left:
                left -= os.copy_file_range(file.fileno(), other.fileno(), left)

    assert handed_over(lab, lambda: copy(plain)) == 0
    assert read_anew(target) == FRESH * 1000
    assert handed_over(lab, lambda: copy(stub)) > 0
    assert read_anew(target) == CONTENT
    assert read_anew(stub) == CONTENT


def holes(path: Path, length: int) -> None:
    """There are none before the end of the file."""
    with opened(os.open(path, os.O_RDONLY)) as fd:
        assert os.lseek(fd, 10, os.SEEK_DATA) == 10
        assert os.lseek(fd, 10, os.SEEK_HOLE) == length
        for whence in (os.SEEK_DATA, os.SEEK_HOLE):
            with pytest.raises(OSError, match="No such device or address"):
                os.lseek(fd, length, whence)


def test_a_damaged_chunk_is_an_error_and_never_bytes(lab: MountedLab) -> None:
    """The last test: the volume is damaged from here on."""
    large = noise(500_000, 7)
    other, path, several = stubs(
        lab, {"sound": noise(7000, 6), "damaged": noise(7000, 5), "several": large}
    )
    containers = [
        path for path in lab.base.rglob("*") if large[250_000:250_100] in content_of(path)
    ]
    assert containers
    for container in containers:
        flip_bit(container, content_of(container).index(large[250_000:250_100]) + 50)
    containers = [path for path in lab.base.rglob("*") if noise(7000, 5) in content_of(path)]
    assert containers
    for container in containers:
        flip_bit(container, content_of(container).index(noise(7000, 5)) + 100)
    lab.unmount()
    lab.mount()
    wait_for(lambda: handed_over(lab, lambda: read_anew(other)) == 0)  # of the same container
    with pytest.raises(OSError, match="Input/output error"):
        read_anew(path)
    with opened(os.open(several, os.O_RDONLY)) as fd:
        assert os.pread(fd, 4096, 0) == large[:4096]
        assert os.pread(fd, 4096, 499_000) == large[499_000:]
        with pytest.raises(OSError, match="Input/output error"):
            os.pread(fd, 4096, 250_000)
