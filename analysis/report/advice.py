"""Advice: what enabling dedupd on this data would bring, and the settings that suit it."""

import math
import os
from dataclasses import dataclass

from analysis.collection.chunkings import DEFAULT, SIZES
from analysis.figures import CONFIDENCE_95, SavingsRow
from analysis.study import Forecast, Study
from dedupd.config.policy import Policy
from dedupd.config.profiles import PROFILES
from dedupd.format.container import RECORD_HEADER_BYTES
from dedupd.format.recipe import ENTRY_BYTES as RECIPE_ENTRY_BYTES
from dedupd.format.table import ENTRY_BYTES as TABLE_ENTRY_BYTES

INDEX_BYTES_PER_CHUNK = 6
"""Of memory, for each distinct chunk (seed 003, 4.4)."""

SMALLER_CHUNKS_GAIN_MIN = 0.02
"""Smaller chunks cost reads, memory and metadata; below two points of the data they don't pay."""

TYPE_GAIN_MIN = 0.02
"""A file type that saves less than this is not worth reading."""

TYPE_SHARE_MIN = 0.005
"""Of the data: types below are not worth a line in the policy."""

RECENT_SHARE_MAX = 0.10
"""Of the data, changed between one and three days ago: more, and a lower age reaches it sooner."""

SAMPLED_CHUNKS_MIN = 30
"""Fewer sampled chunks say nothing about a type, and little about the whole."""

IMAGE_TYPES = frozenset(
    ("img", "raw", "qcow2", "vmdk", "vhd", "vhdx", "vdi", "avhdx", "ova", "iso", "qed", "hdd")
)
BACKUP_TYPES = frozenset(("bak", "tar", "dump", "vbk", "vib", "bkf", "dmp", "pst", "sql"))


@dataclass(frozen=True, slots=True)
class ProfileAdvice:
    """What a profile would save, as fractions of all data. ``margin`` is of ``saved_now``.

    ``reached`` is the fraction of the data that the policy takes now, ``reached_later`` once all
    files are old enough.
    """

    name: str
    reached: float
    saved_now: float
    saved_later: float
    margin: float
    reached_later: float
    store_bytes: float


@dataclass(frozen=True, slots=True)
class Setting:
    """A recommended setting, and why."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Advice:
    """``profile`` is the recommended one. ``command`` enables it with the settings."""

    profile: str
    profiles: list[ProfileAdvice]
    settings: list[Setting]
    worth_it: bool
    confidence: str


def advise(study: Study, cores: int = 0) -> Advice:
    """What the study's numbers suggest. The study must not be empty."""
    total = sum(row.data_bytes for row in study.table1_datasets)
    profiles = [_profile(name, sums, total) for name, sums in study.profiles.items()]
    name, why = _best_profile(study, total)
    settings = [
        Setting("profile", name, why),
        _chunk_size(study),
        *_types(study, total),
        _min_age(study, total),
        *_partitions_and_memory(study, name),
        *_time(study, name, cores or os.cpu_count() or 1),
    ]
    chosen = next(one for one in profiles if one.name == name)
    return Advice(name, profiles, settings, chosen.saved_later >= 0.05, _confidence(study, chosen))


def _profile(name: str, forecast: Forecast, total: float) -> ProfileAdvice:
    now, later = forecast.now, forecast.later
    return ProfileAdvice(
        name,
        now.data_bytes / total,
        (now.data_bytes - now.store_bytes) / total if now.files else 0.0,
        (later.data_bytes - later.store_bytes) / total if later.files else 0.0,
        CONFIDENCE_95 * now.record_deviation / total,
        later.data_bytes / total,
        later.store_bytes,
    )


def _best_profile(study: Study, total: float) -> tuple[str, str]:
    images = sum(row.data_bytes for row in study.types if row.type in IMAGE_TYPES) / total
    backups = sum(row.data_bytes for row in study.types if row.type in BACKUP_TYPES) / total
    if "vm" in PROFILES and images >= 0.5:
        return "vm", f"{images:.0%} of the data is in disk images"
    if "backup" in PROFILES and backups >= 0.5:
        return "backup", f"{backups:.0%} of the data is in archives and dumps"
    return "general", f"{images:.0%} of the data is in disk images, {backups:.0%} in archives"


def _net_bytes(row: SavingsRow) -> float:
    """Bytes stored, metadata included."""
    per_chunk = RECORD_HEADER_BYTES + TABLE_ENTRY_BYTES
    return row.stored_bytes + row.distinct_chunks * per_chunk + row.chunks * RECIPE_ENTRY_BYTES


