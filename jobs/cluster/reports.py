"""The reports of jobs on volumes whose chunks are in a cluster. Imports nothing of clusters."""

from dataclasses import dataclass, field
from typing import Any

from jobs.frame.job import FileReport

ELSEWHERE = "done by another host"
"""The outcome of a turn that is not this host's."""


@dataclass(slots=True)
class ClusterOptimizeReport(FileReport):
    """What a run did. ``arrivals`` counts chunks by what became of them in the store."""

    job: str = "optimize"
    files_optimized: int = 0
    logical_bytes: int = 0
    freed_bytes: int = 0
    files_left: dict[str, int] = field(default_factory=dict)
    files_skipped: dict[str, int] = field(default_factory=dict)
    arrivals: dict[str, int] = field(default_factory=dict)
    recovery: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class ClusterGcReport(FileReport):
    """What a run did. ``candidates`` and the next ones are of the whole store."""

    job: str = "gc"
    files: int = 0
    files_forgotten: int = 0
    candidates: int = 0
    chunks_removed: int = 0
    chunks_waiting: int = 0
    recovery: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class ClusterScrubReport(FileReport):
    """What a run did. ``damaged`` chunks are of the whole store, as are those that are ``left``."""

    job: str = "scrub"
    chunks: int = 0
    read_bytes: int = 0
    damaged: int = 0
    repaired: dict[str, int] = field(default_factory=dict)
    left: int = 0
    recovery: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class TurnReport(FileReport):
    """``done_by`` and ``done_s`` are of the last turn that got through, this one or another
    host's; ``done_s`` is by the cluster's clock."""

    done_by: str = ""
    done_s: float = 0.0


@dataclass(slots=True)
class RecoverReport(TurnReport):
    """What a run did. ``gone`` and ``audit`` are as the cluster knows them, whoever has looked:
    volumes whose hosts have not come back since, and what the last audit has found."""

    job: str = "recover"
    volumes: int = 0
    waiting: int = 0
    versions_retired: int = 0
    taken_over: list[dict[str, Any]] = field(default_factory=list)
    gone: list[dict[str, Any]] = field(default_factory=list)
    audit: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class ClusterAuditReport(TurnReport):
    """What a run found in the whole store. ``let_go`` are those of ``leaked`` that are gone now."""

    job: str = "audit"
    files: int = 0
    chunks: int = 0
    references: int = 0
    candidates: int = 0
    pinned: int = 0
    dangling: int = 0
    damaged: int = 0
    leaked: int = 0
    let_go: int = 0
