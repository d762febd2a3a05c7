"""The results of the study's queries: one class per query, one field per column."""

import math
from dataclasses import dataclass

CONFIDENCE_95 = 2.2
"""In 95 % of samples, the true value is within this many standard deviations of the estimate.

A normal distribution has 1.96, but on real files this was enough in only 93 % of samples: few
chunks with many copies make estimates of the deviation itself uncertain.
"""

_SEEN = 0.0005
"""The smallest savings that are not printed as 0.0 %."""


@dataclass(frozen=True, slots=True)
class DatasetRow:
    """Table 1. ``data_bytes``: the size of the files that were read, without holes."""

    dataset: str
    files: int
    unread_files: int
    empty_files: int
    data_bytes: int
    zero_bytes: int
    hole_bytes: int
    median_bytes: int
    largest_bytes: int
    types: int


@dataclass(frozen=True, slots=True)
class WholeFileRow:
    """Table 2: savings as fractions of the data. ``fixed_block`` is None if not collected."""

    dataset: str
    data_bytes: float
    whole_file: float
    fixed_block: float | None
    chunk: float
    chunk_deviation: float

    @property
    def gap(self) -> float | None:
        """The ratio of the savings of chunks to those of whole files. It is infinite if whole files
        save 0.0 % in the table, and None if chunks save 0.0 %, too."""
        if self.whole_file > _SEEN:
            return self.chunk / self.whole_file
        return math.inf if self.chunk > _SEEN else None


@dataclass(frozen=True, slots=True)
class DuplicateShareRow:
    """Figure 1: files with ``share_percent`` % of their chunks in other files."""

    dataset: str
    share_percent: int
    files: int
    data_bytes: int
    duplicate_bytes: int


class _Savings:
    """Values computed from the bytes of a data set, and from those of its distinct chunks."""

    __slots__ = ()
    data_bytes: float
    unique_bytes: float
    stored_bytes: float

    @property
    def saved(self) -> float:
        """The fraction of the data that deduplication saves."""
        return 1 - self.unique_bytes / self.data_bytes

    @property
    def saved_compressed(self) -> float:
        """The fraction of the data that deduplication and compression save together."""
        return 1 - self.stored_bytes / self.data_bytes


@dataclass(frozen=True, slots=True)
class SavingsRow(_Savings):
    """Figure 2. ``unique_bytes``: size of the distinct chunks, ``stored_bytes``: compressed.

    ``sampled_chunks``: chunks with a measured compressed size.
    """

    chunking: str
    dataset: str
    data_bytes: float
    chunks: float
    distinct_chunks: float
    unique_bytes: float
    unique_deviation: float
    stored_bytes: float
    stored_deviation: float
    sampled_chunks: int

    @property
    def saved_margin(self) -> float:
        """Half of the width of the 95 % interval of ``saved``."""
        return CONFIDENCE_95 * self.unique_deviation / self.data_bytes

    @property
    def saved_compressed_margin(self) -> float:
        """Half of the width of the 95 % interval of ``saved_compressed``."""
        return CONFIDENCE_95 * self.stored_deviation / self.data_bytes

    @property
    def average_bytes(self) -> float:
        """The mean size of the chunks, in all their occurrences."""
        return self.data_bytes / self.chunks if self.chunks else 0.0


@dataclass(frozen=True, slots=True)
class CompressibilityRow:
    """Figure 3: distinct chunks whose compressed size is ``ratio_percent`` % of their size."""

    ratio_percent: int
    chunks: int
    data_bytes: int
    saved_bytes: int


@dataclass(frozen=True, slots=True)
class DuplicationRow:
    """Figure 4: distinct chunks with ``copies_min`` to twice as many copies, less one."""

    copies_min: int
    chunks: int
    distinct_bytes: int
    occurring_bytes: int


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """Table 3: savings as fractions of the data."""

    dataset: str
    data_bytes: float
    overall: float
    by_type: float
    by_path: float
    type_partitions: int
    path_partitions: int


@dataclass(frozen=True, slots=True)
class AcrossRow:
    """Table 4. ``benefit`` is a fraction of the data."""

    name: str
    datasets: int
    data_bytes: float
    saved_alone_bytes: float
    saved_together_bytes: float
    benefit: float
    benefit_deviation: float


@dataclass(frozen=True, slots=True)
class ChunkSizeRow:
    """Figure 7: chunks of at least ``size_bytes``, and less than the next step."""

    chunking: str
    size_bytes: int
    chunks: float
    data_bytes: float


@dataclass(frozen=True, slots=True)
class RegressionRow:
    """Table 7: savings of a file type as fractions of its data."""

    type: str
    data_bytes: float
    basic: float
    regression: float

    @property
    def benefit(self) -> float | None:
        """The relative increase of the savings by regression; None without savings."""
        return self.regression / self.basic - 1 if self.basic > 0.0005 else None


@dataclass(frozen=True, slots=True)
class TypeRow(_Savings):
    """The savings of one file type, without other types."""

    type: str
    files: int
    data_bytes: float
    unique_bytes: float
    stored_bytes: float
    sampled_chunks: int

    @property
    def compression_saving(self) -> float:
        """The fraction of the distinct chunks that compression saves."""
        return 1 - self.stored_bytes / self.unique_bytes if self.unique_bytes > 0 else 0.0


@dataclass(frozen=True, slots=True)
class AgeRow:
    """Files changed in the last ``days_max`` days before the collection."""

    days_max: int
    files: int
    data_bytes: int


@dataclass(frozen=True, slots=True)
class FrequencyRow:
    """Distinct chunks of a chunking with ``copies_min`` to twice as many copies, less one."""

    chunking: str
    copies_min: int
    chunks: float
    distinct_bytes: float
    occurring_bytes: float


@dataclass(frozen=True, slots=True)
class FrequencyBasedRow:
    """Frequency-based chunking compared with the default and the fine chunking."""

    place: int
    method: str
    data_bytes: int
    chunks: int
    distinct_chunks: int
    unique_bytes: int


@dataclass(frozen=True, slots=True)
class ProfileSums:
    """The size of a store under a profile's policy, in bytes."""

    files: int
    data_bytes: float
    distinct_chunks: float
    unique_bytes: float
    payload_bytes: float
    record_bytes: float
    record_deviation: float
    table_bytes: float
    recipe_bytes: float

    @property
    def store_bytes(self) -> float:
        """The size of chunk store and recipes together."""
        return self.record_bytes + self.table_bytes + self.recipe_bytes

    @property
    def saved_bytes(self) -> float:
        """The size of the files minus their size in the store."""
        return self.data_bytes - self.store_bytes if self.files else 0.0
