"""The scan: every regular file once, and the policy's word on each."""

import os
import socket
import stat
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dedupd_core import native
from dedupd_core.config.policy import Policy
from dedupd_core.system.files import opened
from dedupd_core.units import KIB
from jobs.tree.candidates import SkippedFiles, _Search, candidates
from jobs.tree.walk import walk
from tests.conftest import MakeFileSystem
from tests.support.lab import (
    OLD_NS,
    RAW_SOCKETS,
    SETTLE_NS,
    Lab,
    as_user,
    lab_in,
    new_lab,
    noise,
    public_directory,
)

TAKES_ALL = Policy(min_age_s=0, min_size_bytes=1)


def found(lab: Lab, below: bytes = b"") -> list[bytes]:
    with lab.opened() as volume:
        return sorted(file.path for file in walk(volume, below))


def chosen(lab: Lab, policy: Policy = TAKES_ALL) -> tuple[list[bytes], dict[str, int]]:
    """Paths of the candidates, and how many files were skipped for which reason."""
    skipped, errors = SkippedFiles(), list[str]()
    with lab.opened() as volume:
        paths = sorted(c.path for c in candidates(volume, policy, b"", skipped, errors))
    assert errors == []
    return paths, skipped.files


# --- what there is ----------------------------------------------------------------------------


