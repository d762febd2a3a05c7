"""Jobs of volumes that append to one store at the same time."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from dedupd_core.config.policy import IndexChoice
from dedupd_core.errors import Busy
from dedupd_core.format import table as tbl
from dedupd_core.format.container import Kind
from dedupd_core.format.domain import PartitionKey
from dedupd_core.format.ids import container_of, ordinal_of
from dedupd_core.format.table import State
from dedupd_core.store.container.record_states import join_set, set_states
from dedupd_core.system.disk import Disk
from dedupd_core.units import KIB
from jobs.frame.run import JobRun
from jobs.reconcile.reconcile_job import Reconcile
from tests.crash.exploring import file_system_for_states
from tests.support import crash
from tests.support.lab import Lab, fill, noise
from tests.support.service import eventually
from tests.support.shared import (
    Session,
    SharedLab,
    appending,
    one_waits_for_another,
    optimize_beside,
)

pytestmark = pytest.mark.root

OLD, MORE = noise(30 * KIB, 1), noise(30 * KIB, 2)
NEW = tuple(noise(20 * KIB, seed) for seed in range(10, 16))


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with file_system_for_states(tmp_path_factory.mktemp("beside")) as point:
        yield point


@pytest.fixture
def shared(fast: Path) -> Iterator[SharedLab]:
    directory = fast / "store and volumes"
    directory.mkdir()
    yield SharedLab(directory)
    crash.remove(directory)


@pytest.fixture
def labs(shared: SharedLab) -> tuple[Lab, Lab, Lab]:
    a, b, c = map(shared.volume, "abc")
    return a, b, c


def store_one(lab: Lab, chunk: bytes) -> None:
    with appending(lab) as session:
        session.append(chunk)
        session.sync()


@pytest.fixture
def two(labs: tuple[Lab, ...]) -> Iterator[tuple[Session, Session]]:
    """Two jobs, begun one after the other on a store that has a chunk already."""
    store_one(labs[0], OLD)
    with appending(labs[0]) as first, appending(labs[1]) as second:
        yield first, second


def test_each_appends_to_containers_of_its_own(two: tuple[Session, Session]) -> None:
    kept: dict[int, bytes] = {}
    for number, chunk in enumerate(NEW):
        session = two[number % 2]
        kept[session.append(chunk)[0]] = chunk
        session.sync()
    assert sorted({container_of(one) for one in kept}) == [1, 2]
    for session in two:
        assert session.look_up(OLD)
        assert {one: session.read(one) for one in kept} == kept


@pytest.mark.parametrize("index", [IndexChoice.TABLE, IndexChoice.BLOOM])
def test_none_comes_to_need_what_another_may_take_back(
    labs: tuple[Lab, ...], index: IndexChoice
) -> None:
    """Neither from its index, nor with the neighbours of an entry that it reads in a table."""
    store_one(labs[0], OLD)
    with appending(labs[0]) as writer, appending(labs[1], index) as reader:
        (unkept,) = writer.append(NEW[0])
        writer.sync(keep=False)
        with appending(labs[2], index) as late:
            for session in (reader, late):
                assert container_of(session.look_up(OLD)) == container_of(unkept)
                assert session.look_up(NEW[0]) == 0
        (theirs,) = reader.append(NEW[0])
        reader.sync()
        writer.store.cut_back()
        assert reader.read(theirs) == NEW[0]
        assert reader.read(reader.look_up(OLD)) == OLD


def test_a_container_that_grows_on_is_known_as_it_was(labs: tuple[Lab, ...]) -> None:
    """Also where a job was there first, and looks at the tables anew: for another partition."""
    with appending(labs[0]) as one, appending(labs[1]) as other:
        one.append(OLD)
        other.append(MORE)
        one.sync()
        other.sync()
    with appending(labs[0]) as reader, appending(labs[1]) as writer:
        (unkept,) = writer.append(NEW[0])
        writer.sync(keep=False)
        assert container_of(unkept) in (1, 2)
        for partition in (1, 0):
            reader.store.use_partition(PartitionKey(number=partition))
        assert reader.look_up(OLD)
        assert reader.look_up(MORE)
        assert reader.look_up(NEW[0]) == 0
        writer.store.cut_back()
        assert reader.read(reader.look_up(MORE)) == MORE


def test_what_jobs_leave_grows_on(shared: SharedLab, labs: tuple[Lab, ...]) -> None:
    """However often they run side by side, each leaves one container that is not full."""
    for chunks in zip(NEW[::2], NEW[1::2], strict=True):
        with ExitStack() as jobs:
            sessions = [jobs.enter_context(appending(lab)) for lab in labs[:2]]
            for session, chunk in zip(sessions, chunks, strict=True):
                session.append(chunk)
                session.sync()
    assert len(list((shared.path / "store/chunks").glob("*.dat"))) == 2


def test_garbage_that_both_come_to_need_is_live(labs: tuple[Lab, ...]) -> None:
    store_one(labs[0], OLD)
    with appending(labs[0]) as session:
        change(session, session.look_up(OLD), State.ORPHANED)
    with appending(labs[0]) as first, appending(labs[1]) as second:
        old = first.look_up(OLD)
        assert second.look_up(OLD) == old
        for session in (first, second):
            session.sync()
            assert session.state(old) is State.LIVE


def change(session: Session, record_id: int, state: State) -> None:
    with session.volume.containers(Kind.CHUNKS) as directory:
        entry = directory.entry(record_id)
        assert entry is not None
        set_states(directory, {record_id: entry._replace(state=state)})


class PausingDisk(Disk):
    """Waits before it writes to a table, once it is asked to."""

    def __init__(self) -> None:
        self.pauses = False
        self.is_there, self.goes_on = threading.Event(), threading.Event()

    def write_at(self, fd: int, data: Sequence[memoryview | bytes | bytearray], offset: int) -> int:
        if self.pauses:
            self.is_there.set()
            self.goes_on.wait()
        return super().write_at(fd, data, offset)


def test_a_mark_is_not_lowered_by_what_another_changes(labs: tuple[Lab, ...]) -> None:
    """Both write to the header of one table: its mark, and the end of the reconciled set."""
    store_one(labs[0], OLD)
    labs[1].disk = disk = PausingDisk()
    with appending(labs[0]) as first, appending(labs[1]) as second:
        old = second.look_up(OLD)
        with first.volume.containers(Kind.CHUNKS) as directory:
            assert join_set(directory, directory.header(container_of(old)), 0, 1)
        (new,) = first.append(NEW[0])
        disk.pauses = True
        changing = threading.Thread(target=change, args=[second, old, State.LIVE])
        changing.start()
        disk.is_there.wait()
        syncing = threading.Thread(target=first.sync)
        syncing.start()
        eventually(
            lambda: not syncing.is_alive() or one_waits_for_another(), "the other waits, or not"
        )
        disk.goes_on.set()
        changing.join()
        syncing.join()
        assert container_of(new) == container_of(old)
        assert synced_count(first, new) == ordinal_of(new) + 1 == 2


def synced_count(session: Session, record_id: int) -> int:
    """How many records the table of a container says to be durable."""
    path = Path(session.volume.directory(Kind.CHUNKS), f"{container_of(record_id):08d}.dir")
    return tbl.decode_header(path.read_bytes()[: tbl.HEADER_BYTES], "").synced_count


def test_a_job_that_needs_all_names_the_volume_that_keeps_it(labs: tuple[Lab, ...]) -> None:
    with appending(labs[0]), pytest.raises(Busy, match=r"/a: in use by a job; wait"):
        labs[1].collect()
    assert labs[1].collect().messages == []


def test_a_job_that_waits_for_the_store_comes_before_later_ones(
    labs: tuple[Lab, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Else it could wait for as long as there are others that append."""
    order: list[str] = []

    def compact() -> None:
        labs[1].compact()
        order.append("compact")

    def append() -> None:
        with appending(labs[2]):
            waiting[0].join(timeout=10)  # it has let the store go, but may not have said so
            order.append("append")

    waiting = [threading.Thread(target=compact), threading.Thread(target=append)]
    with appending(labs[0]) as session:
        waiting[0].start()
        eventually(lambda: "waits: " in caplog.text, "the job waits")
        waiting[1].start()
        eventually(lambda: "an earlier job" in caplog.text, "the next one waits")
        session.append(OLD)
        session.sync()
        assert order == []
    for thread in waiting:
        thread.join()
    assert order == ["compact", "append"]
    assert "another job uses the store" in caplog.text


def test_what_both_have_stored_is_merged_later(shared: SharedLab, labs: tuple[Lab, ...]) -> None:
    contents = fill(labs[0])
    fill(labs[1])
    fill(labs[2])
    labs[2].optimize()
    once = shared.chunk_bytes()
    labs[2].unoptimize()
    labs[2].collect(all_garbage=True)
    labs[2].compact()
    at_once(*labs[:2])
    labs[0].verify_clean()
    with labs[0].opened() as volume, volume.job_lock():
        assert Reconcile(volume, JobRun("reconcile")).run().messages == []
    assert labs[0].collect().messages == []
    labs[0].compact()
    assert shared.chunk_bytes() <= once * 1.02
    for lab in labs[:2]:
        assert {name: lab.read(name) for name in contents} == contents
    labs[0].verify_clean()


def at_once(*labs: Lab) -> None:
    """Optimize volumes at the same time."""
    failed: list[BaseException] = []

    def run(lab: Lab) -> None:
        try:
            optimize_beside(lab)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=[lab]) for lab in labs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
