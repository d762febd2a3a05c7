"""The restore job: copies files and folders from a copy of a volume into any directory."""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from dedupd_core.errors import Damaged, DedupdError, FileChanged, NoSpace, UsageError
from dedupd_core.system.disk import Disk
from dedupd_core.system.files import UNREADABLE, opened
from dedupd_core.system.paths import open_beneath, parents, show_path, split_path
from dedupd_core.system.processes import cores
from dedupd_core.system.tree.takeover import rights_of
from dedupd_core.volume.base_directory import BASE_NAME
from dedupd_core.volume.enabling.base import RESERVED, RESERVED_NAME, is_reserved
from jobs.backup.content_reader import ContentReader
from jobs.backup.source import BackupSource
from jobs.backup.tree.nodes import PATH_FLAGS, Node, VisitedNode, node_of, walk_nodes
from jobs.backup.tree.tree_writer import TreeWriter
from jobs.frame.job import FileReport
from jobs.frame.run import JobRun


@dataclass(slots=True)
class RestoreReport(FileReport):
    """The results of a run. ``damaged`` files were skipped; ``already`` counts files from an
    earlier run, ``without_privileges`` files that lack anything that gives rights.
    ``written_bytes`` excludes holes."""

    job: str = "restore"
    trust_holes: bool = False
    files: int = 0
    others: int = 0
    already: int = 0
    damaged: int = 0
    without_privileges: int = 0
    length_bytes: int = 0
    written_bytes: int = 0


class Restore:
    """Copies paths of a source. If it is stopped, the next run continues."""

    def __init__(
        self,
        source: BackupSource,
        run: JobRun,
        target: str,
        *,
        trust_holes: bool = False,
        privileges: bool = False,
        force: bool = False,
    ) -> None:
        """``privileges``: root restores what gives rights. ``force``: accept directories of other
        users. Raises UsageError."""
        inside = os.path.realpath(target) + "/"
        if inside.startswith(os.path.realpath(source.base) + "/"):
            raise UsageError(f"{target}: is inside the copy that is read; choose another directory")
        self._source = source
        self._run = run
        self._target = target
        self._rights = rights_of(os.geteuid(), privileges=privileges)
        self._force = force
        self._report = RestoreReport(trust_holes=trust_holes, started_s=run.started_s)
        self._disk = Disk()

    def run(self, paths: list[bytes]) -> RestoreReport:
        """Restore each of ``paths``, under its path within the tree.

        A damaged file is reported and skipped. Raises Damaged if the entire copy is unusable,
        UsageError, NoSpace, Cancelled.
        """
        source, run, report = self._source, self._run, self._report
        wanted = distinct([b"/".join(split_path(path)) for path in paths])
        run.update(phase="checking the copy")
        self._require(wanted)
        source.refuse_ruins(run)
        if report.trust_holes:
            source.refuse_spoilt(run)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        run.update(phase="restoring", total=0)
        with (
            opened(os.open(self._target, flags)) as target_fd,
            ThreadPoolExecutor(cores(), thread_name_prefix="chunks") as pool,
            closing(self._writer(target_fd)) as writer,
        ):
            reader = ContentReader(source, pool)
            above: list[tuple[bytes, Node]] = []
            for path in wanted:
                self._finish_parents(writer, above, path)
                for parent in parents(path)[len(above) : -1]:
                    above.append((parent, self._node_of(parent)))
                    writer.make_directory(placed(parent), above[-1][1])
                self._restore(writer, reader, path)
            self._finish_parents(writer, above, b"")
            self._disk.sync_file_system(target_fd)
        writer.properties.report()
        report.without_privileges = writer.properties.without_privileges
        report.complete(run)
        return report

    def _writer(self, target_fd: int) -> TreeWriter:
        findings, force = self._run.findings, self._force
        return TreeWriter(target_fd, self._disk, findings, self._rights, force=force)

    def _require(self, wanted: list[bytes]) -> None:
        """Raise UsageError if a path does not exist, before anything is made."""
        for path in wanted:
            try:
                os.close(open_beneath(self._source.data_fd, path, os.O_PATH))
            except OSError as error:
                raise UsageError(
                    f"{show_path(path)}: {os.strerror(error.errno or 0).lower()} in the tree of"
                    f" {self._source.root}; use a path relative to the root of the volume"
                ) from None

    def _restore(self, writer: TreeWriter, reader: ContentReader, path: bytes) -> None:
        run, report = self._run, self._report
        hidden = self._source.space.name
        for visited in walk_nodes(self._source.data_fd, path, hidden, run.findings.add_error):
            run.safe_point()
            try:
                if visited.path == RESERVED_NAME and not visited.is_end:
                    where = os.path.join(self._target, os.fsdecode(placed(visited.path)))
                    run.findings.add(f"{BASE_NAME}: {RESERVED}; restored as {where}")
                if visited.is_end:
                    if visited.path:
                        writer.finish_directory(placed(visited.path), visited.node)
                elif visited.node.is_directory:
                    if visited.path:
                        writer.make_directory(placed(visited.path), visited.node)
                else:
                    self._take(writer, reader, visited)
            except NoSpace:
                raise
            except (DedupdError, OSError) as error:
                report.damaged += _is_damage(error)
                run.findings.add_error(visited.path, error)
            run.update(files=report.files, done=report.length_bytes)

    def _take(self, writer: TreeWriter, reader: ContentReader, visited: VisitedNode) -> None:
        report, path, node = self._report, visited.path, visited.node
        to = placed(path)
        if not node.is_file:
            if writer.is_there(to, node):
                report.already += 1
            elif not writer.make_link(to, node):
                report.others += writer.make_other(to, node)
            return
        with opened(visited.open(os.O_RDONLY | os.O_NONBLOCK)) as fd:
            node = node_of(fd, self._source.space.name)
            if not node.is_file:
                raise FileChanged("is no longer a file; run the command again")
            stub = self._source.proved(fd, path, report.trust_holes)
            node = node.settled(stub)
            if writer.is_there(to, node):
                report.already += 1
                return
            report.files += 1
            if writer.make_link(to, node):
                return
            pieces = reader.pieces(fd, stub, show_path(path))
            report.written_bytes += writer.make_file(to, node, self._run.checked(pieces))
        report.length_bytes += node.size

    def _finish_parents(
        self, writer: TreeWriter, above: list[tuple[bytes, Node]], path: bytes
    ) -> None:
        """Finish the directories of ``above`` that are not parents of the next path."""
        while above and not path.startswith(above[-1][0] + b"/"):
            parent, node = above.pop()
            writer.finish_directory(placed(parent), node)

    def _node_of(self, path: bytes) -> Node:
        with opened(open_beneath(self._source.data_fd, path, PATH_FLAGS)) as fd:
            return node_of(fd, self._source.space.name)


def _is_damage(error: DedupdError | OSError) -> bool:
    return isinstance(error, Damaged) or (isinstance(error, OSError) and error.errno in UNREADABLE)


def placed(path: bytes) -> bytes:
    """Return the path below the target for a path within the tree.

    It is the same, except for an entry ``.dedupd`` at the top: with it, the target would look like
    a volume, or is a volume.
    """
    if not is_reserved(path):
        return path
    return RESERVED_NAME.lstrip(b".") + b"-of-a-user" + path.removeprefix(RESERVED_NAME)


def distinct(paths: list[bytes]) -> list[bytes]:
    """Return the paths that are not inside other paths of the list."""
    kept: list[bytes] = []
    for path in sorted(set(paths)):
        if not any(path.startswith(parent + b"/") or not parent for parent in kept):
            kept.append(path)
    return kept
