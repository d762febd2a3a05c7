"""Volumes on a shared store, in a line."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from dedupd.format.container import Kind
from dedupd.shared.creation import create_store
from dedupd.stores.local_store import STORE_DIRS
from dedupd.stores.shared_directory import SharedDirectory
from dedupd.system.disk import Disk
from jobs.frame.run import JobRun
from jobs.move import Move, MoveReport, MovingVolume
from jobs.rejoin import Rejoin, RejoinReport
from tests.support.lab import Lab, new_lab


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
