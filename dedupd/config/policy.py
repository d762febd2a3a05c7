"""What to optimize and how: ``policy.toml``, edited by people, validated on load."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from dedupd.config.config_values import (
    Parse,
    duration,
    fraction,
    one_of,
    parsed,
    read_table,
    size,
    strings,
    whole,
    yes_or_no,
)
from dedupd.config.profiles import plain
from dedupd.config.reserve import DEFAULT as DEFAULT_RESERVE
from dedupd.config.reserve import Reserve, parse_reserve, parse_threshold, show_reserve
from dedupd.config.rules import Rule, decided, extension_of, parse_rules
from dedupd.config.schedule import Schedule, parse_schedule, show_schedule
from dedupd.errors import PolicyError, UsageError
from dedupd.system.processes import IoPriority
from dedupd.units import exact_duration, exact_size

_HOURLY = parse_schedule("every 1h")
_EARLY = parse_schedule("daily 01:00 for 5h")
_WEEKLY = parse_schedule("Sat 02:45 for 8h")
_WEEKLY_LATER = parse_schedule("Sat 03:45 for 8h")
_LOW, _CRITICAL = Reserve(percent=10.0), Reserve(percent=5.0)
_KEPT_MAX = Reserve(percent=25.0)
_MONTHLY = parse_schedule("first Sun 03:45 for 12h")
_SUNDAYS = parse_schedule("Sun 05:00 for 12h")


class IndexChoice(StrEnum):
    """Values of the key ``index``."""

    TABLE = "table"
    """Signatures in RAM, fingerprints in the redirection tables."""
    BLOOM = "bloom"
    """A filter in RAM; filters and signatures in a file, fingerprints in the redirection tables."""


class Marker(StrEnum):
    """Values of the key ``markers``: files that keep their directory plain."""

    CACHEDIR_TAG = "CACHEDIR.TAG"
    """Of caches, by bford.info/cachedir: it counts where it begins with the signature."""
    NODEDUP = ".nodedup"


class RefineMode(StrEnum):
    """Values of the key ``refine``."""

    OFF = "off"
    QUICK = "quick"
    """Chunks that are like others are stored as the difference, at zstd 3."""
    FULL = "full"
    """That, or compressed with a dictionary for their type, at ``refine_level``."""


class RestoreMode(StrEnum):
    """Values of the key ``restore_mode``."""

    OFF = "off"
    ON = "on"
    """Files are optimized as soon as they are closed, and new ones wait where space is short."""


class BusyFilesMode(StrEnum):
    """Values of the key ``busy_files``."""

    SKIP = "skip"
    """A file is taken once it has been left alone as a whole."""
    RANGES = "ranges"
    """Of a large file that is written to, what has been left alone for ``min_age`` is taken."""


class SharedExtents(StrEnum):
    """Values of the keys ``shared_extents`` and ``compaction_shared``."""

    SKIP = "skip"
    """Files, or containers, with blocks that snapshots below have as well are left alone."""
    TAKE = "take"
    """They are taken like others: their blocks come back with the last snapshot."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Every key of the policy, in the units that the program uses."""

    min_age_s: float = 3 * 86400.0
    min_size_bytes: int = 4 << 10
    min_file_saving: float = 0.05
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    exclude_types: tuple[str, ...] = ()
    ignore_case: bool = False
    markers: tuple[Marker, ...] = (Marker.CACHEDIR_TAG, Marker.NODEDUP)
    no_compress_types: tuple[str, ...] = ()
    compression_level: int = 3
    compression_min_saving: float = 0.05
    partial_files: bool = True
    partial_local_max: float = 0.5
    busy_files: BusyFilesMode = BusyFilesMode.SKIP
    shared_extents: SharedExtents = SharedExtents.SKIP
    refine: RefineMode = RefineMode.OFF
    refine_age_s: float = 7 * 86400.0
    refine_level: int = 12
    refine_min_saving: float = 0.2
    compaction_min_dead: float = 0.05
    compaction_shared: SharedExtents = SharedExtents.TAKE
    reserve: Reserve = DEFAULT_RESERVE
    space_low: Reserve = _LOW
    space_critical: Reserve = _CRITICAL
    space_min_age_s: float = 3600.0
    keep_deleted_s: float = 7 * 86400.0
    keep_deleted_max: Reserve = _KEPT_MAX
    restore_mode: RestoreMode = RestoreMode.OFF
    redundancy_threshold: int = 100
    scrub_rate_bytes_per_s: int = 0
    memory_bytes: int = 256 << 20
    cores: int = 0
    index: IndexChoice = IndexChoice.TABLE
    partitions: int = 1
    stop_when_busy: bool = True
    io_priority: IoPriority = IoPriority.IDLE
    schedule_background: Schedule = _HOURLY
    schedule_throughput: Schedule = _EARLY
    schedule_reconcile: Schedule = _WEEKLY
    schedule_refine: Schedule = _EARLY
    schedule_gc: Schedule = _WEEKLY
    schedule_compact: Schedule = _WEEKLY
    schedule_scrub: Schedule = _WEEKLY_LATER
    schedule_full_scrub: Schedule = _MONTHLY
    schedule_recover: Schedule = _HOURLY
    schedule_audit: Schedule = _SUNDAYS
    rules: tuple[Rule, ...] = ()

    @property
    def is_uniform(self) -> bool:
        """Whether the same holds for all paths, but for compression by type."""
        return not (self.include or self.exclude or self.exclude_types or self.rules)

    @property
    def loosest(self) -> tuple[float, int]:
        """The lowest age and the lowest size that this policy asks of any path."""
        ages = [rule.min_age_s for rule in self.rules if rule.min_age_s is not None]
        sizes = [rule.min_size_bytes for rule in self.rules if rule.min_size_bytes is not None]
        return min([self.min_age_s, *ages]), min([self.min_size_bytes, *sizes])

    @property
    def strictest_age_s(self) -> float:
        """The highest age that it asks of any path."""
        ages = [rule.min_age_s for rule in self.rules if rule.min_age_s is not None]
        return max([self.min_age_s, *ages])

    @property
    def keep_deleted_s_max(self) -> float:
        """The longest that it keeps deletions of any path."""
        times = [one.keep_deleted_s for one in self.rules if one.keep_deleted_s is not None]
        return max([self.keep_deleted_s, *times])

    def keeps_deleted_s(self, path: bytes) -> float:
        """How long a deletion of this file is kept."""
        return decided(self, path).keep_deleted_s if self.rules else self.keep_deleted_s

    def excludes(self, path: bytes) -> bool:
        """Whether a path, relative to the volume, is left alone, whatever its age and size."""
        return not self.is_uniform and bool(decided(self, path).excluded)

    def compresses(self, path: bytes) -> bool:
        """Whether chunks of this file may be compressed."""
        if self.rules:
            return decided(self, path).compresses
        name = path.rpartition(b"/")[2].decode("utf-8", "surrogateescape")
        return self.compresses_type(extension_of(name))

    def compresses_type(self, file_type: str) -> bool:
        """Whether chunks of files of this type may be compressed, where no rule says otherwise."""
        return file_type not in self.no_compress_types


