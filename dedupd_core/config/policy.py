"""The policy, ``policy.toml``: which files to optimize, and how. Validated on load."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any

from dedupd_core.config.config_values import (
    DURATION,
    FRACTION,
    SIZE,
    STRINGS,
    SWITCH,
    Key,
    ValueFormat,
    choice,
    keys_of,
    parsed,
    read_table,
    strings,
    whole,
)
from dedupd_core.config.profiles import plain
from dedupd_core.config.reserve import DEFAULT as DEFAULT_RESERVE
from dedupd_core.config.reserve import Reserve, parse_reserve, parse_threshold, show_reserve
from dedupd_core.config.rules import (
    Rule,
    extension_of,
    matching,
    parse_rules,
    show_rules,
    takes,
)
from dedupd_core.config.schedule import Schedule, parse_schedule, show_schedule
from dedupd_core.errors import PolicyError, UsageError
from dedupd_core.system.processes import IoPriority
from dedupd_core.units import brief

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
    """Signatures are in RAM, fingerprints in the redirection tables."""
    BLOOM = "bloom"
    """A filter is in RAM; filters and signatures are in a file, fingerprints in the tables."""


class Marker(StrEnum):
    """Values of the key ``markers``: files that keep their directory plain."""

    CACHEDIR_TAG = "CACHEDIR.TAG"
    """Marks a cache (bford.info/cachedir); valid only if it starts with the signature."""
    NODEDUP = ".nodedup"


class RefineMode(StrEnum):
    """Values of the key ``refine``."""

    OFF = "off"
    QUICK = "quick"
    """Chunks that are similar to others are stored as the difference, at zstd 3."""
    FULL = "full"
    """That, or compressed with a dictionary for their type, at zstd 12."""


class RestoreMode(StrEnum):
    """Values of the key ``restore_mode``."""

    OFF = "off"
    ON = "on"
    """Files are optimized as soon as they are closed, and new files wait while space is low."""


class BusyFilesMode(StrEnum):
    """Values of the key ``busy_files``."""

    SKIP = "skip"
    """A file is optimized only when it is completely idle."""
    RANGES = "ranges"
    """The parts of a large busy file that have been idle for ``min_age`` are optimized."""


class DedupDomain(StrEnum):
    """Values of the key ``dedup_domain``: the files that share chunks."""

    VOLUME = "volume"
    OWNER = "owner"
    """The files of one user."""
    FOLDER = "folder"
    """The files below one top-level folder of the volume."""


class SharedExtents(StrEnum):
    """Values of the keys ``shared_extents`` and ``compaction_shared``."""

    SKIP = "skip"
    """Files, or containers, that share blocks with snapshots below are skipped."""
    TAKE = "take"
    """They are processed like others: their blocks are freed with the last snapshot."""


def _schedule(value: object) -> Schedule:
    if not isinstance(value, str):
        raise UsageError('write a text in quotes, for example "daily 01:00 for 5h"')
    return parse_schedule(value)


def _types(value: object) -> tuple[str, ...]:
    return tuple(item.lower().lstrip(".") for item in strings(plain(value)))


def _markers(value: object) -> tuple[Marker, ...]:
    return tuple(choice(Marker).parse(name) for name in strings(value))


Seconds = Annotated[float, DURATION]
Bytes = Annotated[int, SIZE]
Fraction = Annotated[float, FRACTION]
Switch = Annotated[bool, SWITCH]
Texts = Annotated[tuple[str, ...], STRINGS]
FileTypes = Annotated[tuple[str, ...], ValueFormat(_types, list)]
Threshold = Annotated[Reserve, ValueFormat(parse_threshold, show_reserve)]
When = Annotated[Schedule, ValueFormat(_schedule, show_schedule)]


@dataclass(frozen=True, slots=True)
class Policy:
    """Every key of the policy, in the units that the program uses."""

    min_age_s: Annotated[Seconds, "minimum time since the last change of a file"] = 3 * 86400.0
    min_size_bytes: Annotated[Bytes, "skip files smaller than this"] = 4 << 10
    min_file_saving: Annotated[
        Fraction,
        "skip a file if it would free less than this share of its blocks; 0 skips none",
    ] = 0.05
    include: Annotated[Texts, "if not empty: optimize only these paths and patterns"] = ()
    exclude: Annotated[Texts, "paths and patterns to skip"] = ()
    exclude_types: Annotated[FileTypes, "file types to skip"] = ()
    ignore_case: Annotated[Switch, "ignore upper and lower case in patterns"] = False
    markers: Annotated[
        tuple[Marker, ...],
        ValueFormat(_markers, list),
        "marker files: files in a directory with one of them stay plain",
    ] = (Marker.CACHEDIR_TAG, Marker.NODEDUP)
    no_compress_types: Annotated[FileTypes, "file types that are never compressed"] = ()
    compression_level: Annotated[
        int, whole(0, 19), "zstd level; 0 stores all chunks uncompressed"
    ] = 3
    busy_files: Annotated[
        BusyFilesMode,
        "large files that are written continuously: skip, or optimize their unchanged ranges",
    ] = BusyFilesMode.SKIP
    shared_extents: Annotated[
        SharedExtents, "files that share blocks with snapshots or reflink copies: skip or take"
    ] = SharedExtents.SKIP
    dedup_domain: Annotated[
        DedupDomain,
        "files that may share chunks: all of the volume, of one owner, or of one top-level folder",
    ] = DedupDomain.VOLUME
    refine: Annotated[RefineMode, "recompress cold chunks: off, quick or full"] = RefineMode.OFF
    refine_age_s: Annotated[
        Seconds, "minimum time that a chunk has been stored before refine recompresses it"
    ] = 7 * 86400.0
    compaction_min_dead: Annotated[
        Fraction, "rewrite a container if at least this share of it is garbage"
    ] = 0.05
    compaction_shared: Annotated[
        SharedExtents, "containers that share blocks with snapshots: take or skip"
    ] = SharedExtents.TAKE
    reserve: Annotated[
        Reserve,
        ValueFormat(parse_reserve, show_reserve),
        "free space that jobs leave to users: a size, a percentage, or auto",
    ] = DEFAULT_RESERVE
    space_low: Annotated[
        Threshold, "free space below which the service frees garbage at once; 0 means never"
    ] = _LOW
    space_critical: Annotated[
        Threshold, "free space below which it also optimizes files of the age space_min_age"
    ] = _CRITICAL
    space_min_age_s: Annotated[Seconds, "minimum age of a file while free space is critical"] = (
        3600.0
    )
    keep_deleted_s: Annotated[
        Seconds, "how long deleted and overwritten files can be restored; 0s keeps nothing"
    ] = 7 * 86400.0
    keep_deleted_max: Annotated[
        Threshold,
        (
            "maximum space for deleted and overwritten files: a size, or a percentage of the"
            " file system"
        ),
    ] = _KEPT_MAX
    restore_mode: Annotated[
        RestoreMode,
        "on while a restore fills the volume: optimize files as soon as they are closed",
    ] = RestoreMode.OFF
    redundancy_threshold: Annotated[
        int,
        whole(0, 250),
        "keep a second copy of chunks with more references than this; 0 keeps none",
    ] = 100
    scrub_rate_bytes_per_s: Annotated[
        int,
        SIZE._replace(unit="bytes_per_s"),
        "maximum read rate of scrub per second; 0 means unlimited",
    ] = 0
    memory_bytes: Annotated[Bytes, "maximum memory of a job"] = 256 << 20
    cores: Annotated[int, whole(0, 1024), "number of cores that a job may use; 0 means all"] = 0
    index: Annotated[
        IndexChoice, "table: little memory per chunk of the store; bloom: least memory"
    ] = IndexChoice.TABLE
    partitions: Annotated[
        int,
        whole(1, 256),
        "minimum number of partitions of the index; a small memory limit increases it",
    ] = 1
    stop_when_busy: Annotated[
        Switch, "slow down and pause jobs while the machine or its users are busy"
    ] = True
    io_priority: Annotated[IoPriority, "disk priority of jobs: idle, low or normal"] = (
        IoPriority.IDLE
    )
    schedule_background: Annotated[When, "when to optimize files, yielding to users"] = _HOURLY
    schedule_throughput: Annotated[When, "when to optimize files at full speed"] = _EARLY
    schedule_reconcile: Annotated[When, "when to merge duplicates of different partitions"] = (
        _WEEKLY
    )
    schedule_refine: Annotated[When, "when to recompress cold chunks"] = _EARLY
    schedule_gc: Annotated[When, "when to collect garbage"] = _WEEKLY
    schedule_compact: Annotated[When, "when to rewrite containers to free the space of garbage"] = (
        _WEEKLY
    )
    schedule_scrub: Annotated[When, "when to check for damage"] = _WEEKLY_LATER
    schedule_full_scrub: Annotated[When, "when to read and check every byte of the store"] = (
        _MONTHLY
    )
    schedule_recover: Annotated[When, "when to check a store in a cluster for dead hosts"] = _HOURLY
    schedule_audit: Annotated[When, "when to audit a store in a cluster"] = _SUNDAYS
    rules: tuple[Rule, ...] = ()

    @property
    def is_uniform(self) -> bool:
        """True if the same values apply to all paths, except for compression by type."""
        return not (self.include or self.exclude or self.exclude_types or self.rules)

    @property
    def loosest(self) -> tuple[float, int]:
        """The lowest age and the lowest size that this policy requires for any path."""
        ages = [rule.min_age_s for rule in self.rules if rule.min_age_s is not None]
        sizes = [rule.min_size_bytes for rule in self.rules if rule.min_size_bytes is not None]
        return min([self.min_age_s, *ages]), min([self.min_size_bytes, *sizes])

    @property
    def strictest_age_s(self) -> float:
        """The highest age that it requires for any path."""
        ages = [rule.min_age_s for rule in self.rules if rule.min_age_s is not None]
        return max([self.min_age_s, *ages])

    @property
    def keep_deleted_s_max(self) -> float:
        """The longest time for which it keeps deletions of any path."""
        times = [one.keep_deleted_s for one in self.rules if one.keep_deleted_s is not None]
        return max([self.keep_deleted_s, *times])

    def keeps_deleted_s(self, path: bytes) -> float:
        """Return how long a deletion of this file is kept."""
        return decided(self, path).keep_deleted_s if self.rules else self.keep_deleted_s

    def excludes(self, path: bytes) -> bool:
        """Return whether a path, relative to the volume, is skipped for any age and size."""
        return not self.is_uniform and bool(decided(self, path).excluded)

    def compresses(self, path: bytes) -> bool:
        """Return whether chunks of this file may be compressed."""
        if self.rules:
            return decided(self, path).compresses
        name = path.rpartition(b"/")[2].decode("utf-8", "surrogateescape")
        return self.compresses_type(extension_of(name))

    def compresses_type(self, file_type: str) -> bool:
        """Return whether chunks of files of this type may be compressed, apart from rules."""
        return file_type not in self.no_compress_types


@dataclass(frozen=True, slots=True)
class Decision:
    """The values of the policy for a path, and the keys or rules that set them.

    ``excluded``: the reason why the path is skipped, or empty. ``rules`` has the number, from 1, of
    the rule that sets a key, for each key that a rule sets.
    """

    min_age_s: float
    min_size_bytes: int
    excluded: str
    compresses: bool
    keep_deleted_s: float
    rules: Mapping[str, int]

    def source(self, key: str) -> str:
        """Return the origin of the value of a key."""
        return f"rule {self.rules[key]}" if key in self.rules else "the policy"


def decided(policy: Policy, path: bytes) -> Decision:
    """Return the decision of ``policy`` on a path, relative to the volume.

    A rule overrides the keys of the policy, and a later rule overrides earlier ones. Jobs, ``dedupd
    file`` and ``dedupd policy --why`` all call this function.
    """
    text = path.decode("utf-8", "surrogateescape")
    file_type = extension_of(text.rpartition("/")[2])
    excluded = _excluded_by_keys(policy, text, file_type)
    compresses = file_type not in policy.no_compress_types
    decision = Decision(
        *(policy.min_age_s, policy.min_size_bytes, excluded, compresses, policy.keep_deleted_s), {}
    )
    for number, rule in enumerate(policy.rules, 1):
        if takes(rule.path, text, policy.ignore_case):
            decision = _overridden(decision, rule, number)
    return decision


def _excluded_by_keys(policy: Policy, path: str, file_type: str) -> str:
    if policy.include and not takes(policy.include, path, policy.ignore_case):
        return "include, which does not list it"
    if file_type in policy.exclude_types:
        return f'exclude_types, by "{file_type}"'
    pattern = matching(policy.exclude, path, policy.ignore_case)
    if pattern is not None and not pattern.startswith("!"):
        return f'exclude, by "{pattern}"'
    return ""


def _overridden(decision: Decision, rule: Rule, number: int) -> Decision:
    said = [name for name in rule.to_table() if name != "path"]
    changes: dict[str, Any] = {"rules": {**decision.rules, **dict.fromkeys(said, number)}}
    if rule.min_age_s is not None:
        changes["min_age_s"] = rule.min_age_s
    if rule.min_size_bytes is not None:
        changes["min_size_bytes"] = rule.min_size_bytes
    if rule.exclude is not None:
        changes["excluded"] = f"rule {number}" if rule.exclude else ""
    if rule.compress is not None:
        changes["compresses"] = rule.compress
    if rule.keep_deleted_s is not None:
        changes["keep_deleted_s"] = rule.keep_deleted_s
    return replace(decision, **changes)


KEYS = keys_of(Policy)

ADVANCED: Mapping[str, str] = {
    "min_file_saving": "volumes that must store every file, such as a copy for another site",
    "ignore_case": "shares of Windows users with patterns of names",
    "markers": "users who decide by themselves that a folder stays plain",
    "compression_level": "volumes with much idle CPU time and little space, or the reverse",
    "busy_files": "virtual machines and databases that never close their files",
    "shared_extents": "volumes with snapshots or reflinks in the file system below",
    "dedup_domain": "shares whose users or departments must not share chunks",
    "refine_age": "volumes with `refine` whose data cools faster or slower than usual",
    "compaction_min_dead": "volumes that are nearly full, or whose disks rotate",
    "compaction_shared": "volumes with snapshots in the file system below",
    "space_low": "volumes that run full before the next scheduled run",
    "space_critical": "volumes that run full before files are old enough",
    "space_min_age": "volumes with `space_critical` whose new files must stay plain for longer",
    "keep_deleted_max": "volumes where kept deletions take too much space",
    "restore_mode": "a restore of more data than the volume has room for",
    "redundancy_threshold": "volumes on a single disk, or on disks that are trusted less",
    "scrub_rate": "volumes whose users notice a scrub",
    "cores": "machines with other work that must not wait",
    "index": "stores of more than a terabyte on machines with little memory",
    "partitions": "measurements of stores with several partitions",
    "stop_when_busy": "machines without users, whose jobs need not wait",
    "io_priority": "disks whose scheduler ignores priorities, or machines without users",
    "schedule_reconcile": "stores with partitions",
    "schedule_refine": "volumes with `refine` and a night that is too short for all jobs",
    "schedule_gc": "volumes with much churn",
    "schedule_compact": "volumes with much churn",
    "schedule_full_scrub": "volumes whose weekly scrub of every byte takes too long",
    "schedule_recover": "volumes with a store in a cluster",
    "schedule_audit": "volumes with a store in a cluster",
}
"""``dedupd policy`` shows these with ``--all``, or if they do not have their default."""


RULES = "rule"
"""The name of the tables for :class:`Rule`; not a key itself."""

TABLES = {**KEYS, RULES: Key(RULES, "rules", ValueFormat(parse_rules, show_rules))}
"""All keys that a policy may have."""


REMOVED: Mapping[str, str] = {
    "compression_min_saving": "0.05",
    "partial_files": "true",
    "partial_local_max": "0.5",
    "refine_level": "12",
    "refine_min_saving": "0.2",
}
"""Keys of earlier versions, and the value that each volume has now."""


def parsed_value(name: str, value: object, where: str) -> object:
    """The value of a key in a file. Raises PolicyError that names file, key, value and reason."""
    if name in REMOVED:
        raise PolicyError(
            f"{where}: {name} = {brief(value)}: dedupd no longer has this key, and uses"
            f" {REMOVED[name]}; to delete the key, run `dedupd policy PATH --reset {name}`"
        )
    return parsed(TABLES, name, value, where, PolicyError)


def parse_policy(text: str, where: str) -> Policy:
    """Parse a policy file. Raises PolicyError that names file, key, value and reason."""
    return apply_values(Policy(), read_table(text, where, PolicyError), where)


def apply_values(policy: Policy, values: dict[str, Any], where: str) -> Policy:
    """Return ``policy`` with keys replaced by ``values``, as written. Raises PolicyError."""
    meant: dict[str, Any] = {}
    for name, value in values.items():
        found = parsed_value(name, value, where)
        meant[TABLES[name].attribute] = found
    return replace(policy, **meant)


@dataclass(frozen=True, slots=True)
class RunLimits:
    """The limits that a user sets for one run; None keeps the value of the policy."""

    min_age_s: float | None = None
    """The age for all paths, even those with an age in a rule."""
    min_age_s_max: float | None = None
    """A limit for the age of the policy and of each rule."""
    memory_bytes: int | None = None
    cores: int | None = None

    def applied(self, policy: Policy) -> Policy:
        """Return the policy for this run."""
        if self.min_age_s is not None:
            rules = tuple(replace(rule, min_age_s=None) for rule in policy.rules)
            policy = replace(policy, min_age_s=self.min_age_s, rules=rules)
        if (age_s := self.min_age_s_max) is not None:
            rules = tuple(
                rule
                if rule.min_age_s is None
                else replace(rule, min_age_s=min(rule.min_age_s, age_s))
                for rule in policy.rules
            )
            policy = replace(policy, min_age_s=min(policy.min_age_s, age_s), rules=rules)
        if self.memory_bytes is not None:
            policy = replace(policy, memory_bytes=self.memory_bytes)
        if self.cores is not None:
            policy = replace(policy, cores=self.cores)
        return policy
