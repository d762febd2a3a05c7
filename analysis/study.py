"""The study: the results of all queries of the paper's tables and figures over some logs."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from analysis.collection.chunk_log import Log, Timing, logged_share
from analysis.collection.chunkings import BASIC_SUFFIX, DEFAULT, SIZES
from analysis.database import EVERYTHING, Database, Row
from analysis.figures import (
    AcrossRow,
    AgeRow,
    ChunkSizeRow,
    CompressibilityRow,
    DatasetRow,
    DuplicateShareRow,
    DuplicationRow,
    FrequencyBasedRow,
    FrequencyRow,
    PartitionRow,
    ProfileSums,
    RegressionRow,
    SavingsRow,
    TypeRow,
    WholeFileRow,
)
from analysis.partitions import assign_groups, assign_partitions
from analysis.recommendation import (
    SMALL_SIZE_BYTES,
    Recommendation,
    SmallFiles,
    recommend,
    with_small_files,
)
from dedupd_core.config.policy import Policy, apply_values
from dedupd_core.config.profiles import PROFILES
from dedupd_core.format.container import ALIGN_BYTES, COMPRESSION_SAVING_MIN, RECORD_HEADER_BYTES
from dedupd_core.format.recipe import ENTRY_BYTES as RECIPE_ENTRY_BYTES
from dedupd_core.format.recipe import HEADER_BYTES as RECIPE_HEADER_BYTES
from dedupd_core.format.table import ENTRY_BYTES as TABLE_ENTRY_BYTES
from dedupd_core.format.volume_parameters import PRESETS

TYPES_MAX = 12
"""The number of file types in table 7."""

FREQUENT_MIN = 5
"""The smallest number of occurrences of a frequent segment (seed 002, 2.5.4: theta)."""

FINE = "4k"
"""Chunking of the segments of frequency-based chunking: a sixteenth of the default (seed 002)."""

FAILURES_SHOWN_MAX = 20


@dataclass(frozen=True, slots=True)
class Failures:
    """Files that could not be read: the number for each reason, and examples."""

    by_reason: dict[str, int]
    examples: list[tuple[str, str, str]]


@dataclass(frozen=True, slots=True)
class Collection:
    """How the logs were made."""

    chunkings: tuple[str, ...]
    default_chunking: str
    compressed: bool
    sample: float
    collected_s: float
    wall_s: float
    log_bytes: int
    timings: dict[str, Timing]
    paths: tuple[str, ...]
    """The directories of the datasets."""

    @property
    def logged(self) -> float:
        """The fraction of distinct chunks in the logs."""
        return logged_share(self.sample)


@dataclass(frozen=True, slots=True)
class Forecast:
    """The size of a store under a profile: now, and when all files are old enough."""

    now: ProfileSums
    later: ProfileSums


@dataclass(frozen=True, slots=True)
class RecommendedSettings:
    """The recommended settings for the data, and their result."""

    settings: Recommendation
    forecast: Forecast
    small: SmallFiles


@dataclass(frozen=True, slots=True)
class Study:
    """The content of the report. A list is empty if its query does not apply."""

    collection: Collection
    failures: Failures
    table1_datasets: list[DatasetRow]
    table2_whole_file_and_chunks: list[WholeFileRow] = field(default_factory=list)
    figure1_duplicate_share: list[DuplicateShareRow] = field(default_factory=list)
    figure2_chunk_size: list[SavingsRow] = field(default_factory=list)
    figure3_compressibility: list[CompressibilityRow] = field(default_factory=list)
    figure4_duplication: list[DuplicationRow] = field(default_factory=list)
    table3_partitions: list[PartitionRow] = field(default_factory=list)
    table4_across: list[AcrossRow] = field(default_factory=list)
    figure7_chunk_sizes: list[ChunkSizeRow] = field(default_factory=list)
    table7_regression: list[RegressionRow] = field(default_factory=list)
    frequency: list[FrequencyRow] = field(default_factory=list)
    frequency_based: list[FrequencyBasedRow] = field(default_factory=list)
    types: list[TypeRow] = field(default_factory=list)
    ages: list[AgeRow] = field(default_factory=list)
    profiles: dict[str, Forecast] = field(default_factory=dict)
    recommended: RecommendedSettings | None = None
    """None without data."""

    @property
    def empty(self) -> bool:
        return not any(row.data_bytes for row in self.table1_datasets)

    @property
    def partition_losses(self) -> tuple[float, float] | None:
        """The losses from partitions by type and by path, as fractions of the data; None if they
        were not requested."""
        rows = self.table3_partitions
        data = sum(row.data_bytes for row in rows)
        if not data:
            return None
        return (
            sum((row.overall - row.by_type) * row.data_bytes for row in rows) / data,
            sum((row.overall - row.by_path) * row.data_bytes for row in rows) / data,
        )

    def savings(self, chunking: str, dataset: str = EVERYTHING) -> SavingsRow | None:
        """Return the row of figure 2 for a chunking."""
        return next(
            (
                row
                for row in self.figure2_chunk_size
                if row.chunking == chunking and row.dataset == dataset
            ),
            None,
        )


def run_study(
    logs: Sequence[Log], directory: str, step: Callable[[str], None] = lambda query: None
) -> Study:
    """Run all queries over complete logs. ``directory`` has the database until the end.

    ``step`` gets the name of each query before it runs. Raises UsageError for logs that cannot be
    analysed together.
    """
    database = Database(logs, directory, COMPRESSION_SAVING_MIN)
    try:
        return _Queries(database, step).run()
    finally:
        database.close()


class _Queries:
    def __init__(self, database: Database, step: Callable[[str], None]) -> None:
        self._database = database
        self._step = step
        self._sums: dict[object, ProfileSums] = {}

    def run(self) -> Study:
        database = self._database
        default = database.default_chunking
        names = database.spec.chunkings
        collection = self._collection()
        failures = self._failures()
        self._step("datasets")
        datasets = database.rows("table1_datasets", DatasetRow)
        if not any(row.data_bytes for row in datasets):
            return Study(collection, failures, datasets)
        frequency = self._every_chunking(names)
        savings = database.rows("figure2_chunk_size", SavingsRow)
        database.choose(default)
        self._step("distinct chunks")
        database.run("distinct_chunks")
        both = default + BASIC_SUFFIX in names
        full = collection.logged >= 1
        study = Study(
            collection,
            failures,
            datasets,
            table2_whole_file_and_chunks=database.rows(
                "table2_whole_file_and_chunks", WholeFileRow
            ),
            figure1_duplicate_share=(
                database.rows("figure1_duplicate_share", DuplicateShareRow) if full else []
            ),
            figure2_chunk_size=savings,
            figure3_compressibility=(
                database.rows("figure3_compressibility", CompressibilityRow)
                if collection.compressed
                else []
            ),
            figure4_duplication=database.rows("figure4_duplication", DuplicationRow),
            table3_partitions=self._partitions(),
            table4_across=self._across(),
            figure7_chunk_sizes=self._chunk_sizes() if both else [],
            table7_regression=(
                self._of("table7_regression", RegressionRow, "regression") if both else []
            ),
            frequency=frequency,
            frequency_based=(
                self._frequency_based() if full and default == DEFAULT and FINE in names else []
            ),
            types=self._of("types", TypeRow),
            ages=self._of("ages", AgeRow),
            profiles=self._profiles(),
        )
        return replace(study, recommended=self._recommended(study))

    def _of(self, query: str, row: type[Row], step: str | None = None) -> list[Row]:
        self._step(step or query)
        return self._database.rows(query, row)

    def _every_chunking(self, names: Sequence[str]) -> list[FrequencyRow]:
        frequency: list[FrequencyRow] = []
        for name in names:
            self._step(f"savings of {name}")
            self._database.choose(name)
            self._database.run("savings")
            if name in SIZES:
                frequency += self._database.rows("frequency", FrequencyRow)
        return frequency

    def _partitions(self) -> list[PartitionRow]:
        self._step("partitions")
        assign_partitions(self._database)
        return self._database.rows("table3_partitions", PartitionRow)

    def _across(self) -> list[AcrossRow]:
        self._step("across datasets")
        assign_groups(self._database)
        return self._database.rows("table4_across", AcrossRow)

    def _chunk_sizes(self) -> list[ChunkSizeRow]:
        self._step("chunk sizes")
        largest = PRESETS[self._database.default_chunking].max_bytes
        self._database.set(step_bytes=largest // 32, types_max=TYPES_MAX)
        self._database.choose_both()
        return self._database.rows("figure7_chunk_sizes", ChunkSizeRow)

    def _frequency_based(self) -> list[FrequencyBasedRow]:
        self._step("frequency-based chunking")
        self._database.set(threshold=FREQUENT_MIN)
        self._database.choose_fine(FINE)
        return self._database.rows("frequency_based", FrequencyBasedRow)

    def _profiles(self) -> dict[str, Forecast]:
        self._database.set(
            header_bytes=RECORD_HEADER_BYTES,
            align_bytes=ALIGN_BYTES,
            entry_bytes=TABLE_ENTRY_BYTES,
            recipe_header_bytes=RECIPE_HEADER_BYTES,
            recipe_entry_bytes=RECIPE_ENTRY_BYTES,
        )
        profiles, default = {}, self._database.default_chunking
        for name, values in PROFILES.items():
            self._step(f"profile {name}")
            profiles[name] = self._forecast(apply_values(Policy(), values, name), default)
        return profiles

    def _recommended(self, study: Study) -> RecommendedSettings:
        """Compute the results of the settings that the rest of the study recommends."""
        self._step("recommended settings")
        found = recommend(study)
        policy = found.policy()
        later = self._profile(policy, found.chunking, policy.min_size_bytes, 0)
        files, data_bytes = self._below(policy.min_size_bytes)
        too = later
        if files:
            too = self._profile(policy, found.chunking, SMALL_SIZE_BYTES, 0)
        small = SmallFiles(files, data_bytes, too)
        found = with_small_files(found, study, small, later)
        return RecommendedSettings(found, self._forecast(found.policy(), found.chunking), small)

    def _below(self, size_bytes: int) -> tuple[int, int]:
        """Return the number and the bytes of smaller files, without empty files."""
        [(files, data_bytes)] = self._database.execute(
            "SELECT count(*), coalesce(sum(length_bytes), 0) FROM files"
            f" WHERE length_bytes > 0 AND length_bytes + hole_bytes < {size_bytes}"
        )
        return int(files), int(data_bytes)

    def _forecast(self, policy: Policy, chunking: str) -> Forecast:
        later = self._profile(policy, chunking, policy.min_size_bytes, 0)
        now = self._profile(policy, chunking, policy.min_size_bytes, policy.min_age_s)
        return Forecast(now, later)

    def _profile(
        self, policy: Policy, chunking: str, min_size_bytes: int, min_age_s: float
    ) -> ProfileSums:
        """Return the sums of a policy. Each combination is queried only once."""
        key = (policy.exclude_types, policy.min_file_saving, chunking, min_size_bytes, min_age_s)
        if key not in self._sums:
            self._database.choose(chunking)
            self._database.set(
                exclude_types=list(policy.exclude_types),
                min_file_saving=policy.min_file_saving,
                min_size_bytes=min_size_bytes,
                min_age_s=min_age_s,
            )
            [self._sums[key]] = self._database.rows("profile", ProfileSums)
        return self._sums[key]

    def _collection(self) -> Collection:
        database = self._database
        timings: dict[str, Timing] = {}
        for log in database.logs:
            for name, timing in log.checkpoint.timings.items():
                total = timings.setdefault(name, Timing())
                total.chunk_s += timing.chunk_s
                total.chunk_bytes += timing.chunk_bytes
                total.compress_s += timing.compress_s
                total.compress_bytes += timing.compress_bytes
        states = [log.checkpoint for log in database.logs]
        return Collection(
            database.spec.chunkings,
            database.default_chunking,
            database.spec.compression_level > 0,
            database.spec.sample,
            max(state.collected_s for state in states),
            sum(state.wall_s for state in states),
            sum(log.size_bytes() for log in database.logs),
            timings,
            tuple(dataset.path for log in database.logs for dataset in log.spec.datasets),
        )

    def _failures(self) -> Failures:
        counts = self._database.execute(
            "SELECT reason, count(*) AS files FROM failures GROUP BY reason"
            " ORDER BY files DESC, reason"
        )
        examples = self._database.execute(
            "SELECT label, path, reason FROM failures JOIN datasets USING (dataset)"
            f" ORDER BY dataset, path LIMIT {FAILURES_SHOWN_MAX}"
        )
        return Failures(
            {str(reason): int(count) for reason, count in counts},
            [
                (str(label), os.fsdecode(path).encode("utf-8", "backslashreplace").decode(), reason)
                for label, path, reason in examples
            ],
        )
