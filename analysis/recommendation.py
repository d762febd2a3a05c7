"""The recommended settings for the data of a study: decisions, each with its reason.

The forecast of a study uses these settings, and the report shows both, so that they agree.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from analysis.collection.chunkings import DEFAULT, SIZES
from analysis.figures import AgeRow, DatasetRow, ProfileSums, SavingsRow, TypeRow
from dedupd_core.config.policy import Policy, apply_values
from dedupd_core.config.profiles import PROFILES
from dedupd_core.format.container import COMPRESSION_SAVING_MIN, RECORD_HEADER_BYTES
from dedupd_core.format.recipe import ENTRY_BYTES as RECIPE_ENTRY_BYTES
from dedupd_core.format.table import ENTRY_BYTES as TABLE_ENTRY_BYTES
from dedupd_core.units import KIB, exact_duration, exact_size, format_size

OTHER_SIZE_GAIN_MIN = 0.02
"""With a smaller gain, another size than the default is not worthwhile: smaller chunks cost reads,
memory and metadata, and larger ones slow down short reads."""

TYPE_GAIN_MIN = 0.02
"""A file type that saves less is not worth reading."""

TYPE_SHARE_MIN = 0.005
"""The smallest share of the data for which a type gets a line in the policy."""

RECENT_SHARE_MAX = 0.10
"""With a larger share changed between one and three days ago, a lower min_age is recommended."""

COPIED_SHARE_MIN = 0.5
"""With a larger share changed in the last three days, that data was copied there, not edited."""

SMALL_SIZE_BYTES = 1 * KIB
"""The other candidate for ``min_size``: each small file costs some 80 µs per run."""

SMALL_GAIN_MIN = 0.02
"""The savings of files below the profile's ``min_size`` that make them worthwhile."""

SAMPLED_CHUNKS_MIN = 30
"""Fewer sampled chunks are no basis for an estimate of a type or of all data."""

IMAGE_TYPES = frozenset(
    ("img", "raw", "qcow2", "vmdk", "vhd", "vhdx", "vdi", "avhdx", "ova", "iso", "qed", "hdd")
)
BACKUP_TYPES = frozenset(("bak", "tar", "dump", "vbk", "vib", "bkf", "dmp", "pst", "sql"))


class CollectionFigures(Protocol):
    """The parts of a study's collection that this module uses."""

    @property
    def default_chunking(self) -> str: ...
    @property
    def compressed(self) -> bool: ...


class StudyFigures(Protocol):
    """The parts of a study that this module uses."""

    @property
    def collection(self) -> CollectionFigures: ...
    @property
    def table1_datasets(self) -> list[DatasetRow]: ...
    @property
    def types(self) -> list[TypeRow]: ...
    @property
    def ages(self) -> list[AgeRow]: ...
    def savings(self, chunking: str) -> SavingsRow | None: ...


@dataclass(frozen=True, slots=True)
class SmallFiles:
    """Files below the ``min_size`` of the profile, and the size of a store that includes them."""

    files: int
    data_bytes: int
    taken_too: ProfileSums


@dataclass(frozen=True, slots=True)
class Setting:
    """A recommended setting, and the reason."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A profile, a chunk size, and values of the policy; types are in addition to the profile's.

    ``now``: the first run should include files of any age. ``settings``: the same in words.
    """

    profile: str
    chunking: str
    exclude_types: tuple[str, ...]
    no_compress_types: tuple[str, ...]
    min_age: str
    now: bool
    min_size_bytes: int
    settings: tuple[Setting, ...]

    def policy(self) -> Policy:
        """Return the policy of a volume with these settings."""
        own = _policy_of(self.profile)
        added = {
            "exclude_types": [*own.exclude_types, *self.exclude_types],
            "no_compress_types": [*own.no_compress_types, *self.no_compress_types],
            "min_age": self.min_age,
            "min_size": self.min_size_bytes,
        }
        return apply_values(own, added, "recommended")


def recommend(study: StudyFigures) -> Recommendation:
    """Recommend settings, except for ``min_size``. The study must not be empty."""
    total = sum(row.data_bytes for row in study.table1_datasets)
    profile, why = _profile(study, total)
    chunks = _chunk_size(study)
    useless, raw = _types(study, total)
    own = _policy_of(profile)
    age, now, age_why = _min_age(study, total, profile)
    settings = [Setting("profile", profile, why), chunks, *_type_settings(study, total)]
    settings.append(Setting("min_age", age, age_why))
    return Recommendation(
        profile,
        chunks.value,
        tuple(row.type for row in useless if row.type not in own.exclude_types),
        tuple(row.type for row in raw if row.type not in own.no_compress_types),
        age,
        now,
        own.min_size_bytes,
        tuple(settings),
    )


def _policy_of(profile: str) -> Policy:
    return apply_values(Policy(), PROFILES[profile], profile)


