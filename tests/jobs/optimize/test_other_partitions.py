"""Chunks that another partition of the index has are named there, and not stored a second time."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dedupd_core.errors import NoSpace
from dedupd_core.format.container import Kind
from dedupd_core.format.domain import PartitionKey
from dedupd_core.format.table import State
from dedupd_core.index import hooks
from dedupd_core.native.commit import CommitRequests
from dedupd_core.stub.commit_steps import Result
from dedupd_core.units import KIB, MIB
from dedupd_core.volume.commit import VolumeCommitter
from jobs.frame.run import Cancelled
from jobs.optimize.store_session import StoreSession, StoreSync
from jobs.tree.walk import walk
from tests.crash.small_parts import hooks_of_few
from tests.support import crash
from tests.support.lab import Lab, new_lab, noise, prose
from tests.support.upkeep import chunks_of, entry, reconcile

POLICY = 'min_age = "0s"\nmin_size = "1"\nmin_file_saving = 0\nredundancy_threshold = 100\n'


@pytest.fixture(autouse=True)
def looked_for_among_few() -> Iterator[None]:
    with hooks_of_few():
        yield


def volume(root: Path, partitions: int, more: str = "") -> Lab:
    lab = new_lab(root)
    lab.set_policy(POLICY + f"partitions = {partitions}\n" + more)
    return lab


def in_partitions(lab: Lab) -> dict[str, int]:
    """The partition of the first chunk of each file."""
    with lab.opened() as opened, opened.containers(Kind.CHUNKS) as directory:
        names = sorted(path.name for path in lab.data.iterdir())
        return {
            name: directory.header(chunks_of(lab, name)[0][0] >> 32).partition for name in names
        }


def files_and_images() -> dict[str, bytes]:
    """Files of two types, and images in which they lie at whole blocks."""
    rng = random.Random(4)
    files = {f"f{n}.{'so' if n % 2 else 'jar'}": prose(MIB, n)[: MIB - 4 * KIB] for n in range(12)}
    contents = [one + bytes(-len(one) % (4 * KIB)) for one in files.values()]
    for number in range(2):
        rng.shuffle(contents)
        files[f"guest{number}.img"] = noise(64 * KIB, number) + b"".join(contents)
    return files


@pytest.mark.parametrize("index", ["table", "bloom"])
def test_images_beside_their_files_take_what_they_take_in_one_partition(
    tmp_path: Path, index: str
) -> None:
    files = files_and_images()
    stored = {}
    for partitions in (1, 3):
        lab = volume(tmp_path / f"volume{partitions}", partitions, f'index = "{index}"\n')
        lab.store(files)
        stored[partitions] = crash.stored_bytes(lab.root)
        assert {name: lab.read(name) for name in files} == files
        lab.verify_clean()
    assert stored[3] <= 1.005 * stored[1]
    assert reconcile(lab).merged.chunks == 0


def test_without_hooks_they_take_it_more_than_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "ENTRIES_MIN", 1 << 40)
    lab = volume(tmp_path / "volume", 3)
    files = files_and_images()
    lab.store(files)
    assert reconcile(lab).merged.raw_bytes > 8 * MIB


def test_an_orphan_of_another_partition_is_live_before_a_file_names_it(tmp_path: Path) -> None:
    lab = volume(tmp_path / "volume", 3)
    content = noise(300 * KIB)
    lab.store({"one.t1": content, "other": noise(900 * KIB, 1)})
    chunks = [chunk for chunk, _, _ in chunks_of(lab, "one.t1")]
    (lab.data / "one.t1").unlink()
    crash.orphan_garbage(lab.root)
    assert {entry(lab, Kind.CHUNKS, one).state for one in chunks} == {State.ORPHANED}
    before = lab.container(Kind.CHUNKS).stat().st_size
    lab.store({"two.t2": content})
    assert [chunk for chunk, _, _ in chunks_of(lab, "two.t2")] == chunks
    assert {entry(lab, Kind.CHUNKS, one).state for one in chunks} == {State.LIVE}
    assert lab.container(Kind.CHUNKS).stat().st_size == before
    assert lab.collect().orphaned_chunks == 0
    lab.compact()
    assert lab.read("two.t2") == content
    lab.verify_clean()


def test_what_was_merged_is_found_where_it_leads_to(tmp_path: Path) -> None:
    lab = volume(tmp_path / "volume", 4)
    content = noise(400 * KIB)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hooks, "ENTRIES_MIN", 1 << 40)
        lab.store({"one.t1": content, "two.t2": content, "other": noise(900 * KIB, 1)})
    assert len(set(in_partitions(lab).values())) == 3
    assert reconcile(lab).merged.chunks >= 4
    lab.store({"three.t3": content})
    states = {entry(lab, Kind.CHUNKS, one).state for one, _, _ in chunks_of(lab, "three.t3")}
    assert states == {State.LIVE}
    for name in ("one.t1", "two.t2"):
        (lab.data / name).unlink()
    lab.collect()
    lab.compact()
    assert lab.read("three.t3") == content
    lab.verify_clean()


def test_what_was_given_back_there_is_not_named(tmp_path: Path) -> None:
    lab = volume(tmp_path / "volume", 3)
    content = noise(300 * KIB)
    lab.store({"one.t1": content, "other": noise(900 * KIB, 1)})
    (lab.data / "one.t1").unlink()
    lab.collect(all_garbage=True)
    lab.compact()
    lab.store({"two.t2": content})
    assert lab.read("two.t2") == content
    lab.verify_clean()


# --- from one partition to the next -----------------------------------------------------------


def of_three_types() -> dict[str, bytes]:
    return {f"{n}.t{n % 3}": noise(200 * KIB, n) for n in range(36)}


def put_all(lab: Lab, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        lab.put(name, content)


def test_files_become_stubs_while_the_next_partition_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, files = volume(tmp_path / "volume", 3), of_three_types()
    put_all(lab, files)
    moved_on, waited = threading.Event(), list[bool]()
    commit, use_partition = VolumeCommitter.commit, StoreSession.use_partition

    def slowly(self: VolumeCommitter, requests: CommitRequests) -> list[Result]:
        if not waited:
            waited.append(moved_on.wait(20))
        return commit(self, requests)

    def move_on(self: StoreSession, partition: PartitionKey) -> None:
        before = self.partition
        use_partition(self, partition)
        if partition != before:
            moved_on.set()

    monkeypatch.setattr(VolumeCommitter, "commit", slowly)
    monkeypatch.setattr(StoreSession, "use_partition", move_on)
    monkeypatch.setattr("jobs.optimize.rounds.GROUP_FILES_MAX", 7)  # of 12 in a partition
    for name in ("BATCH_BYTES", "BATCH_BYTES_MIN"):
        monkeypatch.setattr(f"jobs.optimize.batch_reader.{name}", 256 * KIB)
    report = lab.optimize()
    assert waited == [True]
    assert (report.files_optimized, report.partitions) == (36, 3)
    assert {name: lab.read(name) for name in files} == files
    lab.verify_clean()


def test_a_partition_ends_when_its_groups_are_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index that a group was looked up in is not let go of before."""
    lab, files = volume(tmp_path / "volume", 3), of_three_types()
    put_all(lab, files)
    syncing, were_syncing = threading.Event(), list[bool]()
    finish_sync, use_partition = StoreSession.finish_sync, StoreSession.use_partition

    def slowly(self: StoreSession, noted: StoreSync) -> None:
        if threading.current_thread() is threading.main_thread():
            return finish_sync(self, noted)
        syncing.set()
        time.sleep(0.3)
        finish_sync(self, noted)
        syncing.clear()

    def move_on(self: StoreSession, partition: PartitionKey) -> None:
        if partition != self.partition:
            were_syncing.append(syncing.is_set())
        use_partition(self, partition)

    monkeypatch.setattr(StoreSession, "finish_sync", slowly)
    monkeypatch.setattr(StoreSession, "use_partition", move_on)
    monkeypatch.setattr("jobs.optimize.rounds.GROUP_FILES_MAX", 7)  # of 12 in a partition
    for name in ("BATCH_BYTES", "BATCH_BYTES_MIN"):
        monkeypatch.setattr(f"jobs.optimize.batch_reader.{name}", 256 * KIB)
    assert lab.optimize().partitions == 3
    assert were_syncing == [False, False]
    lab.verify_clean()


