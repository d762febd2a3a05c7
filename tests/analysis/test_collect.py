"""Collecting chunk logs: every byte once, in bounded memory, and never in anybody's way."""

import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from analysis.collection import log_lanes, study_reader, tree_walk
from analysis.collection.chunk_log import HOLE_MARK, Log
from analysis.collection.chunkings import DEFAULT
from analysis.collection.collector import NoWatcher, collect
from analysis.collection.log_lanes import Selection
from analysis.database import query_text
from analysis.report.study_report import write_report
from dedupd_core.config.policy import Policy
from dedupd_core.errors import Damaged, UsageError
from dedupd_core.native.system import read_uncached
from dedupd_core.system import file_reader as system_reader
from dedupd_core.system import page_cache
from dedupd_core.units import MIB
from tests.conftest import MakeFileSystem
from tests.support.dataset import generate
from tests.support.lab import cached_pages
from tests.support.study import collected, spec_of, study_of
from tests.support.study_oracle import cut

Row = tuple[bytes, int, int, int, int, int]


def rows_of(log: Log, chunking: str = DEFAULT) -> list[Row]:
    """(path, offset, length, compressed, fingerprint) of all chunks, in the order of the file."""
    parts = log.parts("chunks", f"chunking={chunking}")
    return duckdb.execute(
        "SELECT path, offset_bytes, length_bytes, compressed_bytes, fp_high, fp_low"
        " FROM read_parquet(?, hive_partitioning = false) JOIN read_parquet(?) USING (file)"
        " ORDER BY path, offset_bytes",
        [parts, log.file_parts()],
    ).fetchall()


def whole_of(log: Log) -> list[tuple[bytes, int, int, int, int, int]]:
    return duckdb.execute(
        "SELECT path, length_bytes, zero_bytes, hole_bytes, w.fp_high, w.fp_low"
        " FROM read_parquet(?) AS w JOIN read_parquet(?) USING (file) ORDER BY path",
        [log.parts("whole"), log.file_parts()],
    ).fetchall()


def failures_of(log: Log) -> dict[bytes, str]:
    if not (parts := log.parts("failures")):
        return {}
    return dict(duckdb.execute("SELECT path, reason FROM read_parquet(?)", [parts]).fetchall())


class StopWhenFound(NoWatcher):
    """Stops the collection when all files are found, before any is logged."""

    class Stopped(Exception):
        pass

    def safe_point(self) -> None:
        for thread in threading.enumerate():
            if thread.name == "scan":
                thread.join()
        raise self.Stopped


