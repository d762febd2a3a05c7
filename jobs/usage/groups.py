"""Sorts files into groups, and sums up the blocks of each group."""

import os
import pwd
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from dedupd_core.errors import DamagedStub
from dedupd_core.format.stub import Flag, StubAttribute, decode_stub
from dedupd_core.native.tree import Directory, FileEntry, StubUsage, Unreadable, UsageSums
from dedupd_core.system.paths import show_path
from dedupd_core.units import align_up
from dedupd_core.volume.partition_map import type_of, type_of_suffix
from dedupd_core.volume.volume import Volume
from jobs.frame.run import JobRun, checked
from jobs.tree.stub_sizes import summed
from jobs.tree.walk import each_directory, listed, unreadable
from jobs.usage.needs import REST, StoreNeeds, name_others

By = Literal["", "owner", "type", "folder"]
SECTOR_BYTES = 512
"""The unit of ``st_blocks``."""

BLOCK_BYTES = 4096
"""Block size of the file systems of volumes."""


@dataclass(slots=True)
class GroupFiles:
    """The files of a group. ``own_freed_bytes``: blocks of files without a name outside of it."""

    name: str
    files: int = 0
    files_optimized: int = 0
    logical_bytes: int = 0
    own_bytes: int = 0
    own_freed_bytes: int = 0
    stubs_own_bytes: int = 0
    optimized_bytes: int = 0
    direct_bytes: int = 0
    """Lengths of stubs that name a chunk, in complete blocks: their size as plain files.
    """


@dataclass(slots=True)
class _LinkedFile:
    """A file of several names."""

    links: int
    own_bytes: int
    stub: StubAttribute | None
    names: int = 0
    groups: dict[int, None] = field(default_factory=dict)


Choice = Callable[[bytes, FileEntry], str | None]
"""The name of a file's group, by its path and entry; None for the rest."""