def test_every_regular_file_is_found(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        names = [b"a", b"b/c", b"b/d/e", b"odd \xff\n", b"n" * 255, b"empty"]
        for name in names:
            lab.put(name, b"" if name == b"empty" else b"x")
        assert found(lab) == sorted(names)
        assert found(lab, b"b") == [b"b/c", b"b/d/e"]
        assert found(lab, b"b/d/e") == [b"b/d/e"]
        assert found(lab, b"none") == []


def test_the_stat_of_a_file_comes_along(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        status = lab.put("file", noise(9000)).stat()
        with lab.opened() as volume:
            (file,) = walk(volume)
        assert file.identity.inode == status.st_ino
        assert file.identity.size == status.st_size
        assert file.identity.mtime_ns == status.st_mtime_ns
        assert file.identity.ctime_ns == status.st_ctime_ns
        assert file.attribute is None and not file.is_stub


def test_a_file_that_has_a_name_outside_of_the_volume_stays_plain(tmp_path: Path) -> None:
    """By that name everybody would see zeros."""
    with lab_in(tmp_path) as lab:
        outside = tmp_path / "outside"
        os.link(lab.put("f", noise(40 * KIB)), outside)
        os.link(lab.put("d/g", noise(40 * KIB, 1)), lab.data / "h")
        paths, skipped = chosen(lab)
        assert (len(paths), skipped) == (1, {"linked from elsewhere": 1})
        for below in (b"f", b"h", b"d"):
            passed = SkippedFiles()
            with lab.opened() as volume:
                assert not list(candidates(volume, TAKES_ALL, below, passed, []))
            assert passed.files == {"linked from elsewhere": 1}
        assert lab.optimize().files_optimized == 1
        assert outside.read_bytes() == noise(40 * KIB) and lab.stub("f") is None
        outside.unlink()
        assert lab.optimize().files_optimized == 1


@pytest.mark.parametrize("moved", ["a", "a/f"])
def test_a_name_that_is_met_twice_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moved: str
) -> None:
    """Somebody moves a file, or its directory, from where the scan was to where it will be."""
    with lab_in(tmp_path) as lab:
        os.link(lab.put("a/f", noise(40 * KIB)), tmp_path / "outside")
        (lab.data / "z/deep").mkdir(parents=True)
        find = _Search._find

        def move_and_find(search: _Search, directories: Sequence[bytes]) -> object:
            if b"z/deep" in directories:
                (lab.data / moved).rename(lab.data / "z/deep/moved")
            return find(search, directories)

        monkeypatch.setattr(_Search, "_find", move_and_find)
        with lab.opened() as volume:
            passed = SkippedFiles()
            assert list(candidates(volume, TAKES_ALL, b"", passed, [])) == []
        assert passed.files == {"linked from elsewhere": 1}


def test_a_name_counts_for_the_directory_that_it_was_found_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody moves a directory on, once the scan has read it, and makes a new one in its place,
    as those do who rotate backups."""
    with lab_in(tmp_path) as lab:
        os.link(lab.put("day.0/f", noise(40 * KIB)), tmp_path / "outside")
        (lab.data / "z/deep").mkdir(parents=True)
        find = _Search._find

        def find_and_rotate(search: _Search, directories: Sequence[bytes]) -> object:
            found = find(search, directories)
            if b"day.0" in directories:
                (lab.data / "day.0").rename(lab.data / "z/deep/day.1")
                (lab.data / "day.0").mkdir()
            return found

        monkeypatch.setattr(_Search, "_find", find_and_rotate)
        with lab.opened() as volume:
            passed = SkippedFiles()
            assert list(candidates(volume, TAKES_ALL, b"", passed, [])) == []
        assert passed.files == {"linked from elsewhere": 1}


@pytest.mark.root
@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_a_file_whose_last_block_has_no_end_stays_plain(loop_fs: MakeFileSystem, kind: str) -> None:
    """It could be neither punched nor settled, nor therefore opened."""
    lab = new_lab(loop_fs(kind) / "volume")
    for name, length in (("longest", (1 << 63) - 1), ("long", (1 << 63) - (64 << 10))):
        os.truncate(lab.put(name, noise(40 * KIB)), length)
    paths, skipped = chosen(lab)
    assert (paths, skipped) == ([b"long"], {"too long": 1})
    with lab.opened() as volume:
        assert not list(candidates(volume, TAKES_ALL, b"longest", SkippedFiles(), []))
    assert lab.optimize().files_optimized == 1


@pytest.mark.parametrize("year", [2262, 2400])
def test_a_file_of_a_time_that_a_stub_has_no_room_for_stays_plain(
    tmp_path: Path, year: int
) -> None:
    """It would get another time: that of 1901, say."""
    mtime_ns = int(datetime(year, 12, 31, tzinfo=UTC).timestamp()) * 10**9
    with lab_in(tmp_path) as lab:
        path = lab.put("f", noise(40 * KIB))
        os.utime(path, ns=(OLD_NS, mtime_ns))
        if path.stat().st_mtime_ns != mtime_ns:
            pytest.skip("no such times here")
        while time.time_ns() - path.stat().st_ctime_ns < 2 * SETTLE_NS:
            pass
        assert chosen(lab) == ([], {"too young": 1})
        status = path.stat()
        believed = status.st_ino, status.st_size, (1 << 63) - 1, status.st_ctime_ns
        file, space = (believed, (1, bytes(16), True), None), (b"user.x", (0, 0), 4096)
        with opened(os.open(path, os.O_RDONLY)) as fd:
            refusal = native.commit.begin(fd, file, space, None)
            assert isinstance(refusal, native.commit.Refusal) and refusal.why == "changed"
        lab.optimize()
        assert lab.stub("f") is None and path.stat().st_mtime_ns == mtime_ns


def test_hard_links_are_one_file(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        path = lab.put("file", noise(40 * KIB))
        (lab.data / "sub").mkdir()
        os.link(path, lab.data / "link")
        os.link(path, lab.data / "sub/link")
        assert len(found(lab)) == 1
        assert lab.optimize().files_optimized == 1
        assert lab.read("file") == lab.read("link") == lab.read("sub/link") == noise(40 * KIB)


def test_links_are_not_followed(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        (tmp_path / "outside").mkdir()
        (tmp_path / "outside/file").write_bytes(noise(40 * KIB))
        (lab.data / "to-directory").symlink_to(tmp_path / "outside")
        (lab.data / "to-file").symlink_to(tmp_path / "outside/file")
        (lab.data / "to-nothing").symlink_to("nothing")
        (lab.data / "to-itself").symlink_to(".")
        assert found(lab) == []
        assert found(lab, b"to-directory") == []


@pytest.mark.root
def test_other_file_systems_are_not_crossed_into(loop_fs: MakeFileSystem) -> None:
    lab = new_lab(loop_fs(size="64M") / "volume")
    lab.put("file", b"mine")
    inside = lab.data / "mounted"
    inside.mkdir()
    over = lab.put("bind-mounted", b"mine too")
    elsewhere = loop_fs(size="64M")
    (elsewhere / "other").write_bytes(b"not mine")
    mounts = [(elsewhere, inside), (elsewhere / "other", over)]
    for source, target in mounts:
        subprocess.run(["mount", "--bind", source, target], check=True)
    try:
        assert found(lab) == [b"file"]
        lab.optimize()
    finally:
        for _, target in mounts:
            subprocess.run(["umount", target], check=True)
    assert (elsewhere / "other").read_bytes() == b"not mine"
    lab.verify_clean()


@pytest.mark.root
def test_what_is_no_regular_file_is_passed_over(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        os.mkfifo(lab.data / "fifo")
        os.mknod(lab.data / "block", 0o600 | stat.S_IFBLK, os.makedev(7, 200))
        os.mknod(lab.data / "character", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        with socket.socket(socket.AF_UNIX) as server:
            with opened(os.open(lab.data, os.O_PATH)) as data:  # a short path of any directory
                server.bind(f"/proc/self/fd/{data}/socket")
            lab.put("file", noise(40 * KIB))
            assert found(lab) == [b"file"]
            assert lab.optimize().files_optimized == 1


def test_files_that_vanish_during_the_walk_are_passed_over(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        for name in ("a/x", "b/x", "c/x", "d"):
            lab.put(name, b"x")
        errors: list[str] = []
        with lab.opened() as volume:
            files = walk(volume, errors=errors)
            assert next(files).path == b"d"
            (lab.data / "b/x").unlink()
            (lab.data / "b").rmdir()
            (lab.data / "c").rename(lab.data / "z")
            (lab.data / "c").write_bytes(b"a file now")
            assert [file.path for file in files if file.path != b"c"] == [b"a/x"]
        assert errors == []


@pytest.mark.root
def test_what_cannot_be_read_is_named_and_the_rest_goes_on() -> None:
    def check(directory: Path) -> None:
        lab = new_lab(directory / "volume")
        lab.put("secret", noise(40 * KIB)).chmod(0)
        lab.put("closed/file", noise(40 * KIB, 1))
        lab.put("open", noise(40 * KIB, 2))
        (lab.data / "closed").chmod(0)
        report = lab.optimize()
        assert report.files_optimized == 1
        assert report.errors == 2
        assert any("secret" in message for message in report.messages)
        assert any("closed" in message for message in report.messages)
        assert lab.stub("open") is not None
        (lab.data / "closed").chmod(0o700)

    with public_directory() as directory:
        as_user(lambda: check(directory))


# --- which of it the policy takes -------------------------------------------------------------


def test_the_age_counts_from_the_last_change_of_content_or_attributes(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.put("old content, new attributes", b"x")
        day = Policy(min_age_s=86400, min_size_bytes=1)
        assert chosen(lab, day) == ([], {"too young": 1})
        assert chosen(lab)[0] == [b"old content, new attributes"]


def test_a_file_is_taken_once_it_is_old_enough(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.put("file", b"x")
        changed_s = (lab.data / "file").stat().st_ctime_ns / 1e9
        policy = Policy(min_age_s=0.3, min_size_bytes=1)
        while not (taken := chosen(lab, policy)[0]):
            assert time.time() - changed_s < 120
        assert taken == [b"file"]
        assert time.time() - changed_s >= 0.3


def test_the_size_counts_from_the_minimum_on(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        for size in (0, 99, 100, 101):
            lab.put(f"{size}", bytes(size))
        assert chosen(lab, Policy(min_age_s=0, min_size_bytes=100)) == (
            [b"100", b"101"],
            {"empty": 1, "below the minimum size": 1},
        )


def test_excluded_files_are_counted_and_left(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        for name in ("a.tmp", "keep/a", "scratch/deep/a", "film.MP4", "film.mp4.txt"):
            lab.put(name, b"x")
        policy = Policy(
            min_age_s=0, min_size_bytes=1, exclude=("*.tmp", "scratch/"), exclude_types=("mp4",)
        )
        assert chosen(lab, policy) == ([b"film.mp4.txt", b"keep/a"], {"excluded": 3})


def test_a_stub_is_no_candidate(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.put("file", noise(40 * KIB))
        lab.optimize()
        assert chosen(lab) == ([], {"already optimized": 1})


@pytest.mark.root
@pytest.mark.parametrize("mode", [0o755, 0o644])
@pytest.mark.parametrize("names", [1, 2])
def test_a_program_with_capabilities_keeps_them_and_stays_plain(
    tmp_path: Path, mode: int, names: int
) -> None:
    with lab_in(tmp_path) as lab:
        path = lab.put("program", noise(40 * KIB))
        path.chmod(mode)
        if names == 2:
            os.link(path, lab.data / "link")
        os.setxattr(path, "security.capability", RAW_SOCKETS)
        report = lab.optimize()
        assert os.getxattr(path, "security.capability") == RAW_SOCKETS
        assert (report.files_optimized, report.errors, lab.stub("program")) == (0, 0, None)
        if mode & 0o111:
            assert report.files_skipped["has capabilities"] == 1


def test_a_damaged_attribute_is_reported_and_the_file_left_alone(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    lab.put("file", noise(40 * KIB))
    lab.optimize()
    with lab.opened() as volume:
        value = bytearray(os.getxattr(lab.data / "file", volume.space.name))
        value[20] ^= 1
        os.setxattr(lab.data / "file", volume.space.name, bytes(value))
    report = lab.optimize()
    assert (report.files_optimized, report.errors) == (0, 1)
    assert report.messages[0].startswith("file: ")
    assert report.files_skipped == {"has a damaged attribute": 1}


def test_a_job_can_give_way_where_no_file_is_taken(tmp_path: Path) -> None:
    """Between directories, and every thousand files."""
    with lab_in(tmp_path) as lab:
        for number in range(30):
            lab.put(f"d{number}/f", b"")
        many = lab.data / "many"
        many.mkdir()
        for number in range(3000):
            (many / str(number)).touch()
        checks: list[None] = []
        with lab.opened() as volume:
            skipped, errors = SkippedFiles(), list[str]()
            found = candidates(volume, TAKES_ALL, b"", skipped, errors, lambda: checks.append(None))
            assert list(found) == []
    assert skipped.files == {"empty": 3030}
    assert len(checks) >= 32 + 3


def test_reasons_add_up_to_all_files(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        for at in range(30):
            lab.put(f"{at}.{'tmp' if at % 3 else 'txt'}", bytes(at * 10))
        paths, reasons = chosen(lab, Policy(0, 50, exclude=("*.tmp",)))
        assert len(paths) + Counter(reasons).total() == 30


def test_what_is_sorted_out_in_bulk_is_what_the_policy_says_of_each_file(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        for number in range(60):
            lab.put(f"stubs/{number % 7}/{number}.a", noise(5000 + number, number))
        os.link(lab.data / "stubs/1/1.a", lab.data / "stubs/link")
        lab.optimize()
        lab.let_write("stubs/2/2.a").write_bytes(b"anew")
        for number in range(300):
            lab.put(f"plain/{number % 90}/{number}.b{number % 5}", noise(number % 9 * 500, number))
        os.link(lab.data / "plain/1/1.b1", lab.data / "plain/link")
        for min_size_bytes in (1, 2000):
            for exclude in ((), ("plain/8*", "*.b3")):
                policy = Policy(min_age_s=0, min_size_bytes=min_size_bytes, exclude=exclude)
                with lab.opened() as volume:
                    plain = [file for file in walk(volume) if not file.is_stub]
                excluded = [f for f in plain if policy.excludes(f.path)]
                sizes = [file.identity.size for file in plain]
                wanted = {
                    f.path for f in plain if f.identity.size >= min_size_bytes and f not in excluded
                }
                paths, skipped = chosen(lab, policy)
                wanted.add(b"stubs/2/2.a")
                names = {b"plain/link", b"plain/1/1.b1"}
                assert len(paths) == len(wanted)
                assert set(paths) - names == wanted - names
                assert skipped.get("empty", 0) == sum(size == 0 for size in sizes)
                assert skipped.get("below the minimum size", 0) == sum(
                    0 < size < min_size_bytes for size in sizes
                )
                assert skipped["already optimized"] == 59
                assert skipped.get("excluded", 0) == sum(
                    file.identity.size >= min_size_bytes for file in excluded
                )
