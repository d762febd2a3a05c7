"""Estimates from samples: near the truth, and honest about how near."""

from pathlib import Path

import pytest

from analysis.collection.chunk_log import Log
from analysis.collection.chunkings import DEFAULT
from analysis.database import EVERYTHING, Database
from analysis.figures import CONFIDENCE_95, SavingsRow
from dedupd_core.units import MIB
from tests.support.dataset import generate
from tests.support.resample import resample
from tests.support.study import collected, spec_of, study_of


def savings_of(log: Log) -> SavingsRow:
    """Figure 2 for the default chunking, without the rest of the study."""
    database = Database([log], log.path + "/../database", 0.05)
    try:
        database.choose(DEFAULT)
        database.run("savings")
        rows = database.rows("figure2_chunk_size", SavingsRow)
    finally:
        database.close()
    return next(row for row in rows if row.dataset == EVERYTHING)


def estimates(log: Log, out: Path, sample: float, seeds: int) -> list[SavingsRow]:
    return [
        savings_of(resample(log, str(out / str(seed) / "log"), sample, seed, (DEFAULT,)))
        for seed in range(seeds)
    ]


def covers(truth: float, estimate: float, deviation: float) -> bool:
    return abs(estimate - truth) <= CONFIDENCE_95 * deviation


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Log:
    base = tmp_path_factory.mktemp("full")
    generate(str(base / "tree"), 30 * MIB, seed=11)
    return collected(base / "out", spec_of({"x": base / "tree"}, (DEFAULT,)))


def test_a_sample_of_the_log_is_what_a_sampled_collection_logs(full: Log, tmp_path: Path) -> None:
    tree = Path(full.spec.datasets[0].path)
    sampled = collected(tmp_path, spec_of({"x": tree}, (DEFAULT,), sample=0.05, salt=3))
    again = resample(full, str(tmp_path / "again/log"), 0.05, 3)
    assert savings_of(sampled) == savings_of(again)


def test_a_sample_of_one_percent_knows_what_deduplication_saves(full: Log, tmp_path: Path) -> None:
    (row,) = estimates(full, tmp_path, 0.01, 1)
    assert row.unique_bytes == savings_of(full).unique_bytes
    assert row.unique_deviation == 0


def test_estimates_of_deduplication_lie_around_the_truth(full: Log, tmp_path: Path) -> None:
    """With a fifth of the chunks in the log."""
    truth = savings_of(full)
    found = estimates(full, tmp_path, 0.002, 5)
    for row in found:
        assert abs(row.saved - truth.saved) < 4 * row.unique_deviation / row.data_bytes
    mean = sum(row.saved for row in found) / len(found)
    spread = max(row.unique_deviation for row in found) / truth.data_bytes
    assert abs(mean - truth.saved) < 4 * spread / len(found) ** 0.5


def test_estimates_of_compression_lie_around_the_truth(full: Log, tmp_path: Path) -> None:
    truth = savings_of(full)
    found = estimates(full, tmp_path, 0.1, 5)
    covered = [covers(truth.stored_bytes, r.stored_bytes, r.stored_deviation) for r in found]
    assert sum(covered) >= 4
    assert all(row.saved_compressed_margin < 0.15 for row in found), "they say something"


def test_without_duplicates_the_estimate_is_exact(tmp_path: Path) -> None:
    """Every byte occurs once: whatever the sample, nothing is saved."""
    import random

    tree = tmp_path / "tree"
    tree.mkdir()
    for number in range(30):
        (tree / f"{number}").write_bytes(random.Random(number).randbytes(400_000))
    row = savings_of(collected(tmp_path / "out", spec_of({"x": tree}, (DEFAULT,), sample=0.003)))
    assert row.saved == pytest.approx(0, abs=1e-9)
    assert row.saved_margin == pytest.approx(0, abs=1e-9)


def test_copies_of_whole_files_are_known_without_sampling_error(tmp_path: Path) -> None:
    import random

    tree = tmp_path / "tree"
    tree.mkdir()
    for number in range(40):
        content = random.Random(number // 2).randbytes(300_000)
        (tree / f"{number}").write_bytes(content)
    row = savings_of(collected(tmp_path / "out", spec_of({"x": tree}, (DEFAULT,), sample=0.003)))
    assert row.saved == pytest.approx(0.5, abs=1e-9)


def test_a_sampled_study_states_its_confidence(full: Log, tmp_path: Path) -> None:
    from analysis.report.advice import advise

    study = study_of(resample(full, str(tmp_path / "log"), 0.2, 1))
    assert "95%" in advise(study).confidence
    assert advise(study).better == "For a better estimate: `--sample 100%`."
    few = study_of(resample(full, str(tmp_path / "few/log"), 0.002, 1))
    assert advise(few).confidence.startswith("Confidence: low")
    assert study.figure1_duplicate_share
    assert few.figure1_duplicate_share == []


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sample"), [("unique", 0.0005), ("stored", 0.01)])
def test_intervals_cover_the_truth_in_at_least_90_of_100_seeds(
    tmp_path: Path, name: str, sample: float
) -> None:
    generate(str(tmp_path / "tree"), 600 * MIB, seed=2)
    full = collected(tmp_path / "out", spec_of({"x": tmp_path / "tree"}, (DEFAULT,)))
    truth = getattr(savings_of(full), f"{name}_bytes")
    covered = sum(
        covers(truth, getattr(row, f"{name}_bytes"), getattr(row, f"{name}_deviation"))
        for row in estimates(full, tmp_path / "samples", sample, 100)
    )
    assert covered >= 90
