"""The receive job: a replica gets the state in a stream completely, or not at all."""

import os
import stat
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

from dedupd_core import native
from dedupd_core.errors import Busy, Damaged, UsageError
from dedupd_core.failpoint import define, reach
from dedupd_core.format import stream
from dedupd_core.format.recipe import DIGEST_BYTES, RecipeRef
from dedupd_core.format.stream import Frame, FrameKind, RecipePart
from dedupd_core.replica.replica import (
    RECEIVE_DIR,
    Replica,
    end_replica,
    is_replica,
    refuse_unfinished,
    replica_of,
)
from dedupd_core.store.recipe.recipe_reader import HOLE_FINGERPRINT
from dedupd_core.system.files import names_in
from dedupd_core.system.paths import show_path
from dedupd_core.system.processes import cores
from dedupd_core.units import MIB
from dedupd_core.volume.base_directory import VOLUME_FILE
from dedupd_core.volume.domains import require_no_domains
from dedupd_core.volume.enabling.base import RESERVED, is_reserved
from dedupd_core.volume.volume import Volume
from jobs.backup.frame_io import AheadReader, FrameWriter, unpacked
from jobs.backup.intake import LocalReception, Reception, RecipeIntake
from jobs.backup.received import Received, ReceivedRecipe, remove_tree
from jobs.backup.switch import finish_switch, is_switching, switch
from jobs.frame.job import FileReport
from jobs.frame.run import JobRun

GROUP_BYTES = 64 * MIB
"""Bytes received between two syncs: at most these are lost if the stream is interrupted."""
BATCH_BYTES = 8 * MIB
"""Bytes of chunks that are checked together."""

_GROUP = define("receive.group-durable", "chunks are durable, and recorded as received")
_COMPLETE = define("receive.complete", "the complete stream is present, the volume is unchanged")


@dataclass(slots=True)
class ReceiveReport(FileReport):
    """The results of a run. ``present`` chunks were already in the store."""

    job: str = "receive"
    point: str = ""
    since: str = ""
    nodes: int = 0
    chunks: int = 0
    present: int = 0
    wire_bytes: int = 0


class ReplicaVolume(Volume):
    """A volume to receive into, even during an incomplete switch."""

    def _require_enabled(self) -> None:
        os.stat(VOLUME_FILE, dir_fd=self.base_fd)


