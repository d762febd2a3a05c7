"""Advice: the benefit of dedupd for this data, and the recommended settings."""

import math
import os
import shlex
from dataclasses import dataclass

from analysis.figures import CONFIDENCE_95
from analysis.recommendation import SAMPLED_CHUNKS_MIN, Recommendation, Setting
from analysis.study import Forecast, RecommendedSettings, Study
from dedupd_core.config.memory_budget import capacity, memory_for, planned
from dedupd_core.config.policy import Policy
from dedupd_core.format.volume_parameters import DEFAULT_PRESET, PRESETS
from dedupd_core.units import MIB

FILE_CPU_S = 85e-6
"""The cost of a file in addition to its bytes (docs/figures/ingest.md, "How it grows")."""

WORTH_IT_MIN = 0.05
"""A smaller share of the data is not worth a mount and its upkeep."""

COMMANDS_MAX = 10
"""The number of datasets for which commands are shown."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of settings, as fractions of all data; ``margin`` belongs to ``saved_now``, and
    ``margin_later`` to ``saved_later``.

    ``reached``: the share of the data that the policy selects now; ``reached_later``: when all
    files are old enough. ``disk_bytes``: the final size of the store, its metadata and unselected
    files.
    """

    name: str
    reached: float
    saved_now: float
    saved_later: float
    margin: float
    margin_later: float
    reached_later: float
    store_bytes: float
    disk_bytes: float


@dataclass(frozen=True, slots=True)
class Advice:
    """The advice: ``outcome`` for the recommended settings, ``profiles`` for each unchanged
    profile. ``commands``: one list per dataset that makes a volume with these settings. ``better``:
    how to get a better estimate; empty if every byte was read."""

    profile: str
    outcome: Outcome
    profiles: list[Outcome]
    settings: list[Setting]
    worth_it: bool
    confidence: str
    better: str
    commands: list[list[str]]


def advise(study: Study) -> Advice:
    """Derive the advice from a study, which must not be empty."""
    total = sum(row.data_bytes for row in study.table1_datasets)
    assert study.recommended is not None
    recommended, chosen = study.recommended, study.recommended.settings
    outcome = _outcome("recommended", recommended.forecast, total)
    settings = [
        *chosen.settings,
        *_partitions_and_memory(study, recommended),
        *_time(study, recommended, os.cpu_count() or 1),
    ]
    is_worth_it = outcome.saved_later >= WORTH_IT_MIN
    return Advice(
        chosen.profile,
        outcome,
        [_outcome(name, forecast, total) for name, forecast in study.profiles.items()],
        settings,
        is_worth_it,
        _confidence(study, outcome),
        _better(study),
        [commands(path, chosen) for path in study.collection.paths[:COMMANDS_MAX]]
        if is_worth_it
        else [],
    )


def _outcome(name: str, forecast: Forecast, total: float) -> Outcome:
    now, later = forecast.now, forecast.later
    return Outcome(
        name,
        now.data_bytes / total,
        now.saved_bytes / total,
        later.saved_bytes / total,
        CONFIDENCE_95 * now.record_deviation / total,
        CONFIDENCE_95 * later.record_deviation / total,
        later.data_bytes / total,
        later.store_bytes,
        total - later.saved_bytes,
    )


def commands(path: str, chosen: Recommendation) -> list[str]:
    """Return the commands for a volume with these settings, in order."""
    place = shlex.quote(path) if path.isprintable() else "PATH"
    enable = f"dedupd enable {place} --profile {chosen.profile}"
    if chosen.chunking in PRESETS and chosen.chunking != DEFAULT_PRESET:
        enable += f" --chunk-size {chosen.chunking}"
    enable += f" --min-age {chosen.min_age} --min-size {chosen.min_size_bytes >> 10}k"
    lines, policy = [enable], chosen.policy()
    for key in ("exclude_types", "no_compress_types"):
        if getattr(chosen, key):
            value = shlex.quote(", ".join(getattr(policy, key)))
            lines.append(f"dedupd policy {place} {key} {value}")
    lines.append(f"dedupd run optimize {place}" + (" --min-age 0s" if chosen.now else ""))
    return lines


def _partitions_and_memory(study: Study, recommended: RecommendedSettings) -> list[Setting]:
    chunks = recommended.forecast.later.distinct_chunks
    policy = Policy()
    # Like a run on a disk that does not rotate.
    index = planned(policy.index, rotates=False)
    fitting = capacity(index, policy.memory_bytes)
    count = max(1, math.ceil(chunks / fitting))
    wanted_bytes = max(policy.memory_bytes, memory_for(index, math.ceil(chunks)))
    settings = [
        Setting(
            "memory",
            f"{math.ceil(wanted_bytes / MIB)} MiB",
            f"{chunks:,.0f} distinct chunks of the selected files; a quarter is for the index, so"
            f" {policy.memory_bytes // MIB} MiB are enough for {fitting:,}",
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
            f" {100 * by_path:.1f}"
            + (("; the index fits the budget without partitions") if count == 1 else ""),
        )
    )
    return settings


def _time(study: Study, recommended: RecommendedSettings, cores: int) -> list[Setting]:
    chunking = recommended.settings.chunking
    timing = study.collection.timings.get(chunking)
    sums = recommended.forecast.later
    if timing is None or not timing.chunk_bytes or not sums.files:
        return []
    cpu_s = timing.chunk_s / timing.chunk_bytes * sums.data_bytes + FILE_CPU_S * sums.files
    if timing.compress_bytes:
        cpu_s += timing.compress_s / timing.compress_bytes * sums.unique_bytes
    speed = sums.data_bytes / cpu_s * cores / 1e6
    return [
        Setting(
            "time of the first run",
            f"at least {_duration(cpu_s / cores)}",
            f"{cores} cores at the speed of the collection, and {sums.files:,} files at"
            f" {1e6 * FILE_CPU_S:.0f} µs: {speed:,.0f} MB/s; longer on slow disks or a busy"
            " machine",
        )
    ]


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, seconds):.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _confidence(study: Study, outcome: Outcome) -> str:
    collection = study.collection
    if collection.sample >= 1:
        return (
            "Confidence: high. Every byte was read, chunked and compressed as dedupd does it. The"
            " result is valid for the files at the time of the collection."
        )
    row = study.savings(collection.default_chunking)
    sampled = row.sampled_chunks if row is not None else 0
    if sampled < SAMPLED_CHUNKS_MIN:
        return f"Confidence: low. The sample has only {sampled} chunks."
    row_margin = row.saved_compressed_margin if row is not None else 0.0
    margin = 100 * max(row_margin, outcome.margin_later)
    word = "high" if margin < 1 else "medium" if margin < 3 else "low"
    return (
        f"Confidence: {word}. The sample has {sampled:,} chunks; with a probability of 95%, the"
        f" true savings differ by at most {margin:.1f} points."
    )


def _better(study: Study) -> str:
    sample = study.collection.sample
    if sample >= 1:
        return ""
    return f"For a better estimate: `--sample {min(100.0, 1000 * sample):g}%`."
