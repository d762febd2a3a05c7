"""The study's sums are those that plain Python finds in the same chunks, to the byte."""

import math
import os
import random
from collections import defaultdict
from pathlib import Path

import pytest

from analysis.collection.chunk_log import Log
from analysis.collection.chunkings import ALL
from analysis.database import EVERYTHING
from analysis.figures import WholeFileRow
from analysis.recommendation import SMALL_SIZE_BYTES
from analysis.report.advice import advise
from analysis.study import FREQUENT_MIN, Study
from dedupd_core.format.container import RECORD_HEADER_BYTES, record_size
from dedupd_core.format.recipe import ENTRY_BYTES as ROW_BYTES
from dedupd_core.format.recipe import HEADER_BYTES as NODE_BYTES
from dedupd_core.format.table import ENTRY_BYTES
from dedupd_core.format.volume_parameters import PRESETS
from dedupd_core.units import MIB
from tests.support.dataset import Answers, generate
from tests.support.study import collected, spec_of, study_of
from tests.support.study_oracle import Chunk, OneFile, Oracle


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two servers that share a part of their files."""
    base = tmp_path_factory.mktemp("trees")
    generate(str(base / "one"), 5 * MIB, seed=3)
    generate(str(base / "two"), 2 * MIB, seed=4)
    for name in ("IMG_0000.jpg", "a copy.JPG"):
        (base / "two" / name).write_bytes((base / "one/media/IMG_0000.jpg").read_bytes())
    (base / "one/zeros").write_bytes(bytes(300_000))
    (base / "one/empty.txt").write_bytes(b"")
    segment = (base / "one/media/IMG_0000.jpg").read_bytes()[:40_000]
    for number in range(6):
        around = random.Random(number).randbytes(30_000)
        (base / f"one/mail{number}.pst").write_bytes(around + segment + around)
    os.link(base / "one/media/IMG_0000.jpg", base / "one/media/second name.jpg")
    return {"berlin/one": base / "one", "berlin/two": base / "two"}


@pytest.fixture(scope="module")
def log(trees: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Log:
    return collected(tmp_path_factory.mktemp("out"), spec_of(trees))


@pytest.fixture(scope="module")
def study(log: Log) -> Study:
    return study_of(log)


@pytest.fixture(scope="module")
def oracle(trees: dict[str, Path]) -> Oracle:
    """Hard links once, as in the study."""
    everything = Oracle.of(trees)
    return Oracle([file for file in everything.files if file.path != "media/second name.jpg"])


def in_dataset(label: str) -> list[str]:
    return ["berlin/one", "berlin/two"] if label == EVERYTHING else [label]


def test_the_datasets_are_described(study: Study, oracle: Oracle) -> None:
    for row in study.table1_datasets:
        files = [file for file in oracle.files if file.dataset == row.dataset]
        assert row.files == len(files)
        assert row.data_bytes == sum(len(file.content) for file in files)
        assert row.largest_bytes == max(len(file.content) for file in files)
        assert row.types == len({file.type for file in files})
        assert row.unread_files == 0
        assert row.empty_files == (row.dataset == "berlin/one")


def test_table_2_compares_whole_files_blocks_and_chunks(study: Study, oracle: Oracle) -> None:
    assert {row.dataset for row in study.table2_whole_file_and_chunks} == {
        "berlin/one",
        "berlin/two",
        EVERYTHING,
    }
    for row in study.table2_whole_file_and_chunks:
        files = [file for file in oracle.files if file.dataset in in_dataset(row.dataset)]
        data = sum(len(file.content) for file in files)
        assert row.data_bytes == data
        assert row.whole_file == 1 - oracle.whole_file_bytes(files) / data
        for name, value in (("64k", row.chunk), ("fixed-64k", row.fixed_block)):
            unique = oracle.distinct(name, files)
            assert value == 1 - sum(chunk.length for chunk in unique.values()) / data


@pytest.mark.parametrize(
    ("whole_file", "chunk", "gap"),
    [(0.2, 0.4, 2.0), (0.0, 0.4, math.inf), (0.0004, 0.0004, None), (0.0, 0.0, None)],
)
def test_the_gap_is_infinite_only_where_chunks_save_something(
    whole_file: float, chunk: float, gap: float | None
) -> None:
    assert WholeFileRow("x", 1.0, whole_file, None, chunk, 0.0).gap == gap


def test_figure_1_says_how_much_of_a_file_is_duplicate(study: Study, oracle: Oracle) -> None:
    for label in ("berlin/one", "berlin/two"):
        assert {
            row.share_percent: (row.files, row.data_bytes, row.duplicate_bytes)
            for row in study.figure1_duplicate_share
            if row.dataset == label
        } == oracle.duplicate_share("64k", label)


@pytest.mark.parametrize("chunking", ALL)
def test_figure_2_has_every_chunking(study: Study, oracle: Oracle, chunking: str) -> None:
    for label in ("berlin/one", "berlin/two", EVERYTHING):
        row = study.savings(chunking, label)
        assert row is not None
        files = [file for file in oracle.files if file.dataset in in_dataset(label)]
        unique = oracle.distinct(chunking, files)
        assert row.distinct_chunks == len(unique)
        assert row.unique_bytes == sum(chunk.length for chunk in unique.values())
        assert row.stored_bytes == sum(chunk.stored for chunk in unique.values())
        assert row.chunks == sum(
            chunk.content is not None
            for at, chunks in oracle.chunks(chunking).items()
            if oracle.files[at].dataset in in_dataset(label)
            for chunk in chunks
        )


def test_figure_3_bins_distinct_chunks_by_their_compression(study: Study, oracle: Oracle) -> None:
    expected: dict[int, tuple[int, int, int]] = {}
    for chunk in oracle.distinct("64k").values():
        step = math.ceil(100 * chunk.compressed / chunk.length)
        count, size, saved = expected.get(step, (0, 0, 0))
        expected[step] = count + 1, size + chunk.length, saved + chunk.length - chunk.compressed
    assert {
        row.ratio_percent: (row.chunks, row.data_bytes, row.saved_bytes)
        for row in study.figure3_compressibility
    } == expected


def test_figure_4_bins_distinct_chunks_by_their_copies(study: Study, oracle: Oracle) -> None:
    expected: dict[int, tuple[int, int, int]] = {}
    unique = oracle.distinct("64k")
    for content, copies in oracle.copies("64k").items():
        step, length = 1 << (copies.bit_length() - 1), unique[content].length
        count, once, all_copies = expected.get(step, (0, 0, 0))
        expected[step] = count + 1, once + length, all_copies + copies * length
    assert {
        row.copies_min: (row.chunks, row.distinct_bytes, row.occurring_bytes)
        for row in study.figure4_duplication
    } == expected


def test_table_3_looks_within_types_and_within_subtrees(study: Study, oracle: Oracle) -> None:
    for row in study.table3_partitions:
        files = [file for file in oracle.files if file.dataset == row.dataset]
        data = sum(len(file.content) for file in files)
        by_type: dict[str, int] = defaultdict(int)
        for file in files:
            by_type[file.type] += len(file.content)
        large = {name for name, size in by_type.items() if size >= 0.01 * data}
        parts = {file.path: subtree(file, files) for file in files}
        assert row.type_partitions == len(large) + (len(large) < len(by_type))
        assert row.path_partitions == len(set(parts.values()))
        types = {file.path: file.type if file.type in large else None for file in files}
        for value, partition in ((row.overall, {}), (row.by_type, types), (row.by_path, parts)):
            left = oracle.partitioned_bytes("64k", partition, row.dataset)
            assert value == 1 - left / data


def subtree(file: OneFile, files: list[OneFile]) -> str:
    """The first directory on a file's path whose subtree has at most a tenth of the data."""
    data = sum(len(other.content) for other in files)
    parts = file.path.split("/")[:-1]
    for depth in range(1, len(parts) + 1):
        prefix = parts[:depth]
        inside = sum(
            len(other.content) for other in files if other.path.split("/")[:-1][:depth] == prefix
        )
        if inside <= 0.1 * data:
            return "/".join(prefix)
    return "/".join(parts)


