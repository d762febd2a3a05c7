"""What a host keeps of a store in a cluster: bounded, torn or not, and shared by processes."""

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from dedupd_core.config.reserve import Reserve
from dedupd_core.errors import Damaged
from dedupd_core.rados.reading.disk_cache import DiskCache
from dedupd_core.system.disk import Disk
from tests.support.disk_caches import cache_in, flush

FRAME_BYTES = 100


def name_of(number: int) -> bytes:
    return number.to_bytes(4, "big") * 8


def frame_of(number: int, length: int = FRAME_BYTES) -> bytes:
    return random.Random(number).randbytes(length)


def put(cache: DiskCache, *numbers: int) -> None:
    for number in numbers:
        cache.put(name_of(number), frame_of(number))
    flush(cache)


def kept(cache: DiskCache, numbers: Sequence[int]) -> list[int]:
    """Those that are there. What is there is right."""
    found = []
    for number in numbers:
        frame = cache.get(name_of(number))
        assert frame in (None, frame_of(number))
        if frame is not None:
            found.append(number)
    return found


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


def segments(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.frames"))


def test_what_is_kept_is_there_for_the_next_process(tmp_path: Path) -> None:
    with closing(cache_in(tmp_path / "cache")) as cache:
        put(cache, *range(100))
        assert kept(cache, range(120)) == [*range(100)]
    with closing(cache_in(tmp_path / "cache")) as cache:
        assert kept(cache, range(120)) == [*range(100)]
        put(cache, *range(100, 110))
        assert kept(cache, range(120)) == [*range(110)]
    assert segments(tmp_path / "cache") == ["00000001.frames"]


def test_the_cache_is_bounded_and_what_is_used_stays(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    with closing(cache_in(directory, 10_000)) as cache:
        for number in range(300):
            put(cache, number)
            assert cache.get(name_of(0)) is not None
            flush(cache)  # it may be written again
            assert size_of(directory) <= 10_000
            assert cache.used_bytes == size_of(directory)
        assert kept(cache, [1, 298, 299]) == [298, 299]
        assert len(kept(cache, range(300))) > 10_000 // (FRAME_BYTES + 48) * 3 // 4
        cache.put(b"x" * 32, bytes(20_000))
        flush(cache)
        assert cache.get(b"x" * 32) is None
    (directory / "half.new").write_bytes(b"a crash has left it")
    (directory / ("ab" * 32)).write_bytes(b"of an older version")
    with closing(cache_in(directory, 2000)) as cache:
        assert cache.used_bytes == size_of(directory) <= 2000
        assert kept(cache, range(300))
        assert all(path.suffix in (".frames", ".rows") for path in directory.iterdir())


def test_what_is_closed_has_no_file_open(tmp_path: Path) -> None:
    """A file system below could not be unmounted."""
    cache = cache_in(tmp_path / "cache", 10_000)
    put(cache, *range(200))

    def is_open() -> bool:
        found = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        return any(name.startswith(str(tmp_path)) for name in found)

    assert is_open()
    cache.close()
    assert not is_open()


def test_one_frame_takes_all_of_a_small_cache(tmp_path: Path) -> None:
    with closing(cache_in(tmp_path / "cache", 1000)) as cache:
        for number in range(5):
            cache.put(name_of(number), frame_of(number, 900))
            flush(cache)
            assert cache.get(name_of(number)) == frame_of(number, 900)
            assert cache.used_bytes <= 1000


def test_the_cache_takes_nothing_of_the_reserve(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    with closing(cache_in(directory, 10_000)) as cache:
        put(cache, *range(50))
        cache.reserve = Reserve(size_bytes=1 << 60)
        for number in range(100, 130):
            before = size_of(directory)
            put(cache, number)
            assert size_of(directory) < before or before == 0
            assert kept(cache, [number]) == []
        cache.reserve = Reserve(size_bytes=0)
        put(cache, 200)
        assert kept(cache, [200]) == [200]


@pytest.mark.parametrize("suffix", ["frames", "rows"])
def test_what_is_torn_is_not_there_or_found_wrong(tmp_path: Path, suffix: str) -> None:
    directory = tmp_path / "cache"
    chance = random.Random(7)
    for turn in range(30):
        with closing(cache_in(directory)) as cache:
            put(cache, *range(turn * 10, turn * 10 + 10))
        (path,) = directory.glob(f"*.{suffix}")
        data = bytearray(path.read_bytes())
        if turn % 2:
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        else:
            # A crash: the file has its length, and not its bytes; or not all of its length.
            at = len(data) - chance.randrange(1, 300)
            data[at:] = bytes(len(data) - at) if turn % 4 else b""
        path.write_bytes(data)
    with closing(cache_in(directory)) as cache:
        numbers = range(300)

        def right(number: int) -> bytes | None:
            def decode(frame: bytes) -> bytes:
                if frame != frame_of(number):
                    raise Damaged("not the frame")
                return frame

            return cache.verified(name_of(number), decode)

        found = [number for number in numbers if right(number)]
        assert 20 < len(found) < 300
        # What was found wrong is forgotten, and can be kept again.
        put(cache, *numbers)
        assert kept(cache, numbers) == [*numbers]


def test_two_processes_keep_what_each_has_read(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    with closing(cache_in(directory)) as one, closing(cache_in(directory)) as other:
        put(one, *range(10))
        other.put(name_of(9), frame_of(9))  # it finds that the number is taken
        flush(other)
        put(other, *range(10, 20))
        assert segments(directory) == ["00000001.frames", "00000002.frames"]
        with closing(cache_in(directory)) as third:
            assert kept(third, range(20)) == [*range(20)]
            put(third, 30)
            assert kept(third, [30]) == [30]
        assert len(segments(directory)) == 3


def test_what_another_process_lets_go_of_is_found_out(tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    with closing(cache_in(directory, 8000)) as one:
        put(one, *range(20))
        with closing(cache_in(directory, 8000)) as other:
            put(other, *range(100, 300))
        put(one, *range(20, 60))
        assert size_of(directory) < 2 * 8000
        with closing(cache_in(directory, 8000)) as third:
            assert third.used_bytes == size_of(directory) <= 8000
            assert kept(third, range(60))


def test_a_slow_disk_holds_nobody_up(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()

    class SlowDisk(Disk):
        @property
        def door(self) -> None:
            return None

        def write_at(self, fd: int, data: Sequence[bytes], offset: int) -> int:  # type: ignore[override]
            begun.set()
            assert go_on.wait(60)
            return super().write_at(fd, data, offset)

    with closing(cache_in(tmp_path / "cache", 1 << 30, SlowDisk())) as cache:
        frame = os.urandom(1 << 20)
        cache.put(name_of(0), frame)
        assert begun.wait(60)
        begun_s = time.monotonic()
        for number in range(1, 101):
            cache.put(name_of(number), frame)
        assert time.monotonic() - begun_s < 5
        assert cache.native.expected <= 18  # the others are not kept
        go_on.set()
        flush(cache)
        assert cache.get(name_of(0)) == frame
        assert 16 <= len(cache.native) <= 18


def test_a_disk_without_room_keeps_nothing(tmp_path: Path) -> None:
    class FullDisk(Disk):
        @property
        def door(self) -> None:
            return None

        def write_at(self, fd: int, data: Sequence[bytes], offset: int) -> int:  # type: ignore[override]
            raise OSError(28, "no space left")

    with closing(cache_in(tmp_path / "cache", 1 << 20, FullDisk())) as cache:
        put(cache, *range(10))
        assert kept(cache, range(10)) == [] and cache.native.expected == 0
    with closing(cache_in(tmp_path / "cache")) as cache:
        put(cache, *range(10))
        assert kept(cache, range(10)) == [*range(10)]


def test_a_process_that_ends_without_a_word_ends(tmp_path: Path) -> None:
    """The thread that writes does not keep it."""
    script = f"""
import os
from dedupd_core.rados.reading.disk_cache import DiskCache
from dedupd_core.system.disk import Disk
cache = DiskCache(os.open({str(tmp_path)!r}, os.O_RDONLY), 1 << 20, Disk())
cache.put(b"x" * 32, b"frame")
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    with closing(cache_in(tmp_path)) as cache:
        assert cache.get(b"x" * 32) == b"frame"
