"""Where only the reserve is left free, no job takes any of it, whatever it writes."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dedupd_core.errors import NoSpace
from dedupd_core.format.container import Kind
from dedupd_core.format.derived.sketch import SKETCH_BYTES
from dedupd_core.store.merge_log import NAME as MERGE_LOG
from dedupd_core.store.sketches import save_sketches
from dedupd_core.system.disk import Disk
from dedupd_core.units import KIB
from jobs.reconcile.reconcile_job import Strategy
from tests.crash.small_parts import saved_indexes
from tests.support.lab import Lab, new_lab, noise, prose
from tests.support.streams import sent
from tests.support.upkeep import PLAIN, reconcile, scrub

ALL = '\nreserve = "1000000 GiB"\n'
MERGED = PLAIN + "partitions = 2\n"

Data = Sequence[memoryview | bytes | bytearray]


class CountingDisk(Disk):
    """Counts the bytes that are written to each file below ``.dedupd``, the users' tree apart."""

    def __init__(self) -> None:
        self.written: Counter[str] = Counter()

    def write_at(self, fd: int, data: Data, offset: int) -> int:
        path = os.readlink(f"/proc/self/fd/{fd}")
        name = path.partition("/.dedupd/")[2].removesuffix(".new")
        if not name.startswith("data/"):
            self.written[name] += sum(map(len, data))
        return super().write_at(fd, data, offset)


def filled(tmp_path: Path, policy: str = PLAIN) -> tuple[Lab, CountingDisk]:
    """A volume with stubs and with files to be taken, and a disk that has counted nothing yet."""
    disk = CountingDisk()
    lab = new_lab(tmp_path / "volume")
    lab.disk = disk
    lab.set_policy(policy)
    for number in range(4):
        lab.put(f"own.t{number}", prose(200 * KIB, number))
        lab.put(f"film.t{number}", noise(300 * KIB, number // 2))
        lab.put(f"shared.t{number}", prose(300 * KIB, 99))
    lab.optimize()
    disk.written.clear()
    return lab, disk


def nothing_is_written(lab: Lab, job: Callable[[], object]) -> None:
    """A job under a reserve of more than there is: it may end for lack of space."""
    disk = lab.disk
    assert isinstance(disk, CountingDisk)
    try:
        job()
    except NoSpace as error:
        assert "`reserve`" in str(error)
    written = {name: count for name, count in disk.written.items() if count}
    assert written == {}


@pytest.mark.parametrize("index", ["table", "bloom"])
def test_optimize_writes_no_container_no_index_and_no_notes(tmp_path: Path, index: str) -> None:
    with saved_indexes():
        lab, disk = filled(tmp_path, PLAIN + f'index = "{index}"\n')
        for path in (lab.base / "store").glob("*/saved*"):
            path.unlink()
        lab.set_policy(PLAIN + f'index = "{index}"\n' + ALL)
        lab.put("new", prose(400 * KIB, 5))
        lab.put("unique", noise(400 * KIB, 6))
        lab.put("known", prose(300 * KIB, 99))
        nothing_is_written(lab, lab.optimize)
        assert not list((lab.base / "store/chunks").glob("saved.table"))
        assert lab.stub("new") is None
        lab.set_policy(PLAIN + f'index = "{index}"\n')
        lab.optimize()
        assert disk.written
        assert (lab.base / f"store/chunks/saved.{index}").stat().st_size > 0
    lab.verify_clean()


def test_reconcile_writes_no_merge_log(tmp_path: Path) -> None:
    lab, _ = filled(tmp_path, MERGED)
    lab.set_policy(MERGED + ALL)
    nothing_is_written(lab, lambda: reconcile(lab, Strategy.ALL))
    assert not (lab.base / "store/merge" / os.fsdecode(MERGE_LOG)).exists()
    lab.set_policy(MERGED)
    assert reconcile(lab, Strategy.ALL).merged.chunks
    lab.verify_clean()


@pytest.mark.parametrize("job", ["optimize", "scrub", "reconcile"])
def test_no_lost_table_is_written_anew(tmp_path: Path, job: str) -> None:
    lab, _ = filled(tmp_path)
    lab.table(Kind.CHUNKS).unlink()
    lab.set_policy(PLAIN + ALL)
    jobs: dict[str, Callable[[], object]] = {
        "optimize": lab.optimize,
        "scrub": lambda: scrub(lab.root, disk=lab.disk),
        "reconcile": lambda: reconcile(lab, Strategy.ALL),
    }
    nothing_is_written(lab, jobs[job])
    assert not lab.table(Kind.CHUNKS).exists()


def test_a_job_that_gives_space_back_makes_the_tables_that_it_needs(tmp_path: Path) -> None:
    lab, disk = filled(tmp_path)
    for number in range(4):
        (lab.data / f"film.t{number}").unlink()
    lab.table(Kind.CHUNKS).unlink()
    lab.set_policy(PLAIN + ALL)
    before = lab.container(Kind.CHUNKS).stat().st_blocks
    assert lab.collect().orphaned_chunks
    assert lab.table(Kind.CHUNKS).exists()
    assert lab.container(Kind.CHUNKS).stat().st_blocks < before - 100 * KIB // 512
    assert {Path(name).suffix for name, count in disk.written.items() if count} <= {".dir", ".dat"}
    assert not (lab.base / "saved.marks").exists(), "the next gc reads the recipes again instead"
    lab.verify_clean()


def test_refine_keeps_no_sketches(tmp_path: Path) -> None:
    lab, _ = filled(tmp_path)
    lab.set_policy(PLAIN + ALL)

    def keep() -> None:
        with lab.opened() as volume, volume.containers(Kind.CHUNKS) as directory:
            save_sketches(directory, 1, bytes(20_000 * SKETCH_BYTES))

    nothing_is_written(lab, keep)


@pytest.mark.root
def test_neither_side_of_a_transfer_keeps_what_it_sends_or_receives(tmp_path: Path) -> None:
    lab, _ = filled(tmp_path)
    replica = new_lab(tmp_path / "replica")
    lab.set_policy(PLAIN + ALL)
    nothing_is_written(lab, lambda: sent(lab, replica))
    lab.set_policy(PLAIN)
    replica.set_policy(PLAIN + ALL)
    with pytest.raises(NoSpace, match="`reserve`"):
        sent(lab, replica)
    kept = {path.name: path.stat().st_size for path in (replica.base / "receive").iterdir()}
    del kept["stream.json"]
    assert set(kept.values()) == {0}
    assert not list((replica.base / "store").rglob("*.dat"))
