"""``dedupd cluster metrics``: the figures of a store, for Prometheus."""

from collections.abc import Callable, Iterator
from typing import Any

import click
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dedupd.cli.common import exits
from dedupd_core.format.cluster.address import parse_address
from dedupd_core.rados.store import RadosStore
from dedupd_core.rados.upkeep.store_status import StoreStatus, VolumeStatus, status_of

_LABELS = ["store", "host", "path"]


def _found(status: StoreStatus, job: str, name: str) -> Any:
    """Return a figure of the last host turn of a job; None if there was no turn."""
    return status.upkeep.get(job, {}).get("found", {}).get(name)


_OF_STORE: tuple[tuple[str, str, Callable[[StoreStatus], float | None]], ...] = (
    (
        "dedupd_cluster_garbage_candidates",
        "Unreferenced chunks that wait for collection.",
        lambda store: store.candidates,
    ),
    (
        "dedupd_cluster_damaged_chunks",
        "Damaged chunks that have not been stored again.",
        lambda store: store.damaged,
    ),
    (
        "dedupd_cluster_gone_volumes",
        "Volumes of dead hosts whose unfinished work was rolled back.",
        lambda store: len(_found(store, "recover", "gone") or ()),
    ),
    (
        "dedupd_cluster_audit_time_seconds",
        "Start time of the last audit of the store.",
        lambda store: store.upkeep.get("audit", {}).get("begun_s"),
    ),
    (
        "dedupd_cluster_audit_dangling",
        "Referenced objects that the last audit did not find.",
        lambda store: _found(store, "audit", "dangling"),
    ),
)

_GAUGES: tuple[tuple[str, str, Callable[[VolumeStatus], float]], ...] = (
    (
        "dedupd_cluster_lease_held",
        "1 if a session writes the volume, else 0.",
        lambda one: float(one.lease_until_s is not None),
    ),
    (
        "dedupd_cluster_versions_left",
        "Unfinished file versions of an interrupted session.",
        lambda one: float(one.intents + one.retiring if one.is_left else 0),
    ),
    (
        "dedupd_cluster_clients_to_fence",
        "Earlier writers of the volume that are not fenced yet.",
        lambda one: float(one.clients_to_fence),
    ),
)

_COUNTERS: tuple[tuple[str, str, Callable[[VolumeStatus], float]], ...] = (
    ("dedupd_cluster_files_stored", "Stored files.", lambda one: one.files),
    ("dedupd_cluster_stored_bytes", "Bytes of stored files.", lambda one: one.bytes),
    (
        "dedupd_cluster_new_bytes",
        "Bytes of stored files that no host had stored before.",
        lambda one: one.new_bytes,
    ),
    (
        "dedupd_cluster_retired_bytes",
        "Bytes of stored files that were replaced or deleted since.",
        lambda one: one.retired_bytes,
    ),
    (
        "dedupd_cluster_chunks_repaired",
        "Damaged chunks that were stored again.",
        lambda one: one.repaired,
    ),
)


@click.command("metrics")
@click.argument("store")
@exits
def command(store: str) -> None:
    """Print the status of STORE in the text format of Prometheus.

    The textfile collector of the node exporter reads this format. For each STORE, run the command
    on only one host.
    """
    with RadosStore.open(parse_address(store)) as opened:
        status = status_of(opened)
    registry = CollectorRegistry()
    registry.register(_StatusCollector(status))
    click.echo(generate_latest(registry).decode(), nl=False)


class _StatusCollector(Collector):
    def __init__(self, status: StoreStatus) -> None:
        self._status = status
        self._store = status.address.partition("?")[0]

    def collect(self) -> Iterator[Metric]:
        for name, text, of_store in _OF_STORE:
            if (found := of_store(self._status)) is not None:
                gauge = GaugeMetricFamily(name, text, None, ["store"])
                gauge.add_metric([self._store], found)
                yield gauge
        for name, text, value in _GAUGES:
            gauge = GaugeMetricFamily(name, text, None, _LABELS)
            for one in self._status.volumes:
                gauge.add_metric([self._store, one.host, one.path], value(one))
            yield gauge
        for name, text, value in _COUNTERS:
            counter = CounterMetricFamily(name, text, None, _LABELS)
            for one in self._status.volumes:
                counter.add_metric([self._store, one.host, one.path], value(one))
            yield counter