@dataclass(frozen=True, slots=True)
class Key:
    """One key as it is written in the file."""

    name: str
    parse: Parse
    show: Callable[[Any], Any]
    help: str
    unit: str = ""

    @property
    def attribute(self) -> str:
        """The attribute of :class:`Policy` that has its value: the same name, and the unit."""
        return f"{self.name}_{self.unit}" if self.unit else self.name


def _schedule(value: Any) -> Schedule:
    if not isinstance(value, str):
        raise UsageError('write a text in quotes, like "daily 01:00 for 5h"')
    return parse_schedule(value)


def _types(value: Any) -> tuple[str, ...]:
    return tuple(item.lower().lstrip(".") for item in strings(plain(value)))


def _markers(value: Any) -> tuple[Marker, ...]:
    return tuple(one_of(Marker)(name) for name in strings(value))


KEYS = {
    key.name: key
    for key in (
        Key(
            "min_age",
            duration,
            exact_duration,
            "how long a file must have been unchanged",
            unit="s",
        ),
        Key("min_size", size, exact_size, "smaller files are left alone", unit="bytes"),
        Key(
            "min_file_saving",
            fraction,
            float,
            "a file that would free a smaller part of its blocks stays plain; 0 takes every file",
        ),
        Key("include", strings, list, "where not empty, only these paths and patterns are taken"),
        Key("exclude", strings, list, "paths and patterns that are left alone"),
        Key("exclude_types", _types, list, "file types that are left alone"),
        Key("ignore_case", yes_or_no, bool, "whether patterns take upper and lower case alike"),
        Key("markers", _markers, list, "files that keep their directory plain"),
        Key("no_compress_types", _types, list, "types that are never compressed"),
        Key("compression_level", whole(0, 19), int, "zstd level; 0 stores everything raw"),
        Key(
            "compression_min_saving", fraction, float, "a chunk that shrinks by less is stored raw"
        ),
        Key(
            "partial_files",
            yes_or_no,
            bool,
            "whether optimized files that were written to since are optimized again",
        ),
        Key(
            "partial_local_max",
            fraction,
            float,
            "a file in use whose own blocks make up more of it becomes plain",
        ),
        Key(
            "busy_files",
            one_of(BusyFilesMode),
            str,
            "large files that are written to all the time: skip, or take their quiet ranges",
        ),
        Key(
            "shared_extents",
            one_of(SharedExtents),
            str,
            "files whose blocks snapshots or reflinks below have as well: skip or take",
        ),
        Key(
            "refine",
            one_of(RefineMode),
            str,
            "whether what is stored and cold is made smaller: off, quick or full",
        ),
        Key(
            "refine_age",
            duration,
            exact_duration,
            "how long a chunk must have been stored before that",
            unit="s",
        ),
        Key("refine_level", whole(1, 19), int, "zstd level of refine = full"),
        Key(
            "refine_min_saving",
            fraction,
            float,
            "what the difference to another chunk must save of a chunk to take its place",
        ),
        Key(
            "compaction_min_dead",
            fraction,
            float,
            "a container is rewritten where at least this part of it is garbage",
        ),
        Key(
            "compaction_shared",
            one_of(SharedExtents),
            str,
            "containers whose blocks snapshots below have as well: take or skip",
        ),
        Key(
            "reserve",
            parse_reserve,
            show_reserve,
            "the free space that jobs leave to users: a size, a percentage, or auto",
        ),
        Key(
            "space_low",
            parse_threshold,
            show_reserve,
            "below so much free space the service frees some at once; 0 is never",
        ),
        Key(
            "space_critical",
            parse_threshold,
            show_reserve,
            "below so much it also optimizes files of the age space_min_age",
        ),
        Key(
            "space_min_age",
            duration,
            exact_duration,
            "the age that is enough for a file while space is critical",
            unit="s",
        ),
        Key(
            "keep_deleted",
            duration,
            exact_duration,
            "how long what was deleted or overwritten can be had back; 0s keeps nothing",
            unit="s",
        ),
        Key(
            "keep_deleted_max",
            parse_threshold,
            show_reserve,
            "how much of that is kept: a size, or a percentage of the file system",
        ),
        Key(
            "restore_mode",
            one_of(RestoreMode),
            str,
            "on while a restore fills the volume: files are optimized once they are closed",
        ),
        Key(
            "redundancy_threshold",
            whole(0, 250),
            int,
            "chunks with more references than this are kept twice; 0 keeps every chunk once",
        ),
        Key(
            "scrub_rate",
            size,
            exact_size,
            "what scrub reads in a second; 0 is as fast as it goes",
            unit="bytes_per_s",
        ),
        Key("memory", size, exact_size, "what a job may take", unit="bytes"),
        Key("cores", whole(0, 1024), int, "cores that a job may use; 0 is all"),
        Key(
            "index",
            one_of(IndexChoice),
            str,
            "table: little memory for each chunk of the store; bloom: least",
        ),
        Key(
            "partitions",
            whole(1, 256),
            int,
            "partitions of the index at least; there are more where memory demands it",
        ),
        Key(
            "stop_when_busy",
            yes_or_no,
            bool,
            "whether jobs slow down and pause where the machine or the users are busy",
        ),
        Key(
            "io_priority",
            one_of(IoPriority),
            str,
            "what the disk does for jobs: idle, low or normal",
        ),
        *(
            Key(f"schedule_{name}", _schedule, show_schedule, text)
            for name, text in (
                ("background", "when files are optimized, giving way to everybody"),
                ("throughput", "when files are optimized as fast as it goes"),
                ("reconcile", "when duplicates across partitions are merged"),
                ("refine", "when what is stored and cold is made smaller"),
                ("gc", "when garbage is collected"),
                ("compact", "when the space of garbage is given back"),
                ("scrub", "when damage is looked for"),
                ("full_scrub", "when every byte of the store is read and checked"),
                ("recover", "when a store in a cluster is looked at for hosts that are gone"),
                ("audit", "when all of a store in a cluster is looked at"),
            )
        ),
    )
}

RULES = "rule"
"""The name of the tables that :class:`Rule` is written as; not a key by itself."""

PARSERS = {**{name: key.parse for name, key in KEYS.items()}, RULES: parse_rules}


def parse_policy(text: str, where: str) -> Policy:
    """The policy in a file's text. Raises PolicyError that names file, key, value and reason."""
    return apply_values(Policy(), read_table(text, where, PolicyError), where)


def apply_values(policy: Policy, values: dict[str, Any], where: str) -> Policy:
    """``policy`` with keys replaced by ``values`` as written. Raises PolicyError."""
    changes: dict[str, Any] = {}
    for name, value in values.items():
        meant = parsed(PARSERS, name, value, where, PolicyError)
        changes["rules" if name == RULES else KEYS[name].attribute] = meant
    return replace(policy, **changes)


assert {key.attribute for key in KEYS.values()} | {"rules"} == {f.name for f in fields(Policy)}
