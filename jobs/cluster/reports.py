"""The reports of jobs on volumes whose chunks are in a cluster. Imports nothing of clusters."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dedupd_core.units import counted, format_moment
from jobs.frame.job import FileReport

ELSEWHERE = "done by another host"
"""The outcome of a turn that another host has."""


@dataclass(slots=True)
class ClusterOptimizeReport(FileReport):
    """The results of a run. ``arrivals`` counts chunks by how the store handled them."""

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
    """The results of a run. ``candidates`` and the following fields count for the entire store."""

    job: str = "gc"
    files: int = 0
    files_forgotten: int = 0
    candidates: int = 0
    chunks_removed: int = 0
    chunks_waiting: int = 0
    recovery: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class ClusterScrubReport(FileReport):
    """The results of a run. ``damaged`` and ``left`` count chunks of the entire store."""

    job: str = "scrub"
    chunks: int = 0
    read_bytes: int = 0
    damaged: int = 0
    repaired: dict[str, int] = field(default_factory=dict)
    left: int = 0
    recovery: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class TurnReport(FileReport):
    """The last completed turn of any host; ``done_s`` is by the cluster's clock."""

    done_by: str = ""
    done_s: float = 0.0


@dataclass(slots=True)
class RecoverReport(TurnReport):
    """The results of a run. ``gone`` and ``audit`` come from the cluster: volumes of hosts that
    have not returned, and the findings of the last audit, of any host."""

    job: str = "recover"
    volumes: int = 0
    waiting: int = 0
    versions_retired: int = 0
    taken_over: list[dict[str, Any]] = field(default_factory=list)
    gone: list[dict[str, Any]] = field(default_factory=list)
    audit: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class ClusterAuditReport(TurnReport):
    """The findings in the entire store. ``let_go`` counts the deleted ``leaked`` objects."""

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


def gone_text(gone: Mapping[str, Any]) -> str:
    """Describe a volume whose host has not returned: an item of ``RecoverReport.gone``."""
    left = gone["left"]
    waiting = f", except {counted(left, 'file')} that must wait for the host" if left else ""
    return (
        f"no job of {gone['host']}:{gone['path']} on the same store has run since"
        f" {format_moment(gone['since_s'])}; its unfinished work was rolled back{waiting}"
    )
