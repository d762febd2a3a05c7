"""Very large files: an interrupted run goes on inside the file, and the result is the same."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedupd.catalog import Catalog
from dedupd.content import open_content
from dedupd.format import recipe
from dedupd.units import MIB
from jobs import batches, checkpoint, optimize
from tests.helpers import Lab, lab_in, noise, stop_at

SIZE = 40 * MIB + 12345


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """A volume where what counts as very large is small, and nodes of recipes hold few chunks."""
    monkeypatch.setattr(checkpoint, "FILE_BYTES_MIN", 10 * MIB)
    monkeypatch.setattr(batches, "BATCH_BYTES", 2 * MIB)
    monkeypatch.setattr(optimize, "BATCH_BYTES", 2 * MIB)
    monkeypatch.setattr(optimize, "GROUP_READ_BYTES", 4 * MIB)
    monkeypatch.setattr(recipe, "FANOUT_MAX", 7)
    with lab_in(tmp_path) as lab:
        yield lab


def content() -> bytes:
    """Noise with a hole that is long, and one that is not."""
    data = bytearray(noise(SIZE))
    data[9 * MIB : 13 * MIB] = bytes(4 * MIB)
    data[30 * MIB : 30 * MIB + 300_000] = bytes(300_000)
    return bytes(data)


def put(lab: Lab, name: str) -> bytes:
    data = content()
    path = lab.data / name
    with open(path, "wb") as file:
        file.write(data[: 9 * MIB])
        file.seek(13 * MIB)
        file.write(data[13 * MIB :])
    os.utime(path, ns=(10**18, 10**18))
    return data


def interrupt(lab: Lab, groups: int) -> None:
    """Stop a run when its n-th group has become durable, and its checkpoint is kept."""
    with stop_at("writer.synced", passes=2 * groups + 1):
        lab.optimise()


def cuts(lab: Lab, name: str) -> tuple[bytes, list[int]]:
    """Digest of the content as it was cut, and the lengths of the chunks."""
    stub = lab.stub(name)
    assert stub is not None
    with lab.opened() as volume:
        found = open_content(stub, volume.recipes, volume.read_chunk, name).recipe
        return found.content, [span.length for span in found.spans(0, found.length)]


@pytest.mark.parametrize("groups", [1, 2, 3, 5, 8])
def test_a_run_goes_on_inside_the_file(lab: Lab, groups: int) -> None:
    data = put(lab, "large")
    interrupt(lab, groups)
    assert lab.stub("large") is None
    report = lab.optimise()
    assert report.files_optimised == 1
    assert report.sums["raw_bytes"] < SIZE - (groups - 1) * 4 * MIB
    assert lab.read("large") == data


def test_the_cuts_are_those_of_a_run_in_one_go(lab: Lab, tmp_path: Path) -> None:
    data = put(lab, "large")
    interrupt(lab, 4)
    lab.optimise()
    resumed = cuts(lab, "large")
    lab.unoptimise()
    lab.optimise()
    assert cuts(lab, "large") == resumed
    assert lab.read("large") == data


def test_a_file_that_changed_meanwhile_is_read_from_its_start(lab: Lab) -> None:
    data = bytearray(put(lab, "large"))
    interrupt(lab, 4)
    with open(lab.data / "large", "r+b") as file:
        file.seek(100)
        file.write(b"a change before the checkpoint")
    data[100:130] = b"a change before the checkpoint"
    report = lab.optimise()
    assert report.sums["raw_bytes"] == SIZE
    assert lab.read("large") == data


def test_a_checkpoint_whose_chunks_are_gone_does_not_count(lab: Lab) -> None:
    data = put(lab, "large")
    interrupt(lab, 4)
    for name in ("chunks", "streams"):
        for path in (lab.base / "store" / name).iterdir():
            path.unlink()
    report = lab.optimise()
    assert report.sums["raw_bytes"] == SIZE
    assert lab.read("large") == data


def test_a_damaged_checkpoint_does_not_count(lab: Lab) -> None:
    data = put(lab, "large")
    interrupt(lab, 4)
    with Catalog(str(lab.base / "catalog")) as catalog:
        (value,) = catalog.latest("resume/", 10)
        body = value["body"]
        at = body.index('"')
        value["body"] = body[: at - 3] + "7" + body[at - 2 :]
        assert value["body"] != body
        inode = os.stat(lab.data / "large").st_ino
        catalog.put(f"resume/{inode:020d}", value)
    report = lab.optimise()
    assert report.sums["raw_bytes"] == SIZE
    assert lab.read("large") == data


def test_no_checkpoint_stays_behind(lab: Lab) -> None:
    put(lab, "large")
    interrupt(lab, 4)
    lab.optimise()
    with Catalog(str(lab.base / "catalog")) as catalog:
        assert catalog.latest("resume/", 10) == []
