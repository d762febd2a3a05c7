"""The native side of the study: the walk through a tree."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from dedupd_core import native

NOWHERE = (0, 0)


def names_in(found: native.study.FileColumns | None) -> list[bytes]:
    assert found is not None
    return found.paths.split(b"\0")[:-1]


def test_a_walk_finds_what_stat_says(tmp_path: Path) -> None:
    names = ["plain", "d\udcff/e/Photo.JPEG", "d\udcff/e/empty", "é/lib.so.1.2", "é/é/x.É"]
    tree = tmp_path / "tree"
    for number, name in enumerate(names):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(b"x" * 1000 * number)
    os.link(tree / "plain", tmp_path / "a name elsewhere")
    os.truncate(tree / "é/lib.so.1.2", 10_000_000)
    walk = native.study.TreeWalk(os.fsencode(tree), NOWHERE, 10)
    found = walk.next(1000)
    assert found is not None and walk.next(1) is None
    assert (found.failures, len(names_in(found))) == ([], len(names))
    rows = np.frombuffer(found.statuses, np.int64).reshape(-1, 6).tolist()
    for path, row in zip(names_in(found), rows, strict=True):
        status = os.stat(os.path.join(os.fsencode(tree), path))
        times = [status.st_mtime_ns, status.st_ctime_ns]
        allocated = status.st_blocks * 512
        assert row == [status.st_ino, status.st_size, *times, status.st_nlink, allocated]


def test_second_names_are_passed_over_as_far_as_memory_reaches(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / f"{number}").write_bytes(b"x")
        os.link(tmp_path / f"{number}", tmp_path / f"{number} again")
    for names_max, expected in ((10, 10), (9, 11), (0, 20)):
        walk = native.study.TreeWalk(os.fsencode(tmp_path), NOWHERE, names_max)
        assert len(names_in(walk.next(1000))) == expected
        assert walk.beyond_names == (expected > 10)


def test_a_walk_goes_on_where_another_one_was(tmp_path: Path) -> None:
    """Also in a directory with more entries than the kernel lists at once."""
    for place in ("a", "a/b", "c", "d/e"):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        for number in range(600):
            (tmp_path / place / f"{'n' * 200}{number}").write_bytes(b"x")
    root = os.fsencode(tmp_path)
    whole = native.study.TreeWalk(root, NOWHERE, 10).next(10_000)
    assert whole is not None and len(names_in(whole)) == 4 * 600
    paths, steps = b"", 0
    state = native.study.TreeWalk(root, NOWHERE, 10).state()
    while True:
        walk = native.study.TreeWalk(root, NOWHERE, 10)
        walk.resume(state)
        if (found := walk.next(1)) is None:
            break
        paths += found.paths
        state = walk.state()
        steps += 1
    assert steps > 4
    assert paths == whole.paths


def test_a_walk_goes_on_without_a_directory_that_vanished(tmp_path: Path) -> None:
    for place in ("a/b", "c"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "file").write_bytes(b"x")
    for number in range(600):
        (tmp_path / "a" / f"{'n' * 200}{number}").write_bytes(b"x")
    walk = native.study.TreeWalk(os.fsencode(tmp_path), NOWHERE, 10)
    assert walk.next(1) is not None
    state = walk.state()
    shutil.rmtree(tmp_path / "a")
    again = native.study.TreeWalk(os.fsencode(tmp_path), NOWHERE, 10)
    again.resume(state)
    found = again.next(1000)
    assert found is not None
    assert (found.paths, found.failures) == (b"c/file\0", [])


@pytest.mark.parametrize("state", [b"", bytes(11), b"\xff" * 12 + b"no end"])
def test_what_is_not_the_state_of_a_walk_is_refused(tmp_path: Path, state: bytes) -> None:
    with pytest.raises(ValueError, match="not that of a walk"):
        native.study.TreeWalk(os.fsencode(tmp_path), NOWHERE, 10).resume(state)
