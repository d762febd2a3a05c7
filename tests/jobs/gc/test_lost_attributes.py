"""A tree without stubs: either its users have removed the last one, or a program has lost them all.

What is lost is in the store alone, so nothing is collected as long as that may be.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedupd_core.errors import EXIT_DONE, EXIT_FINDINGS
from dedupd_core.format.container import Kind
from dedupd_core.format.table import State
from dedupd_core.units import KIB
from jobs.gc import lost_attributes
from tests.support.lab import Lab, new_lab, noise, run_cli, store_files
from tests.support.mounts import mounted_lab

STUBS = {"one": noise(300 * KIB, 1), "other": noise(40_000, 2)}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = new_lab(tmp_path / "volume")
    lab.store(STUBS)
    yield lab


def expect_refusal(lab: Lab, why: str) -> None:
    """Nothing is collected, which is said, and which is no damage."""
    before = store_files(lab)
    report = lab.collect()
    assert report.outcome == "nothing collected: see the messages"
    assert [why in message for message in report.messages] == [True]
    assert (report.orphaned_chunks, store_files(lab)) == (0, before)
    done = run_cli("run", "gc", lab.root)
    assert done.returncode == EXIT_FINDINGS, done
    assert "--all-garbage" in done.stderr


def expect_collection(lab: Lab) -> None:
    done = run_cli("run", "gc", lab.root)
    assert done.returncode == EXIT_DONE, done
    with lab.opened() as volume:
        for kind in (Kind.CHUNKS, Kind.RECIPES):
            directory = volume.containers(kind)
            for number in directory.numbers():
                states = [entry.state for entry in directory.entries(number) if entry is not None]
                assert State.LIVE not in states


def without_attributes(lab: Lab, *names: str) -> None:
    with lab.opened() as volume:
        attribute = volume.parameters.attribute
    for name in names:
        os.removexattr(lab.data / name, attribute)


def test_the_last_stubs_were_replaced_by_users(tmp_path: Path) -> None:
    with mounted_lab(tmp_path) as lab:
        for name, content in STUBS.items():
            lab.make_stub(name, content)
        for name in STUBS:
            (lab.view / name).write_bytes(noise(50_000, len(name)))
        expect_collection(lab)


def test_the_last_stubs_were_removed_by_users(tmp_path: Path) -> None:
    with mounted_lab(tmp_path) as lab:
        (lab.view / "plain").write_bytes(noise(123_457, 9))
        (lab.view / "empty").touch()
        lab.set_policy('min_age = "0s"\nmin_size = "200k"\n')
        lab.make_stub("one", STUBS["one"])
        (lab.view / "one").unlink()
        expect_collection(lab)


def test_attributes_that_were_lost_in_place_leave_holes(lab: Lab) -> None:
    without_attributes(lab, *STUBS)
    expect_refusal(lab, " has holes")


def test_a_copy_without_attributes_has_zeros(lab: Lab) -> None:
    for name, content in STUBS.items():
        lab.put(name, bytes(len(content)))
    expect_refusal(lab, " has blocks of zeros")


def test_a_copy_of_a_stub_that_was_mostly_rewritten_has_a_block_of_zeros(lab: Lab) -> None:
    content = bytearray(noise(300 * KIB, 5))
    content[-4096:] = bytes(4096)
    lab.put("one", content)
    (lab.data / "other").unlink()
    expect_refusal(lab, " has blocks of zeros")


def test_a_part_of_a_block_at_the_end_counts(lab: Lab) -> None:
    lab.put("one", noise(8192, 5) + bytes(100))
    (lab.data / "other").unlink()
    expect_refusal(lab, " has blocks of zeros")


def test_files_that_are_too_large_to_be_examined_are_not_trusted(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_attributes, "READ_BYTES_MAX", 100_000)
    for name in STUBS:
        lab.put(name, noise(60_000, 7))
    report = lab.collect()
    assert report.orphaned_chunks == 0
    assert "too much to examine" in report.messages[0]
    monkeypatch.setattr(lost_attributes, "READ_BYTES_MAX", 1_000_000)
    assert lab.collect().orphaned_chunks > 0


def test_what_cannot_be_read_is_not_trusted(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in STUBS:
        lab.put(name, noise(60_000, 7))

    def fails(*_: object) -> bool:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(lost_attributes, "_has_zeros", fails)
    report = lab.collect()
    assert report.orphaned_chunks == 0
    assert "cannot be read (Input/output error)" in report.messages[0]
