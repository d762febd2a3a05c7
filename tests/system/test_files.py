"""Small tools over descriptors: opening below a directory, data ranges, leases and locks."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedupd_core.errors import Busy
from dedupd_core.system.files import data_ranges, locked, opened, read_at, read_into
from dedupd_core.system.paths import DirectoryOpener, explain, open_beneath, show_path, split_path
from tests.support.lab import descriptors, descriptors_to_begin_with, noise

BLOCK = 4096


# --- messages ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filename", "text"),
    [(None, "full"), (5, "full"), (b"\xff", "\udcff: full"), ("f", "f: full"), ("", "full")],
)
def test_an_error_of_any_call_is_explained(filename: str | bytes | int | None, text: str) -> None:
    """Calls by descriptor name that."""
    assert explain(OSError(errno.ENOSPC, "full", filename)) == text


# --- opening ----------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> int:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/file").write_bytes(b"content")
    (tmp_path / "secret").write_bytes(b"outside of a")
    (tmp_path / "a/link").symlink_to("b")
    (tmp_path / "a/out").symlink_to("../secret")
    return os.open(tmp_path / "a", os.O_RDONLY | os.O_DIRECTORY)


@pytest.mark.parametrize("path", [b"b/file", b"./b/./file", b"b//file"])
def test_opening_below_a_directory(tree: int, path: bytes) -> None:
    before = descriptors_to_begin_with()
    with opened(open_beneath(tree, path, os.O_RDONLY)) as fd:
        assert os.read(fd, 100) == b"content"
    assert descriptors() == before


def test_the_directory_itself_can_be_opened(tree: int) -> None:
    with opened(open_beneath(tree, b"", os.O_RDONLY)) as fd:
        assert os.fstat(fd).st_ino == os.fstat(tree).st_ino


@pytest.mark.parametrize("path", [b"link/file", b"out", b"b/../../secret", b"../secret", b"/etc"])
def test_nothing_leads_out_of_the_directory(tree: int, path: bytes) -> None:
    before = descriptors_to_begin_with()
    with pytest.raises((OSError, ValueError)) as caught:
        open_beneath(tree, path, os.O_RDONLY)
    if isinstance(caught.value, OSError):
        assert caught.value.errno in (errno.ELOOP, errno.ENOTDIR)
    assert descriptors() == before


@given(st.binary(max_size=30))
def test_a_path_splits_into_names_or_is_refused(path: bytes) -> None:
    try:
        parts = split_path(path)
    except ValueError:
        assert path.startswith(b"/") or b".." in path.split(b"/")
        return
    assert all(part not in (b"", b".", b"..") and b"/" not in part for part in parts)


def test_an_opener_of_directories_keeps_one_open(tree: int) -> None:
    before = descriptors_to_begin_with()
    opener = DirectoryOpener(tree)
    for path in (b"b", b"b", b"", b"b"):
        expected = os.stat(path or b".", dir_fd=tree).st_ino
        assert os.fstat(opener.open(path)).st_ino == expected
        assert descriptors() <= before + 1
    with pytest.raises(FileNotFoundError):
        opener.open(b"none")
    opener.close()
    assert descriptors() == before


def test_an_opener_that_failed_goes_on(tree: int) -> None:
    opener = DirectoryOpener(tree)
    with pytest.raises(FileNotFoundError):
        opener.open(b"none")
    assert os.fstat(opener.open(b"")).st_ino == os.fstat(tree).st_ino
    assert os.fstat(opener.open(b"b")).st_ino == os.stat(b"b", dir_fd=tree).st_ino
    opener.close()


# --- reading ----------------------------------------------------------------------------------


def test_reading_stops_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    with opened(os.open(tmp_path / "f", os.O_RDONLY)) as fd:
        assert read_at(fd, 4, 3) == b"3456"
        assert read_at(fd, 100, 3) == b"3456789"
        assert read_at(fd, 5, 10) == b""
        buffer = bytearray(20)
        assert read_into(fd, memoryview(buffer), 5) == 5
        assert buffer == b"56789".ljust(20, b"\0")


@given(st.sets(st.integers(0, 30)), st.integers(0, 31 * BLOCK), st.integers(0, 33 * BLOCK))
def test_data_ranges_are_the_written_blocks(
    tmp_path_factory: pytest.TempPathFactory, blocks: set[int], start: int, end: int
) -> None:
    path = tmp_path_factory.mktemp("f") / "f"
    with opened(os.open(path, os.O_RDWR | os.O_CREAT)) as fd:
        os.ftruncate(fd, 31 * BLOCK)
        for block in blocks:
            os.pwrite(fd, b"x" * BLOCK, block * BLOCK)
        covered = {
            position
            for begin, stop in data_ranges(fd, start, end)
            for position in range(begin, stop, BLOCK // 4)
            if begin <= position < stop
        }
        found = {position // BLOCK for position in covered}
    assert found == {
        b for b in blocks if b * BLOCK < end and (b + 1) * BLOCK > start and start < end
    }


def test_data_ranges_of_a_file_that_is_cut_meanwhile_end(tmp_path: Path) -> None:
    with opened(os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)) as fd:
        for block in (0, 2, 4):
            os.pwrite(fd, noise(BLOCK), block * BLOCK)
        ranges = data_ranges(fd, 0, 5 * BLOCK)
        assert next(ranges) == (0, BLOCK)
        os.ftruncate(fd, 0)
        assert list(ranges) == []


# --- who else has it --------------------------------------------------------------------------


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    with (
        opened(os.open(tmp_path / "lock", os.O_RDWR)) as one,
        opened(os.open(tmp_path / "lock", os.O_RDWR)) as other,
    ):
        with locked(one, "held"), pytest.raises(Busy, match="held"), locked(other, "held"):
            pass
        with locked(other, "free"):
            pass


def test_paths_that_are_not_utf8_are_shown_escaped() -> None:
    assert show_path(b"odd \xff name") == "odd \\xff name"
    assert show_path("Grüße".encode()) == "Grüße"


def test_no_name_does_anything_to_a_terminal_or_a_log() -> None:
    assert show_path(b"two\nlines \x1b[31mred") == "two\\nlines \\x1b[31mred"
    assert show_path("invoice\u202efdp.exe".encode()) == "invoice\\u202efdp.exe"
