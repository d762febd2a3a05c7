"""Checkpoints: an interrupted run goes on inside a large file, and never on what is lost."""

import os
from pathlib import Path

import pytest

from dedupd_core.format import recipe
from dedupd_core.format.container import COPIES_OF, Kind
from dedupd_core.units import KIB, MIB
from dedupd_core.volume import unfinished_files
from jobs.frame.run import Cancelled, JobRun
from jobs.optimize import batch_reader, rounds
from jobs.optimize.optimize_job import Optimize
from tests.support.lab import OLD_NS, Lab, flip_bit, new_lab, noise

SIZE = 6 * MIB


@pytest.fixture(autouse=True)
def small_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files, buffers, groups and nodes a thousandth of their size: the same ways, in a second."""
    monkeypatch.setattr(unfinished_files, "FILE_BYTES_MIN", MIB)
    monkeypatch.setattr(batch_reader, "SMALL_BYTES_MAX", 64 * KIB)
    monkeypatch.setattr(batch_reader, "BATCH_BYTES", 256 * KIB)
    monkeypatch.setattr(rounds, "GROUP_READ_BYTES", MIB)
    monkeypatch.setattr(recipe, "FANOUT_MAX", 8)


@pytest.fixture
def interrupted(tmp_path: Path) -> Lab:
    """A volume on which a run was stopped some way inside a large file."""
    lab = new_lab(tmp_path / "volume", "4k")
    lab.put("large", noise(SIZE))
    run = JobRun("optimize")

    def check() -> None:
        if run.progress.done >= 4 * MIB:
            run.cancel()
        JobRun.safe_point(run)

    run.safe_point = check  # type: ignore[method-assign]
    with lab.opened() as volume, volume.job_lock(), pytest.raises(Cancelled):
        Optimize(volume, run).run()
    assert lab.stub("large") is None
    return lab


def bytes_read(lab: Lab) -> int:
    """How much of the file the next run reads, which makes it a stub that is whole."""
    content = (lab.data / "large").read_bytes()
    report = lab.optimize()
    assert report.files_optimized == 1
    assert lab.read("large") == content
    lab.verify_clean()
    read = report.sums.raw_bytes
    assert isinstance(read, int)
    return read


def test_a_run_goes_on_where_the_one_before_was(interrupted: Lab) -> None:
    assert bytes_read(interrupted) < SIZE - 2 * MIB


def test_a_file_that_changed_is_read_from_its_start(interrupted: Lab) -> None:
    with open(interrupted.data / "large", "r+b") as file:
        file.write(b"changed")
    os.utime(interrupted.data / "large", ns=(OLD_NS, OLD_NS))
    assert bytes_read(interrupted) == SIZE


def test_without_the_catalogue_the_file_is_read_from_its_start(interrupted: Lab) -> None:
    (interrupted.base / "catalog/data.mdb").unlink()
    assert bytes_read(interrupted) == SIZE


@pytest.mark.parametrize("kind", list(COPIES_OF))
def test_what_is_lost_meanwhile_is_read_and_stored_again(interrupted: Lab, kind: Kind) -> None:
    """The file is still plain, and whole: it must not come to depend on chunks that are gone."""
    interrupted.lose(kind)
    interrupted.table(kind).unlink()
    content = (interrupted.data / "large").read_bytes()
    interrupted.optimize()
    assert interrupted.read("large") == content


def test_a_chunk_found_damaged_meanwhile_is_stored_again(interrupted: Lab) -> None:
    flip_bit(interrupted.container(Kind.CHUNKS), 300)
    interrupted.table(Kind.CHUNKS).unlink()
    content = (interrupted.data / "large").read_bytes()
    interrupted.optimize()
    assert interrupted.read("large") == content


def test_a_finished_run_leaves_no_checkpoint(interrupted: Lab) -> None:
    interrupted.optimize()
    with interrupted.opened() as volume:
        checkpoints = unfinished_files.Checkpoints(volume)
        checkpoints.load()
        assert not checkpoints._found