def with_small_files(
    found: Recommendation, study: StudyFigures, small: SmallFiles, later: ProfileSums
) -> Recommendation:
    """Return the same with ``min_size``, which depends on the savings of files below it."""
    total = sum(row.data_bytes for row in study.table1_datasets)
    gain = small.taken_too.saved_bytes - later.saved_bytes
    limit = exact_size(found.min_size_bytes)
    other = exact_size(SMALL_SIZE_BYTES)
    what = f"{small.files:,} files ({format_size(small.data_bytes)}) are smaller than {limit}"
    if not small.files:
        setting = Setting("min_size", limit, "no file is smaller")
    elif gain < SMALL_GAIN_MIN * total:
        more = f"with {other} they would save {format_size(max(0.0, gain))} more"
        setting = Setting("min_size", limit, f"{what}, and are skipped; {more}")
    else:
        setting = Setting(
            "min_size",
            other,
            f"{what}, the default; to include files from {other} saves {format_size(gain)} more",
        )
        found = replace(found, min_size_bytes=SMALL_SIZE_BYTES)
    return replace(found, settings=(*found.settings, setting))


def _profile(study: StudyFigures, total: float) -> tuple[str, str]:
    images = sum(row.data_bytes for row in study.types if row.type in IMAGE_TYPES) / total
    backups = sum(row.data_bytes for row in study.types if row.type in BACKUP_TYPES) / total
    if "vm" in PROFILES and images >= 0.5:
        return "vm", f"{images:.0%} of the data is in disk images"
    if "backup" in PROFILES and backups >= 0.5:
        return "backup", f"{backups:.0%} of the data is in archives and dumps"
    return "general", f"{images:.0%} of the data is in disk images, {backups:.0%} in archives"


def _net_bytes(row: SavingsRow) -> float:
    """Return the stored bytes, including metadata."""
    per_chunk = RECORD_HEADER_BYTES + TABLE_ENTRY_BYTES
    return row.stored_bytes + row.distinct_chunks * per_chunk + row.chunks * RECIPE_ENTRY_BYTES


def _chunk_size(study: StudyFigures) -> Setting:
    rows = [row for name in SIZES if (row := study.savings(name)) is not None]
    default = study.savings(DEFAULT)
    if default is None or len(rows) < 2:
        name = study.collection.default_chunking
        return Setting("chunk size", name, "no other size was collected")
    # The default unless another is better: data of only zeros has no chunks at all.
    best = min(rows, key=lambda row: (_net_bytes(row), row.chunking != DEFAULT))
    gain = (_net_bytes(default) - _net_bytes(best)) / default.data_bytes
    if best.chunking == DEFAULT:
        return Setting("chunk size", DEFAULT, "no other size saves more, including metadata")
    if gain < OTHER_SIZE_GAIN_MIN:
        reason = (
            f"{best.chunking} would save {100 * gain:.1f} points more, including metadata, with"
            f" {best.distinct_chunks / default.distinct_chunks:.1f} times the chunks"
        )
        return Setting("chunk size", DEFAULT, reason)
    enough = next(
        row
        for row in sorted(rows, key=lambda row: -row.average_bytes)
        if _net_bytes(row) - _net_bytes(best) < OTHER_SIZE_GAIN_MIN * default.data_bytes
    )
    more = (_net_bytes(default) - _net_bytes(enough)) / default.data_bytes
    return Setting(
        "chunk size",
        enough.chunking,
        f"saves {100 * more:.1f} points more than {DEFAULT}, including metadata, with"
        f" {enough.distinct_chunks / default.distinct_chunks:.1f} times the chunks",
    )


def _types(study: StudyFigures, total: float) -> tuple[Sequence[TypeRow], Sequence[TypeRow]]:
    """Return the types that save nothing, and those that do not compress."""
    known = [
        row
        for row in study.types
        if row.type
        and row.data_bytes >= TYPE_SHARE_MIN * total
        and row.sampled_chunks >= SAMPLED_CHUNKS_MIN
    ]
    useless = [row for row in known if row.saved_compressed < TYPE_GAIN_MIN]
    raw = [
        row
        for row in known
        if row not in useless and row.compression_saving < COMPRESSION_SAVING_MIN
    ]
    return useless, raw if study.collection.compressed else []


def _type_settings(study: StudyFigures, total: float) -> list[Setting]:
    useless, raw = _types(study, total)
    if useless:
        share = sum(row.data_bytes for row in useless) / total
        why = f"each saves less than {TYPE_GAIN_MIN:.0%}; jobs can skip {share:.1%} of the data"
        settings = [Setting("exclude_types", ", ".join(row.type for row in useless), why)]
    else:
        why = "every type with a notable share of the data saves space"
        settings = [Setting("exclude_types", "none", why)]
    if raw:
        types = ", ".join(row.type for row in raw)
        settings.append(
            Setting("no_compress_types", types, "they have duplicates, but are not compressible")
        )
    return settings


def _min_age(study: StudyFigures, total: float, profile: str) -> tuple[str, bool, str]:
    """Return the age, whether the first run should include all files, and the reason."""
    within = {row.days_max: row.data_bytes / total for row in study.ages}
    day, three = within.get(1, 0.0), within.get(3, 0.0)
    own = _policy_of(profile).min_age_s
    if own != Policy().min_age_s:
        return exact_duration(own), False, f"the profile {profile} is for finished files"
    seen = f"{three:.1%} of the data changed in the last 3 days, {day:.1%} in the last day"
    if three >= COPIED_SHARE_MIN:
        why = (
            f"{seen}, probably because it was copied here. Optimize files of any age in the first"
            " run (`--min-age 0s`); later runs skip files that are still edited"
        )
        return "3d", True, why
    return ("1d" if three - day > RECENT_SHARE_MAX else "3d"), False, seen