class StopAt(NoWatcher):
    """Stops the collection at the given call of ``check``."""

    class Stopped(Exception):
        pass

    def __init__(self, number: int) -> None:
        self.left = number

    def safe_point(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise self.Stopped


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small files, files over several batches, and sparse ones."""
    root = tmp_path_factory.mktemp("tree") / "tree"
    generate(str(root), 4 * MIB, seed=5)
    rng = random.Random(1)
    large = rng.randbytes(17 * MIB)
    (root / "large.bin").write_bytes(large)
    (root / "shifted.bin").write_bytes(b"!" + large[: 9 * MIB])
    with open(root / "sparse.img", "wb") as file:
        for offset in (0, 5 * MIB + 12345, 60 * MIB, 70 * MIB - 100):
            file.seek(offset)
            file.write(rng.randbytes(300_000))
        file.truncate(100 * MIB + 7)
    (root / "only a hole").touch()
    os.truncate(root / "only a hole", 5 * MIB)
    return root


@pytest.fixture(scope="module")
def complete(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Log:
    return collected(tmp_path_factory.mktemp("out"), spec_of({"x": tree}, level=0))


@pytest.mark.parametrize(
    "chunking",
    [
        "64k",
        "64k-basic",
        "4k",
        "fixed-64k",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("32k", "16k", "8k", "4k-basic")),
    ],
)
def test_chunks_are_those_of_each_file_cut_alone(complete: Log, tree: Path, chunking: str) -> None:
    logged = defaultdict(list)
    for path, offset, length, _, high, low in rows_of(complete, chunking):
        if high or low > HOLE_MARK:
            logged[path].append((offset, length))
    for file in tree.rglob("*"):
        if file.is_file() and file.stat().st_size:
            expected = [
                (chunk.offset, chunk.length)
                for chunk in cut(file.read_bytes(), chunking)
                if chunk.content is not None
            ]
            assert logged[os.fsencode(file.relative_to(tree))] == expected, file


@pytest.mark.parametrize("chunking", ["64k", "4k", "fixed-64k"])
def test_rows_cover_each_file_without_gaps(complete: Log, tree: Path, chunking: str) -> None:
    reached: dict[bytes, int] = defaultdict(int)
    for path, offset, length, *_ in rows_of(complete, chunking):
        assert offset == reached[path]
        reached[path] += length
    for file in tree.rglob("*"):
        if file.is_file():
            assert reached[os.fsencode(file.relative_to(tree))] == file.stat().st_size


def test_holes_are_neither_read_nor_counted_as_data(complete: Log, tree: Path) -> None:
    sizes = {path: (length, hole) for path, length, _, hole, _, _ in whole_of(complete)}
    length, hole = sizes[b"sparse.img"]
    assert length + hole == 100 * MIB + 7
    assert 90 * MIB < hole < 99 * MIB
    assert sizes[b"only a hole"][1] > 4 * MIB


@pytest.mark.parametrize("step", [200_704, 901_120, MIB, 1_572_864, 6 * MIB])
def test_holes_of_any_length_are_no_data(tmp_path: Path, step: int) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    rng, islands = random.Random(step), 20
    with open(tree / "image", "wb") as file:
        for number in range(islands):
            file.seek(number * step)
            file.write(rng.randbytes(65_536))
        file.truncate(islands * step + 5)
    out = tmp_path / "out"
    log = collected(out, spec_of({"x": tree}, ("64k", "4k", "fixed-64k")))
    [(_, length, zeros, holes, *_)] = whole_of(log)
    assert (length, zeros, holes) == (islands * 65_536, 0, islands * (step - 65_536) + 5)
    study = study_of(log)
    assert all(abs(row.saved_compressed) < 0.02 for row in study.figure2_chunk_size)
    if step == MIB:  # drawing takes longer than all the rest, and has nothing to do with holes
        write_report(study, str(out))


def test_a_hole_and_written_zeros_are_the_same_content(tmp_path: Path) -> None:
    data = random.Random(2).randbytes(100_000)
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "written").write_bytes(data + bytes(3 * MIB) + data)
    with open(tree / "sparse", "wb") as file:
        file.write(data)
        file.seek(3 * MIB, os.SEEK_CUR)
        file.write(data)
    sparse, written = whole_of(collected(tmp_path / "out", spec_of({"x": tree}, level=0)))
    assert sparse[3] > 0
    assert written[3] == 0
    assert sparse[4:] == written[4:]


@settings(max_examples=3, phases=[Phase.explicit, Phase.generate])
@given(stops=st.lists(st.integers(0, 4), min_size=1, max_size=4))
def test_a_stopped_collection_goes_on_as_if_nothing_had_happened(
    tree: Path, complete: Log, tmp_path_factory: pytest.TempPathFactory, stops: list[int]
) -> None:
    out = tmp_path_factory.mktemp("stopped")
    log = Log.create(str(out / "log"), spec_of({"x": tree}, ("64k", "4k-basic"), level=0))
    with patch.object(study_reader, "BATCH_BYTES", 3 * MIB):
        for number in stops:
            with suppress(StopAt.Stopped):
                collect(Log.open(log.path), str(out), StopAt(number))
        log = Log.open(log.path)
        collect(log, str(out))
    assert rows_of(log) == rows_of(complete)
    assert rows_of(log, "4k-basic") == rows_of(complete, "4k-basic")
    assert whole_of(log) == whole_of(complete)
    shutil.rmtree(out)


def test_a_killed_collection_goes_on_from_its_last_checkpoint(
    tree: Path, complete: Log, tmp_path: Path
) -> None:
    log = Log.create(str(tmp_path / "log"), spec_of({"x": tree}, ("64k", "8k"), level=0))
    program = (
        "import os, sys\n"
        "from analysis.collection import collector\n"
        "from analysis.collection.chunk_log import Log\n"
        "class Kill(collector.NoWatcher):\n"
        "    steps = {0}\n"
        "    def update(self, *, done, **_):\n"
        "        self.steps.add(done)\n"
        "    def safe_point(self):\n"
        "        if len(self.steps) > 5: os.kill(os.getpid(), 9)\n"
        "collector.CHECKPOINT_S = 0\n"
        "collector.collect(Log.open(sys.argv[1]), sys.argv[2], Kill())\n"
    )
    killed = subprocess.run([sys.executable, "-c", program, log.path, tmp_path], check=False)
    assert killed.returncode == -9
    log = Log.open(log.path)
    assert log.checkpoint.position > 0, "it was killed within a file"
    # What an interrupted run leaves behind its checkpoint is of no account.
    stray = Path(log.path, "chunks/chunking=64k", f"part-{log.checkpoint.parts + 1:05d}.parquet")
    stray.write_bytes(b"half a file")
    collect(log, str(tmp_path))
    assert rows_of(log) == rows_of(complete)
    assert rows_of(log, "8k") == rows_of(complete, "8k")
    assert whole_of(log) == whole_of(complete)


def test_a_collection_goes_on_from_where_files_were_being_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In small directories, and in the middle of a large one."""
    trees = {label: tmp_path / label for label in ("linked", "large", "small")}
    for number in range(700):
        for place in (f"small/{number}/file", f"large/{'n' * 200}{number}", f"linked/{number}/a"):
            path = tmp_path / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(f"{place}".encode() * 20)
        os.link(path, path.with_name("b"))
    spec = spec_of(trees, ("64k", "64k-basic"), level=0)
    complete = collected(tmp_path / "complete", spec)
    log = Log.create(str(tmp_path / "log"), spec)
    found = set()
    add = tree_walk.Scan._add

    def add_some(self: tree_walk.Scan, table: Any, failures: Any, after: Any, **more: bool) -> None:
        """The rest is to be found when the reading is stopped, however long that takes."""
        add(self, table, failures, after, **more)
        while after.parts % 20 == 0 and not self._stop:
            time.sleep(0.01)

    with monkeypatch.context() as few_at_a_time:
        few_at_a_time.setattr(tree_walk.Scan, "_add", add_some)
        few_at_a_time.setattr(tree_walk, "FILES_PER_PART_MAX", 10)
        few_at_a_time.setattr(study_reader, "SEGMENTS_PER_BATCH_MAX", 20)
        for _ in range(3):
            with suppress(StopAt.Stopped):
                collect(log, str(tmp_path / "log"), StopAt(1))
            log = Log.open(log.path)
            found.add(log.checkpoint.scan.found)
    assert found - {0}, "files are read while others are being found"
    collect(log, str(tmp_path / "log"))
    assert study_of(log).table1_datasets == study_of(complete).table1_datasets
    for name in (b"file", b"nnn"):
        rows = [row for row in whole_of(log) if name in row[0]]
        assert rows == [row for row in whole_of(complete) if name in row[0]]
        assert len(rows) == 700
    assert study_of(log).figure2_chunk_size == study_of(complete).figure2_chunk_size


def test_files_found_far_ahead_of_the_reading_are_read_all_the_same(
    tree: Path, complete: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_walk, "AHEAD_BYTES_MAX", 0)
    monkeypatch.setattr(tree_walk, "FILES_PER_PART_MAX", 10)
    log = collected(tmp_path, spec_of({"x": tree}, ("64k",), level=0))
    assert len(log.file_parts()) > 3
    assert whole_of(log) == whole_of(complete)


def test_a_complete_collection_is_not_repeated(complete: Log) -> None:
    before = complete.checkpoint.parts
    collect(Log.open(complete.path), "/", StopAt(0))
    assert Log.open(complete.path).checkpoint.parts == before


@given(
    low=st.lists(st.integers(0, 2**64 - 1), min_size=1),
    sample=st.sampled_from([0.0001, 0.001, 0.01, 0.5, 1.0]),
    salt=st.integers(0, 1 << 20),
)
def test_a_chunk_in_a_small_sample_is_in_every_larger_one(
    low: list[int], sample: float, salt: int
) -> None:
    words = np.array(low, np.uint64)
    small, large = Selection(sample, salt), Selection(min(1, 2 * sample), salt)
    assert (large.logged(words) | ~small.logged(words)).all()
    assert (large.measured(words) | ~small.measured(words)).all()
    assert (small.logged(words) | ~small.measured(words)).all()
    assert Selection(1.0, salt).measured(words).all()


def test_a_sample_has_the_chosen_chunks_wherever_they_occur(
    tree: Path, complete: Log, tmp_path: Path
) -> None:
    log = collected(tmp_path, spec_of({"x": tree}, ("4k",), sample=0.001, salt=7, level=0))
    full = rows_of(complete, "4k")
    low = np.array([row[5] for row in full], np.uint64)
    chosen = Selection(0.001, 7).logged(low)
    blank = [row[4] == 0 and row[5] <= HOLE_MARK for row in full]
    expected = [row for row, yes, no in zip(full, chosen, blank, strict=True) if yes or no]
    assert rows_of(log, "4k") == expected
    assert 0.05 < chosen.mean() < 0.15


def test_files_that_vanish_or_change_are_reported_and_do_not_count(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in ("gone", "now a directory", "now a pipe", "shrunk", "fine", "also fine"):
        (tree / "sub").mkdir(parents=True, exist_ok=True)
        (tree / "sub" / name).write_bytes(random.Random(name).randbytes(200_000))
    out = tmp_path / "out"
    out.mkdir()
    log = Log.create(str(out / "log"), spec_of({"x": tree}, ("64k",)))
    with pytest.raises(StopWhenFound.Stopped):
        collect(log, str(out), StopWhenFound())
    assert log.checkpoint.scanned and not log.checkpoint.file
    for name in ("gone", "now a directory", "now a pipe"):
        (tree / "sub" / name).unlink()
    (tree / "sub/now a directory").mkdir()
    os.mkfifo(tree / "sub/now a pipe")
    os.truncate(tree / "sub/shrunk", 0)
    collect(log, str(out))
    reasons = failures_of(log)
    assert reasons.keys() == {
        b"sub/gone",
        b"sub/now a directory",
        b"sub/now a pipe",
        b"sub/shrunk",
    }
    study = study_of(log)
    [row] = study.table1_datasets
    assert (row.files, row.unread_files, row.data_bytes) == (2, 4, 400_000)
    savings = study.savings(DEFAULT)
    assert savings is not None
    assert savings.unique_bytes == 400_000
    assert sum(study.failures.by_reason.values()) == 4


def test_a_file_that_fails_half_way_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for number in range(3):
        content = random.Random(number).randbytes(9 * MIB)
        (tree / f"file{number}").write_bytes(content)
    read = read_uncached

    def failing(fd: int, view: memoryview, offset: int) -> int:
        """A disk that cannot read the end of one of the files."""
        if offset > 0 and os.readlink(f"/proc/self/fd/{fd}").endswith("file1"):
            raise OSError(5, "Input/output error")
        return read(fd, view, offset)

    monkeypatch.setattr(system_reader, "read_uncached", failing)
    chunkings = ("64k", "8k", "fixed-64k")
    log = collected(tmp_path / "out", spec_of({"x": tree}, chunkings, level=0))
    assert failures_of(log) == {b"file1": "cannot be read: Input/output error"}
    assert any(path == b"file1" for path, *_ in rows_of(log)), "some of its chunks are logged"
    study = study_of(log)
    for chunking in chunkings:
        row = study.savings(chunking)
        assert row is not None
        assert row.unique_bytes == row.data_bytes == 18 * MIB


@pytest.mark.root
def test_what_may_not_be_read_is_reported(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "closed").mkdir(parents=True)
    (tree / "closed/file").write_bytes(b"x" * 1000)
    (tree / "secret").write_bytes(b"x" * 1000)
    (tree / "open").write_bytes(b"x" * 1000)
    (tree / "secret").chmod(0)
    (tree / "closed").chmod(0)
    out = tmp_path / "out"
    out.mkdir()
    out.chmod(0o777)
    for parent in tmp_path.parents[:2]:
        parent.chmod(parent.stat().st_mode | 0o755)
    tmp_path.chmod(0o755)
    os.seteuid(65534)
    try:
        log = collected(out, spec_of({"x": tree}))
    finally:
        os.seteuid(0)
    assert failures_of(log) == {
        b"closed": "Permission denied",
        b"secret": "cannot be opened: Permission denied",
    }
    assert [path for path, *_ in whole_of(log)] == [b"open"]


def test_names_of_any_bytes_are_read(tmp_path: Path) -> None:
    tree = os.fsencode(tmp_path / "tree")
    names = [b"\xff\xfe.t\xe9xt", b"new\nline.$x$", b"'; DROP TABLE files --", b"<script>.html"]
    names += [b"\xf0\x9f\x92\xbe.doc", b" ", b"a" * 255, b"tab\t\\\x01.\x7f"]
    for number, name in enumerate(names):
        os.makedirs(os.path.join(tree, name))
        with open(os.path.join(tree, name, name), "wb") as file:
            file.write(b"%d" % number * 1000)
    tree_spec = spec_of({"it's <b>": tmp_path / "tree"}, ("64k",))
    log = collected(tmp_path / "o'ut", tree_spec)
    assert {path for path, *_ in whole_of(log)} == {name + b"/" + name for name in names}
    assert study_of(log).table1_datasets[0].files == len(names)


@pytest.mark.parametrize("content", [None, b"", b"x", bytes(100_000)])
def test_datasets_of_next_to_nothing_are_fine(tmp_path: Path, content: bytes | None) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    if content is not None:
        (tree / "file").write_bytes(content)
    study = study_of(collected(tmp_path / "out", spec_of({"x": tree}, ("64k", "64k-basic", "4k"))))
    [row] = study.table1_datasets
    assert row.data_bytes == len(content or b"")
    assert study.empty == (not content)
    write_report(study, str(tmp_path / "out"))


def test_a_single_file_is_a_dataset(tmp_path: Path) -> None:
    (tmp_path / "one.iso").write_bytes(random.Random(3).randbytes(MIB))
    log = collected(tmp_path / "out", spec_of({"x": tmp_path / "one.iso"}))
    assert [(row[0], row[1]) for row in whole_of(log)] == [(b"one.iso", MIB)]


def test_the_study_does_not_read_its_own_output(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 1000)
    log = collected(tmp_path / "out", spec_of({"x": tmp_path}))
    assert [path for path, *_ in whole_of(log)] == [b"file"]


@pytest.mark.root
def test_other_file_systems_are_not_entered(loop_fs: MakeFileSystem, tmp_path: Path) -> None:
    volume = loop_fs("ext4", "40M")
    (volume / "mine").write_bytes(b"x" * 1000)
    (volume / "other").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "other", volume / "other"], check=True)
    try:
        (volume / "other/theirs").write_bytes(b"x" * 1000)
        log = collected(tmp_path / "out", spec_of({"x": volume}))
    finally:
        subprocess.run(["umount", volume / "other"], check=True)
    assert [path for path, *_ in whole_of(log)] == [b"mine"]


