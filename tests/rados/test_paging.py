"""Keys of an object that changes while they are read."""

from collections.abc import Callable

import pytest

from dedupd_core.errors import StoreUnreachable
from dedupd_core.rados.cluster.changes import AtomicChange, Outcome
from dedupd_core.rados.cluster.connection import PAGE_KEYS, Cluster
from tests.support.rados_hosts import Site

OID = "z.00"
COUNT = 2 * PAGE_KEYS + 100


def put(cluster: Cluster, first: int, count: int) -> None:
    keys = {f"{number:08d}": "" for number in range(first, first + count)}
    change = AtomicChange("rados.candidate-added", OID, put=keys)
    assert cluster.apply(change) is Outcome.DONE


def between_pages(site: Site, act: Callable[[int], None]) -> None:
    """Act before each page but the first."""
    pages = 0

    def gate(operation: str) -> None:
        nonlocal pages
        pages += 1
        if pages > 1:
            act(pages)

    site.cluster.gate = gate


def test_a_change_between_two_pages_has_all_be_read_again(site: Site) -> None:
    """What is returned is all keys as they were at one time."""
    put(site.cluster, 1, COUNT)
    with site.another() as other:
        between_pages(site, lambda pages: put(other.cluster, 0, 1) if pages == 2 else None)
        found = site.cluster.keys(OID)
    assert sorted(found) == [f"{number:08d}" for number in range(COUNT + 1)]


def test_an_object_that_never_rests_is_said_to(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dedupd_core.rados.cluster.connection._PAGING_ROUNDS_MAX", 3)
    put(site.cluster, 0, COUNT)
    with site.another() as other:
        between_pages(site, lambda pages: put(other.cluster, 10**6 + pages, 1))
        with pytest.raises(StoreUnreachable, match="changes while it is read"):
            site.cluster.keys(OID)


def test_keys_that_stay_are_met_while_others_come_and_go(site: Site) -> None:
    put(site.cluster, 0, COUNT)
    with site.another() as other:
        between_pages(site, lambda pages: put(other.cluster, 10**6, 1) if pages < 4 else None)
        met = {key for key, _ in site.cluster.each_key(OID)}
    assert met >= {f"{number:08d}" for number in range(COUNT)}
