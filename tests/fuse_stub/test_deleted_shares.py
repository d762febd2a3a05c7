"""What one user deletes costs no other user what can be restored."""

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from dedupd_core.units import KIB, MIB
from tests.support.lab import noise, run_cli
from tests.support.mounts import ALICE, BOB, MountedLab, as_user, mounted_lab

pytestmark = pytest.mark.root

POLICY = {
    "keep_deleted": "7d",
    "keep_deleted_max": "40 MB",
    "space_low": "0",
    "space_critical": "0",
    "reserve": "0",
}
TERABYTE = 1 << 40


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[MountedLab]:
    with mounted_lab(tmp_path, POLICY) as one:
        one.view.chmod(0o777)
        yield one
        one.unmount()
        one.verify_clean()


def stubs(lab: MountedLab, uid: int, contents: dict[str, bytes]) -> list[Path]:
    paths = [lab.view / name for name in contents]
    for path, content in zip(paths, contents.values(), strict=True):
        path.write_bytes(content)
        os.chown(path, uid, uid)
    lab.optimize()
    return paths


def listed(lab: MountedLab) -> set[str]:
    result = run_cli("deleted", lab.view, "--json")
    assert result.returncode == 0, result.stderr
    return {row["path"] for row in json.loads(result.stdout)}


def restored(lab: MountedLab, contents: dict[str, bytes]) -> None:
    """All of these come back, and are what they were."""
    result = run_cli("undelete", *(lab.view / name for name in contents))
    assert result.returncode == 0, result.stdout + result.stderr
    for name, content in contents.items():
        assert (lab.view / name).read_bytes() == content


def test_the_removal_of_a_huge_sparse_file_drops_nothing(lab: MountedLab) -> None:
    mine = {f"bob{at}": noise(300 * KIB, at) for at in range(3)}
    for path in stubs(lab, BOB, mine):
        path.unlink()
    sparse = lab.view / "sparse"
    with open(sparse, "wb") as file:
        for at in range(3):
            file.seek(at * TERABYTE)
            file.write(noise(900 * KIB, 10 + at))
        file.truncate(4 * TERABYTE)
    os.chown(sparse, ALICE, ALICE)
    lab.optimize()
    assert lab.stub("sparse") is not None
    sparse.unlink()
    report = lab.collect(all_garbage=True)
    assert (report.errors, report.deletions_early, report.orphaned_chunks) == (0, 0, 0)
    assert listed(lab) == {*mine, "sparse"}
    restored(lab, mine)


def test_who_deletes_most_loses_own_files_first(lab: MountedLab) -> None:
    """Bob has 1 MB, Alice deletes 60 MB, 40 MB may be kept."""
    mine = {f"bob{at}": noise(300 * KIB, at) for at in range(3)}
    for path in stubs(lab, BOB, mine):
        path.unlink()
    hers = {f"alice{at}": noise(6 * MIB, 10 + at) for at in range(10)}
    for path in stubs(lab, ALICE, hers):
        path.unlink()
    report = lab.collect(all_garbage=True)
    assert report.errors == 0
    left = listed(lab)
    assert left >= mine.keys()
    dropped = report.deletions_early
    assert 3 <= dropped <= 5
    assert left == {*mine, *(f"alice{at}" for at in range(dropped, 10))}
    assert report.orphaned_chunks > 0
    restored(lab, mine)
    restored(lab, {name: hers[name] for name in left - mine.keys()})


def test_copies_of_one_file_count_once(lab: MountedLab) -> None:
    content = noise(6 * MIB)
    paths = stubs(lab, ALICE, {f"copy{at}": content for at in range(12)})
    for path in paths:
        path.unlink()
    report = lab.collect(all_garbage=True)
    assert (report.errors, report.deletions_early) == (0, 0)
    assert len(listed(lab)) == 12


def test_each_user_lists_own_files_only(lab: MountedLab) -> None:
    for uid in (ALICE, BOB):
        for path in stubs(lab, uid, {f"{uid}-{at}": noise(20 * KIB, uid + at) for at in range(3)}):
            path.unlink()

    def own(uid: int) -> None:
        value = os.getxattr(lab.view, "user.dedupd.deleted")
        found = {json.loads(line)["path"] for line in value.splitlines()}
        assert found == {f"{uid}-{at}" for at in range(3)}

    for uid in (ALICE, BOB):
        as_user(uid, partial(own, uid))
    assert len(listed(lab)) == 6
