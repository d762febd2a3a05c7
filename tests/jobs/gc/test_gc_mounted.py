"""Garbage collection and compaction under a mount whose users go on working."""

import mmap
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from dedupd_core.format.container import Kind
from dedupd_core.units import KIB, MIB
from fuse_stub import gc_names
from jobs.gc import tree_marker
from jobs.gc.tree_marker import Roots
from tests.support.lab import noise, requests_of
from tests.support.mounts import (
    ALICE,
    MountedLab,
    Nursery,
    looping,
    mounted_lab,
    rename_with,
    serve_for_test,
)

pytestmark = pytest.mark.root

RENAME_EXCHANGE = 2


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[MountedLab]:
    with mounted_lab(tmp_path) as one:
        yield one
        one.unmount()
        one.verify_clean()


def collect_all(lab: MountedLab) -> int:
    """Collect and compact; returns how many chunks became garbage."""
    report = lab.collect()
    assert report.errors == 0, report.messages
    assert lab.compact().errors == 0
    return report.orphaned_chunks


@contextmanager
def during_the_walk(
    monkeypatch: pytest.MonkeyPatch, action: Callable[[str], object]
) -> Iterator[None]:
    """Has users act, once, when the walk has seen one directory and none of the others.

    ``action`` is told which: the order of directories is the kernel's.
    """
    seen: list[str] = []
    real = tree_marker.TreeMarker._list

    def listing(self: tree_marker.TreeMarker, fd: int) -> list[bytes]:
        names = real(self, fd)
        path = os.readlink(f"/proc/self/fd/{fd}").rpartition("/.dedupd/data")[2]
        if path and not seen:
            seen.append(path[1:])
            action(path[1:])
        return names

    monkeypatch.setattr(tree_marker.TreeMarker, "_list", listing)
    yield
    assert seen, "the walk came to no directory"


def make_stubs(lab: MountedLab, below: str = "file") -> dict[str, bytes]:
    """A stub in each of three directories; returns their contents by directory."""
    contents = {name: noise(600 * KIB, at) for at, name in enumerate("abc")}
    for name, content in contents.items():
        path = lab.view / name / below
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    lab.optimize()
    assert all(lab.stub(f"{name}/{below}") for name in contents)
    return contents


def all_contents(lab: MountedLab) -> set[bytes]:
    return {path.read_bytes() for path in lab.view.rglob("*") if path.is_file()}


def test_a_file_that_is_open_and_has_no_name_is_kept(lab: MountedLab) -> None:
    content = noise(600 * KIB)
    path = lab.make_stub("file", content)
    with open(path, "rb") as file:
        path.unlink()
        assert collect_all(lab) == 0
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert file.read() == content
    os.statvfs(lab.view)


def test_a_file_without_a_name_that_is_only_mapped_is_kept(lab: MountedLab) -> None:
    content = noise(600 * KIB)
    path = lab.make_stub("file", content)
    with open(path, "rb") as file:
        view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    path.unlink()
    assert collect_all(lab) == 0
    assert view[:] == content
    view.close()


def test_once_it_is_closed_its_chunks_are_collected(lab: MountedLab) -> None:
    path = lab.make_stub("file", noise(600 * KIB))
    with open(path, "rb"):
        path.unlink()
    os.statvfs(lab.view)
    assert collect_all(lab) > 1