def _chunk_size(study: Study) -> Setting:
    rows = [row for name in SIZES if (row := study.savings(name)) is not None]
    default = study.savings(DEFAULT)
    if default is None or len(rows) < 2:
        return Setting("chunk size", DEFAULT, "the default; no other size was collected")
    # The default where none is better: where all is zeros, none has any chunk.
    best = min(rows, key=lambda row: (_net_bytes(row), row.chunking != DEFAULT))
    gain = (_net_bytes(default) - _net_bytes(best)) / default.data_bytes
    if best.chunking == DEFAULT:
        return Setting("chunk size", DEFAULT, "no smaller size saves more, metadata included")
    if gain < SMALLER_CHUNKS_GAIN_MIN:
        reason = (
            f"{best.chunking} would save {100 * gain:.1f} points more, metadata included,"
            f" with {best.distinct_chunks / default.distinct_chunks:.1f} times the chunks"
        )
        return Setting("chunk size", DEFAULT, reason)
    enough = next(
        row
        for row in sorted(rows, key=lambda row: -row.average_bytes)
        if _net_bytes(row) - _net_bytes(best) < SMALLER_CHUNKS_GAIN_MIN * default.data_bytes
    )
    more = (_net_bytes(default) - _net_bytes(enough)) / default.data_bytes
    return Setting(
        "chunk size",
        enough.chunking,
        f"saves {100 * more:.1f} points more than {DEFAULT}, metadata included, with"
        f" {enough.distinct_chunks / default.distinct_chunks:.1f} times the chunks",
    )


def _types(study: Study, total: float) -> list[Setting]:
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
        if row not in useless and row.compression_saving < Policy().compression_min_saving
    ]
    settings = []
    if useless:
        share = sum(row.data_bytes for row in useless) / total
        settings.append(
            Setting(
                "exclude_types",
                ", ".join(row.type for row in useless),
                f"each saves less than {TYPE_GAIN_MIN:.0%}; together {share:.1%} of the data"
                " that jobs need not read",
            )
        )
    else:
        settings.append(
            Setting("exclude_types", "none", "every type with a notable share of the data gains")
        )
    if study.collection.compressed and raw:
        settings.append(
            Setting(
                "no_compress_types",
                ", ".join(row.type for row in raw),
                "they have duplicates, but do not compress",
            )
        )
    return settings


def _min_age(study: Study, total: float) -> Setting:
    within = {row.days_max: row.data_bytes / total for row in study.ages}
    day, three = within.get(1, 0.0), within.get(3, 0.0)
    seen = f"{three:.1%} of the data changed in the 3 days before, {day:.1%} in the last day"
    if three - day > RECENT_SHARE_MAX:
        return Setting("min_age", "1d", seen)
    return Setting("min_age", "3d", seen)


def _partitions_and_memory(study: Study, profile: str) -> list[Setting]:
    chunks = study.profiles[profile].later.distinct_chunks
    index = chunks * INDEX_BYTES_PER_CHUNK
    budget = Policy().memory_bytes
    count = max(1, math.ceil(index / budget))
    settings = [
        Setting(
            "memory",
            f"{max(1, math.ceil(index / (1 << 20)))} MiB for the index",
            f"{chunks:,.0f} distinct chunks, {INDEX_BYTES_PER_CHUNK} bytes each; a job may take"
            f" {budget >> 20} MiB",
        )
    ]
    if study.partition_losses is None:
        return settings
    by_type, by_path = study.partition_losses
    settings.append(
        Setting(
            "partitions",
            "1" if count == 1 else f"{count}, by file type",
            f"splitting by type would lose {100 * by_type:.1f} points until reconciled, by path"
            f" {100 * by_path:.1f}" + ("; the index fits the budget without" if count == 1 else ""),
        )
    )
    return settings


def _time(study: Study, profile: str, cores: int) -> list[Setting]:
    timing = study.collection.timings.get(study.collection.default_chunking)
    sums = study.profiles[profile].later
    if timing is None or not timing.chunk_bytes or not sums.files:
        return []
    chunk_s = timing.chunk_s / timing.chunk_bytes * sums.data_bytes
    if timing.compress_bytes:
        chunk_s += timing.compress_s / timing.compress_bytes * sums.unique_bytes
    speed = sums.data_bytes / chunk_s * cores / 1e6
    return [
        Setting(
            "time of the first run",
            _duration(chunk_s / cores),
            f"{cores} cores at the speed they had in the collection, {speed:,.0f} MB/s; longer"
            " where the disks deliver less",
        )
    ]


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, seconds):.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _confidence(study: Study, profile: ProfileAdvice) -> str:
    collection = study.collection
    if collection.sample >= 1:
        return (
            "High: every byte was read, chunked and compressed with the product's own kernel. It"
            " holds for the files as they were at the time of the collection."
        )
    row = study.savings(collection.default_chunking)
    sampled = row.sampled_chunks if row is not None else 0
    if sampled < SAMPLED_CHUNKS_MIN:
        return f"Low: only {sampled} chunks are in the sample; use a larger fraction."
    row_margin = row.saved_compressed_margin if row is not None else 0.0
    margin = 100 * max(row_margin, profile.margin)
    word = "High" if margin < 1 else "Medium" if margin < 3 else "Low"
    return (
        f"{word}: from {sampled:,} sampled chunks; the true savings are within {margin:.1f} points"
        " of what is stated here with a probability of 95%."
    )
