"""Sparse files: a hole is not read, so it is no work, and counts as read nowhere."""

import os
from pathlib import Path
from typing import Any

from dedupd_core.units import GIB, KIB, MIB
from jobs.frame.run import JobRun
from jobs.optimize.optimize_job import Optimize
from jobs.tree.candidates import SkippedFiles, candidates
from jobs.unoptimize import Unoptimize
from jobs.usage.backlog import FileCount
from jobs.usage.volume_figures import volume_figures
from tests.support.lab import OLD_NS, Lab, lab_in, noise
from tests.support.upkeep import scrub

DATA = noise(300 * KIB)


def put_sparse(lab: Lab, name: str, *, holes_bytes: int = 64 * GIB, pieces: int = 1) -> Path:
    """A file of long ago that has ``DATA`` before and behind its holes."""
    path = lab.put(name, DATA)
    each = holes_bytes // pieces
    with open(path, "r+b") as file:
        for number in range(pieces):
            file.seek((number + 1) * (len(DATA) + each))
            file.write(DATA)
    os.utime(path, ns=(OLD_NS, OLD_NS))
    return path


def test_a_run_counts_what_it_has_read(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        put_sparse(lab, "sparse")
        lab.put("copy", DATA)
        report = lab.optimize()
        assert report.files_optimized == 2
        assert report.sums.raw_bytes == 3 * len(DATA)
        assert report.sums.zero_bytes >= 63 * GIB


def test_short_holes_do_not_count_either(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        put_sparse(lab, "sparse", holes_bytes=8 * MIB, pieces=16)
        assert lab.optimize().sums.raw_bytes == 17 * len(DATA)


def test_the_classes_of_files_remember_what_was_read(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        path = put_sparse(lab, "sparse")
        blocks = path.stat().st_blocks * 512
        lab.optimize()
        with lab.opened() as volume:
            (row,) = volume_figures(volume).classes
        assert row.read_bytes == blocks


def test_what_waits_is_what_will_be_read(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        blocks = put_sparse(lab, "sparse").stat().st_blocks * 512
        for policy in ("", '[[rule]]\npath = "other/"\nmin_age = "1d"\n'):
            lab.set_policy(f'min_age = "0s"\nmin_size = "1"\n{policy}')
            with lab.opened() as volume:
                figures = volume_figures(volume)
            assert figures.backlog.count("waiting") == FileCount(1, blocks)


def test_files_that_are_passed_over_count_without_their_holes(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        blocks = put_sparse(lab, "sparse").stat().st_blocks * 512
        lab.set_policy('min_age = "10000d"\nmin_size = "1"\n')
        skipped = SkippedFiles()
        with lab.opened() as volume:
            assert not list(candidates(volume, volume.policy(), b"", skipped, []))
        assert list(skipped.size_bytes.values()) == [blocks]


def test_progress_ends_where_it_should(tmp_path: Path) -> None:
    """Neither job is done with everything as soon as it is done with the holes."""
    with lab_in(tmp_path) as lab:
        put_sparse(lab, "sparse")
        seen = list[tuple[int, int]]()

        class Watched(JobRun):
            def update(self, **changes: Any) -> None:
                super().update(**changes)
                seen.append((self.progress.done, self.progress.total))

        with lab.opened() as volume, volume.job_lock():
            Optimize(volume, Watched("optimize")).run()
        with lab.opened() as volume, volume.tree_lock():
            Unoptimize(volume, Watched("unoptimize")).run()
        last_done = max(done for done, _ in seen)
        assert 2 * len(DATA) <= last_done < 3 * len(DATA)
        assert all(total < 3 * len(DATA) for _, total in seen)


def test_a_file_of_holes_alone_is_optimized(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        path = lab.put("holes", b"")
        os.truncate(path, GIB)
        os.utime(path, ns=(OLD_NS, OLD_NS))
        report = lab.optimize()
        assert (report.files_optimized, report.sums.raw_bytes) == (1, 0)


def test_scrub_has_not_read_what_was_punched(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.store({"gone": noise(4 * MIB, 1), "stays": noise(MIB, 2)})
        whole = scrub(lab.root).read_bytes
        (lab.data / "gone").unlink()
        lab.collect()
        assert scrub(lab.root).read_bytes < whole - 3 * MIB
