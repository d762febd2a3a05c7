"""Files are taken out of a copy as they were, or named and left out."""

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from dedupd_core import native
from dedupd_core.errors import Damaged, NotAVolume, UsageError
from dedupd_core.format import container as fmt
from dedupd_core.format.container import FILE_HEADER_BYTES, RECORD_HEADER_BYTES, Kind
from dedupd_core.units import KIB
from jobs.backup.restore import Restore, RestoreReport
from jobs.backup.source import BackupSource
from jobs.frame.run import JobRun
from tests.support.lab import (
    as_user,
    fill,
    flip_bit,
    new_lab,
    noise,
    public_directory,
    run_cli,
)
from tests.support.trees import fill_with_all, seen


def restore(
    source: Path, target: Path, *paths: bytes, trust_holes: bool = False, privileges: bool = False
) -> RestoreReport:
    target.mkdir(exist_ok=True)
    with BackupSource.found(str(source)) as volume:
        run, to = JobRun("restore"), str(target)
        job = Restore(volume, run, to, trust_holes=trust_holes, privileges=privileges)
        return job.run(list(paths) or [b""])


@pytest.mark.root
def test_everything_comes_back_with_all_that_belongs_to_it(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    fill_with_all(lab)
    before = seen(lab.data)
    assert lab.optimize().files_optimized > 4
    report = restore(lab.root, tmp_path / "out", privileges=True)
    assert report.messages == []
    assert seen(tmp_path / "out") == before
    assert (tmp_path / "out/sparse").stat().st_blocks * 512 < 1000 * KIB
    assert lab.verify_clean().stubs > 4


@pytest.mark.root
def test_a_copy_of_the_base_alone_will_do_and_is_not_changed(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    fill_with_all(lab)
    before = seen(lab.data)
    lab.optimize()
    tape = tmp_path / "tape"
    subprocess.run(["cp", "-a", "--sparse=always", lab.base, tape], check=True)
    shutil.rmtree(lab.root)
    state = seen(tape, hidden="")
    assert restore(tape, tmp_path / "out", privileges=True).messages == []
    assert seen(tmp_path / "out") == before
    assert seen(tape, hidden="") == state


def test_some_files_alone_keep_their_folders(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    for name in ("a/b/one", "a/b/two", "a/other", "c/three"):
        lab.put(name, noise(70 * KIB, len(name)))
    os.chmod(lab.data / "a", 0o751)
    before = seen(lab.data)
    lab.optimize()
    report = restore(lab.root, tmp_path / "out", b"a/b", b"a/b/one", b"c/three")
    assert (report.files, report.messages) == (3, [])
    wanted = {"a", "a/b", "a/b/one", "a/b/two", "c", "c/three"}
    assert seen(tmp_path / "out") == {name: before[name] for name in wanted}


def test_a_path_that_is_not_there_stops_before_anything_is_made(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    lab.put("one", b"1")
    with pytest.raises(UsageError, match="use a path relative to the root"):
        restore(lab.root, tmp_path / "out", b"one", b"two")
    assert os.listdir(tmp_path / "out") == []


def test_what_is_no_volume_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAVolume, match="neither a volume nor a copy"):
        BackupSource.found(str(tmp_path))


def test_a_run_goes_on_where_another_stopped_and_overwrites_nothing(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    contents = fill(lab)
    lab.optimize()
    out = tmp_path / "out"
    out.mkdir()
    (out / "base").write_bytes(b"somebody's")
    (out / ".dedupd-unfinished").write_bytes(b"of a user")
    report = restore(lab.root, out)
    assert report.files == len(contents) - 1
    assert [message[:4] for message in report.messages] == ["base"]
    assert (out / "base").read_bytes() == b"somebody's"
    (out / "base").unlink()
    report = restore(lab.root, out)
    assert (report.files, report.already, report.messages) == (1, len(contents) - 1, [])
    assert {name: (out / name).read_bytes() for name in contents} == contents
    assert sorted(os.listdir(out)) == sorted([*contents, ".dedupd-unfinished"])
    assert (out / ".dedupd-unfinished").read_bytes() == b"of a user"


def test_a_damaged_file_is_named_and_the_others_are_restored(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    contents = {f"file-{n}": noise(10 * KIB, n) for n in range(8)}
    for name, content in contents.items():
        lab.put(name, content)
    lab.optimize()
    size = lab.container(Kind.CHUNKS).stat().st_size
    flip_bit(lab.container(Kind.CHUNKS), size // 2)
    out = tmp_path / "out"
    out.mkdir()
    done = run_cli("restore", "--from", lab.root, ".", "--to", out, "--json")
    assert done.returncode == 4, done.stderr
    report = json.loads(done.stdout)
    assert (report["files"] - report["damaged"], report["damaged"]) == (7, 1)
    (message,) = report["messages"]
    hit = message.partition(":")[0]
    assert {one.name: one.read_bytes() for one in out.iterdir()} == {
        name: content for name, content in contents.items() if name != hit
    }


def test_a_wrong_chunk_with_a_right_checksum_is_damage(tmp_path: Path) -> None:
    """The fingerprint is looked at, too: a checksum of 64 bits proves little of another record."""
    lab = new_lab(tmp_path / "volume")
    lab.put("file", noise(10 * KIB, 1))
    lab.optimize()
    path = lab.container(Kind.CHUNKS)
    data = bytearray(path.read_bytes())
    seed = fmt.seed_of(fmt.decode_file_header(bytes(data), ""))
    record = fmt.unpack_record(bytes(data), FILE_HEADER_BYTES, seed)
    assert record is not None and record.codec == 0
    start = FILE_HEADER_BYTES + RECORD_HEADER_BYTES
    data[start] ^= 1
    payload = bytes(data[start : start + record.stored_length])
    forged = replace(record, checksum=native.hashing.xxh3_64(payload))
    fmt.pack_record_into(memoryview(data), FILE_HEADER_BYTES, forged, seed)
    path.write_bytes(data)
    report = restore(lab.root, tmp_path / "out")
    assert (report.damaged, os.listdir(tmp_path / "out")) == (1, [])


@pytest.mark.root
def test_a_copy_without_attributes_is_refused_as_a_whole(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    fill(lab)
    lab.optimize()
    copy = tmp_path / "copy"
    subprocess.run(["rsync", "-a", f"{lab.root}/", copy], check=True)
    with pytest.raises(Damaged, match=r"docs/guide/backup.md"):
        restore(copy, tmp_path / "out")
    assert os.listdir(tmp_path / "out") == []


@pytest.mark.root
def test_users_restore_what_they_may_read_and_no_zeros() -> None:
    """To all but root the attributes of root's stubs do not exist."""
    with public_directory() as directory:
        lab = new_lab(directory / "volume")
        contents = fill(lab)
        lab.optimize()
        for path in (lab.root, lab.base, *lab.base.rglob("*")):
            os.chown(path, 1000, 1000)
        (directory / "out").mkdir()
        os.chmod(directory / "out", 0o777)

        def try_to() -> None:
            with pytest.raises(UsageError, match="run the command as root"):
                BackupSource.found(str(lab.base))

        as_user(try_to)

        def with_an_own_volume() -> None:
            own = new_lab(directory / "own")
            fill(own)
            assert own.optimize().files_optimized > 0
            subprocess.run(
                ["cp", "-a", "--sparse=always", own.base, directory / "saved"], check=True
            )
            assert restore(directory / "saved", directory / "out").messages == []
            for name, content in contents.items():
                assert (directory / "out" / name).read_bytes() == content

        as_user(with_an_own_volume)
