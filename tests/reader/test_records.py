"""Records of each kind are read by the reader as the format says, and by no other bytes."""

import gc
import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from blake3 import blake3

from dedupd_core.format import container as fmt
from dedupd_core.format import table as tbl
from dedupd_core.format.container import Kind
from dedupd_core.format.ids import container_of
from dedupd_core.units import KIB, MIB
from dedupd_reader.reader import Damaged, Volume, plain_blake3, xxh3
from jobs.scrub.scrub_job import Depth
from tests.support.lab import Lab, descriptors, descriptors_to_begin_with, new_lab, noise
from tests.support.reader import READER, mixed_lab, reader, rows_of
from tests.support.upkeep import (
    PLAIN,
    chunks_of,
    damage_record,
    damage_with_second_sources,
    entry,
    reconcile,
    scrub,
)

pytestmark = pytest.mark.root


def contents(lab: Lab) -> dict[str, bytes]:
    volume = Volume(str(lab.root))
    paths = (path for path in lab.data.rglob("*") if path.is_file() and not path.is_symlink())
    names = (path.relative_to(lab.data) for path in paths)
    return {str(name): volume.content(str(name)) for name in names}


def merged_lab(root: Path) -> tuple[Lab, dict[str, bytes]]:
    """A volume in whose store a reconciliation has merged chunks, and its files."""
    lab = new_lab(root)
    lab.set_policy(PLAIN + "partitions = 4\nredundancy_threshold = 250\n")
    shared = noise(300 * KIB, 99)
    files = {f"file.t{number}": noise(40 * KIB, number) + shared for number in range(4)}
    for name, content in files.items():
        lab.put(name, content)
    lab.optimize()
    assert reconcile(lab).merged.chunks > 3
    return lab, files


def merged_chunk(lab: Lab, files: dict[str, bytes]) -> tuple[str, int]:
    for name in files:
        for chunk, _, _ in chunks_of(lab, name):
            if entry(lab, Kind.CHUNKS, chunk).state == tbl.State.MERGED:
                return name, chunk
    raise AssertionError("no chunk was merged")


def test_a_merged_record_is_read_by_its_entry(tmp_path: Path) -> None:
    lab, files = merged_lab(tmp_path / "volume")
    assert contents(lab) == files
    _, chunk = merged_chunk(lab, files)
    damage_record(lab, Kind.CHUNKS, chunk)
    assert contents(lab) == files
    done = reader("check", lab.root, "--records", "--json")
    assert done.returncode == 1
    assert [row["finding"] for row in rows_of(done) if "finding" in row]


def test_a_merged_record_is_read_by_its_forward(tmp_path: Path) -> None:
    lab, files = merged_lab(tmp_path / "volume")
    lab.collect(full=True)
    lab.compact()
    _, chunk = merged_chunk(lab, files)
    lab.table(Kind.CHUNKS, container_of(chunk)).unlink()
    assert contents(lab) == files