@pytest.mark.parametrize("how", ["rename", "link", "exchange", "over another"])
def test_a_file_that_moves_to_where_the_walk_was_is_kept(
    lab: MountedLab, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    contents = make_stubs(lab)

    def move(seen: str) -> None:
        target, others = lab.view / seen, [lab.view / n / "file" for n in contents if n != seen]
        if how == "rename":
            for path in others:
                path.rename(target / path.parent.name)
        elif how == "link":
            for path in others:
                os.link(path, target / path.parent.name)
                path.unlink()
        elif how == "exchange":
            rename_with(others[0], target / "file", RENAME_EXCHANGE)
        else:
            others[0].rename(target / "file")
            del contents[seen]

    with during_the_walk(monkeypatch, move):
        collect_all(lab)
    assert all_contents(lab) == set(contents.values())


def test_a_directory_that_moves_to_where_the_walk_was_is_walked(
    lab: MountedLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = make_stubs(lab, "deep/er/file")

    def move(seen: str) -> None:
        for name in contents:
            if name != seen:
                (lab.view / name / "deep").rename(lab.view / seen / name)

    with during_the_walk(monkeypatch, move):
        assert collect_all(lab) == 0
    assert all_contents(lab) == set(contents.values())


def test_an_open_file_that_loses_its_name_during_the_walk_is_kept(
    lab: MountedLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = make_stubs(lab)
    # Opened behind the beginning of the session, so that only the removal tells of it.
    files = {}

    def remove(seen: str) -> None:
        for name in contents:
            if name != seen:
                files[name] = open(lab.view / name / "file", "rb")  # noqa: SIM115
                (lab.view / name / "file").unlink()

    with during_the_walk(monkeypatch, remove):
        assert collect_all(lab) == 0
    for name, file in files.items():
        with file:
            assert file.read() == contents[name]


def test_a_storm_of_renames_during_collections_loses_nothing(
    lab: MountedLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(1)
    contents = {f"d{n % 8}/f{n}": noise(40 * KIB + n, n) for n in range(64)}
    for name, content in contents.items():
        path = lab.view / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    lab.optimize()
    stop, moved = threading.Event(), threading.Semaphore(0)
    real = tree_marker.TreeMarker._list

    def listing(self: tree_marker.TreeMarker, fd: int) -> list[bytes]:
        # Between any two directories users move a few things.
        for _ in range(4):
            moved.acquire(timeout=60)
        return real(self, fd)

    def storm() -> None:
        while not stop.is_set():
            files = [path for path in lab.view.rglob("f*") if path.is_file()]
            for path in rng.sample(files, 8):
                path.rename(lab.view / f"d{rng.randrange(8)}" / path.name)
                moved.release()
            one, two = rng.sample(range(8), 2)
            rename_with(lab.view / f"d{one}", lab.view / f"d{two}", RENAME_EXCHANGE)

    monkeypatch.setattr(tree_marker.TreeMarker, "_list", listing)
    thread = threading.Thread(target=storm)
    thread.start()
    try:
        for _ in range(6):
            report = lab.collect(full=True)
            assert report.errors == 0, report.messages
            assert report.orphaned_chunks == 0
            lab.compact()
    finally:
        stop.set()
        thread.join()
    found = {p.name: p.read_bytes() for p in lab.view.rglob("f*") if p.is_file()}
    assert found == {name.partition("/")[2]: content for name, content in contents.items()}


def test_the_log_of_a_mount_that_overflows_has_the_walk_begin_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mounted_lab(tmp_path, nursery=Nursery(target=_serve_with_a_short_log)) as lab:
        _overflow(lab, monkeypatch)
        lab.unmount()
        lab.verify_clean()


def _serve_with_a_short_log(*arguments: Any) -> None:
    gc_names.DIRECTORIES_MAX = 512
    serve_for_test(*arguments)


def _overflow(lab: MountedLab, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = make_stubs(lab, "dir599/file")
    for name in contents:
        for n in range(599):
            (lab.view / name / f"dir{n}").mkdir()

    def move_all(seen: str) -> None:
        for name in contents:
            if name != seen:
                (lab.view / name).rename(lab.view / "moved")
                (lab.view / "moved").rename(lab.view / seen / name)
                for path in sorted((lab.view / seen / name).iterdir()):
                    path.rename(lab.view / seen / f"{name}-{path.name}")

    monkeypatch.setattr(tree_marker, "DIRECTORIES_PER_DRAIN", 1 << 30)
    attempts: list[Roots] = []
    real = tree_marker.TreeMarker._attempt

    def attempt(self: tree_marker.TreeMarker) -> Roots:
        attempts.append(self._roots)
        return real(self)

    monkeypatch.setattr(tree_marker.TreeMarker, "_attempt", attempt)
    with during_the_walk(monkeypatch, move_all):
        assert collect_all(lab) == 0
    assert len(attempts) == 2
    assert all_contents(lab) == set(contents.values())


def test_moves_of_more_directories_than_a_process_may_open_lose_no_walk(
    lab: MountedLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two questions to the mount, in each attempt."""
    contents = make_stubs(lab)
    for n in range(1500):
        (lab.view / f"dir{n}").mkdir()
    real = tree_marker.TreeMarker._list
    names = ["", "x"]

    def listing(self: tree_marker.TreeMarker, fd: int) -> list[bytes]:
        if fd_path(fd).endswith("/.dedupd/data"):
            for n in range(1500):
                (lab.view / f"{names[0]}dir{n}").rename(lab.view / f"{names[1]}dir{n}")
            names.reverse()
        return real(self, fd)

    monkeypatch.setattr(tree_marker.TreeMarker, "_list", listing)
    assert collect_all(lab) == 0
    assert all_contents(lab) == set(contents.values())


def fd_path(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")


@pytest.mark.parametrize("new", [False, True], ids=["the same ones", "new ones"])
def test_a_user_that_moves_directories_all_day_holds_no_collection_up(
    lab: MountedLab, monkeypatch: pytest.MonkeyPatch, new: bool
) -> None:
    monkeypatch.setattr(tree_marker, "ROUNDS_PER_HOLD", 2)
    contents = make_stubs(lab)
    (lab.view / "hers").mkdir()
    os.chmod(lab.view / "hers", 0o777)
    for n in range(700):
        (lab.view / "hers" / f"{n}a").mkdir()
        os.chown(lab.view / "hers" / f"{n}a", ALICE, ALICE)
    (lab.view / "many").mkdir()
    for n in range(3000):
        (lab.view / "many" / f"{n}").touch()
    turn = 0

    def move() -> None:
        nonlocal turn
        turn += 1
        if new:
            os.mkdir(lab.view / "hers" / f"new{turn}")
            os.rename(lab.view / "hers" / f"new{turn}", lab.view / "hers" / f"old{turn}")
            if turn > 50:
                os.rmdir(lab.view / "hers" / f"old{turn - 50}")
            return
        number, (old, to) = turn % 700, ("ab", "ba")[turn // 700 % 2]
        with suppress(FileNotFoundError):
            os.rename(lab.view / "hers" / f"{number}{old}", lab.view / "hers" / f"{number}{to}")

    with looping(ALICE, move):
        for _ in range(3):
            report = lab.collect(full=True)
            assert report.errors == 0 and report.orphaned_chunks == 0, report.messages
    assert all_contents(lab) >= set(contents.values())


def test_a_mount_that_ends_during_the_walk_has_it_begin_again(
    lab: MountedLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = make_stubs(lab)

    def restart(seen: str) -> None:
        lab.unmount()
        lab.mount()
        for name in contents:
            (lab.view / name / "file").rename(lab.view / seen / f"from-{name}")

    with during_the_walk(monkeypatch, restart):
        assert collect_all(lab) == 0
    assert all_contents(lab) == set(contents.values())


def test_a_mount_that_is_killed_during_the_walk_has_it_begin_again(
    lab: MountedLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = make_stubs(lab)

    def die(seen: str) -> None:
        lab.kill()
        lab.mount()
        for name in contents:
            (lab.view / name / "file").rename(lab.view / seen / f"from-{name}")

    with during_the_walk(monkeypatch, die):
        assert collect_all(lab) == 0
    assert all_contents(lab) == set(contents.values())


def test_a_mount_that_begins_during_the_walk_has_it_begin_again(
    lab: MountedLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = make_stubs(lab)
    lab.unmount()

    def come_and_go(seen: str) -> None:
        lab.mount()
        for name in contents:
            (lab.view / name / "file").rename(lab.view / seen / f"from-{name}")
        lab.unmount()

    with during_the_walk(monkeypatch, come_and_go):
        assert collect_all(lab) == 0
    lab.mount()
    assert all_contents(lab) == set(contents.values())


def test_readers_see_no_error_while_containers_are_replaced(lab: MountedLab) -> None:
    contents = {f"f{n}": noise(300 * KIB, n) for n in range(12)}
    for name, content in contents.items():
        (lab.view / name).write_bytes(content)
    lab.optimize()
    stop, failures = threading.Event(), list[BaseException]()
    kept = {name: content for n, (name, content) in enumerate(contents.items()) if n % 2}

    def read() -> None:
        rng = random.Random(3)
        try:
            while not stop.is_set():
                name = rng.choice(list(kept))
                with open(lab.view / name, "rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                    assert file.read() == kept[name]
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for name in set(contents) - set(kept):
            (lab.view / name).unlink()
            lab.collect()
            assert lab.compact().errors == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures, failures


def test_the_mount_lets_go_of_files_that_were_replaced(lab: MountedLab) -> None:
    content = noise(2 * MIB)
    path = lab.make_stub("kept", content)
    gone = lab.make_stub("gone", noise(2 * MIB, 1))
    assert path.read_bytes() == content
    gone.unlink()
    os.statvfs(lab.view)
    before = lab.container(Kind.CHUNKS).stat().st_ino
    collect_all(lab)
    assert lab.container(Kind.CHUNKS).stat().st_ino != before
    assert not [name for name in files_held(lab) if "/store/" in name and "(deleted)" in name]
    assert path.read_bytes() == content


def files_held(lab: MountedLab) -> list[str]:
    """What the mount's process has open. It closes a connection of a job's a moment after it."""
    held = []
    for fd in Path(f"/proc/{lab.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            held.append(os.readlink(fd))
    return held


def test_no_commit_of_a_dead_job_begins_while_garbage_is_marked(lab: MountedLab) -> None:
    from dedupd_core.format.recipe import RecipeRef
    from dedupd_core.volume.commit_requests import CommitRequest

    (lab.view / "plain").write_bytes(noise(100 * KIB))
    request = CommitRequest(b"plain", lab.identity("plain"), RecipeRef(1 << 32, bytes(16)))
    with lab.client() as marks, lab.client() as late:
        marks.call("mark_begin")
        reply = late.call_with("commit_many", requests_of([request]).to_bytes())
        assert reply["results"][0][1]["outcome"] == "in use"
    assert lab.stub("plain") is None
