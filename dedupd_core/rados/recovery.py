"""Finishes or rolls back the work of an earlier session of a volume, by the owner or another host.

It runs in a new session: the earlier ones are fenced, and their late changes are refused.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from dedupd_core.errors import Damaged
from dedupd_core.format.cluster.objects import NO_VERSION, FileId, FileVersions
from dedupd_core.rados.garbage import Retirement
from dedupd_core.rados.tables import FileTable, Intents

Settle = Callable[[FileId], str | None]
"""Returns the version that a file's stub durably names; None if it is no stub of the store."""


@dataclass
class Recovery:
    """The recovery of a session. ``settle`` is the owner's, which can read the stubs. Another host
    has none, and leaves files between two versions to the owner: both stay live."""

    table: FileTable
    intents: Intents
    retirement: Retirement
    settle: Settle | None
    finished: int = 0
    rolled_back: int = 0
    retired: int = 0
    left: int = 0
    """Files between two versions that wait for their owner."""
    damaged: list[str] = field(default_factory=list)
    """Versions with an unreadable recipe: an audit drops their references."""

    def run(self) -> None:
        """Run the recovery. It may be repeated, and may be interrupted anywhere."""
        done: list[str] = []
        unused: list[str] = []
        for version, file in self.intents.all().items():
            found = self.table.versions(file)
            if found is None or version not in found.live:
                unused.append(version)
            elif found.old is not None and not self._settle(file, found):
                continue
            done.append(version)
        # Versions that were rolled back are noted as old versions by now.
        noted = dict(self.table.retiring())
        self._retire([version for version in unused if version not in noted])
        for version in self._retire(list(noted)):
            self.table.retired(noted[version], version)
        self.intents.drop(done + unused)

    def _retire(self, versions: list[str]) -> list[str]:
        damaged = self.retirement.retire(versions)
        self.damaged += damaged
        self.retired += len(versions) - len(damaged)
        return [version for version in versions if version not in damaged]

    def _settle(self, file: FileId, found: FileVersions) -> bool:
        """Finish the commit of a file as its stub says; False if it stays open."""
        if self.settle is None:
            self.left += 1
            return False
        named = self.settle(file)
        if named == found.new:
            self.table.finish(file, found)
            self.finished += 1
            return True
        if named is not None and named != found.old:
            raise Damaged(
                f"file {file.text} of volume {self.table.volume}: its stub refers to version"
                f" {named}, but the store has {found.value}; see `dedupd cluster audit STORE`"
            )
        self.table.roll_back(file, found)
        if named is None and found.old not in (None, NO_VERSION):
            self.table.delete(file, found.old or "")
        self.rolled_back += 1
        return True