@pytest.mark.root
def test_what_is_mounted_once_more_below_is_not_entered(tmp_path: Path) -> None:
    tree, other = tmp_path / "tree", tmp_path / "other"
    for directory in (tree / "own", tree / "again", tree / "elsewhere", other):
        directory.mkdir(parents=True)
    (tree / "own/a").write_bytes(b"a" * 100)
    (tree / "again/hidden").write_bytes(b"c" * 100)
    (other / "b").write_bytes(b"b" * 100)
    mounts = {tree / "again": tree / "own", tree / "elsewhere": other}
    with ExitStack() as stack:
        for point, source in mounts.items():
            subprocess.run(["mount", "--bind", source, point], check=True)
            stack.callback(partial(subprocess.run, ["umount", str(point)], check=True))
        log = collected(tmp_path / "out", spec_of({"x": tree}))
    assert [path for path, *_ in whole_of(log)] == [b"own/a"]


def test_a_directory_of_many_files_is_read_completely(tmp_path: Path) -> None:
    """More than the kernel lists in one go, in a directory between others."""
    tree = tmp_path / "tree"
    names = [b"%s/%s-%d" % (d, b"n" * 200, i) for d in (b"a", b"b", b"b/c") for i in range(700)]
    for name in names:
        path = tree / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name)
    log = collected(tmp_path / "out", spec_of({"x": tree}, level=0))
    assert [row[:2] for row in whole_of(log)] == sorted((name, len(name)) for name in names)


