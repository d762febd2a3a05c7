"""A session writes the files of one volume: whole, exactly referenced, and nothing is left over."""

import pytest

from dedupd_core.errors import (
    Busy,
    DamagedRecipe,
    FileChanged,
    NotAVolume,
    UsageError,
    WriterFenced,
)
from dedupd_core.format.cluster import objects
from dedupd_core.format.cluster.objects import FileId
from dedupd_core.rados.audit import Audit
from dedupd_core.rados.chunks import StoreResult
from dedupd_core.rados.cluster.changes import AtomicChange
from dedupd_core.rados.lease import lease_state
from dedupd_core.rados.store import RadosStore
from dedupd_core.rados.upkeep.store_status import status_of
from tests.support.ceph import wait_for
from tests.support.rados_hosts import (
    PIECE_BYTES,
    Site,
    fingerprint,
    new_chunk,
    new_file,
    random_content,
)

A, B, C = random_content(1), random_content(2), random_content(3, 5)


@pytest.mark.parametrize("operations_at_once", [1, 8])
def test_files_come_and_go(site: Site, operations_at_once: int) -> None:
    with site.host(operations_at_once=operations_at_once) as host:
        host.put({1: A, 2: A + bytes(3 * PIECE_BYTES) + B, 3: bytes(10_000), 4: b""})
        host.put({1: C})
        assert (host.read(1), host.read(2)) == (C, A + bytes(3 * PIECE_BYTES) + B)
        assert (host.read(3), host.read(4)) == (bytes(10_000), b"")
        report = site.assert_whole()
        assert (report.files, report.chunks, report.candidates) == (4, 11, 0)
        host.delete([2, 3])
        assert site.collect(grace_s=3600).waiting == 6
        assert site.collect().removed == 6
        assert host.read(1) == C
    report = site.assert_whole()
    assert (report.files, report.chunks, report.recipes) == (2, 5, 2)


def test_chunks_are_found_by_all_hosts(site: Site) -> None:
    with site.host("a") as a, site.host("b") as b:
        (one,) = a.put({1: A + B})
        (other,) = b.put({1: B + C}, is_expected=True)
        assert one.arrivals == {StoreResult.CREATED: 6}
        assert other.arrivals == {StoreResult.REFERENCED: 3, StoreResult.CREATED: 5}
        a.delete([1])
        site.collect()
        assert b.read(1) == B + C
    assert site.assert_whole().chunks == 8


def test_what_lost_its_acknowledgement_is_the_same_in_the_end(site: Site) -> None:
    with site.host() as host:
        host.store.cluster.acknowledgements_lost = True
        host.put({1: A, 2: B})
        host.put({1: C})
        host.delete([2])
        assert host.read(1) == C
    site.collect()
    assert site.assert_whole().chunks == 5


def test_a_version_that_is_rolled_back_leaves_nothing(site: Site) -> None:
    with site.host() as host:
        host.put({1: A})
        writer = host.writer
        prepared = writer.prepare([new_file(FileId(1, 1), C), new_file(FileId(3, 1), C)])
        writer.commit(prepared)
        with pytest.raises(Busy, match="not settled"):
            writer.prepare([new_file(FileId(1, 1), B)])
        writer.roll_back(prepared)
        assert host.read(1) == A
    site.collect()
    report = site.assert_whole()
    assert (report.files, report.chunks, report.recipes) == (1, 3, 1)


def test_a_commit_on_another_version_than_was_seen_is_refused(site: Site) -> None:
    with site.host() as host:
        writer = host.writer
        first, second = (writer.prepare([new_file(FileId(1, 1), one)]) for one in (A, B))
        writer.commit(first)
        with pytest.raises(FileChanged):
            writer.commit(second)


def test_a_recipe_of_several_parts(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "PART_ENTRIES_MAX", 2)
    with site.host() as host:
        host.put({1: C})
        assert host.read(1) == C
        assert sum(name.startswith("m.") for name in site.cluster.names()) == 3
        version = host.stubs.versions[FileId(1, 1).text]
        host.delete([1])
        assert host.store.recipes.read(version) is None
        host.put({1: C})
        version = host.stubs.versions[FileId(1, 1).text]
        site.cluster.apply(AtomicChange("rados.recipe-part-removed", f"m.{version}.1", remove=True))
        with pytest.raises(DamagedRecipe, match="missing"):
            host.read(1)
    assert len(site.audit().damaged) == 1


def test_one_session_a_volume(site: Site) -> None:
    with site.host("a"):
        with pytest.raises(Busy, match="a holds the lease on volume"):
            site.host("a", breaks_lease=False)
        state = lease_state(site.cluster, next(iter(site.store.volumes())))
        assert (state.host, state.holder is not None) == ("a", True)
    state = lease_state(site.cluster, next(iter(site.store.volumes())))
    assert (state.holder, state.address, state.unfenced) == (None, None, [])


