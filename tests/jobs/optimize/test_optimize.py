"""Optimize, end to end: what users see is the same, and what is stored is less."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedupd_core import failpoint, native
from dedupd_core.system.file_reader import BATCH_BYTES
from dedupd_core.units import KIB, MIB
from jobs.frame.run import Cancelled, JobRun
from jobs.optimize.optimize_job import Optimize
from tests.conftest import MakeFileSystem
from tests.support.lab import OLD_NS, Lab, fill, free_bytes, lab_in, new_lab, noise, prose, stop_at
from tests.support.stores import LazyDisk


def stored_bytes(lab: Lab) -> int:
    return sum(path.stat().st_size for path in (lab.base / "store").rglob("*.dat"))


def test_every_file_reads_back_and_the_times_are_as_they_were(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        contents = fill(lab)
        report = lab.optimize()
        assert report.files_optimized == len(contents)
        assert report.logical_bytes == sum(map(len, contents.values()))
        for name, content in contents.items():
            status = (lab.data / name).stat()
            assert lab.read(name) == content
            assert (status.st_size, status.st_mtime_ns) == (len(content), OLD_NS)
            assert status.st_blocks == 0
            with lab.opened() as volume:
                assert len(os.getxattr(lab.data / name, volume.space.name)) <= 64


def test_what_is_there_twice_is_stored_once(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        content = noise(1 * MIB)
        for at in range(5):
            lab.put(f"copy {at}", content)
        report = lab.optimize()
        assert stored_bytes(lab) < 1.01 * MIB
        assert report.sums.duplicate_bytes == 4 * MIB
        lab.put("later", content)
        assert lab.optimize().sums.new_chunks == 0


def test_an_edit_in_the_middle_costs_a_few_chunks(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        content = noise(4 * MIB)
        lab.put("a", content)
        lab.put("b", content[: 2 * MIB] + b"one line more" + content[2 * MIB :])
        lab.optimize()
        assert stored_bytes(lab) < 4 * MIB + 5 * 128 * KIB


def test_zeros_cost_nothing(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.put("zeros", bytes(3 * MIB))
        assert lab.optimize().sums.zero_bytes == 3 * MIB
        assert stored_bytes(lab) < KIB
        assert lab.read("zeros") == bytes(3 * MIB)


def test_chunks_that_are_not_worth_compressing_are_counted(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy('min_age = "0s"\nmin_size = "1"\nno_compress_types = ["raw"]\n')
        for number in range(3):
            lab.put(f"{number}.noise", noise(20_000, number))
            lab.put(f"{number}.prose", prose(20_000, number))
            lab.put(f"{number}.raw", noise(20_000, 100 + number))
        sums = lab.optimize().sums
        assert (sums.new_chunks, sums.incompressible_chunks) == (9, 3)


def test_compression_is_selective(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy('min_age = "0s"\nmin_size = 1\nno_compress_types = ["raw"]\n')
        lab.put("text", prose(500 * KIB))
        lab.optimize()
        compressed = stored_bytes(lab)
        assert compressed < 250 * KIB
        lab.put("noise", noise(500 * KIB))
        lab.optimize()
        assert 500 * KIB < stored_bytes(lab) - compressed < 505 * KIB
        before = stored_bytes(lab)
        lab.put("text.RAW", prose(500 * KIB, 1))
        lab.optimize()
        assert stored_bytes(lab) - before > 500 * KIB


def test_level_zero_compresses_nothing(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.set_policy('min_age = "0s"\nmin_size = 1\ncompression_level = 0\n')
        lab.put("text", prose(500 * KIB))
        lab.optimize()
        assert stored_bytes(lab) > 500 * KIB


@pytest.fixture(scope="module")
def shared_lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return new_lab(tmp_path_factory.mktemp("lab") / "volume", "4k", LazyDisk())


pieces = st.lists(
    st.tuples(st.sampled_from("abz"), st.integers(0, 5), st.integers(1, 40_000)), max_size=12
)


@settings(max_examples=25)
@given(st.lists(pieces, min_size=1, max_size=6))
def test_any_content_comes_back(shared_lab: Lab, files: list[list[tuple[str, int, int]]]) -> None:
    make: dict[str, Callable[[int, int], bytes]] = {
        "a": noise,
        "b": prose,
        "z": lambda length, _: bytes(length),
    }
    contents = {
        str(at): b"".join(make[kind](length, seed) for kind, seed, length in parts)
        for at, parts in enumerate(files)
    }
    for name, content in contents.items():
        shared_lab.put(name, content)
    shared_lab.optimize()
    assert {name: shared_lab.read(name) for name in contents} == contents
    shared_lab.unoptimize()
    for name, content in contents.items():
        assert (shared_lab.data / name).read_bytes() == content
        (shared_lab.data / name).unlink()
    shared_lab.verify_clean()


def test_a_file_larger_than_a_buffer_is_cut_as_if_it_were_read_at_once(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        content = noise(2 * BATCH_BYTES + 12_345)
        lab.put("file", content)
        lab.optimize()
        with lab.opened() as volume:
            ends = (
                memoryview(native.testing.cut(volume.parameters.chunker(), content))
                .cast("I")
                .tolist()
            )
        report = lab.verify_clean()
        assert report.records - report.copies == len(ends) + 1
        assert lab.read("file") == content


def test_a_run_that_has_nothing_to_do_writes_nothing(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        fill(lab)
        lab.optimize()
        before = stored_bytes(lab)
        report = lab.optimize()
        assert (report.files_optimized, stored_bytes(lab)) == (0, before)
        assert report.files_skipped == {"already optimized": 6}


def test_a_run_over_a_quiet_volume_does_not_open_the_store(tmp_path: Path) -> None:
    """So that it costs a look at the tree and nothing else, however large the store is."""
    with lab_in(tmp_path) as lab:
        contents = fill(lab)
        lab.optimize()
        (lab.base / "store").rename(lab.base / "away")
        quiet = lab.optimize()
        (lab.base / "away").rename(lab.base / "store")
        assert quiet.files_skipped == {"already optimized": len(contents)}
        assert quiet.bytes_skipped == {"already optimized": sum(map(len, contents.values()))}


def test_a_part_of_the_tree_can_be_optimized_and_restored(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.put("a/file", noise(50 * KIB))
        lab.put("b/file", noise(50 * KIB, 1))
        with lab.opened() as volume, volume.job_lock():
            Optimize(volume, JobRun("optimize"), b"a").run()
        assert lab.stub("a/file") is not None and lab.stub("b/file") is None
        lab.optimize()
        lab.unoptimize(b"b")
        assert lab.stub("a/file") is not None and lab.stub("b/file") is None


def test_a_cancelled_run_keeps_what_it_has_and_goes_on_later(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        contents = {f"{at}": noise(3 * MIB, at) for at in range(8)}
        for name, content in contents.items():
            lab.put(name, content)
        run = JobRun("optimize")
        with lab.opened() as volume, volume.job_lock():
            job = Optimize(volume, run)
            checks = 0

            def check() -> None:
                nonlocal checks
                checks += run.progress.phase == "optimizing"
                if checks > 2:
                    run.cancel()
                JobRun.safe_point(run)

            run.safe_point = check  # type: ignore[method-assign]
            with pytest.raises(Cancelled):
                job.run()
        assert {name: lab.read(name) for name in contents} == contents
        lab.verify_clean()
        lab.optimize()
        assert all(lab.stub(name) for name in contents)
        assert {name: lab.read(name) for name in contents} == contents


# --- files that are in use, or change ---------------------------------------------------------


@pytest.mark.root
def test_a_file_open_for_writing_is_left_for_later(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        path = lab.put("log", noise(60 * KIB))
        with open(path, "ab"):
            report = lab.optimize()
            assert report.files_optimized == 0
            assert report.files_left == {"in use": 1}
        assert lab.optimize().files_optimized == 1


@pytest.mark.parametrize("moment", ["writer.appended", "writer.marked", "stub.attribute-set"])
def test_a_file_that_changes_after_it_was_read_is_left_plain(tmp_path: Path, moment: str) -> None:
    """At each moment between the reading and the commit."""
    with lab_in(tmp_path) as lab:
        path = lab.put("file", noise(60 * KIB))
        changed = False

        def change(point: str) -> None:
            nonlocal changed
            if point == moment and not changed:
                changed = True
                fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK) if moment[0] == "w" else -1
                if fd >= 0:
                    os.pwrite(fd, b"changed", 100)
                    os.close(fd)
                else:
                    os.utime(path, ns=(1, 1))

        failpoint.hook = change
        try:
            report = lab.optimize()
        finally:
            failpoint.hook = None
        assert changed
        assert report.files_optimized == 0
        assert report.files_left == {"changed": 1}
        assert lab.stub("file") is None
        expected = bytearray(noise(60 * KIB))
        if moment[0] == "w":
            expected[100:107] = b"changed"
        assert path.read_bytes() == expected


def test_a_file_that_is_gone_when_its_turn_comes_is_no_error(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        lab.put("goes", noise(60 * KIB))
        lab.put("stays", noise(60 * KIB, 1))

        def remove(point: str) -> None:
            if point == "writer.marked":
                (lab.data / "goes").unlink(missing_ok=True)

        failpoint.hook = remove
        try:
            report = lab.optimize()
        finally:
            failpoint.hook = None
        assert (report.files_optimized, report.files_left, report.errors) == (1, {"gone": 1}, 0)


def test_a_new_recipe_names_no_chunk_that_the_old_one_did_not_mean(
    tmp_path: Path,
) -> None:
    """The record under an id became another, as after a part of a store came from a backup."""
    lab = new_lab(tmp_path / "volume")
    content = noise(600 * KIB)
    lab.put("file", content)
    lab.optimize()
    lab.forge_first_record()
    with open(lab.let_write("file"), "r+b") as file:
        file.seek(500 * KIB)
        file.write(noise(4 * KIB, 5))
    before = lab.stub("file")
    report = lab.optimize()
    assert report.files_optimized == 0
    assert report.errors == 1 and "differs from the chunk in the recipe" in report.messages[0]
    assert lab.stub("file") == before


# --- no space ---------------------------------------------------------------------------------


@pytest.mark.root
def test_a_full_disk_leaves_everything_as_it_was_and_says_so(loop_fs: MakeFileSystem) -> None:
    lab = new_lab(loop_fs(size="64M") / "volume")
    contents = {f"{at}": noise(3 * MIB, at) for at in range(10)}
    for name, content in contents.items():
        lab.put(name, content)
    lab.put("excluded", noise(free_bytes(lab) - 2 * MIB, 99))
    lab.set_policy('min_age = "0s"\nmin_size = 1\nexclude = ["excluded"]\n')
    assert lab.optimize().files_left == {"no room for": 10}
    assert {name: lab.read(name) for name in contents} == contents
    lab.verify_clean()
    (lab.data / "excluded").unlink()
    lab.optimize()
    assert all(lab.stub(name) for name in contents)
    assert {name: lab.read(name) for name in contents} == contents
    lab.verify_clean()


def test_stopped_in_mid_sync_the_next_run_uses_what_was_stored(tmp_path: Path) -> None:
    with lab_in(tmp_path) as lab:
        contents = fill(lab)
        with stop_at("writer.marked", 2):
            lab.optimize()
        report = lab.optimize()
        assert report.sums.new_chunks == 0
        assert {name: lab.read(name) for name in contents} == contents
