"""How many requests common work takes through the mount: the table in docs/figures/mount.md
holds."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.fuse_requests import RequestCounter, request_counter
from tests.support.mounts import MountedLab, mounted_lab

pytestmark = pytest.mark.root

FILES = 100
FILE_BYTES = 3000
SLACK = 1.05
"""What versions of programs and of the kernel may differ by."""

DOCUMENT = Path(__file__).parents[2] / "docs/figures/mount.md"
_ROW = re.compile(r"^\| ([^|]+?) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$")

Work = Callable[[Path], None]


def documented() -> dict[str, tuple[float, ...]]:
    """The rows of the table: plain files first and again, stubs first and again."""
    section = DOCUMENT.read_text().partition("## Requests per file")[2].partition("\n## ")[0]
    rows = [match for line in section.splitlines() if (match := _ROW.match(line))]
    return {match[1]: tuple(float(text) for text in match.groups()[1:]) for match in rows}


def shell(command: str) -> Work:
    """A command that a shell runs in the directory that holds the folder ``d``."""

    def work(root: Path) -> None:
        environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "HOME": "/nonexistent"}
        done = subprocess.run(
            ["bash", "-ec", command], cwd=root, env=environment, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr

    return work


def save_by_rename(root: Path) -> None:
    """As editors save: a new file, synced, in the place of the old one."""
    for number in range(FILES):
        new = root / f"d/.new{number}"
        with open(new, "wb", buffering=0) as file:
            file.write(bytes(FILE_BYTES))
            os.fsync(file.fileno())
        os.rename(new, root / f"d/file{number}")


def serve_by_samba(root: Path) -> None:
    """What smbd asks of a file that a client opens, reads and closes."""
    for number in range(FILES):
        path = root / f"d/file{number}"
        os.stat(path)
        for name in ("user.DOSATTRIB", "system.posix_acl_access"):
            try:
                os.getxattr(path, name)
            except OSError:
                pass
        fd = os.open(path, os.O_RDONLY)
        os.fstat(fd)
        os.pread(fd, FILE_BYTES, 0)
        os.close(fd)


WORK: dict[str, Work] = {
    "`find -type f`": shell("find d -type f"),
    "`ls -l`": shell("ls -l d"),
    "`cat`": shell("cat d/*"),
    "`tar c`": shell("tar cf - d | cat"),
    "Samba: open, read, close": serve_by_samba,
    "`tar x`": shell("rm -rf new; mkdir new; tar xf ../tree.tar -C new"),
    "`cp -a`": shell("rm -rf copy; cp -a d copy"),
    "`rsync`, nothing to do": shell("rsync -a d/ copy/"),
    "`git add`": shell("rm -rf .git; git init -q; git add d"),
    "save by rename": save_by_rename,
}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[MountedLab]:
    with mounted_lab(tmp_path) as lab:
        yield lab


@pytest.mark.parametrize("stubs", [False, True], ids=["plain", "stubs"])
def test_common_work_takes_no_more_requests_than_documented(lab: MountedLab, stubs: bool) -> None:
    make_tree(lab, stubs=stubs)
    found = {name: requests(lab, work) for name, work in WORK.items()}
    for name, (first, again) in found.items():
        print(f"| {name} | {first:.2f} | {again:.2f} |")
    promised = documented()
    assert list(promised) == list(WORK)
    for name, counts in found.items():
        for count, most in zip(counts, promised[name][2 * stubs :], strict=False):
            assert count <= SLACK * most + 0.05, f"{name}: {found[name]}"


def make_tree(lab: MountedLab, *, stubs: bool) -> None:
    directory = lab.view / "d"
    directory.mkdir()
    for number in range(FILES):
        (directory / f"file{number}").write_bytes(b"%08d" % number * (FILE_BYTES // 8))
    shell("tar cf ../tree.tar d")(lab.view)
    if stubs:
        assert lab.optimize().files_optimized == FILES


def requests(lab: MountedLab, work: Work) -> tuple[float, float]:
    """For each file: the first time after a mount, and again."""
    lab.unmount()
    lab.mount()
    with request_counter(lab.view) as counter:
        return counted(lab, counter, work), counted(lab, counter, work)


def counted(lab: MountedLab, counter: RequestCounter, work: Work) -> float:
    counter.take()
    work(lab.view)
    os.statvfs(lab.view)  # answered after what the kernel sends behind a program's back
    return (counter.take().total() - 1) / FILES
