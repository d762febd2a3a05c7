"""Changes in trains are what they are one by one: their outcomes, their fail points, their end."""

import pytest

from dedupd_core.errors import StoreUnreachable, UsageError, WriterFenced
from dedupd_core.format.cluster.objects import ChunkState, chunk_object, frame_of, tag_key
from dedupd_core.rados.chunks import NewChunk, StoreResult
from dedupd_core.rados.cluster import connection
from dedupd_core.rados.cluster.changes import AtomicChange, Outcome
from dedupd_core.rados.cluster.connection import TRAIN_LENGTHS, Cluster
from dedupd_core.rados.store import RadosStore
from tests.support.lab import noise
from tests.support.rados_hosts import Site, fingerprint, new_chunk

IN_FLIGHT = 16 * TRAIN_LENGTHS
OLD, NEW = "1" * 32, "2" * 32


def creation(number: int) -> AtomicChange:
    return AtomicChange(
        "rados.chunk-created", f"c.{number:03}", exclusive=True, data=b"%d" % number
    )


def test_outcomes_are_in_the_order_of_the_changes(site: Site) -> None:
    count = 3 * IN_FLIGHT + 5
    existing = {0, 7, IN_FLIGHT, count - 1}
    for number in existing:
        site.cluster.apply(creation(number))
    guarded = AtomicChange("rados.chunk-checked", "c.000", equal={"S": "V"}, put={"x": "1"})
    missing = AtomicChange("rados.chunk-checked", "c.none", equal={"S": "V"}, put={"x": "1"})
    found = site.cluster.apply_train([*map(creation, range(count)), guarded, missing])
    expected = [Outcome.EXISTS if n in existing else Outcome.DONE for n in range(count)]
    assert found == [*expected, Outcome.REFUSED, Outcome.MISSING]
    assert all(site.cluster.read(f"c.{n:03}") == b"%d" % n for n in range(count))
    assert site.cluster.apply_train([]) == []


def test_a_fail_point_is_passed_once_its_change_is_durable(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = 0

    def reach(name: str) -> None:
        nonlocal passed
        assert site.cluster.read(f"c.{passed:03}") == b"%d" % passed
        passed += 1

    monkeypatch.setattr(connection, "reach", reach)
    site.cluster.apply_train(map(creation, range(10)))
    assert passed == 10


def test_a_train_that_breaks_off_has_ended_what_it_began(site: Site) -> None:
    permitted = 0

    def permit() -> None:
        nonlocal permitted
        permitted += 1
        if permitted > IN_FLIGHT + 3:
            raise WriterFenced("the lease is over")

    with Cluster(site.address) as cluster:
        cluster.permit = permit
        with pytest.raises(WriterFenced):
            cluster.apply_train(map(creation, range(3 * IN_FLIGHT)))
    names = sorted(site.cluster.names())
    assert [n for n in names if n.startswith("c.")] == [f"c.{n:03}" for n in range(IN_FLIGHT + 3)]


def test_a_crash_amid_a_train_is_a_crash(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def reach(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(connection, "reach", reach)
    with pytest.raises(KeyboardInterrupt):
        site.cluster.apply_train(map(creation, range(10)))


def test_an_error_of_the_cluster_names_its_object(site: Site) -> None:
    wrong = AtomicChange("rados.chunk-created", "c.wrong", calls=[("lock", "lock", b"nonsense")])
    with pytest.raises((StoreUnreachable, UsageError)) as alone:
        site.cluster.apply(wrong)
    with pytest.raises(type(alone.value), match=r"changing c\.wrong"):
        site.cluster.apply_train([creation(1), wrong, creation(2)])


def planted(site: Site) -> dict[str, tuple[NewChunk, StoreResult]]:
    """Chunks in every state, with what becomes of each when it arrives."""
    found: dict[str, tuple[NewChunk, StoreResult]] = {}

    def chunk(
        name: str, state: ChunkState | None, data: bytes | None, arrival: StoreResult
    ) -> None:
        for is_expected in (False, True):
            raw = noise(3000, 2 * len(found) + is_expected)
            own = fingerprint(raw)
            if state is not None:
                put = {"S": state.value, tag_key(OLD): ""}
                content = frame_of(raw, own) if data is None else data
                oid = chunk_object(own)
                site.cluster.apply(AtomicChange("rados.chunk-created", oid, data=content, put=put))
            found[f"{name}, {is_expected}"] = new_chunk(raw, is_expected=is_expected), arrival

    chunk("absent", None, None, StoreResult.CREATED)
    chunk("valid", ChunkState.VALID, None, StoreResult.REFERENCED)
    chunk("doubted", ChunkState.INVALID, None, StoreResult.CHECKED)
    chunk("torn", ChunkState.INVALID, b"torn", StoreResult.REPAIRED)
    chunk("pinned", ChunkState.PINNED, None, StoreResult.PINNED)
    chunk("pinned and torn", ChunkState.PINNED_DAMAGED, b"torn", StoreResult.REPAIRED)
    return found


@pytest.mark.parametrize("operations_at_once", [1, 16])
def test_chunks_arrive_in_trains_as_they_do_alone(site: Site, operations_at_once: int) -> None:
    chunks = planted(site)
    with RadosStore.open(site.address, operations_at_once=operations_at_once) as store:
        arrivals = store.chunks.put_all([(chunk, [NEW]) for chunk, _ in chunks.values()])
        assert dict(zip(chunks, arrivals, strict=True)) == {k: v for k, (_, v) in chunks.items()}
        for chunk, arrival in chunks.values():
            keys = store.cluster.keys(chunk_object(chunk.fingerprint), "r.")
            assert (tag_key(NEW) in keys) is (arrival is not StoreResult.PINNED)
            store.chunks.read(chunk.fingerprint)


def test_a_hot_chunk_is_pinned_by_a_train(site: Site) -> None:
    with RadosStore.open(site.address) as store:
        store.chunks.tags_max, store.chunks.pin_sample = 3, 1
        raw = noise(1000, 1)
        store.chunks.put_all([(new_chunk(raw), [OLD])])
        known = new_chunk(raw, is_expected=True)
        assert store.chunks.put_all([(known, [f"{n:032x}" for n in range(9)])]) == [
            StoreResult.REFERENCED
        ]
        assert store.chunks.put_all([(known, [NEW])]) == [StoreResult.PINNED]