def test_links_are_not_followed_and_hard_links_count_once(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_bytes(b"x" * 1000)
    (tree / "symbolic").symlink_to("file")
    (tree / "loop").symlink_to(".")
    os.link(tree / "file", tree / "second name")
    log = collected(tmp_path / "out", spec_of({"x": tree}))
    assert len(whole_of(log)) == 1


def test_hard_links_count_once_where_there_are_more_than_memory_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees = {label: tmp_path / label for label in ("x", "y")}
    for label, tree in trees.items():
        for number in range(6):
            (tree / f"{number % 2}").mkdir(parents=True, exist_ok=True)
            first = tree / f"{number % 2}" / f"first{number}"
            first.write_bytes(random.Random(f"{label}{number // 2}").randbytes(200_000))
            os.link(first, tree / f"second{number}")
        (tree / "alone").write_bytes(b"alone" * 1000)
    spec = spec_of(trees, ("64k", "64k-basic"), level=0)
    exact = study_of(collected(tmp_path / "exact", spec))
    monkeypatch.setattr(tree_walk, "NAMES_MAX", 2)
    log = collected(tmp_path / "beyond", spec)
    assert len(whole_of(log)) > 2 * 7, "some are read under both names"
    study = study_of(log)
    assert [row.files for row in study.table1_datasets] == [7, 7]
    for table in ("table1_datasets", "table2_whole_file_and_chunks", "figure2_chunk_size"):
        assert getattr(study, table) == getattr(exact, table)


def test_trees_that_overlap_are_refused(tmp_path: Path) -> None:
    from analysis.collection.tree_walk import check_datasets

    (tmp_path / "a/b").mkdir(parents=True)
    for second in (tmp_path / "a/b", tmp_path / "a", tmp_path / "missing"):
        with pytest.raises(UsageError):
            check_datasets(spec_of({"x": tmp_path / "a", "y": second}).datasets)


def test_logs_of_several_servers_are_analysed_together(tree: Path, tmp_path: Path) -> None:
    trees = {"one": tree / "versions", "two": tree / "media"}
    logs = [
        collected(tmp_path / label, spec_of({label: path}, ("64k", "4k"), level=0))
        for label, path in trees.items()
    ]
    merged = study_of(*logs)
    together = study_of(collected(tmp_path / "both", spec_of(trees, ("64k", "4k"), level=0)))
    for table in ("table2_whole_file_and_chunks", "figure2_chunk_size", "table4_across"):
        assert sorted(map(str, getattr(merged, table))) == sorted(
            map(str, getattr(together, table))
        )
    other = collected(tmp_path / "other", spec_of({"x": tree / "media"}, ("64k",), level=0))
    with pytest.raises(UsageError, match="analyze these logs separately"):
        study_of(logs[0], other)


def test_datasets_of_the_same_name_are_told_apart(tree: Path, tmp_path: Path) -> None:
    logs = [
        collected(tmp_path / str(at), spec_of({"home": tree / "media"}, ("64k",), level=0))
        for at in range(2)
    ]
    study = study_of(*logs)
    assert [row.dataset for row in study.table1_datasets] == ["home", "home (2)"]
    assert study.table4_across[0].benefit == pytest.approx(0.5, abs=0.1)


def test_a_log_that_does_not_decode_is_said_to_be_damaged(tmp_path: Path) -> None:
    log = Log.create(str(tmp_path / "log"), spec_of({"x": tmp_path}))
    Path(log.path, "checkpoint.json").write_text('{"parts": []')
    with pytest.raises(Damaged):
        Log.open(log.path)


def test_the_table_of_files_says_what_stat_says(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    names = [b"plain", b"d\xff/e/empty", "é/lib.so.1.2".encode()]
    for number, name in enumerate(names):
        path = tree / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 1000 * number)
    log = collected(tmp_path / "out", spec_of({"x": tree}, ("64k",), level=0))
    rows = duckdb.execute("FROM read_parquet(?)", [log.file_parts()]).fetchall()
    assert sorted(row[1] for row in rows) == [0, 1, 2]
    assert {row[2] for row in rows} == set(names)
    for row in rows:
        status = os.stat(os.path.join(os.fsencode(tree), row[2]))
        times = (status.st_mtime_ns, status.st_ctime_ns)
        allocated = status.st_blocks * 512
        assert row[0] == 0
        assert row[3:] == (status.st_ino, status.st_size, *times, status.st_nlink, allocated)


def named(path: bytes) -> tuple[str, str]:
    """The directory and the type of a file, as the queries have them."""
    with duckdb.connect() as database:
        database.execute(query_text("names"))
        query = "SELECT directory(p), type(filename(p)) FROM (SELECT shown(?::BLOB) AS p)"
        [(directory, kind)] = database.execute(query, [path]).fetchall()
    return directory, kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (b"lib/libfoo.so.1.2.3", "so"),
        (b"libpython3.12.so.1.0", "so"),
        (b"foo.1.2", ""),
        (b"kubectl.1.31", ""),
        (b"ls.1", ""),
        (b"disk.7z.001", "7z"),
        (b"song.mp3", "mp3"),
        (b"PHOTO.JPG.2", "jpg"),
        (b"v1.2/README", ""),
        (b".so.6", ""),
        (b"1.2.3", ""),
        (b"foo.", ""),
        (b"libLLVM.so.22.1-rust-1.95.0-stable", "so"),
        (b"libssl.so.1.0.2k", "so"),
        (b"libstdc++.so.6.0.30-gdb.py", "py"),
        (b"backup.so.7z", "7z"),
        (b"vmlinuz-6.1.0-18-amd64", ""),
        (b"python3.11-config", ""),
        (b"dump-2026.01.31-full.sql", "sql"),
        (b"clip.3gp", "3gp"),
    ],
)
def test_version_numbers_are_no_type(name: bytes, kind: str) -> None:
    assert named(name)[1] == kind