def test_a_quarantined_record_counts_by_its_bytes(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    lab.set_policy(PLAIN + "redundancy_threshold = 250\n")
    content = noise(300 * KIB, 1)
    lab.put("file", content)
    lab.optimize()
    ((chunk, start, end), *_) = chunks_of(lab, "file")
    damage_record(lab, Kind.CHUNKS, chunk)
    scrub(lab.root, Depth.FULL)
    assert entry(lab, Kind.CHUNKS, chunk).state == tbl.State.QUARANTINED
    done = reader("check", lab.root, "--json")
    assert done.returncode == 4
    (row, _) = rows_of(done)
    assert row["path"] == "file"
    ((one,)) = row["ranges"]
    assert (one["start"], one["end"]) == (start, end)
    damage_record(lab, Kind.CHUNKS, chunk)  # as it was
    assert reader("check", lab.root).returncode == 0


def test_damaged_records_are_read_by_their_second_copies(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    files = {"base.bin": noise(300 * KIB, 1), "copy.bin": noise(300 * KIB, 1)}
    for name, content in files.items():
        lab.put(name, content)
    lab.set_policy(PLAIN)
    lab.optimize()
    damage_with_second_sources(lab.root, header=False)
    assert contents(lab) == files
    assert reader("check", lab.root).returncode == 0
    assert reader("check", lab.root, "--records").returncode == 1


def test_recipes_of_several_levels_are_read_and_their_loss_has_a_range(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume", chunk_size="4k")
    content = noise(40 * MIB, 1)
    lab.put("large", content)
    lab.set_policy(PLAIN)
    lab.optimize()
    volume = Volume(str(lab.root))
    assert volume.content("large") == content
    with open(lab.data / "large", "rb") as file:
        stub = volume.stub(file.fileno())
    assert stub is not None
    level, entries = stub.store._entries(stub.recipe, stub.covered, None, stub.digest)
    assert level == 1 and len(entries) > 2
    damage_record(lab, Kind.RECIPES, entries[1][0])
    for path in (lab.base / "store/copies/recipes").iterdir():
        path.unlink()
    done = reader("check", lab.root, "--json")
    assert done.returncode == 4
    (lost,) = rows_of(done)[0]["ranges"]
    start = entries[0][1]
    assert (lost["start"], lost["end"]) == (start, start + entries[1][1])
    done = reader("extract", lab.root, "--to", tmp_path / "out", "--partial")
    assert done.returncode == 4 and os.listdir(tmp_path / "out") == ["large.damaged"]
    got = (tmp_path / "out/large.damaged").read_bytes()
    assert got[:start] == content[:start]
    assert got[start : start + entries[1][1]] == bytes(entries[1][1])
    assert got[start + entries[1][1] :] == content[start + entries[1][1] :]


def test_no_file_stays_open(tmp_path: Path) -> None:
    """Also after damage, and without the collector of garbage: a file system can be unmounted."""
    lab = new_lab(tmp_path / "volume")
    lab.put("file", noise(300 * KIB, 1))
    lab.optimize()
    before = descriptors_to_begin_with()
    gc.disable()
    try:
        assert len(contents(lab)) == 1
        assert descriptors() == before
        lab.forge_first_record()
        with suppress(Damaged):
            contents(lab)
        assert descriptors() == before
    finally:
        gc.enable()


def test_the_bytes_of_another_record_are_not_taken(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    lab.put("file", noise(300 * KIB, 1))
    lab.optimize()
    lab.forge_first_record()
    done = reader("extract", lab.root, "--to", tmp_path / "out")
    assert done.returncode == 4 and os.listdir(tmp_path / "out") == []


# --- fingerprints -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "length", [0, 1, 63, 64, 65, 1023, 1024, 1025, 2048, 2049, 3072, 5000, 64 * KIB, 100_001]
)
def test_blake3_without_its_library_is_blake3(length: int) -> None:
    data = random.Random(length).randbytes(length)
    assert plain_blake3(data) == blake3(data).digest()


def test_a_machine_without_blake3_reads_the_same(tmp_path: Path) -> None:
    lab = new_lab(tmp_path / "volume")
    content = noise(300 * KIB, 1)
    lab.put("file", content)
    lab.optimize()
    program = (
        "import runpy, sys; sys.modules['blake3'] = None;"
        f"sys.argv = ['reader.py', 'cat', {str(lab.root)!r}, 'file'];"
        f"runpy.run_path({str(READER)!r}, run_name='__main__')"
    )
    command = [sys.executable, "-I", "-c", program]
    done = subprocess.run(command, capture_output=True, check=True, cwd="/")
    assert done.stdout == content


# --- lost seeds -------------------------------------------------------------------------------


def lose_headers(lab: Lab) -> None:
    """Of all containers and tables."""
    for path in (lab.base / "store").rglob("*.d[ai][tr]"):
        with open(path, "r+b") as file:
            file.write(bytes(128 if path.suffix == ".dat" else 64))


def lose_secret(lab: Lab) -> None:
    for path in (lab.base / "store").rglob("secret.json"):
        path.unlink()


@pytest.mark.parametrize("lost", [(lose_headers,), (lose_secret,), (lose_headers, lose_secret)])
def test_what_is_trusted_less_is_said(
    tmp_path: Path, lost: tuple[Callable[[Lab], None], ...]
) -> None:
    lab = mixed_lab(tmp_path / "volume")
    before = contents(lab)
    for lose in lost:
        lose(lab)
    assert contents(lab) == before
    done = reader("check", lab.root, "--json")
    notes = [row["note"] for row in rows_of(done) if "note" in row]
    if len(lost) == 1:
        assert (done.returncode, notes) == (0, [])
    else:
        assert done.returncode == 1
        assert all("its seed is lost" in note for note in notes)
        assert len(notes) >= 2


def test_without_seeds_no_bytes_of_users_count_as_records(tmp_path: Path) -> None:
    """A file holds a forged record, and damage leads the scan to it."""
    lab = new_lab(tmp_path / "volume")
    lab.set_policy(PLAIN + "redundancy_threshold = 250\n")
    victim = noise(20 * KIB, 1)
    evil = noise(20 * KIB, 2)
    forged = bytearray(fmt.RECORD_HEADER_BYTES) + evil
    record = fmt.Record(
        kind=fmt.RecordKind.DATA,
        codec=fmt.Codec.RAW,
        raw_length=len(evil),
        stored_length=len(evil),
        fingerprint=blake3(victim).digest(),
        checksum=xxh3(evil),
    )
    fmt.pack_record_into(memoryview(forged), 0, record, 0)
    lab.store({"victim": victim, "forged": bytes(forged)})
    first, second = (
        entry(lab, Kind.CHUNKS, chunks_of(lab, name)[0][0]).offset for name in ("victim", "forged")
    )
    lose_headers(lab)
    lose_secret(lab)
    # A wrong length leads from the first header to the forged one.
    with open(lab.container(Kind.CHUNKS), "r+b") as file:
        file.seek(first + 16)
        file.write(struct.pack("<I", second - first))
    done = reader("extract", lab.root, "--to", tmp_path / "out", "--json")
    assert done.returncode == 4
    (row,) = (row for row in rows_of(done) if row.get("path") == "victim")
    assert "do not match its fingerprint" in row["ranges"][0]["problem"]
    assert not (tmp_path / "out/victim").exists()
