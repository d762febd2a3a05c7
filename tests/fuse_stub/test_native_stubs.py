"""Small stubs, which native code reads by itself, in all that may become of them meanwhile.

Each way makes new bytes of a file, or leaves it without a name: what is read afterwards, past the
kernel's cache, is the new content and never what the store has.
"""

import mmap
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from dedupd.system.files import opened
from dedupd.units import MIB
from tests.fuse_stub.test_line import handed_over, read_anew, wait_for
from tests.support.lab import flip_bit, noise
from tests.support.mounts import MountedLab, mounted_lab

pytestmark = pytest.mark.root

CONTENT = noise(9000)
WARM = noise(5000, 1)
FRESH = b"fresh"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MountedLab]:
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


def append(path: Path) -> bytes:
    with open(path, "ab", buffering=0) as file:
        file.write(FRESH)
    return CONTENT + FRESH


def write_directly(path: Path) -> bytes:
    with opened(os.open(path, os.O_RDWR | os.O_DIRECT)) as fd, mmap.mmap(-1, 4096) as block:
        block.write(bytes(4096))
        assert os.pwrite(fd, block, 4096) == 4096
    return CONTENT[:4096] + bytes(4096) + CONTENT[8192:]


def empty_and_write(path: Path) -> bytes:
    path.write_bytes(FRESH)
    return FRESH


def write_by_another_name(path: Path) -> bytes:
    other = path.with_name(path.name + "-2")
    os.link(path, other)
    with open(other, "r+b", buffering=0) as file:
        file.write(FRESH)
    other.unlink()
    return FRESH + CONTENT[len(FRESH) :]


def grow_and_write(path: Path) -> bytes:
    os.truncate(path, 20_000)
    with opened(os.open(path, os.O_WRONLY)) as fd:
        os.pwrite(fd, FRESH, 15_000)
    return CONTENT + bytes(6000) + FRESH + bytes(4995)


def cut_to_nothing_and_grow(path: Path) -> bytes:
    os.truncate(path, 0)
    os.truncate(path, len(CONTENT))
    return bytes(len(CONTENT))


def punch(path: Path) -> bytes:
    with opened(os.open(path, os.O_RDWR)) as fd:
        os.posix_fallocate(fd, 0, 4096)
        os.pwrite(fd, bytes(4096), 0)
    return bytes(4096) + CONTENT[4096:]


def copy_over(path: Path) -> bytes:
    with (
        opened(os.open(path.with_name("warm"), os.O_RDONLY)) as source,
        opened(os.open(path, os.O_WRONLY)) as fd,
    ):
        assert os.copy_file_range(source, fd, 5000, 0, 0) == 5000
    return WARM + CONTENT[5000:]


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
    ],
)
def test_a_stub_that_was_changed_is_read_as_it_is_now(
    lab: MountedLab, change: Callable[[Path], bytes]
) -> None:
    (path,) = stubs(lab, {f"{change.__name__}": CONTENT})
    with opened(os.open(path, os.O_RDONLY)) as fd:
        expected = change(path)
        assert read_anew(path) == expected
        assert os.pread(fd, MIB, 0) == expected
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


def test_a_stub_is_read_while_it_is_made_plain_and_when_it_is(lab: MountedLab) -> None:
    (path,) = stubs(lab, {"expanded": CONTENT})
    lab.unoptimize(b"expanded")
    assert lab.stub("expanded") is None
    assert read_anew(path) == CONTENT
    append(path)
    assert read_anew(path) == CONTENT + FRESH


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
    other, path = stubs(lab, {"sound": noise(7000, 6), "damaged": noise(7000, 5)})
    containers = [path for path in lab.base.rglob("*") if noise(7000, 5) in content_of(path)]
    assert containers
    for container in containers:
        flip_bit(container, content_of(container).index(noise(7000, 5)) + 100)
    lab.unmount()
    lab.mount()
    wait_for(lambda: handed_over(lab, lambda: read_anew(other)) == 0)  # of the same container
    with pytest.raises(OSError, match="Input/output error"):
        read_anew(path)
