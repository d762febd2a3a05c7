"""The import job: copies a tree into a volume and deduplicates it on the fly, so that it can be
larger than the free space."""

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial

from dedupd_core.config.policy import RunLimits
from dedupd_core.errors import Busy, DedupdError, FileChanged, UsageError
from dedupd_core.stub.transition import FileIdentity
from dedupd_core.system import mount_table
from dedupd_core.system.files import data_ranges, opened
from dedupd_core.system.paths import lies_in, parents, show_path, split_path
from dedupd_core.system.tree.takeover import rights_of
from dedupd_core.units import GIB, MIB
from dedupd_core.volume.enabling.base import RESERVED, RESERVED_NAME, is_reserved, refuse_reserved
from dedupd_core.volume.volume import Volume
from jobs.backup.content_reader import own_pieces
from jobs.backup.tree.nodes import VisitedNode, node_of, walk_nodes
from jobs.backup.tree.tree_writer import TreeWriter
from jobs.frame.job import FileReport
from jobs.frame.run import Cancelled, JobRun
from jobs.optimize.optimize_job import Optimize

BATCH_SHARE = 0.4
"""Share of the room for a batch: until its blocks are freed, it exists plain and as chunks."""

BATCH_BYTES_MIN = 4 * MIB
"""Smallest batch: below it, the overhead of files and tables is as large as the data."""

BATCH_BYTES_MAX = 4 * GIB
"""Largest batch: at most this is repeated if the machine stops."""

ATTEMPTS_MAX = 3
"""Number of attempts to read a file while users write to it."""

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NONBLOCK


@dataclass(slots=True)
class ImportReport(FileReport):
    """The results of a run. ``already`` counts files from an earlier run; ``without_privileges``
    counts files without anything that gives rights. ``written_bytes`` excludes holes.
    ``room_bytes_min`` is the least free space beyond the reserve between two files."""

    job: str = "import"
    files: int = 0
    others: int = 0
    already: int = 0
    without_privileges: int = 0
    batches: int = 0
    length_bytes: int = 0
    written_bytes: int = 0
    room_bytes_before: int = 0
    room_bytes_min: int = 0
    room_bytes_after: int = 0


