"""The send job: writes a volume, or the changes to it, as a stream."""

import errno
import os
import time
import uuid
from array import array
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

from dedupd_core.config.memory_budget import send_ahead_bytes
from dedupd_core.errors import Damaged, FileChanged, UsageError
from dedupd_core.format import stream
from dedupd_core.format.container import Kind
from dedupd_core.format.stream import FrameKind, NodeFlag, RecipePart, StreamNode
from dedupd_core.format.stub import StubAttribute
from dedupd_core.stub.local_blocks import checked_stub
from dedupd_core.stub.transition import FileIdentity
from dedupd_core.system.files import opened
from dedupd_core.system.paths import show_path
from dedupd_core.system.processes import cores
from dedupd_core.units import in_64_bits
from dedupd_core.volume.domains import require_undivided
from dedupd_core.volume.enabling.base import RESERVED, RESERVED_NAME, is_reserved
from dedupd_core.volume.volume import Volume
from jobs.backup.chunk_sender import ChunkSender
from jobs.backup.frame_io import FrameReader, FrameWriter, packed
from jobs.backup.rows import Row, Rows
from jobs.backup.sent_points import Point, SentPoints
from jobs.backup.tree.nodes import Node, VisitedNode, node_of, walk_nodes
from jobs.frame.job import FileReport
from jobs.frame.run import JobRun

ROWS_AT_ONCE = 256
"""Rows of a file in memory: 32 MiB of the largest new chunks."""
RECIPES_KNOWN_MAX = 1 << 18
"""Number of remembered recipes that several files may share; a forgotten recipe is sent again."""
ATTEMPTS = 3
"""Number of attempts to read a file while users write to it."""


@dataclass(slots=True)
class SendReport(FileReport):
    """The results of a run. ``point`` is the id of the state that was sent.

    ``known`` counts the chunks that the receiver already had. ``kept`` files could not be read; the
    receiver keeps its versions of them.
    """

    job: str = "send"
    point: str = ""
    since: str = ""
    files: int = 0
    same: int = 0
    kept: int = 0
    damaged: int = 0
    chunks: int = 0
    known: int = 0
    wire_bytes: int = 0


@dataclass(slots=True)
class _NeededChunks:
    """Chunks that a file needs: by id in the store, others by fingerprint. Those in a cluster store
    have no ids, and are too many to remember. A changed file of such a volume is sent completely,
    unless the receiver reports its chunks."""

    ids: "array[int]" = field(default_factory=lambda: array("Q"))
    cut: list[bytes] = field(default_factory=list)

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            if not row.fingerprint:
                self.ids.append(row.chunk)
            elif not row.chunk:
                self.cut.append(row.fingerprint)


class Resume(NamedTuple):
    """An interrupted stream, and the number of its chunks that were received."""

    stream: str
    chunks: int

    @classmethod
    def parse(cls, token: str) -> "Resume":
        """Parse a token. Raises UsageError."""
        name, _, count = token.partition(":")
        try:
            return cls(str(uuid.UUID(name)), int(count))
        except ValueError:
            raise UsageError(
                f"{token!r}: not a token; use the output of `dedupd receive --token`"
            ) from None