class Receiver:
    """Receives one stream. Needs the job lock; the volume may be mounted until the switch."""

    def __init__(
        self,
        volume: ReplicaVolume,
        run: JobRun,
        in_fd: int,
        back_fd: int | None = None,
        reception: Reception | None = None,
    ) -> None:
        """``back_fd``: for answers to a sender that negotiates. ``reception``: the steps for the
        volume's kind of store, if it does not have containers."""
        self._reception = reception or LocalReception(volume, run)
        self._volume = volume
        self._run = run
        self._in_fd = in_fd
        self._back = None if back_fd is None else FrameWriter(back_fd)
        self._report = ReceiveReport(started_s=run.started_s)
        self._pending: list[Frame] = []
        self._pending_bytes = 0
        self._recipe: RecipeIntake | None = None
        self._digest = b""

    def run(self) -> ReceiveReport:
        """Receive a complete stream, and switch to its tree.

        Raises Damaged, UsageError, NoSpace, PipeClosed, Cancelled, and Busy if the received stream
        is complete but the volume is mounted. Then the volume is unchanged.
        """
        volume = self._volume
        finish(volume, self._run, self._reception, is_asked=False)
        own = replica_of(volume.base_fd, volume.root)
        with closing(AheadReader(self._in_fd, "the stream")) as self._in:
            return self._run_through(own)

    def _run_through(self, own: Replica | None) -> ReceiveReport:
        volume, run, report = self._volume, self._run, self._report
        self._say_hello(own)
        fields = stream.fields_of(self._in.read(), FrameKind.BEGIN, "the stream")
        self._in.use_stream(fields["stream"])
        self._refuse(fields, own)
        report.point, report.since = fields["stream"], fields["since"]
        run.update(phase="receiving")
        with ExitStack() as stack:
            self._pool = stack.enter_context(
                ThreadPoolExecutor(cores(), thread_name_prefix="check")
            )
            received = self._received = stack.enter_context(_opened(volume))
            is_resumed = fields["resumes"] and fields["resumes"] == received.stream
            if fields["chunks"] and not is_resumed:
                raise UsageError(
                    f"{volume.root}: the stream continues a stream that was not received here;"
                    " send again without --resume"
                )
            replica = Replica(fields["volume"], report.point, fields["moment_ns"])
            received.begin(replica, fields["chunks"])
            with self._reception.intake(received) as self._store:
                self._receive()
                report.present = self._store.present
            reach(_COMPLETE)
            _put_in_place(volume, self._reception, received, replica)
        self._answer(FrameKind.DONE, {"format": stream.FORMAT, "point": report.point})
        report.wire_bytes = self._in.read_bytes
        report.complete(run)
        return report

    def _say_hello(self, own: Replica | None) -> None:
        if self._back is None:
            return
        name = str(uuid.uuid4())
        fields: dict[str, object] = {
            "format": stream.FORMAT,
            "hello": name,
            "point": own.point if own else "",
        }
        self._back.begin(FrameKind.HELLO, fields, name)
        self._back.flush()

    def _answer(self, kind: FrameKind, fields: dict[str, object]) -> None:
        if self._back is not None:
            self._back.write(stream.told(kind, fields))
            self._back.flush()

    def _refuse(self, fields: dict[str, str], own: Replica | None) -> None:
        """Raise UsageError if the stream does not fit the volume."""
        volume = self._volume
        require_no_domains(volume, "dedupd receive")
        if fields["volume"] == volume.parameters.uuid:
            raise UsageError(
                f"{volume.root}: is the volume that was sent, or a copy of it; receive into"
                " another volume"
            )
        if fields["fingerprint"] != volume.parameters.fingerprint:
            raise UsageError(
                f"{volume.root}: uses {volume.parameters.fingerprint} fingerprints, but the stream"
                f" uses {fields['fingerprint']}; receive into a volume that was enabled with"
                f" --fingerprint {fields['fingerprint']}"
            )
        if own is not None and own.volume != fields["volume"]:
            raise UsageError(f"{volume.root}: is a replica of another volume, {own.volume}")
        if own is None and names_in(volume.data_fd):
            raise UsageError(
                f"{volume.root}: contains files, which the stream would replace; receive into an"
                " empty volume"
            )
        has = own.point if own else ""
        if fields["since"] and fields["since"] != has:
            raise UsageError(
                f"{volume.root}: has"
                " the state"
                f" {has or 'of no stream'},"
                " but the stream"
                " builds on"
                f" {fields['since']};"
                " " + (f"send --since {has}" if has else "send without --since")
            )
        if bool(fields["negotiates"]) != (self._back is not None):
            raise UsageError(
                "--negotiate: is needed on both sides, `dedupd send` and `dedupd receive`, with"
                " two pipes between them"
            )

    # --- the store ----------------------------------------------------------------------------

    def _receive(self) -> None:
        run, report = self._run, self._report
        while True:
            run.safe_point()
            frame = self._in.read()
            if frame.kind is FrameKind.CHUNK:
                self._pending.append(frame)
                self._pending_bytes += frame.raw_length
                if self._pending_bytes < BATCH_BYTES:
                    continue
            self._take_chunks()
            if frame.kind is FrameKind.OFFER:
                self._reply(frame)
            elif frame.kind is FrameKind.KNOWN:
                known = self._store.add_known(stream.decode_known(frame.payload, "the stream"))
                self._received.add_chunks(known)
            elif frame.kind is FrameKind.RECIPE:
                data = unpacked(frame)
                self._take_recipe(stream.decode_recipe(data, "the stream"))
            elif frame.kind is FrameKind.TREE:
                self._received.add_nodes(unpacked(frame))
            elif frame.kind is FrameKind.END:
                self._end(frame)
                return
            elif frame.kind is not FrameKind.CHUNK:
                raise Damaged(f"the stream: unexpected frame of kind {frame.kind.name}")
            if self._store.group_bytes >= GROUP_BYTES:
                self._sync()
            run.update(done=self._in.read_bytes, files=report.nodes)

    def _take_chunks(self) -> None:
        """Check the received chunks, and store the new ones."""
        frames, self._pending, self._pending_bytes = self._pending, [], 0
        if not frames:
            return
        report = self._report
        for problem in self._pool.map(self._problem, frames):
            if problem:
                raise Damaged(f"the stream: {problem}")
        rows = self._store.add(frames)
        report.chunks += len(frames)
        self._received.add_chunks(rows)

    def _problem(self, frame: Frame) -> str:
        """Return why a chunk does not match its frame; empty if it does."""
        stored = frame.stored
        try:
            checksum = native.hashing.xxh3_64(stored)
            raw = native.codec.decode(stored, frame.codec, frame.raw_length, checksum)
        except native.codec.CorruptPayload as error:
            return f"a chunk that cannot be decoded ({error})"
        algorithm = self._volume.parameters.fingerprint
        if native.hashing.fingerprint(raw, algorithm) != frame.fingerprint:
            return "a chunk with a wrong fingerprint"
        return ""

    def _reply(self, frame: Frame) -> None:
        if self._back is None:
            raise Damaged("the stream: contains an offer, but --negotiate was not used")
        if len(frame.payload) % stream.FINGERPRINT_BYTES:
            raise Damaged("the stream: contains an incomplete offer")
        has = self._store.has(frame.payload)
        self._back.write(Frame(FrameKind.ANSWER, 0, len(has), has))
        self._back.flush()

    def _take_recipe(self, part: RecipePart) -> None:
        if self._recipe is not None and part.recipe == self._received.recipe_count + 1:
            self._give_up_recipe()
        if part.recipe != self._received.recipe_count:
            raise Damaged(f"the stream: recipe {part.recipe} out of order")
        if self._recipe is None:
            self._recipe, self._digest = self._store.begin_recipe(), b""
        recipe, rows = self._recipe, []
        for number, length in part.rows:
            if number == 0:
                recipe.push_hole(length)
                rows.append((HOLE_FINGERPRINT, length))
                continue
            chunk = self._received.chunk(number - 1)
            if chunk.length != length:
                raise Damaged(f"the stream: chunk {number - 1} has a wrong length")
            recipe.push(number - 1, chunk)
            rows.append((chunk.fingerprint, length))
        self._digest = stream.chained(self._digest, rows)
        if self._digest != part.digest:
            raise Damaged(f"the stream: recipe {part.recipe} differs from the sent recipe")
        if part.is_last:
            self._recipe = None
            self._received.add_recipe(recipe.finish())

    def _give_up_recipe(self) -> None:
        """Close a recipe whose file the sender could not read to the end. No node names it."""
        self._recipe = None
        self._received.add_recipe(ReceivedRecipe(RecipeRef(0, bytes(DIGEST_BYTES)), 0))

    def _end(self, frame: Frame) -> None:
        fields = stream.fields_of(frame, FrameKind.END, "the stream")
        received = self._received
        if self._recipe is not None:
            self._give_up_recipe()
        have = received.chunk_count, received.recipe_count, self._nodes_checked()
        if have != (fields["chunks"], fields["recipes"], fields["nodes"]):
            raise Damaged(
                "the stream: the number of chunks, recipes or files differs from the number at"
                " its end"
            )
        self._report.nodes = have[2]
        self._sync(is_complete=True)

    def _nodes_checked(self) -> int:
        """Return the number of received nodes. Raises Damaged, and UsageError for a node that the
        switch could not use: a complete stream with it would fail repeatedly."""
        count, reserved = 0, self._volume.space.name
        for node in self._received.nodes():
            is_root = not node.path
            if is_root != (count == 0) or (is_root and not stat.S_ISDIR(node.mode)):
                raise Damaged("the stream: the root of the tree is not first, or occurs twice")
            count += 1
            if is_reserved(node.path):
                raise UsageError(
                    f"the stream: has {show_path(node.path)}, and {RESERVED}; rename the entry in"
                    " the sent volume, then send again"
                )
            if any(name == reserved for name, _ in node.attributes):
                where = show_path(node.path)
                raise Damaged(f"the stream: {where} has an attribute that only stubs can have")
        return count

    def _sync(self, *, is_complete: bool = False) -> None:
        """Make everything received durable, and record that."""
        self._store.sync()
        state = {"chunks": self._received.chunk_count, "is_complete": is_complete}
        self._received.note(self._received.state | state)
        reach(_GROUP)


