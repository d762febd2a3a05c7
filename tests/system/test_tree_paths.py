"""The paths of open files below a directory: told for every name, and guessed for none."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedupd_core.system.files import opened
from dedupd_core.system.paths import open_beneath
from dedupd_core.system.tree import tree_paths
from dedupd_core.system.tree.tree_paths import lies_elsewhere, name_in_tree, path_in_tree
from tests.support.odd_files import directory_made

FLAGS = os.O_RDONLY | os.O_CLOEXEC

ODD = [
    b"plain",
    b"a file (deleted)",
    b"x" * 255,
    b"\xff" * 255,
    b"new\nline",
    b"\x1b[31m",
    b".dedupd/data/bob/.bash_profile",
    b"data/data/data",
    b".dedupd/data/.dedupd/data/x",
    b"#123",
]


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[int]:
    """A tree that lies where that of a volume does."""
    (tmp_path / ".dedupd/data").mkdir(parents=True)
    with opened(os.open(tmp_path / ".dedupd/data", FLAGS | os.O_DIRECTORY)) as fd:
        yield fd


def make(tree: int, path: bytes) -> None:
    """A file and the directories above it, however long the path is."""
    above, _, name = path.rpartition(b"/")
    with opened(directory_made(tree, above) if above else os.dup(tree)) as directory:
        os.close(os.open(name, FLAGS | os.O_CREAT, dir_fd=directory))


@pytest.mark.parametrize("path", ODD)
def test_a_path_is_what_lies_below_the_directory(tree: int, path: bytes) -> None:
    """Also where it repeats the names of what lies above."""
    make(tree, path)
    with opened(open_beneath(tree, path, FLAGS)) as fd:
        assert path_in_tree(tree, fd) == path
        assert not lies_elsewhere(tree, fd)
        assert name_in_tree(tree, fd).isprintable()
    above = path.rpartition(b"/")[0]
    with opened(open_beneath(tree, above, FLAGS)) as fd:
        assert path_in_tree(tree, fd) == above


def test_a_name_that_is_gone_is_no_path(tree: int) -> None:
    make(tree, b"d/removed")
    os.link("d/removed", "other name", src_dir_fd=tree, dst_dir_fd=tree)
    with opened(open_beneath(tree, b"d/removed", FLAGS)) as fd:
        os.unlink("d/removed", dir_fd=tree)
        make(tree, b"d/removed (deleted)")
        assert path_in_tree(tree, fd) is None
        assert name_in_tree(tree, fd) == "d/removed (deleted)"


def test_what_lies_elsewhere_has_no_path(tree: int, tmp_path: Path) -> None:
    beside = tmp_path / ".dedupd/data-too"
    beside.mkdir()
    (beside / "f").touch()
    for path in (beside, beside / "f", tmp_path, Path("/")):
        with opened(os.open(path, FLAGS)) as fd:
            assert path_in_tree(tree, fd) is None
            assert name_in_tree(tree, fd) == f"#{path.stat().st_ino}"
            assert lies_elsewhere(tree, fd)


@pytest.mark.parametrize(
    ("levels", "is_found"), [(17, True), (24, True), (75, True), (90, False), (700, False)]
)
def test_the_path_of_a_directory_may_be_longer_than_the_kernel_tells(
    tree: int, levels: int, is_found: bool
) -> None:
    """It is looked up to a limit; of a file in it none is found. Nothing raises."""
    path = b"/".join([b"d" * (250 if levels < 700 else 9)] * levels)
    with opened(directory_made(tree, path)) as fd:
        assert path_in_tree(tree, fd) == (path if is_found else None)
        with opened(os.open("f", FLAGS | os.O_CREAT, dir_fd=fd)) as file:
            assert path_in_tree(tree, file) is None
            assert name_in_tree(tree, file) == f"#{os.fstat(file).st_ino}"
            assert not lies_elsewhere(tree, file)


def test_looking_a_name_up_reads_so_many_names_at_most(
    tree: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = b"/".join([b"d" * 250] * 20)
    make(tree, path + b"/f")
    monkeypatch.setattr(tree_paths, "ENTRIES_MAX", 3)
    with opened(open_beneath(tree, path, FLAGS)) as fd:
        assert path_in_tree(tree, fd) is None
    monkeypatch.setattr(tree_paths, "ENTRIES_MAX", 20)
    with opened(open_beneath(tree, path, FLAGS)) as fd:
        assert path_in_tree(tree, fd) == path