class Import:
    """One import. Needs the job lock, or the lock of appending jobs. If it is stopped, the next run
    continues."""

    def __init__(
        self,
        volume: Volume,
        run: JobRun,
        source: str,
        folder: bytes,
        *,
        privileges: bool = False,
        force: bool = False,
    ) -> None:
        """``folder``: target in the tree, created if necessary. ``privileges``: root imports what
        gives rights. ``force``: accept directories of other users. Raises UsageError,
        PolicyError."""
        self._volume = volume
        self._run = run
        self._source = os.path.realpath(source)
        self._folder = b"/".join(split_path(folder))
        refuse_reserved(self._folder)
        self._rights = rights_of(os.geteuid(), privileges=privileges)
        self._force = force
        self._points = mount_table.points_of(volume.parameters.uuid)
        self._refuse_overlap()
        self._room = volume.room()
        self._report = ImportReport(started_s=run.started_s)
        self._batch_bytes = 0
        self._batch_bytes_max = 0
        volume.limits = RunLimits(min_age_s=0.0)

    def _refuse_overlap(self) -> None:
        for place in (self._volume.root, *self._points):
            if lies_in(self._source, place) or lies_in(place, self._source):
                raise UsageError(
                    f"{self._source}: is inside the volume, or contains it; choose another"
                    " directory"
                )

    def run(self) -> ImportReport:
        """Copy and optimize, batch by batch.

        A file that is unreadable, or does not fit, is reported and skipped. Raises UsageError,
        Busy, Cancelled, and the errors of optimize.
        """
        run, report, disk = self._run, self._report, self._volume.disk
        report.room_bytes_before = report.room_bytes_min = self._room.left_bytes
        with ExitStack() as stack:
            source_fd = stack.enter_context(opened(os.open(self._source, _FLAGS)))
            target_fd = self._target(stack)
            writer = stack.enter_context(closing(self._writer(target_fd)))
            self._lock = stack.enter_context(ExitStack())
            run.update(phase="importing", total=0)
            self._begin_batch()
            above = parents(self._folder) if self._folder else []
            for parent in above[:-1]:
                writer.make_directory(parent)
            for visited in walk_nodes(source_fd, b"", b"", run.findings.add_error):
                run.safe_point()
                self._take(writer, visited)
            for parent in reversed(above[:-1]):
                writer.release_directory(parent)
            self._end_batch()
            disk.sync_file_system(self._volume.data_fd)
            writer.properties.report()
        report.without_privileges = writer.properties.without_privileges
        report.room_bytes_after = self._room.left_bytes
        report.complete(run)
        return report

    def _writer(self, target_fd: int) -> TreeWriter:
        """Return a writer that makes no file of the source a stub by its attributes."""
        volume, findings = self._volume, self._run.findings
        return TreeWriter(
            target_fd,
            volume.disk,
            findings,
            self._rights,
            force=self._force,
            reserved=volume.space.name,
        )

    def _target(self, stack: ExitStack) -> int:
        """Return the tree, through the mount if there is one, so that users see new files."""
        if self._points:
            return stack.enter_context(opened(os.open(self._points[0], _FLAGS)))
        return self._volume.data_fd

    # --- batches ------------------------------------------------------------------------------

    def _begin_batch(self) -> None:
        """Start a batch. Without a mount, prevent mounting while the tree is written below."""
        if not self._points:
            self._lock.enter_context(self._volume.mount_lock())
        elif mount_table.points_of(self._volume.parameters.uuid) != self._points:
            raise Busy(
                f"{self._volume.root}: was mounted or unmounted during the import; run the"
                " command again"
            )
        room = self._room.left_bytes
        self._note_room(room)
        self._batch_bytes = 0
        self._batch_bytes_max = min(BATCH_BYTES_MAX, int(room * BATCH_SHARE))

    def _end_batch(self) -> None:
        """Optimize the batch."""
        run, report = self._run, self._report
        self._note_room(self._room.left_bytes)
        self._lock.close()
        if not self._batch_bytes:
            return
        if self._points:
            # The kernel reports a close after the closing program; this request comes later.
            os.statvfs(self._points[0])
        report.batches += 1
        Optimize(self._volume, run, self._folder).run()
        run.update(phase="importing", files=report.files, done=report.length_bytes, total=0)

    def _note_room(self, room_bytes: int) -> None:
        self._report.room_bytes_min = min(self._report.room_bytes_min, room_bytes)

    def _make_room(self, need_bytes: int, path: bytes) -> None:
        """Make room for a file, by ending the batch if necessary. Raises NoSpace."""
        if self._batch_bytes and self._batch_bytes + need_bytes > self._batch_bytes_max:
            self._end_batch()
            self._begin_batch()
        # A file alone in its batch may be larger: it stays plain until there is more room.
        self._room.require(need_bytes + BATCH_BYTES_MIN, show_path(path))
        self._batch_bytes += need_bytes
        self._note_room(self._room.left_bytes - need_bytes)

    # --- files --------------------------------------------------------------------------------

    def _take(self, writer: TreeWriter, visited: VisitedNode) -> None:
        path = b"/".join(part for part in (self._folder, visited.path) if part)
        if is_reserved(path):
            if path == RESERVED_NAME and not visited.is_end:
                self._run.findings.add_error(visited.path, UsageError(f"{RESERVED}; not imported"))
            return
        try:
            if visited.node.is_directory:
                self._take_directory(writer, path, visited)
            elif writer.is_there(path, visited.node):
                self._report.already += 1
            elif writer.make_link(path, visited.node):
                pass  # counted only once
            elif visited.node.is_file:
                self._take_file(writer, path, visited)
            else:
                self._report.others += writer.make_other(path, visited.node)
        except Cancelled:
            raise
        except (DedupdError, OSError) as error:
            self._run.findings.add_error(visited.path, error)
        self._run.update(files=self._report.files, done=self._report.length_bytes)

    def _take_directory(self, writer: TreeWriter, path: bytes, visited: VisitedNode) -> None:
        if not path:
            return  # keep the volume's own directory
        if visited.is_end:
            if visited.path or writer.is_unfinished(
                path
            ):  # an existing folder keeps its properties
                writer.finish_directory(path, visited.node)
        else:
            writer.make_directory(path, visited.node)

    def _take_file(self, writer: TreeWriter, path: bytes, visited: VisitedNode) -> None:
        for attempt in range(ATTEMPTS_MAX):
            with opened(visited.open(_FILE_FLAGS)) as fd:
                try:
                    self._copy(writer, path, fd)
                    return
                except FileChanged:
                    if attempt == ATTEMPTS_MAX - 1:
                        raise

    def _copy(self, writer: TreeWriter, path: bytes, fd: int) -> None:
        """Copy an open file and its own properties: a user may have replaced the file that the walk
        found. Raises FileChanged if a user writes to the file."""
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise FileChanged("was replaced during the import")
        node = node_of(fd, b"")
        # A file without blocks is a hole, or its source is a volume that has its data elsewhere.
        data = data_ranges(fd, 0, node.size) if not status.st_blocks else ()
        need = min(node.size, status.st_blocks * 512 + sum(end - start for start, end in data))
        self._make_room(need, path)
        report, unchanged = self._report, partial(_require_same, fd, status)
        report.written_bytes += writer.make_file(path, node, self._pieces(fd), unchanged)
        report.files += 1
        report.length_bytes += node.size

    def _pieces(self, fd: int) -> Iterator[tuple[int, bytes]]:
        size = os.fstat(fd).st_size
        for piece in own_pieces(fd, data_ranges(fd, 0, size)):
            self._run.safe_point()
            yield piece


def _require_same(fd: int, before: os.stat_result, _: int) -> None:
    """Raise FileChanged if a file was written to."""
    if FileIdentity.of(os.fstat(fd)) != FileIdentity.of(before):
        raise FileChanged("keeps changing; run the command again when it is idle")
