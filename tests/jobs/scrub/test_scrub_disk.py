"""A full scrub looks at the disk, and leaves the page cache to users."""

import fcntl
import os
import shutil
import struct
from pathlib import Path

import pytest

from dedupd_core.format import container as fmt
from dedupd_core.format.container import Kind
from dedupd_core.units import MIB
from tests.conftest import MakeFileSystem
from tests.support.lab import Lab, cached_pages, flip_bit, lab_in, new_lab, noise, write_out
from tests.support.upkeep import chunks_of, entry, scrub

_BLOCK_OF, _BLOCK_BYTES_OF = 1, 2
"""The calls ``FIBMAP`` and ``FIGETBSZ`` of ``ioctl``."""
_NUMBER = struct.Struct("@i")


def place_on_disk(image: Path, lab: Lab, chunk: int) -> int:
    """Where in the image of its file system the payload of a chunk lies.

    The file system is asked: the same bytes may lie in blocks that the file itself had before.
    """
    at = entry(lab, Kind.CHUNKS, chunk).offset + fmt.RECORD_HEADER_BYTES
    with open(lab.container(Kind.CHUNKS), "rb") as file:
        (block_bytes,) = _NUMBER.unpack(fcntl.ioctl(file, _BLOCK_BYTES_OF, bytes(_NUMBER.size)))
        number, within = divmod(at, block_bytes)
        (block,) = _NUMBER.unpack(fcntl.ioctl(file, _BLOCK_OF, _NUMBER.pack(number)))
        payload = os.pread(file.fileno(), min(64, block_bytes - within), at)
    place: int = block * block_bytes + within
    with open(image, "rb") as disk:
        assert block and os.pread(disk.fileno(), len(payload), place) == payload
    return place


@pytest.mark.root
def test_damage_on_disk_is_found_whatever_is_in_the_page_cache(loop_fs: MakeFileSystem) -> None:
    point = loop_fs("ext4", "64M")
    lab = new_lab(point / "volume")
    lab.put("file", noise(400_000, 3))
    write_out(point)
    lab.optimize()
    write_out(point)
    chunk = chunks_of(lab, "file")[1][0]
    at = place_on_disk(point.parent / "image", lab, chunk)
    content = lab.container(Kind.CHUNKS).read_bytes()
    flip_bit(point.parent / "image", at)
    assert lab.container(Kind.CHUNKS).read_bytes() == content
    assert scrub(lab.root).by_invariant["record-payload"] == 1
    flip_bit(point.parent / "image", at)
    assert scrub(lab.root).released == 1
    lab.verify_clean()


def test_a_full_run_leaves_the_page_cache_as_it_was(tmp_path: Path) -> None:
    if shutil.which("fincore") is None:
        pytest.skip("fincore is not installed")
    with lab_in(tmp_path) as lab:
        lab.put("file", noise(24 * MIB, 3))
        lab.optimize()
        container = lab.container(Kind.CHUNKS)
        with open(container, "rb", buffering=0) as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if cached_pages(container):
                pytest.skip("this file system keeps pages that are not wanted")
            file.seek(8 * MIB)
            file.read(2 * MIB)
        users = cached_pages(container)
        assert users
        assert scrub(lab.root).findings == []
        # A page may go by itself; and of the header of the file, a block or so comes.
        assert 0.9 * users < cached_pages(container) <= users + 24 * MIB // 100 // 4096
