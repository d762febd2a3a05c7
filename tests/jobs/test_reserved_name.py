"""No job puts an entry under the name of the store at the top of a volume, and none loses one."""

import os
from pathlib import Path

import pytest

from dedupd_core.deleted.undelete import DeletedFile, Undelete
from dedupd_core.errors import UsageError
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import opened
from jobs.backup import sender
from jobs.backup.restore import Restore
from jobs.backup.source import BackupSource
from jobs.frame.run import JobRun
from jobs.importing import Import, ImportReport
from tests.support.lab import Lab, new_lab
from tests.support.mounts import mounted_lab
from tests.support.streams import sent

NAME = ".dedupd"


def fill(directory: Path) -> Path:
    """A tree with such an entry at its top, and with one where it may be."""
    (directory / NAME / "sub").mkdir(parents=True)
    (directory / NAME / "sub/x").write_bytes(b"precious")
    (directory / "folder" / NAME).mkdir(parents=True)
    (directory / "folder" / NAME / "y").write_bytes(b"content")
    return directory


def imported(lab: Lab, source: Path, folder: bytes = b"") -> ImportReport:
    with lab.opened() as volume, volume.append_lock():
        return Import(volume, JobRun("import"), str(source), folder).run()


def old_lab(root: Path) -> Lab:
    lab = new_lab(root)
    fill(lab.data)
    return lab


def test_import_leaves_the_entry_out_and_takes_everything_else(tmp_path: Path) -> None:
    lab, source = new_lab(tmp_path / "r"), fill(tmp_path / "source")
    report = imported(lab, source)
    assert report.messages == [
        ".dedupd: dedupd reserves the name .dedupd at the top of a volume; not imported"
    ]
    assert (report.errors, report.files) == (1, 1)
    assert os.listdir(lab.data) == ["folder"]
    assert imported(lab, source, b"below").errors == 0
    assert (lab.data / "below" / NAME / "sub/x").stat().st_size == len(b"precious")


@pytest.mark.root
def test_import_into_a_mounted_volume_has_one_error(tmp_path: Path) -> None:
    source = fill(tmp_path / "source")
    with mounted_lab(tmp_path) as lab:
        report = imported(lab, source)
        assert (report.errors, report.files) == (1, 1)
        assert os.listdir(lab.view) == ["folder"]


@pytest.mark.parametrize("folder", [b".dedupd", b".dedupd/sub"])
def test_import_into_the_name_is_refused(tmp_path: Path, folder: bytes) -> None:
    lab, source = new_lab(tmp_path / "r"), fill(tmp_path / "source")
    with pytest.raises(UsageError, match="choose another name or folder"):
        imported(lab, source, folder)


def test_send_leaves_the_entry_out_and_sends_it_once_it_is_renamed(tmp_path: Path) -> None:
    lab, replica = old_lab(tmp_path / "r"), new_lab(tmp_path / "replica")
    report, _ = sent(lab, replica)
    assert report.messages == [
        ".dedupd: dedupd reserves the name .dedupd at the top of a volume;"
        " not sent: rename the entry"
    ]
    assert os.listdir(replica.data) == ["folder"]
    (lab.data / NAME).rename(lab.data / "of a user")
    report, _ = sent(lab, replica, since=report.point)
    assert report.messages == []
    assert sorted(os.listdir(replica.data)) == ["folder", "of a user"]
    assert (replica.data / "of a user/sub/x").stat().st_size == len(b"precious")


def test_a_stream_with_the_entry_is_refused_and_the_next_one_is_received(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older version has sent it."""
    lab, replica = old_lab(tmp_path / "r"), new_lab(tmp_path / "replica")
    with monkeypatch.context() as patch:
        patch.setattr(sender, "is_reserved", lambda _: False)
        with pytest.raises(
            UsageError, match=r"has \.dedupd, and .*; rename the entry in the sent volume"
        ):
            sent(lab, replica)
    assert os.listdir(replica.data) == []
    sent(lab, replica)
    assert os.listdir(replica.data) == ["folder"]


@pytest.mark.parametrize("path", [b"", b".dedupd", b".dedupd/sub"])
def test_restore_gives_the_entry_another_name(tmp_path: Path, path: bytes) -> None:
    lab, target = old_lab(tmp_path / "r"), tmp_path / "target"
    target.mkdir()
    with BackupSource.found(str(lab.root)) as volume:
        report = Restore(volume, JobRun("restore"), str(target)).run([path])
    assert (target / "dedupd-of-a-user/sub/x").read_bytes() == b"precious"
    assert not (target / NAME).exists()
    if path != b".dedupd/sub":
        assert report.messages == [
            ".dedupd: dedupd reserves the name .dedupd at the top of a volume;"
            f" restored as {target}/dedupd-of-a-user"
        ]


def test_undelete_gives_the_file_another_name_and_makes_no_such_folder(tmp_path: Path) -> None:
    wanted = [
        DeletedFile("1-0", path, os.geteuid(), os.getegid(), 0.0)
        for path in (b".dedupd", b"f/.dedupd")
    ]
    folder = DeletedFile("1-0", b".dedupd/sub/x", os.geteuid(), os.getegid(), 0.0)
    with opened(os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)) as tree_fd:
        undelete = Undelete(tree_fd, Disk(), lambda fd, wanted: None)
        top, below, refused = undelete.take([*wanted, folder])
    assert top.error is None and top.path.startswith(b".dedupd.deleted-")
    assert (below.error, below.path) == (None, b"f/.dedupd")
    assert isinstance(refused.error, UsageError)
    assert sorted(os.listdir(tmp_path)) == [os.fsdecode(top.path), "f"]


def test_undelete_removes_only_files_that_a_killed_run_has_left(tmp_path: Path) -> None:
    (tmp_path / ".dedupd-undelete-notes").write_bytes(b"of a user")
    (tmp_path / ".dedupd-undelete-7").mkdir()
    (tmp_path / ".dedupd-undelete-8").write_bytes(b"left")
    os.setxattr(tmp_path / ".dedupd-undelete-8", "trusted.dedupd.unfinished", b"file")
    (tmp_path / ".dedupd-undelete-9").write_bytes(b"of a user")
    wanted = DeletedFile("1-0", b"f", os.geteuid(), os.getegid(), 0.0)
    with opened(os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)) as tree_fd:
        (back,) = Undelete(tree_fd, Disk(), lambda fd, wanted: None).take([wanted])
    assert back.error is None
    kept = {"f", *(f".dedupd-undelete-{name}" for name in (7, 9, "notes"))}
    assert set(os.listdir(tmp_path)) == kept