@pytest.mark.parametrize(
    ("name", "directory", "kind"),
    [
        ("é/é/x.É".encode(), "é/é", "é"),
        (b"d\xff/e/Photo.JPEG", "d\\xFF/e", "jpeg"),
        (b"line\nfeed/a.b\nc", "line\nfeed", "b\nc"),
        (b"plain", "", ""),
    ],
)
def test_names_are_shown_as_text(name: bytes, directory: str, kind: str) -> None:
    assert named(name) == (directory, kind)


@given(name=st.text(alphabet="ab.Z/é", max_size=12).map(str.encode))
def test_types_are_those_of_the_policy(name: bytes) -> None:
    kind = named(name)[1]
    if kind:
        assert Policy(exclude_types=(kind,)).excludes(name)
    assert not Policy(exclude_types=("unheard-of",)).excludes(name)


def test_reading_leaves_the_page_cache_as_it_was(tmp_path: Path) -> None:
    if shutil.which("fincore") is None:
        pytest.skip("fincore is not installed")
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("cold", "warm"):
        with open(tree / name, "wb") as file:
            file.write(random.Random(name).randbytes(4 * MIB))
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    (tree / "warm").read_bytes()
    if cached_pages(tree / "cold"):
        pytest.skip("this file system keeps pages that are not wanted")
    warm = cached_pages(tree / "warm")
    collected(tmp_path / "out", spec_of({"x": tree}, ("64k",), level=0))
    assert cached_pages(tree / "cold") == 0
    if knows_dont_cache(tree / "cold"):
        assert cached_pages(tree / "warm") > 0.9 * warm