def _put_in_place(
    volume: ReplicaVolume, reception: Reception, received: Received, replica: Replica
) -> None:
    try:
        reception.build(received)
    except Damaged:
        # Another attempt would fail again: receive the next stream instead.
        received.note(received.state | {"is_complete": False})
        raise
    held = received.held
    with _unmounted(volume):
        switch(volume, received, replica)
    reception.end(held)


def finish(
    volume: ReplicaVolume,
    run: JobRun,
    reception: Reception | None = None,
    *,
    is_asked: bool = True,
) -> bool:
    """Complete an interrupted switch, or switch to a completely received tree.

    Returns whether there was one. Raises Busy, and UsageError if ``is_asked`` and there is none.
    """
    if is_switching(volume.base_fd):
        with _opened(volume) as received, _unmounted(volume):
            finish_switch(volume, received.fd)
        return True
    if _has_received(volume):
        with _opened(volume) as received:
            replica = received.complete
            if replica is not None and replica != replica_of(volume.base_fd, volume.root):
                _put_in_place(volume, reception or LocalReception(volume, run), received, replica)
                return True
        if replica is not None:  # only cleaning up remains
            remove_tree(volume.disk, volume.base_fd, RECEIVE_DIR)
            return True
    if is_asked:
        raise UsageError(f"{volume.root}: no completely received state to switch to")
    return False


