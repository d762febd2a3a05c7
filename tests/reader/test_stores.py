"""Shared stores, volumes between two stores, and deleted files, read without dedupd."""

import os
import shutil
from pathlib import Path

import pytest

from dedupd_core.units import KIB
from tests.support.lab import flip_bit, new_lab, noise, stop_at
from tests.support.mounts import ALICE, mounted_lab
from tests.support.reader import reader, rows_of
from tests.support.shared import SharedLab, move
from tests.support.trees import seen

pytestmark = pytest.mark.root

FILES = {"one": noise(300 * KIB, 1), "two": noise(300 * KIB, 2), "small": noise(5000, 3)}


def extracted(out: Path, *arguments: str | Path) -> dict[str, bytes]:
    done = reader("extract", *arguments, "--to", out)
    assert (done.returncode, done.stderr) == (0, "")
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*")}


def test_volumes_of_a_shared_store_are_read(tmp_path: Path) -> None:
    shared = SharedLab(tmp_path)
    for name in "ab":
        lab = shared.volume(name)
        for file, content in FILES.items():
            lab.put(file, content)
        lab.optimize()
    for name in "ab":
        assert extracted(tmp_path / f"out {name}", tmp_path / name) == FILES
    done = reader("check", shared.path)
    assert done.returncode == 0 and "records read" in done.stdout
    # Somewhere else, and its volume as a copy.
    shutil.move(shared.path, tmp_path / "moved")
    done = reader("list", tmp_path / "a")
    assert done.returncode == 2 and "name its directory with --store" in done.stderr
    store = ("--store", tmp_path / "moved")
    assert extracted(tmp_path / "out c", tmp_path / "a", *store) == FILES


def test_damage_of_a_shared_store_is_found_in_it(tmp_path: Path) -> None:
    shared = SharedLab(tmp_path)
    lab = shared.volume("a")
    for file, content in FILES.items():
        lab.put(file, content)
    lab.optimize()
    flip_bit(shared.path / "store/chunks/00000001.dat", 128 + 80 + 7)
    done = reader("check", shared.path, "--json")
    assert done.returncode == 4
    (row,) = (row for row in rows_of(done) if "problem" in row)
    assert row["problem"] == "record 1:0: its payload does not match its checksum"


@pytest.mark.parametrize("passes", [1, 2])
def test_a_half_moved_volume_is_read_from_both_stores(tmp_path: Path, passes: int) -> None:
    shared, lab = SharedLab(tmp_path), new_lab(tmp_path / "own")
    for file, content in FILES.items():
        lab.put(file, content)
    lab.optimize()
    with stop_at("move.attribute-set", passes):
        move(lab, shared)
    assert extracted(tmp_path / "out", lab.root) == FILES


def test_plain_files_of_a_volume_in_a_cluster_are_read(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    lab.put("stub", noise(300 * KIB, 1))
    lab.optimize()
    lab.put("plain", b"plain")
    shutil.rmtree(lab.base / "store")
    (lab.base / "cluster.json").write_text("{}")
    out = tmp_path / "out"
    done = reader("extract", lab.root, "--to", out)
    assert done.returncode == 4
    assert "in a Ceph cluster, which this program does not read" in done.stderr
    assert os.listdir(out) == ["plain"]


# --- deletions --------------------------------------------------------------------------------


def test_deleted_and_overwritten_files_are_restored(tmp_path: Path) -> None:
    policy = {"keep_deleted": "7d", "space_low": "0", "space_critical": "0", "reserve": "0"}
    with mounted_lab(tmp_path, policy) as lab:
        for name, content in FILES.items():
            path = lab.make_stub(name, content)
            os.chown(path, ALICE, ALICE)
            os.chmod(path, 0o4640)
            os.setxattr(path, "user.mine", b"value")
        before = seen(lab.view)
        (lab.view / "one").unlink()
        with open(lab.view / "two", "r+b") as file:
            file.write(b"overwritten")
        (lab.view / "small").unlink()
        lab.unmount()
        rows = {row["path"]: row for row in rows_of(reader("deleted", lab.root, "--json"))}
        assert {name: row["cause"] for name, row in rows.items()} == {
            "one": "removed",
            "two": "overwritten",
            "small": "removed",
        }
        assert "one: removed" in reader("deleted", lab.root).stdout
        ids = [str(row["id"]) for row in rows.values()]
        out = tmp_path / "out"
        done = reader("undelete", lab.root, *ids, "--to", out, "--privileges")
        assert (done.returncode, done.stderr) == (0, "")
        assert seen(out) == before
        done = reader("undelete", lab.root, *ids, "9:64", "--to", out)
        assert done.returncode == 1
        assert "one: it exists in the target" in done.stderr
        assert "9:64: there is no such deletion" in done.stderr
        check_damaged_logs(lab.base / "deleted", lab.root, len(rows))


def check_damaged_logs(logs: Path, root: Path, count: int) -> None:
    """A deletion is restored as it was, or named as damaged."""
    (log,) = logs.glob("*.log")
    flip_bit(log, 64 + 136)  # of a path
    done = reader("deleted", root, "--json")
    rows = rows_of(done)
    assert done.returncode == 1
    assert len([row for row in rows if "id" in row]) == count - 1
    assert "it is damaged" in next(row["note"] for row in rows if "note" in row)
    flip_bit(log, 20)
    done = reader("deleted", root)
    assert (done.returncode, done.stdout) == (1, "")
    assert "its header is damaged" in done.stderr