def test_a_session_that_was_taken_over_can_change_nothing(site: Site) -> None:
    """Also where its client was not fenced, or is not any more."""
    late = site.host("a")
    late.put({1: A})
    prepared = late.writer.prepare([new_file(FileId(1, 1), B), new_file(FileId(2, 1), C)])
    late.writer.commit(prepared[:1])
    with site.host("a") as owner:
        assert (owner.recovery.rolled_back, owner.recovery.retired) == (1, 2)
        other = site.another()
        for change in (late.writer.commit, late.writer.finish, late.writer.roll_back):
            with pytest.raises(WriterFenced):
                change(prepared[1:])
        # As if its client were not fenced: its changes come by another connection.
        for part in (late.writer.table, late.writer.intents):
            object.__setattr__(part, "cluster", other.cluster)
        with pytest.raises(WriterFenced, match="another session"):
            late.writer.commit(prepared[1:])
        with pytest.raises(WriterFenced, match="another session"):
            late.writer.intents.set({"0" * 32: FileId(5, 5)})
        other.store.close()
        assert owner.read(1) == A
    late.die()
    site.collect()
    assert site.assert_whole().chunks == 3


def test_a_lease_that_is_over_lets_nothing_through(site: Site) -> None:
    host = site.host("a")
    host.writer.lease._until_s = 0  # as after a long stop
    for change in (lambda: host.put({1: A}), host.writer.lease.renew):
        with pytest.raises(WriterFenced, match="lease"):
            change()
    host.die()
    with site.host("a") as host:
        host.put({1: A})


def test_a_lease_runs_out_by_the_cluster_s_clock(site: Site) -> None:
    site.host("a", lease_s=0.5).die()
    with pytest.raises(Busy, match="or the lease expires"):
        site.host("a", breaks_lease=False)
    volume = next(iter(site.store.volumes()))
    wait_for(lambda: lease_state(site.cluster, volume).holder is None, "free lease", 5)
    with site.host("a", breaks_lease=False, lease_s=0.6) as host:
        first = lease_state(site.cluster, volume).holder
        wait_for(lambda: lease_state(site.cluster, volume).holder != first, "renewal", 5)
        host.put({1: A})


def test_the_status_of_a_store(site: Site) -> None:
    for _ in range(2):
        with site.host("a") as host:
            host.put({1: A + B, 2: A})
    with site.host("b") as host:
        host.put({1: A})
        host.put({1: C})
        status = status_of(site.store)
        a, b = sorted(status.volumes, key=lambda one: one.host)
        assert (a.files, a.bytes, a.new_bytes, a.lease_until_s) == (4, 2 * 36864, 24576, None)
        assert (b.files, b.host, b.path) == (0, "b", "/srv/b") and b.lease_until_s is not None
        assert (b.intents, b.retiring, status.candidates) == (0, 0, 0)
    late = site.host("a", lease_s=0.5)
    late.writer.prepare([new_file(FileId(7, 1), B)])
    late.die()
    wait_for(lambda: lease_state(site.cluster, late.volume).holder is None, "free lease", 5)
    status = status_of(site.store)
    assert sum("1 file version of an interrupted session" in line for line in status.lines) == 1
    assert status.to_json()["volumes"][0].keys() >= {"volume", "host", "bytes", "new_bytes"}
    both, alone = status.hosts["a"], status.hosts["b"]
    assert (both.volumes, both.bytes, both.saved_bytes) == (1, 2 * 36864, 2 * 36864 - 24576)
    assert both.live_bytes == 36864 and (alone.files, alone.live_bytes) == (2, len(C))
    assert status.total.saved_bytes == both.saved_bytes + alone.saved_bytes > both.saved_bytes
    assert status.to_json()["hosts"].keys() == {"a", "b"}


def test_a_store_is_made_once(site: Site) -> None:
    with pytest.raises(UsageError, match="already"):
        RadosStore.create(site.address)


def test_a_volume_leaves_when_it_has_nothing_there(site: Site) -> None:
    with site.host() as host:
        volume = host.volume
        host.put({1: A})
    with pytest.raises(Busy, match="still has files"):
        site.store.leave(volume)
    with site.host() as host:
        host.delete([1])
    site.store.leave(volume)
    site.collect()
    assert {name for name in site.cluster.names() if not name.startswith("z.")} == {
        "store",
        "volumes",
    }
    with pytest.raises(NotAVolume):
        site.store.entry(volume)


def test_an_audit_finds_and_repairs_what_is_left_over(site: Site) -> None:
    with site.host() as host:
        host.put({1: A})
        chunks = site.store.chunks
        chunks.put(new_chunk(A[:PIECE_BYTES]), ["0" * 32])  # a reference that nobody has
        chunks.put(new_chunk(B[:PIECE_BYTES]), ["0" * 32])
        chunks.put(new_chunk(C[:PIECE_BYTES]), [])  # no reference at all
        site.cluster.apply(
            AtomicChange(
                "rados.chunk-removed", f"c.{fingerprint(A[-PIECE_BYTES:]).hex()}", remove=True
            )
        )
        audit = Audit(site.store)
        report = audit.run()
        assert len(report.leaked) == 3
        assert len(report.dangling) == 1 and "is missing" in report.dangling[0]
        audit.repair()
        site.collect()
        assert site.audit().leaked == []
        host.delete([1])
    site.collect()
    assert site.assert_whole().chunks == 0