class Sender:
    """One stream of one volume. Needs the volume's job lock; the volume may be mounted."""

    def __init__(
        self,
        volume: Volume,
        run: JobRun,
        out_fd: int,
        back_fd: int | None = None,
        *,
        since: str = "",
        resume: Resume | None = None,
    ) -> None:
        """``back_fd``: for answers of the receiver, which then reports the chunks that it has."""
        self._volume = volume
        self._run = run
        self._out = FrameWriter(out_fd)
        self._back = None if back_fd is None else FrameReader(back_fd, "the receiver")
        self._resume = resume
        self._report = SendReport(point=str(uuid.uuid4()), since=since, started_s=run.started_s)
        self._since = Point()
        self._point = Point()
        self._recipes: dict[tuple[int, bytes, int], int] = {}
        self._recipe_count = 0
        self._nodes = bytearray()
        self._node_count = 0
        self._rows = Rows(volume)
        self._linked: dict[int, NodeFlag] = {}

    def run(self) -> SendReport:
        """Send everything. Raises PipeClosed, Damaged, UsageError, Cancelled."""
        volume, run, report = self._volume, self._run, self._report
        require_undivided(volume, "dedupd send")
        run.update(phase="sending", total=_store_bytes(volume))
        with ExitStack() as stack:
            stack.callback(self._out.close)
            pool = stack.enter_context(ThreadPoolExecutor(cores(), thread_name_prefix="records"))
            memory: SentPoints | None = None
            if not volume.is_read_only:
                memory = SentPoints(volume)
                stack.enter_context(closing(memory))
            self._begin(memory, pool, stack)
            for visited in walk_nodes(volume.data_fd, b"", volume.space.name, _no_directory):
                run.safe_point()
                if is_reserved(visited.path):
                    if visited.path == RESERVED_NAME and not visited.is_end:
                        error = UsageError(f"{RESERVED}; not sent: rename the entry")
                        run.findings.add_error(visited.path, error)
                elif not visited.is_end:
                    self._send(visited)
                    run.update(files=report.files, done=self._out.written_bytes)
            if memory is not None:
                # Save before the end is sent: the sender must know each state that a receiver has.
                memory.save(report.point, self._point)
            self._end()
        report.chunks, report.known = self._chunks.sent, self._chunks.known
        report.wire_bytes = self._out.written_bytes
        report.complete(run)
        return report

    def _begin(self, memory: SentPoints | None, pool: ThreadPoolExecutor, stack: ExitStack) -> None:
        report, rows, resume = self._report, b"", self._resume
        if self._back is not None:
            hello = stream.fields_of(self._back.read(), FrameKind.HELLO, "the receiver")
            self._back.use_stream(hello["hello"])
            if not report.since and hello["point"] and memory is not None:
                report.since = hello["point"] if hello["point"] in memory.points() else ""
        if (report.since or resume) and memory is None:
            raise UsageError(
                f"{self._volume.root}: is read-only, so the sent state cannot be recorded; use"
                " --negotiate, or send the entire volume"
            )
        if memory is not None and report.since:
            self._since = memory.load(report.since)
        ahead_bytes = send_ahead_bytes(self._volume.policy().memory_bytes)
        self._chunks = ChunkSender(
            self._volume, self._out, self._back, pool, self._since, ahead_bytes
        )
        if memory is not None:
            if resume is not None:
                rows = memory.log_rows(resume.stream, resume.chunks)
                self._chunks.take_numbers(rows)
            log_fd = memory.new_log(report.point, rows)
            stack.callback(os.close, log_fd)
            self._chunks.log_to(log_fd, len(rows))
        fields: dict[str, object] = {
            "format": stream.FORMAT,
            "stream": report.point,
            "volume": self._volume.parameters.uuid,
            "fingerprint": self._volume.parameters.fingerprint,
            "since": report.since,
            "resumes": resume.stream if resume else "",
            "chunks": self._chunks.count,
            "negotiates": self._back is not None,
            "moment_ns": time.time_ns(),
        }
        self._out.begin(FrameKind.BEGIN, fields, report.point)

    # --- the tree -----------------------------------------------------------------------------

    def _send(self, visited: VisitedNode) -> None:
        path, node = visited.path, visited.node
        if len(path) > stream.PATH_BYTES_MAX:
            error = OSError(errno.ENAMETOOLONG, "its path is too long for a stream")
            self._run.findings.add_error(path, error)
            return
        flags, recipe = NodeFlag(0), 0
        if node.is_file and node.inode in self._linked:
            flags = self._linked[node.inode]
        elif node.is_file:
            self._report.files += 1
            try:
                flags, recipe, node = self._send_file(visited)
            except (FileChanged, Damaged, OSError) as error:
                flags = NodeFlag.KEPT
                self._report.kept += 1
                self._report.damaged += isinstance(error, Damaged)
                self._run.findings.add_error(path, error)
        if node.links > 1 and not node.is_directory:
            flags |= NodeFlag.LINKED
            self._linked[node.inode] = flags & (NodeFlag.KEPT | NodeFlag.LINKED)
        self._put_node(
            StreamNode(
                path=path,
                flags=flags,
                mode=node.mode,
                uid=node.uid,
                gid=node.gid,
                device=node.device,
                inode=node.inode,
                size=node.size,
                atime_ns=in_64_bits(node.atime_ns),
                mtime_ns=in_64_bits(node.mtime_ns),
                recipe=recipe,
                target=node.target,
                attributes=node.attributes,
            )
        )

    def _send_file(self, visited: VisitedNode) -> tuple[NodeFlag, int, Node]:
        """Send the consistent content of a file. Returns the node of the file that was read: a user
        may have replaced the file that the walk found."""
        where = show_path(visited.path)
        for _ in range(ATTEMPTS):
            with opened(visited.open(os.O_RDONLY | os.O_NONBLOCK)) as fd:
                before = FileIdentity.of(os.fstat(fd))
                node = node_of(fd, self._volume.space.name)
                if not node.is_file:
                    raise FileChanged(f"{where}: is no longer a file; the next stream sends it")
                stub = checked_stub(fd, self._volume.stub_files, where)
                used = _NeededChunks()
                is_same = self._since.files.has(before.inode, before.ctime_ns, before.size)
                try:
                    if is_same:
                        recipe = self._note_same(before.inode, stub, where, used)
                    else:
                        recipe = self._send_content(fd, stub, before.size, where, used)
                except (FileChanged, Damaged):
                    if FileIdentity.of(os.fstat(fd)) == before:
                        raise
                    continue
                if FileIdentity.of(os.fstat(fd)) != before:
                    continue
                self._point.files.add(before.inode, before.ctime_ns, before.size)
                for chunk in used.ids:
                    self._point.ids.add(chunk)
                if used.cut:
                    self._point.cut[before.inode] = b"".join(used.cut)
                if is_same:
                    self._report.same += 1
                    return NodeFlag.SAME, 0, node
                kind = NodeFlag.RECIPE if before.size else NodeFlag(0)
                return kind, recipe, _sized(node, before, stub)
        raise FileChanged(f"{where}: changed each time it was read; the next stream sends it")

    def _note_same(
        self, inode: int, stub: StubAttribute | None, where: str, used: _NeededChunks
    ) -> int:
        """Record what an unchanged file needs, which the receiver already has."""
        joined = self._since.cut.get(inode, b"")
        if joined:
            used.cut.append(joined)
        if stub is not None and self._volume.store_kind.has_containers:
            spans = self._volume.content(stub, where).recipe.spans(0, stub.covered)
            used.ids.extend(span.chunk for span in spans if span.chunk)
        return 0

    def _send_content(
        self, fd: int, stub: StubAttribute | None, size: int, where: str, used: _NeededChunks
    ) -> int:
        """Send the new chunks of a file, and its recipe; return the number of the recipe."""
        if size == 0:
            return 0
        key = None
        if stub is not None and stub.is_clean and stub.covered == size:
            key = stub.recipe, stub.digest, size
            if key in self._recipes:
                return self._recipes[key]
        number, digest = -1, b""
        rows = self._rows.of(fd, stub, where)
        part = list(islice(rows, ROWS_AT_ONCE))
        while part:
            following = list(islice(rows, ROWS_AT_ONCE))
            self._run.safe_point()
            used.add(row for row in part if not row.is_hole)
            known = self._chunks.send(part)
            if number < 0:
                number = self._recipe_count
                self._recipe_count += 1
            fingerprints = (bytes(32) if row.is_hole else known[row.key] for row in part)
            lengths = [row.length for row in part]
            digest = stream.chained(digest, list(zip(fingerprints, lengths, strict=True)))
            numbers = (0 if row.is_hole else self._chunks.number(row) for row in part)
            lines = list(zip(numbers, lengths, strict=True))
            sent = RecipePart(number, not following, digest, lines)
            self._out.write(packed(FrameKind.RECIPE, stream.encode_recipe(sent)))
            part = following
        if key is not None and len(self._recipes) < RECIPES_KNOWN_MAX:
            self._recipes[key] = number
        return number

    # --- the end ------------------------------------------------------------------------------

    def _put_node(self, node: StreamNode) -> None:
        self._nodes += stream.encode_node(node)
        self._node_count += 1
        if len(self._nodes) >= stream.TREE_BYTES:
            self._flush_nodes()

    def _flush_nodes(self) -> None:
        if self._nodes:
            self._out.write(packed(FrameKind.TREE, bytes(self._nodes)))
            self._nodes.clear()

    def _end(self) -> None:
        self._flush_nodes()
        totals = {
            "format": stream.FORMAT,
            "stream": self._report.point,
            "chunks": self._chunks.count,
            "recipes": self._recipe_count,
            "nodes": self._node_count,
        }
        self._out.write(stream.told(FrameKind.END, totals))
        self._out.flush()
        if self._back is not None:
            done = stream.fields_of(self._back.read(), FrameKind.DONE, "the receiver")
            if done.get("point") != self._report.point:
                raise Damaged("the receiver: reports a state that differs from the sent state")


def _sized(node: Node, identity: FileIdentity, stub: StubAttribute | None) -> Node:
    """Return the node with the size and time that the file had when it was read."""
    return replace(node, size=identity.size, mtime_ns=identity.mtime_ns).settled(stub)


def _no_directory(path: bytes, error: OSError) -> None:
    raise Damaged(
        f"{show_path(path) or '.'}: {error.strerror}: it cannot be sent, and the receiver would"
        " delete its copy"
    )


def _store_bytes(volume: Volume) -> int:
    """Return the length of all containers of chunks: roughly the length of a full stream."""
    with os.scandir(volume.directory(Kind.CHUNKS)) as entries:
        return sum(entry.stat().st_size for entry in entries if entry.name.endswith(".dat"))