class Groups:
    """A walk through the whole tree that sorts files into groups, and notes what they need."""

    def __init__(self, volume: Volume, run: JobRun, needs: StoreNeeds) -> None:
        self._volume = volume
        self._run = run
        self._needs = needs
        self._linked: dict[int, _LinkedFile] = {}
        self._numbers: dict[str, int] = {}
        self.all = [GroupFiles("")]
        """The rest comes first."""
        self.own_freed_together = 0

    def by_path(self, paths: Sequence[bytes], names: Sequence[str], by: By) -> None:
        """Sort files below ``paths``: each path is a group with its name, or all files are grouped
        by owner, type, or folder. Raises Cancelled."""
        if not by:
            for name in names:
                self._group(name)
        scopes = list(zip(paths, names, strict=True))
        file_parents = {os.path.dirname(path) for path in paths if path}
        key = by if by in ("owner", "type") else ""

        def look(directories: Sequence[bytes]) -> list[Directory | Unreadable]:
            together = [directory for directory in directories if directory not in apart]
            sums = iter(summed(self._volume, together, self._run.safe_point, key))
            return [
                listed(self._volume, directory, None) if directory in apart else next(sums)
                for directory in directories
            ]

        apart = {parent or b"." for parent in file_parents} if self._has_files(paths) else set()
        for directory, prefix, here in each_directory(look, self._run.safe_point):
            if isinstance(here, Unreadable):
                self._run.findings.add(unreadable(directory, here.errno))
                continue
            scope = _scope(directory, scopes)
            if scope is not None and not key:
                self._add_directory(self._number(directory, scope, by), directory)
            if isinstance(here, StubUsage):
                for suffix, sums in here.sums.items():
                    group = REST if scope is None else self._number(directory, scope, by, suffix)
                    self._add_sums(group, sums)
            for file in checked(here.files, self._run.safe_point):
                own = scope or _scope(prefix + file.name, scopes)
                group = REST if own is None else self._number(directory, own, by, _key(file, key))
                self._add_file(group, prefix, file)
            self._run.update(phase="walking the tree", files=sum(g.files for g in self.all[:100]))
        self._settle_linked()

    def by_choice(self, choice: Choice) -> None:
        """Sort each file by ``choice``. Raises Cancelled."""

        def look(directories: Sequence[bytes]) -> list[Directory | Unreadable]:
            return [listed(self._volume, path, self._run.safe_point) for path in directories]

        for directory, prefix, here in each_directory(look, self._run.safe_point):
            if isinstance(here, Unreadable):
                self._run.findings.add(unreadable(directory, here.errno))
                continue
            for file in checked(here.files, self._run.safe_point):
                name = choice(prefix + file.name, file)
                self._add_file(REST if name is None else self._group(name), prefix, file)
        self._settle_linked()

    # --- groups -------------------------------------------------------------------------------

    def _group(self, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self.all)
            self.all.append(GroupFiles(name))
        return number

    def _number(self, directory: bytes, scope: tuple[bytes, str], by: By, key: bytes = b"") -> int:
        path, name = scope
        if by == "owner":
            return self._group(_owner(int.from_bytes(key, "little")))
        if by == "type":
            return self._group(type_of_suffix(key) or "(none)")
        if by == "folder":
            below = directory[len(path) :].strip(b"/").partition(b"/")[0]
            if path and not directory.startswith(path):
                return self._group(name)  # a file
            return self._group(os.path.join(name, show_path(below)) if below else f"{name}/.")
        return self._group(name)

    def _has_files(self, paths: Sequence[bytes]) -> bool:
        """Return whether any of the paths is no directory."""
        return any(path and not os.path.isdir(self._below(path)) for path in paths)

    def _below(self, path: bytes) -> bytes:
        return b"/proc/self/fd/%d/%s" % (self._volume.data_fd, path)

    # --- files --------------------------------------------------------------------------------

    def _add_directory(self, group: int, path: bytes) -> None:
        """Add the blocks of a directory."""
        if not path:
            return
        try:
            taken = os.lstat(self._below(path)).st_blocks * SECTOR_BYTES
        except OSError:
            return  # deleted
        self.all[group].own_bytes += taken
        self.all[group].own_freed_bytes += taken
        self.own_freed_together += taken

    def _add_sums(self, group: int, sums: UsageSums) -> None:
        own = self.all[group]
        own.files += sums.files
        own.files_optimized += sums.stubs
        own.logical_bytes += sums.logical_bytes
        own.own_bytes += sums.own_bytes
        own.own_freed_bytes += sums.own_bytes
        own.stubs_own_bytes += sums.stubs_own_bytes
        own.optimized_bytes += sums.optimized_bytes
        own.direct_bytes += sums.direct_bytes
        if group != REST:
            self.own_freed_together += sums.own_bytes
        self._needs.native.name(group, sums.chunks, sums.recipes, sums.covered)

    def _add_file(self, group: int, prefix: bytes, file: FileEntry) -> None:
        inode, size, _, _ = file.identity
        if file.links > 1 and inode in self._linked:
            self._linked[inode].names += 1
            self._linked[inode].groups[group] = None
            return
        own = self.all[group]
        own.files += 1
        own.files_optimized += file.attribute is not None
        own.logical_bytes += size
        own.own_bytes += file.allocated_bytes
        stub = None
        if file.attribute is not None:
            own.stubs_own_bytes += file.allocated_bytes
            own.optimized_bytes += size
            try:
                stub = decode_stub(
                    file.attribute, self._volume.space.volume_id, show_path(prefix + file.name)
                )
            except DamagedStub as error:
                self._run.findings.add(
                    f"{error}; the records that it refers to are not counted; run `dedupd run"
                    " scrub`"
                )
        if stub is not None and stub.flags & Flag.DIRECT:
            own.direct_bytes += align_up(size, BLOCK_BYTES)
        linked = _LinkedFile(file.links, file.allocated_bytes, stub, 1, {group: None})
        if file.links > 1:
            self._linked[inode] = linked
        else:
            self._settle(linked)

    def _settle_linked(self) -> None:
        for linked in checked(self._linked.values(), self._run.safe_point):
            self._settle(linked)
        name_others(self._volume, self._run, self._needs)

    def _settle(self, file: _LinkedFile) -> None:
        """Count a file in its first group; its other groups also need its records. If it has names
        outside of the tree, the file always remains."""
        groups = list(file.groups)
        if file.names < file.links and REST not in groups:
            groups.append(REST)
        if len(groups) == 1:
            self.all[groups[0]].own_freed_bytes += file.own_bytes
        if REST not in groups:
            self.own_freed_together += file.own_bytes
        if file.stub is not None:
            for at, group in enumerate(groups):
                self._needs.name(group, file.stub, int(at == 0))


def _scope(path: bytes, scopes: Sequence[tuple[bytes, str]]) -> tuple[bytes, str] | None:
    """Return the requested path that contains ``path``."""
    for scope in scopes:
        asked = scope[0]
        if not asked or path == asked or path.startswith(asked + b"/"):
            return scope
    return None


def _key(file: FileEntry, by: str) -> bytes:
    if by == "owner":
        return file.owner.to_bytes(4, "little")
    return os.fsencode(type_of(file.name)) if by == "type" else b""


def _owner(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