def test_the_end_of_a_partition_makes_no_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, files = volume(tmp_path / "volume", 3), of_three_types()
    put_all(lab, files)
    groups: list[int] = []
    commit = VolumeCommitter.commit

    def counted(self: VolumeCommitter, requests: CommitRequests) -> list[Result]:
        groups.append(len(requests))
        return commit(self, requests)

    monkeypatch.setattr(VolumeCommitter, "commit", counted)
    report = lab.optimize()
    assert (groups, report.partitions) == ([36], 3)
    assert len(set(in_partitions(lab).values())) == 3
    lab.verify_clean()


def test_files_of_several_partitions_are_stubs_before_a_job_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is stored of a partition is not lost where the next one finds no room, or is stopped."""
    for error in (NoSpace("full"), Cancelled()):
        lab, files = volume(tmp_path / f"volume{type(error).__name__}", 3), of_three_types()
        put_all(lab, files)
        use_partition = StoreSession.use_partition

        def fail(
            self: StoreSession,
            partition: PartitionKey,
            error: Exception = error,
            use: Callable[[StoreSession, PartitionKey], None] = use_partition,
        ) -> None:
            if (self.partition.number, partition.number) == (1, 2):
                raise error
            use(self, partition)

        with monkeypatch.context() as patch:
            patch.setattr(StoreSession, "use_partition", fail)
            with pytest.raises(type(error)):
                lab.optimize()
        with lab.opened() as opened:
            assert sum(found.is_stub for found in walk(opened)) == 24
        assert {name: lab.read(name) for name in files} == files
        assert lab.optimize().files_optimized == 12
        lab.verify_clean()
