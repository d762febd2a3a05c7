"""File systems below a mount that ignore the case of names: ext4 with casefold, and XFS."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.lab import noise, prose
from tests.support.mounts import MountedLab, mounted_lab
from tests.vm.guest.disks import made, run
from tests.vm.guest.kernel_features import lacks

MAKE = {
    "ext4": ["mkfs.ext4", "-q", "-O", "casefold", "-E", "encoding=utf8"],
    "xfs": ["mkfs.xfs", "-q", "-n", "version=ci"],
}


@pytest.fixture(params=["ext4", "xfs"])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MountedLab]:
    if request.param == "ext4" and not Path("/sys/fs/ext4/features/casefold").exists():
        lacks("casefold of ext4")
    with ExitStack() as stack:
        try:
            point = stack.enter_context(made(tmp_path, MAKE[request.param]))
        except AssertionError as error:
            if request.param == "xfs" and "mount" in str(error):
                lacks("XFS that ignores case")
            raise
        lab = stack.enter_context(mounted_lab(point))
        (lab.data / "folded").mkdir()
        if request.param == "ext4":
            run("chattr", "+F", lab.data / "folded")
        yield lab
        lab.unmount()
        lab.verify_clean()


def test_a_file_has_one_name_in_every_case(lab: MountedLab) -> None:
    content = prose(300_000)
    lab.make_stub("folded/Report.txt", content)
    assert lab.stub("folded/Report.txt") is not None
    folded = lab.view / "folded"
    for name in ("Report.txt", "REPORT.TXT", "report.txt"):
        assert (folded / name).read_bytes() == content, name
    with open(folded / "rEPORT.txt", "r+b") as file:
        file.write(b"an edit")
    content = b"an edit" + content[7:]
    for name in ("Report.txt", "REPORT.TXT", "report.txt"):
        assert (folded / name).read_bytes() == content, name
    assert os.listdir(folded) == ["Report.txt"], "the name that it was given"
    with pytest.raises(FileExistsError):
        os.close(os.open(folded / "REPORT.txt", os.O_CREAT | os.O_EXCL | os.O_WRONLY))


def test_what_is_removed_by_one_name_is_missing_by_all(lab: MountedLab) -> None:
    folded = lab.view / "folded"
    for action in ("unlink", "rename", "replace"):
        assert not (folded / "nAmE").exists()
        path = lab.make_stub("folded/Name", noise(50_000))
        assert (folded / "nAmE").exists(), "the kernel had found that there is none"
        for name in ("Name", "NAME", "name"):
            assert (folded / name).exists()
        if action == "unlink":
            (folded / "NAME").unlink()
        elif action == "rename":
            (folded / "NAME").rename(lab.view / "moved")
        else:
            (lab.view / "new").write_bytes(b"another file")
            (lab.view / "new").replace(folded / "nAME")
            for name in ("Name", "NAME", "name"):
                assert (folded / name).read_bytes() == b"another file", name
            path.unlink()
        for name in ("NAME", "Name", "name"):
            assert not (folded / name).exists(), f"{name} after {action}"


def test_jobs_work_in_such_directories(lab: MountedLab) -> None:
    contents = {f"folded/Plan {number}": prose(100_000, number) for number in range(4)}
    for name, content in contents.items():
        lab.make_stub(name, content)
    (lab.view / "folded/plan 0").rename(lab.view / "folded/ANDERS")
    contents["folded/ANDERS"] = contents.pop("folded/Plan 0")
    (lab.view / "folded/PLAN 1").unlink()
    del contents["folded/Plan 1"]
    lab.collect(full=True)
    lab.compact()
    lab.unmount()
    lab.mount()
    assert {name: (lab.view / name).read_bytes() for name in contents} == contents
    assert lab.unoptimize().errors == 0
    assert {name: (lab.view / name).read_bytes() for name in contents} == contents
