"""A volume goes from its own store to a shared one, and back; nothing is lost on the way."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedupd_core.errors import Busy, Damaged, UnseenMember, UsageError
from dedupd_core.format.container import Kind
from dedupd_core.units import KIB
from tests.support.lab import Lab, fill, new_lab, noise, run_cli, stop_at
from tests.support.shared import SharedLab, move


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[SharedLab]:
    yield SharedLab(tmp_path)


@pytest.fixture
def own(tmp_path: Path) -> Lab:
    """A volume with a store of its own, with every kind of stub."""
    lab = new_lab(tmp_path / "own")
    fill(lab)
    lab.put("large", noise(6000 * KIB, 7))
    (lab.data / "hard-link").hardlink_to(lab.data / "large")
    lab.optimize()
    with open(lab.let_write("edited"), "r+b") as file:
        file.seek(8 * KIB)
        file.write(noise(4 * KIB, 8))
    lab.put("plain", b"too new")
    return lab


def contents(lab: Lab) -> dict[str, bytes]:
    return {path.name: lab.read(path.name) for path in sorted(lab.data.iterdir())}


def test_a_volume_moves_to_a_shared_store_and_back(shared: SharedLab, own: Lab) -> None:
    b = shared.volume("b")
    fill(b)
    b.optimize()
    before, times = contents(own), (own.data / "large").stat().st_mtime_ns
    report = move(own, shared)
    assert report.stubs == 8 - 1 and report.present >= 5
    assert contents(own) == before
    assert not (own.base / "store").exists()
    assert (own.data / "large").stat().st_mtime_ns == times
    assert shared.known() == {"b", "own"}
    b.verify_clean()
    own.optimize()
    assert b.collect().errors == 0
    assert contents(own) == before
    move(own, None)
    assert shared.known() == {"b"}
    assert not (own.base / "membership.json").exists()
    assert contents(own) == before
    own.verify_clean()
    own.optimize()
    assert own.collect().errors == 0
    assert contents(own) == before
    assert b.collect().orphaned_bytes > 5000 * KIB
    b.verify_clean()


def test_a_volume_moves_from_one_shared_store_to_another(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two = SharedLab(tmp_path / "one"), SharedLab(tmp_path / "two")
    lab = one.volume("a")
    expected = fill(lab)
    lab.optimize()
    move(lab, two)
    assert (one.known(), two.known()) == (set(), {"a"})
    assert contents(lab) == expected
    lab.verify_clean()
    with pytest.raises(UsageError, match="already"):
        move(lab, two)


@pytest.mark.parametrize(
    "point", ["copied", "begun", "attribute-set", "synced", "switched", "left"]
)
@pytest.mark.parametrize("is_leaving", [False, True])
def test_an_interrupted_move_goes_on(
    shared: SharedLab, own: Lab, point: str, is_leaving: bool
) -> None:
    b = shared.volume("b")
    fill(b)
    b.optimize()
    if is_leaving:
        move(own, shared)
    expected = contents(own)
    there, point = None if is_leaving else shared, f"move.{point}"
    with stop_at(point, 3 if point == "move.attribute-set" else 1):
        move(own, there)
    if point != "move.copied":
        with pytest.raises(Busy, match="half moved"):
            own.optimize()
        with pytest.raises(UsageError, match="half moved"):
            move(own, shared if is_leaving else None)
    is_known = shared.known() == {"b", "own"}
    if is_known and not (is_leaving and point == "move.copied"):
        with pytest.raises((UnseenMember, Busy)):
            b.collect()
        with shared.opened() as one:
            (uuid,) = (u for u, member in one.members().items() if member.root == str(own.root))
        said = run_cli("store", "forget", shared.path, uuid) if point == "move.synced" else None
        assert said is None or "not lost" in said.stderr
    move(own, there)
    assert contents(own) == expected
    own.verify_clean()
    assert b.collect().errors == 0
    assert contents(own) == expected


def test_a_move_that_cannot_read_all_changes_nothing(shared: SharedLab, own: Lab) -> None:
    own.lose(Kind.CHUNKS)
    before = {path: os.stat(path).st_ctime_ns for path in own.data.iterdir()}
    with pytest.raises(Damaged):
        move(own, shared)
    assert {path: os.stat(path).st_ctime_ns for path in own.data.iterdir()} == before
    assert shared.known() == set()
    with own.opened() as volume, volume.job_lock():
        assert volume.shared is None


def test_the_commands_of_a_move(shared: SharedLab, own: Lab) -> None:
    answer = run_cli("store", "move", own.root, "--store", shared.path)
    assert answer.returncode == 0, answer.stderr
    assert run_cli("store", "move", own.root).returncode == 2
    with shared.opened() as one:
        (uuid,) = one.members()
    assert "not lost" in run_cli("store", "forget", shared.path, uuid).stderr
    answer = run_cli("store", "move", own.root, "--own", "--json")
    assert answer.returncode == 0, answer.stderr
    own.verify_clean()