def test_table_4_adds_what_datasets_share(study: Study, oracle: Oracle) -> None:
    assert {row.name for row in study.table4_across} == {EVERYTHING, "all in berlin"}
    for row in study.table4_across:
        alone = sum(
            sum(chunk.length for chunk in oracle.distinct("64k", oracle.in_dataset(label)).values())
            for label in ("berlin/one", "berlin/two")
        )
        together = sum(chunk.length for chunk in oracle.distinct("64k").values())
        assert row.saved_alone_bytes == oracle.data_bytes - alone
        assert row.saved_together_bytes == oracle.data_bytes - together
        assert row.benefit == (alone - together) / oracle.data_bytes
        assert row.benefit > 0


def test_figure_7_counts_chunks_by_size_without_the_last_of_a_file(
    study: Study, oracle: Oracle
) -> None:
    expected: dict[tuple[str, int], int] = defaultdict(int)
    for name in ("64k", "64k-basic"):
        for chunks in oracle.chunks(name).values():
            for chunk in chunks[:-1]:
                if chunk.content is not None:
                    expected[name, chunk.length // 4096 * 4096] += 1
    assert {
        (row.chunking, row.size_bytes): row.chunks for row in study.figure7_chunk_sizes
    } == expected
    smallest = min(row.size_bytes for row in study.figure7_chunk_sizes)
    assert smallest >= PRESETS["64k"].min_bytes


def test_table_7_compares_regression_with_basic_chunking_by_type(
    study: Study, oracle: Oracle
) -> None:
    assert {row.type for row in study.table7_regression} >= {"c", "so", "doc", "img", "jpg"}
    for row in study.table7_regression:
        data = sum(len(file.content) for file in oracle.files if file.type == row.type)
        assert row.data_bytes == data
        for name, value in (("64k", row.regression), ("64k-basic", row.basic)):
            unique = oracle.distinct(name, oracle.of_type(row.type))
            assert value == 1 - sum(chunk.length for chunk in unique.values()) / data


def test_each_type_says_what_it_gives(study: Study, oracle: Oracle) -> None:
    assert {row.type for row in study.types} == {file.type for file in oracle.files}
    for row in study.types:
        unique = oracle.distinct("64k", oracle.of_type(row.type)).values()
        assert row.unique_bytes == sum(chunk.length for chunk in unique)
        assert row.stored_bytes == sum(chunk.stored for chunk in unique)


@pytest.mark.parametrize("chunking", list(PRESETS))
def test_chunks_are_counted_by_frequency(study: Study, oracle: Oracle, chunking: str) -> None:
    expected: dict[int, int] = defaultdict(int)
    for copies in oracle.copies(chunking).values():
        expected[1 << (copies.bit_length() - 1)] += 1
    assert {
        row.copies_min: row.chunks for row in study.frequency if row.chunking == chunking
    } == expected


def test_frequency_based_chunking_cuts_frequent_segments_out(study: Study, oracle: Oracle) -> None:
    rows = {row.method: row for row in study.frequency_based}
    coarse, fine = oracle.distinct("64k"), oracle.distinct("4k")
    coarse_copies, fine_copies = oracle.copies("64k"), oracle.copies("4k")
    first: dict[bytes, tuple[int, Chunk]] = {}
    for at, chunks in oracle.chunks("64k").items():
        for chunk in chunks:
            if chunk.content is not None:
                first.setdefault(chunk.content, (at, chunk))
    cuts: list[bytes] = []
    for content, (at, whole) in first.items():
        if coarse_copies[content] < FREQUENT_MIN:
            cuts += [
                part.content
                for part in oracle.chunks("4k")[at]
                if part.content is not None
                and fine_copies[part.content] >= FREQUENT_MIN
                and whole.offset <= part.offset
                and part.offset + part.length <= whole.offset + whole.length
            ]
    again = [content for content in cuts if cuts.count(content) > 1]
    assert again, "the data has such segments"
    unique = sum(chunk.length for chunk in coarse.values())
    assert rows["default"].unique_bytes == unique
    assert rows["fine"].unique_bytes == sum(chunk.length for chunk in fine.values())
    assert rows["frequency-based"].unique_bytes == (
        unique
        - sum(fine[content].length for content in again)
        + sum(fine[content].length for content in set(again))
    )


def test_ages_are_counted_from_the_collection(study: Study, oracle: Oracle) -> None:
    now = study.collection.collected_s
    assert {row.days_max: row.data_bytes for row in study.ages} == {
        days: size
        for days in (1, 3, 7, 30, 90, 365)
        if (size := sum(len(f.content) for f in oracle.files if now - f.changed_s < 86400 * days))
    }


def saves_enough(oracle: Oracle, at: int, asked: list[int]) -> bool:
    """Whether a file becomes a stub, where all of its owners pay for a chunk."""
    chunks = oracle.chunks("64k")
    own = {chunk.content: chunk for chunk in chunks[at] if chunk.content is not None}
    cost = 0.0
    for content, chunk in own.items():
        owners = sum(any(c.content == content for c in chunks[other]) for other in asked)
        cost += (record_size(chunk.stored) + ENTRY_BYTES) / owners
    if len(own) != 1:
        cost += 2 * (RECORD_HEADER_BYTES + ENTRY_BYTES + NODE_BYTES + len(own) * ROW_BYTES)
    freed = -(-len(oracle.files[at].content) // 4096) * 4096
    return freed > cost and freed - cost >= 0.05 * freed


def test_a_profile_counts_records_of_the_files_it_takes(study: Study, oracle: Oracle) -> None:
    later = study.profiles["general"].later
    asked = [at for at, file in enumerate(oracle.files) if len(file.content) >= 4 << 10]
    taken = [oracle.files[at] for at in asked if saves_enough(oracle, at, asked)]
    assert 0 < len(taken) < len(asked)
    unique = oracle.distinct("64k", taken).values()
    assert later.files == len(taken)
    assert later.data_bytes == sum(len(file.content) for file in taken)
    assert later.payload_bytes == sum(chunk.stored for chunk in unique)
    assert later.record_bytes == sum(record_size(chunk.stored) for chunk in unique)
    assert later.table_bytes == len(unique) * ENTRY_BYTES
    assert study.profiles["general"].now.files == 0, "the files are younger than three days"


def test_the_advice_leaves_out_what_gains_nothing(tmp_path: Path) -> None:
    generate(str(tmp_path / "tree"), 6 * MIB)
    for number in range(40):
        (tmp_path / f"tree/{number}.mp4").write_bytes(os.urandom(40_000))
    advice = advise(
        study_of(collected(tmp_path / "out", spec_of({"x": tmp_path / "tree"}, ("64k",))))
    )
    settings = {setting.name: setting.value for setting in advice.settings}
    assert "mp4" in settings["exclude_types"].split(", ")
    assert not {"doc", "img", "c"} & set(settings["exclude_types"].split(", "))
    assert advice.worth_it
    assert advice.confidence.startswith("Confidence: high")


def test_the_outcome_is_that_of_the_recommended_settings(tmp_path: Path) -> None:
    """One story: the big number is what the settings of the advice give."""
    generate(str(tmp_path / "tree"), 3 * MIB)
    small = 4000 * [b"of a few hundred bytes, all of them different: %d"]
    (tmp_path / "tree/small").mkdir()
    for number, text in enumerate(small):
        (tmp_path / f"tree/small/{number}").write_bytes(text % number * 30)
    for number in range(40):
        (tmp_path / f"tree/{number}.mp4").write_bytes(os.urandom(40_000))
    spec = spec_of({"x": tmp_path / "tree"}, ("64k", "32k"))
    study = study_of(collected(tmp_path / "out", spec))
    assert study.recommended is not None
    chosen, later = study.recommended.settings, study.recommended.forecast.later
    assert "mp4" in chosen.policy().exclude_types
    assert chosen.min_size_bytes == SMALL_SIZE_BYTES, "the small ones are most of the data"
    assert later.files == study.profiles["general"].later.files + len(small)
    total = sum(row.data_bytes for row in study.table1_datasets)
    advice = advise(study)
    assert advice.outcome.disk_bytes == pytest.approx(total - later.data_bytes + later.store_bytes)
    assert advice.outcome.saved_later == pytest.approx(1 - advice.outcome.disk_bytes / total)
    assert study.recommended.small.files == len(small)
    settings = {setting.name: setting for setting in advice.settings}
    assert "4,000 files" in settings["min_size"].reason
    assert settings["min_age"].value == "3d" and chosen.now, "all of it is new: it was copied"
    ((enable, exclude, run),) = advice.commands
    place = tmp_path / "tree"
    assert enable.startswith(f"dedupd enable {place} --profile general")
    assert f"--min-size {chosen.min_size_bytes >> 10}k" in enable
    assert exclude.startswith(f"dedupd policy {place} exclude_types '") and "mp4" in exclude
    assert run == f"dedupd run optimize {place} --min-age 0s"


def test_where_nothing_is_gained_no_command_is_shown(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    for number in range(40):
        (tmp_path / f"tree/{number}.mp4").write_bytes(os.urandom(40_000))
    advice = advise(
        study_of(collected(tmp_path / "out", spec_of({"x": tmp_path / "tree"}, ("64k",))))
    )
    assert not advice.worth_it and advice.commands == []
    assert advice.outcome.saved_later == pytest.approx(0.0, abs=0.01)


def test_generated_data_has_the_answers_it_says(tmp_path: Path) -> None:
    answers = generate(str(tmp_path / "tree"), 8 * MIB, seed=9)
    study = study_of(collected(tmp_path / "out", spec_of({"x": tmp_path / "tree"}, ("64k", "4k"))))
    [row] = study.table1_datasets
    assert (row.files, row.data_bytes) == (answers.files, answers.data_bytes)
    whole = study.table2_whole_file_and_chunks[0].whole_file
    assert whole == 1 - answers.whole_file_bytes / answers.data_bytes
    for name in ("64k", "4k"):
        savings = study.savings(name)
        assert savings is not None
        lost = answers.seams * 2 * PRESETS[name].max_bytes
        assert answers.unique_bytes <= savings.unique_bytes <= answers.unique_bytes + lost
    assert generate(str(tmp_path / "again"), 8 * MIB, seed=9) == answers


def test_another_seed_gives_other_data(tmp_path: Path) -> None:
    answers: list[Answers] = [
        generate(str(tmp_path / str(seed)), MIB // 2, seed=seed) for seed in (1, 2)
    ]
    assert answers[0] != answers[1]
