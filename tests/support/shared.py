"""Volumes on a shared store, in a line."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from dedupd_core import native
from dedupd_core.config.policy import IndexChoice
from dedupd_core.format.container import Kind
from dedupd_core.format.domain import FIRST
from dedupd_core.format.table import State
from dedupd_core.shared.creation import create_store
from dedupd_core.stores.local_store import STORE_DIRS
from dedupd_core.stores.shared_directory import SharedDirectory
from dedupd_core.system.disk import Disk
from dedupd_core.volume.volume import Volume
from jobs.frame.run import JobRun
from jobs.move import Move, MoveReport, MovingVolume
from jobs.optimize.optimize_job import Optimize, OptimizeReport
from jobs.optimize.store_session import StoreSession
from jobs.rejoin import Rejoin, RejoinReport
from tests.support.lab import Lab, new_lab
from tests.support.stores import append_chunks


class SharedLab:
    """A store, and volumes on it by name."""

    def __init__(self, directory: Path, disk: Disk | None = None) -> None:
        self.directory = directory
        self.disk = disk or Disk()
        self.path = directory / "store"
        create_store(
            str(self.path), chunk_size="64k", fingerprint="blake3", disk=self.disk, force=True
        )

    @contextmanager
    def opened(self) -> Iterator[SharedDirectory]:
        with closing(SharedDirectory.named(str(self.path), self.disk)) as shared:
            yield shared

    def volume(self, name: str) -> Lab:
        """A new volume on the store."""
        with self.opened() as shared:
            return new_lab(self.directory / name, disk=self.disk, shared=shared)

    def known(self) -> set[str]:
        """The directories of its volumes."""
        with self.opened() as shared:
            return {os.path.basename(one.root) for one in shared.members().values()}

    def chunk_bytes(self) -> int:
        """What the containers of chunks have, in blocks."""
        chunks = (self.path / STORE_DIRS[Kind.CHUNKS]).glob("*.dat")
        return sum(path.stat().st_blocks * 512 for path in chunks)


def rejoin(lab: Lab, *, accepts_losses: bool = False) -> RejoinReport:
    with lab.opened() as volume:
        return Rejoin(volume, JobRun("rejoin"), accepts_losses=accepts_losses).run()


def move(lab: Lab, shared: SharedLab | None) -> MoveReport:
    """Move a volume to a shared store, or to one of its own."""
    with ExitStack() as files:
        target = None if shared is None else files.enter_context(shared.opened())
        volume = files.enter_context(MovingVolume.open(str(lab.root), lab.disk))
        return Move(volume, JobRun("move"), target).run()


class Session:
    """A job of a volume that appends to the store, step by step."""

    def __init__(self, volume: Volume, store: StoreSession) -> None:
        self.volume, self.store = volume, store

    def look_up(self, chunk: bytes) -> int:
        """The id of a chunk; 0 where it is new."""
        return self.store.index.lookup(native.hashing.fingerprint(chunk))[0]

    def append(self, *chunks: bytes) -> list[int]:
        """Append chunks that are new, and have the index know them."""
        ids = append_chunks(self.store.chunks, *chunks)
        self.store.index.insert(b"".join(map(native.hashing.fingerprint, chunks)), ids)
        self.store.note_finished()
        return ids

    def sync(self, *, keep: bool = True) -> None:
        """Make all durable; files are about to name it if it is to ``keep``."""
        noted = self.store.begin_sync()
        self.store.finish_sync(noted)
        if keep:
            self.store.keep(noted)

    def state(self, record_id: int) -> State:
        with self.volume.containers(Kind.CHUNKS) as directory:
            entry = directory.entry(record_id)
        assert entry is not None
        return State(entry.state)

    def read(self, record_id: int) -> bytes:
        return self.volume.chunk_records.read(record_id)[1]


@contextmanager
def appending(lab: Lab, index: IndexChoice = IndexChoice.TABLE) -> Iterator[Session]:
    with (
        lab.opened() as volume,
        volume.append_lock(),
        closing(StoreSession(volume, index, FIRST, lambda: None)) as store,
    ):
        yield Session(volume, store)


def optimize_beside(lab: Lab) -> OptimizeReport:
    """An optimize run, as the command has it."""
    with lab.opened() as volume, volume.append_lock():
        return Optimize(volume, JobRun("optimize")).run()


def one_waits_for_another() -> bool:
    """Whether any process of this machine waits for a lock."""
    return "->" in Path("/proc/locks").read_text()
