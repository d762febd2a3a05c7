"""What hosts by the ten, hundred and thousand would ask of a store in a Ceph cluster, on paper.

    python -m benchmarks.cluster_model [--measured FILE] [--hosts N,…] [--terabytes N] [--json]

Multiplies the operations that files, chunks and their ends need (docs/design/format.md,
"Procedures") by what an operation costs, as ``benchmarks.cluster`` has measured it. That was on two
cores that three OSDs with two replicas and the client shared, so a cost is core seconds of all of
them together; disks and networks come on top. Everything assumed is a named field of
:class:`Assumptions`.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

TB = 1e12
DAY_S = 86400
KEYS_MAX = 200_000
"""Of an object, where an OSD begins to warn."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Core seconds of one operation, client and OSDs together."""

    create_s: float = 1.3e-3
    refer_s: float = 0.8e-3
    release_s: float = 1.0e-3
    read_s: float = 0.4e-3
    small_change_s: float = 0.8e-3

    @classmethod
    def measured(cls, path: Path, cores: int = 2) -> "Costs":
        """From the output of ``benchmarks.cluster`` on a machine of so many cores."""
        found = json.loads(path.read_text())
        read_s = found["chunk_bytes"] / (found["read_mb_s"] * 1e6)
        return cls(
            found["create_s"] * cores,
            found["refer_s"] * cores,
            found["release_s"] * cores,
            read_s * cores,
            found["refer_s"] * cores,
        )


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Of an office's files; a host has ``host_bytes`` of them."""

    host_bytes: float = 10 * TB
    file_bytes: float = 1e6
    chunk_bytes: float = 80e3
    duplicate: float = 0.5
    """Of all chunks: those that are in the store already."""
    compressed: float = 0.6
    """Stored for raw bytes of a chunk that is new."""
    changed_daily: float = 0.01
    """Of all bytes: written anew, and as much let go."""
    replicas: int = 3
    shards: int = 64
    """Tables of files of a volume."""
    osd_bytes: float = 8 * TB
    osd_fill: float = 0.7
    object_bytes: float = 1.5e3
    """An OSD's own row for an object, and its share of the index."""
    rounding_bytes: float = 2048
    """Half of what an OSD allocates at least."""
    key_bytes: float = 120
    """A key of 34 characters in the OSD's database, with its share of the index."""
    memory_bytes_a_chunk: float = 200
    """Of an audit."""
    use_max: float = 0.3
    """Of the cores that OSDs have: what the daily work may take."""
    recovery_objects_s: float = 500
    """That an OSD takes over from a lost one."""
    audit_reads_s: float = 20_000
    """Keys of objects that one client gets in a second from a cluster of fast disks."""


@dataclass(frozen=True, slots=True)
class Figures:
    """For so many hosts."""

    hosts: int
    logical_tb: float
    chunks: float
    references: float
    files: float
    stored_tb: float
    raw_tb: float
    metadata_percent: float
    """Of the logical bytes, before replication: rows of objects, rounding, keys, recipes."""
    osds: float
    objects_an_osd: float
    database_gb_an_osd: float
    keys_a_table: float
    references_a_chunk: float
    first_ingest_core_days: float
    daily_operations_s: float
    daily_cores: float
    candidates_a_day: float
    collection_core_hours: float
    lease_operations_s: float
    audit_days: float
    audit_memory_gb: float
    recovery_hours: float
    """Until the cluster is whole after the loss of an OSD."""


def figures(hosts: int, a: Assumptions, costs: Costs) -> Figures:
    """The model."""
    logical = hosts * a.host_bytes
    references = logical / a.chunk_bytes
    chunks, files = references * (1 - a.duplicate), logical / a.file_bytes
    stored = chunks * a.chunk_bytes * a.compressed
    per_object = a.object_bytes + a.rounding_bytes
    metadata = (chunks + files) * per_object + (references + files) * a.key_bytes + references * 44
    raw = (stored + metadata) * a.replicas
    osds = raw / (a.osd_bytes * a.osd_fill)
    objects = (chunks + files) * a.replicas / osds
    daily_references = references * a.changed_daily
    daily_files = files * a.changed_daily
    arriving_s = daily_references * (
        a.duplicate * costs.refer_s + (1 - a.duplicate) * costs.create_s
    )
    # A version: read, recipe, commit, end; then its end: read, recipe, note.
    versions_s = daily_files * (4 * costs.small_change_s + 3 * costs.small_change_s)
    leaving_s = daily_references * costs.release_s
    candidates = daily_references * (1 - a.duplicate)
    collection_s = candidates * (costs.read_s + 3 * costs.small_change_s)
    operations = daily_references * 2 + daily_files * 7 + candidates * 5
    work_s = arriving_s + versions_s + leaving_s + collection_s
    first_s = references * (a.duplicate * costs.refer_s + (1 - a.duplicate) * costs.create_s)
    first_s += files * 4 * costs.small_change_s
    return Figures(
        hosts=hosts,
        logical_tb=logical / TB,
        chunks=chunks,
        references=references,
        files=files,
        stored_tb=stored / TB,
        raw_tb=raw / TB,
        metadata_percent=100 * metadata / logical,
        osds=osds,
        objects_an_osd=objects,
        database_gb_an_osd=(
            objects * a.object_bytes + (references + files) * a.replicas / osds * a.key_bytes
        )
        / 1e9,
        keys_a_table=files / hosts / a.shards,
        references_a_chunk=references / chunks,
        first_ingest_core_days=first_s / DAY_S,
        daily_operations_s=operations / DAY_S,
        daily_cores=work_s / DAY_S / a.use_max,
        candidates_a_day=candidates,
        collection_core_hours=collection_s / 3600,
        lease_operations_s=hosts / 10,
        audit_days=(chunks + files) / a.audit_reads_s / DAY_S,
        audit_memory_gb=chunks * a.memory_bytes_a_chunk / 1e9,
        recovery_hours=objects / (a.recovery_objects_s * max(1.0, osds - 1)) / 3600,
    )


def table(columns: list[Figures]) -> Iterator[str]:
    """Markdown: a row for each figure."""
    yield "| | " + " | ".join(f"{one.hosts:,} hosts" for one in columns) + " |"
    yield "| --- |" + " --- |" * len(columns)
    for field in fields(Figures):
        values = [getattr(one, field.name) for one in columns]
        if field.name != "hosts":
            yield f"| {field.name.replace('_', ' ')} | " + " | ".join(map(_shown, values)) + " |"


def _shown(value: float) -> str:
    if value >= 1e6:
        return f"{value:.1e}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--measured", type=Path, help="the output of benchmarks.cluster")
    parser.add_argument("--hosts", default="10,100,1000")
    parser.add_argument("--terabytes", type=float, default=10)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    costs = Costs.measured(options.measured) if options.measured else Costs()
    assumed = Assumptions(host_bytes=options.terabytes * TB)
    columns = [figures(int(one), assumed, costs) for one in options.hosts.split(",")]
    if options.json:
        rows = [asdict(one) for one in columns]
        print(json.dumps({"costs": asdict(costs), "assumed": asdict(assumed), "rows": rows}))
    else:
        print("\n".join(table(columns)))


if __name__ == "__main__":
    main()