def drop(volume: ReplicaVolume) -> None:
    """Discard a partly received stream. Raises Busy during an incomplete switch."""
    if is_switching(volume.base_fd):
        raise Busy(
            f"{volume.root}: the switch is incomplete; run `dedupd receive --finish {volume.root}`"
        )
    remove_tree(volume.disk, volume.base_fd, RECEIVE_DIR)


def end(volume: ReplicaVolume) -> None:
    """Turn a replica into a normal volume. Raises UsageError if it is not a replica, and Busy while
    it is mounted or has a partly received stream."""
    if not is_replica(volume.base_fd):
        raise UsageError(f"{volume.root}: not a replica; it is already writable")
    refuse_unfinished(volume.base_fd, volume.root)
    with volume.mount_lock():
        end_replica(volume.base_fd, volume.disk)


def token(volume: ReplicaVolume) -> str:
    """Return the argument of `dedupd send --resume`; empty if no stream was interrupted."""
    if not _has_received(volume):
        return ""
    with _opened(volume) as received:
        if received.complete or not received.chunks:
            return ""
        return f"{received.stream}:{received.chunks}"


def _opened(volume: Volume) -> "closing[Received]":
    """Open the received part of a stream."""
    return closing(Received(volume.base_fd, volume.disk, volume.room()))


def _has_received(volume: ReplicaVolume) -> bool:
    return os.path.isdir(b"/proc/self/fd/%d/%s" % (volume.base_fd, RECEIVE_DIR))


@contextmanager
def _unmounted(volume: Volume) -> Iterator[None]:
    """Keep the volume unmounted while the tree changes. Raises Busy."""
    try:
        with volume.mount_lock():
            yield
    except Busy as error:
        raise Busy(
            f"{error}; the stream was received completely: unmount the volume, and run `dedupd"
            f" receive --finish {volume.root}`"
        ) from None