def knows_dont_cache(path: Path) -> bool:
    with open(path, "rb") as file:
        try:
            return os.preadv(file.fileno(), [bytearray(1)], 0, page_cache.DONT_CACHE) == 1
        except OSError:
            return False


@pytest.mark.slow
def test_memory_is_bounded_whatever_the_tree(tmp_path: Path) -> None:
    generate(str(tmp_path / "tree"), 800 * MIB, seed=6)
    for number in range(60_000):
        if number % 1000 == 0:
            (tmp_path / f"tree/{number // 1000}").mkdir()
        (tmp_path / f"tree/{number // 1000}/{number}").write_bytes(b"%d" % number * 500)
    log = Log.create(str(tmp_path / "log"), spec_of({"x": tmp_path / "tree"}))
    program = (
        "import resource, sys\n"
        "from analysis.collection.collector import collect\n"
        "from analysis.collection.chunk_log import Log\n"
        "collect(Log.open(sys.argv[1]), sys.argv[1])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)\n"
    )
    command = [sys.executable, "-c", program, log.path]
    done = subprocess.run(command, capture_output=True, check=True)
    assert int(done.stdout) < 512 * MIB


def test_a_failing_lane_stops_the_collection(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object, batch: object) -> None:
        raise MemoryError("no memory left")

    monkeypatch.setattr(log_lanes.Lane, "feed", broken)
    with pytest.raises(MemoryError):
        collected(tmp_path / "out", spec_of({"x": tree}, ("64k",)))
