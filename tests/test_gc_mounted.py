"""Garbage collection and compaction under a mount whose users go on working."""

import mmap
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dedupd.format.container import Kind
from dedupd.units import KIB, MIB
from jobs import marking
from tests.helpers import noise
from tests.mount_helpers import MountedLab, mounted_lab, rename_with

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
    lab: MountedLab, monkeypatch: pytest.MonkeyPatch, name: str
) -> Iterator[list[Callable[[], object]]]:
    """Has users act right after the walk has seen the directory ``name`` and nothing below it."""
    actions: list[Callable[[], object]] = []
    real = marking.TreeMarker._list

    def listing(self: marking.TreeMarker, fd: int) -> list[bytes]:
        names = real(self, fd)
        if os.readlink(f"/proc/self/fd/{fd}").endswith(name):
            while actions:
                actions.pop()()
        return names

    monkeypatch.setattr(marking.TreeMarker, "_list", listing)
    yield actions
    assert not actions, f"the walk never came to {name}"


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
def test_a_file_that_moves_behind_the_walk_is_kept(
    lab: MountedLab, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    content, other = noise(600 * KIB), noise(300 * KIB, 1)
    (lab.view / "seen").mkdir()
    (lab.view / "unseen").mkdir()
    lab.make_stub("seen/other", other)
    source = lab.make_stub("unseen/file", content)
    target = lab.view / "seen/moved"
    walked_first = "/seen"

    def move() -> None:
        if how == "rename":
            source.rename(target)
        elif how == "link":
            os.link(source, target)
            source.unlink()
        elif how == "exchange":
            rename_with(source, lab.view / "seen/other", RENAME_EXCHANGE)
        else:
            source.rename(lab.view / "seen/other")

    # The walk takes the last directory of the list first; which that is is up to the kernel.
    with during_the_walk(lab, monkeypatch, walked_first) as actions:
        actions.append(move)
        lab.collect()
    lab.compact()
    found = {p.name: p.read_bytes() for d in ("seen", "unseen") for p in (lab.view / d).iterdir()}
    assert content in found.values()
    if how != "over another":
        assert other in found.values()


def test_a_directory_that_moves_behind_the_walk_is_walked(
    lab: MountedLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        (lab.view / name).mkdir()
    content = noise(600 * KIB)
    lab.make_stub("a/deep/er/file", content)
    lab.make_stub("c/deep/er/file", content[: 300 * KIB] + noise(300 * KIB, 2))

    def move() -> None:
        for name in ("a", "c"):
            (lab.view / name / "deep").rename(lab.view / "b" / name)

    with during_the_walk(lab, monkeypatch, "/b") as actions:
        actions.append(move)
        lab.collect()
    lab.compact()
    assert (lab.view / "b/a/er/file").read_bytes() == content
    assert (lab.view / "b/c/er/file").read_bytes()[: 300 * KIB] == content[: 300 * KIB]


def test_a_file_that_loses_its_name_during_the_walk_is_kept_while_it_is_open(
    lab: MountedLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = noise(600 * KIB)
    for name in ("a", "b", "c"):
        (lab.view / name).mkdir()
    paths = [lab.make_stub(f"{name}/file", content) for name in ("a", "c")]
    files = [open(path, "rb") for path in paths]  # noqa: SIM115

    def remove() -> None:
        for path in paths:
            path.unlink()

    with during_the_walk(lab, monkeypatch, "/b") as actions:
        actions.append(remove)
        lab.collect()
    lab.compact()
    for file in files:
        with file:
            assert file.read() == content


def test_a_storm_of_renames_during_collections_loses_nothing(lab: MountedLab) -> None:
    rng = random.Random(1)
    contents = {f"d{n % 8}/f{n}": noise(40 * KIB + n, n) for n in range(64)}
    for name, content in contents.items():
        path = lab.view / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    lab.optimise()
    stop = threading.Event()

    def storm() -> None:
        while not stop.is_set():
            files = [path for path in lab.view.rglob("f*") if path.is_file()]
            chosen = rng.choice(files)
            chosen.rename(lab.view / f"d{rng.randrange(8)}" / chosen.name)
            one, two = rng.sample(range(8), 2)
            rename_with(lab.view / f"d{one}", lab.view / f"d{two}", RENAME_EXCHANGE)

    thread = threading.Thread(target=storm)
    thread.start()
    try:
        for _ in range(12):
            report = lab.collect()
            assert report.errors == 0, report.messages
            assert report.orphaned_chunks == 0
            lab.compact()
    finally:
        stop.set()
        thread.join()
    found = {p.name: p.read_bytes() for p in lab.view.rglob("f*") if p.is_file()}
    assert found == {name.partition("/")[2]: content for name, content in contents.items()}


def test_the_log_of_a_mount_that_overflows_has_the_walk_begin_again(
    lab: MountedLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        (lab.view / name).mkdir()
    for n in range(600):
        (lab.view / f"b/dir{n}").mkdir()
    content = noise(300 * KIB)
    lab.make_stub("b/dir599/file", content)

    def move_all() -> None:
        for n in range(600):
            (lab.view / f"b/dir{n}").rename(lab.view / f"a/dir{n}")

    monkeypatch.setattr(marking, "DIRECTORIES_PER_DRAIN", 1 << 30)
    with during_the_walk(lab, monkeypatch, "/a") as actions:
        actions.append(move_all)
        assert collect_all(lab) == 0
    assert (lab.view / "a/dir599/file").read_bytes() == content


def test_a_mount_that_ends_during_the_walk_has_it_begin_again(
    lab: MountedLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = noise(600 * KIB)
    for name in ("a", "b", "c"):
        (lab.view / name).mkdir()
    lab.make_stub("a/file", content)

    def restart() -> None:
        lab.unmount()
        lab.mount()
        (lab.view / "a/file").rename(lab.view / "b/file")

    with during_the_walk(lab, monkeypatch, "/b") as actions:
        actions.append(restart)
        assert collect_all(lab) == 0
    assert (lab.view / "b/file").read_bytes() == content


def test_a_mount_that_begins_during_the_walk_has_it_begin_again(
    lab: MountedLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = noise(600 * KIB)
    for name in ("a", "b", "c"):
        (lab.view / name).mkdir()
    lab.make_stub("a/file", content)
    lab.unmount()

    def come_and_go() -> None:
        lab.mount()
        (lab.view / "a/file").rename(lab.view / "b/file")
        lab.unmount()

    with during_the_walk(lab, monkeypatch, "/b") as actions:
        actions.append(come_and_go)
        assert collect_all(lab) == 0
    lab.mount()
    assert (lab.view / "b/file").read_bytes() == content


def test_readers_see_no_error_while_containers_are_replaced(lab: MountedLab) -> None:
    contents = {f"f{n}": noise(300 * KIB, n) for n in range(12)}
    for name, content in contents.items():
        (lab.view / name).write_bytes(content)
    lab.optimise()
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
    held = [os.readlink(f"/proc/{lab.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{lab.pid}/fd")]
    assert not [name for name in held if "/store/" in name and "(deleted)" in name]
    assert path.read_bytes() == content


def test_no_commit_of_a_dead_job_begins_while_garbage_is_marked(lab: MountedLab) -> None:
    from dedupd.commit import Request, request_to_json
    from dedupd.format.recipe import RecipeRef

    (lab.view / "plain").write_bytes(noise(100 * KIB))
    request = Request(b"plain", lab.identity("plain"), RecipeRef(1 << 32, bytes(16)))
    with lab.client() as marks, lab.client() as late:
        marks.call("mark_begin")
        reply = late.call("commit_begin", files=[request_to_json(request)])
        assert reply["results"][0]["outcome"] == "in use"
    assert lab.stub("plain") is None
