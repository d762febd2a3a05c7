"""The move of a volume between its own store and a shared store.

All records of its stubs are copied, and durable in the other store, before the first stub changes.
Then each stub gets its new recipe, by one exchange of its attribute. When all stubs are durable,
the record of the volume's store changes. No process can open the volume in between.
"""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, replace

from dedupd_core.deleted.log import DIRECTORY as DELETED
from dedupd_core.errors import Damaged, DamagedContainer, DamagedStub, DedupdError, UsageError
from dedupd_core.failpoint import define, reach
from dedupd_core.format.domain import FIRST
from dedupd_core.format.ids import HOLE
from dedupd_core.format.recipe import RecipeRef
from dedupd_core.format.store_kinds import MEMBERSHIP_FILE
from dedupd_core.format.stream import Frame, FrameKind
from dedupd_core.format.stub import Flag, StubAttribute
from dedupd_core.replica.replica import refuse_unfinished
from dedupd_core.store import saved_marks
from dedupd_core.store.encoded_records import encoded_payload
from dedupd_core.store.recipe.recipe_reader import HOLE_FINGERPRINT, Span
from dedupd_core.store.recipe.recipe_writer import RecipeBuilder
from dedupd_core.stores.local_store import make_store_dirs
from dedupd_core.stores.membership import (
    MOVING_FILE,
    membership_at,
    put_membership,
)
from dedupd_core.stores.shared_directory import SharedDirectory, refuse_overlap
from dedupd_core.stub.content import described_record, proved_record
from dedupd_core.stub.local_blocks import checked_stub
from dedupd_core.system.files import opened, read_if_there
from dedupd_core.system.paths import explain, open_beneath, show_path
from dedupd_core.units import MIB
from dedupd_core.volume.commit import settle_noted, settle_stub
from dedupd_core.volume.domains import require_undivided
from dedupd_core.volume.unfinished_files import Checkpoints
from dedupd_core.volume.volume import Volume
from jobs.backup.intake import LocalIntake
from jobs.backup.received import remove_tree
from jobs.backup.sent_points import SENT_DIR
from jobs.frame.job import FileReport, Job
from jobs.frame.run import JobRun
from jobs.optimize.store_session import StoreSession
from jobs.tree.walk import TreeFile, walk

_COPIED = define("move.copied", "all records of the stubs are durable in the other store")
_BEGUN = define("move.begun", "the volume is marked as half moved, every stub is unchanged")
_ATTRIBUTE_SET = define("move.attribute-set", "one more stub names its new recipe, not synced")
_SYNCED = define("move.synced", "every stub names its new recipe, durably")
_SWITCHED = define("move.switched", "the volume is on the other store")
_LEFT = define("move.left", "the former store has removed the volume, or is deleted")

BATCH_BYTES = 8 * MIB
SPANS_MAX = 4096
GROUP_BYTES = 64 * MIB


@dataclass(slots=True)
class MoveReport(FileReport):
    """The results of a run. ``present`` chunks were already in the other store."""

    job: str = "move"
    store: str = ""
    stubs: int = 0
    chunks: int = 0
    present: int = 0
    copied_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Route:
    """The content of the file that marks a volume as half moved. ``to``: uuid of the new store;
    ``origin``: directory of the former store; both are empty for the volume's own store. ``where``:
    the new store, for messages."""

    to: str
    where: str
    origin: str


class MovingVolume(Volume):
    """A volume to move, even if it is half moved."""

    def refuse_half_moved(self) -> None:
        """Do nothing: the move continues."""


class Move(Job[MoveReport]):
    """Moves one volume. Takes all necessary locks; the volume must not be mounted. May be stopped
    and run again at any point."""

    def __init__(self, volume: MovingVolume, run: JobRun, shared: SharedDirectory | None) -> None:
        """``shared``: the new store; None for a store of its own. The caller closes it."""
        where = "a store of its own" if shared is None else shared.path
        super().__init__(volume, run, MoveReport(store=where))
        self._shared = shared
        self._recipes: dict[tuple[int, bool, int], RecipeRef] = {}
        own = volume.membership
        self._route = _Route(self._target_uuid, where, "" if own is None else own.name)

    def run(self) -> MoveReport:
        """Copy, then switch. Raises UsageError, Busy, NoSpace, Cancelled, UnseenMember, and Damaged
        if a stub cannot be read completely: then nothing has changed."""
        volume = self._volume
        with (
            ExitStack() as held,
            volume.tree_lock(),
            volume.mount_lock() as transitions,
        ):
            if self._shared is not None:
                held.enter_context(self._shared.job_lock(wait=True))
            is_begun = self._is_begun()
            if not is_begun:
                self._refuse()
                settle_noted(volume, transitions)
            target = self._target(is_begun)
            held.callback(target.close)
            if not self._is_switched(target):
                self._change(target, is_begun=is_begun)
            self._leave()
            target.note_stubs()
            target.sharing.admit([target.identity])
        return self.report()

    # --- before anything changes --------------------------------------------------------------

    def _refuse(self) -> None:
        volume, shared = self._volume, self._shared
        refuse_unfinished(volume.base_fd, volume.root)
        require_undivided(volume, "dedupd store move")
        own = volume.membership
        if shared is None and own is None:
            raise UsageError(f"{volume.root}: has a store of its own already")
        volume.sharing.admit([volume.identity], reads_only=True)
        if shared is None:
            return
        if own is not None and own.store == shared.parameters.uuid:
            raise UsageError(f"{volume.root}: is already on {shared.path}")
        refuse_overlap(volume.identity.root, shared.path)
        if volume.parameters.like(shared.parameters) != volume.parameters:
            raise UsageError(
                f"{volume.root}: uses other chunk sizes or fingerprints than {shared.path}, so"
                " they would share nothing; choose another store"
            )

    def _is_begun(self) -> bool:
        """Return whether an earlier run was stopped. Raises UsageError for another target."""
        volume = self._volume
        found = read_if_there(volume.base_fd, MOVING_FILE)
        if found is None:
            return False
        self._route = _Route(**json.loads(found))
        if self._route.to != self._target_uuid:
            raise UsageError(
                f"{volume.root}: is half moved to {self._route.where}; continue that move"
            )
        return True

    @property
    def _target_uuid(self) -> str:
        return "" if self._shared is None else self._shared.parameters.uuid

    def _target(self, is_begun: bool) -> Volume:
        """Return the volume in its new state. The new store knows it from now on, and collects
        nothing, because this member still records another store."""
        volume, shared = self._volume, self._shared
        membership = None
        if shared is not None:
            membership = shared.new_membership()
            known = shared.members().get(volume.parameters.uuid)
            if is_begun and known is not None:
                membership = replace(membership, token=known.token)
            else:
                shared.put(volume.identity.as_member(membership.token, has_stubs=True))
        else:
            make_store_dirs(volume.base_fd, volume.disk)
            volume.disk.sync_dir(volume.base_fd)
        view = Volume.at(volume.root, os.dup(volume.base_fd), volume.disk)
        view.__dict__["membership"] = membership
        view.space = view.space_of(view.instance)
        return view

    # --- the change ---------------------------------------------------------------------------

    def _change(self, target: Volume, *, is_begun: bool) -> None:
        volume, disk = self._volume, self._volume.disk
        try:
            self._copy(target)
        except BaseException:
            if not is_begun:
                self._roll_back()
            raise
        reach(_COPIED)
        Checkpoints(volume).clear()
        disk.replace_file(volume.base_fd, MOVING_FILE, json.dumps(asdict(self._route)).encode())
        reach(_BEGUN)
        self._set_attributes(target)
        disk.sync_file_system(volume.data_fd)
        reach(_SYNCED)
        self._drop_derived()
        if target.membership is not None:
            put_membership(volume.base_fd, target.membership, disk)
        else:
            disk.unlink(volume.base_fd, MEMBERSHIP_FILE)
            disk.sync_dir(volume.base_fd)
        reach(_SWITCHED)

    def _is_switched(self, target: Volume) -> bool:
        now = membership_at(self._volume.base_fd)
        return (now and now.store) == (target.membership and target.membership.store)

    def _roll_back(self) -> None:
        """Undo the copy: only the other store has changed, and what it got becomes garbage."""
        volume = self._volume
        if self._shared is not None:
            self._shared.remove(volume.parameters.uuid)
        else:
            volume.disk.remove_all(volume.base_fd, b"store")

    def _copy(self, target: Volume) -> None:
        """Store all records of unchanged stubs, durably. Raises Damaged, NoSpace."""
        volume, run = self._volume, self._run
        run.update(phase="copying")
        policy = volume.policy()
        with closing(StoreSession(target, policy.index, FIRST, run.safe_point)) as store:
            copier = _Copier(volume, target, store, self._report)
            for found in self._stubs():
                self._report.stubs += 1
                stub = self._stub(found, target)
                if stub is not None:
                    key = _key(stub)
                    if key not in self._recipes:
                        self._recipes[key] = copier.copied(stub, show_path(found.path))
                run.update(files=self._report.stubs, done=self._report.copied_bytes)
            copier.intake.sync()
            store.save_index()
        target.sync()

    def _stubs(self) -> Iterator[TreeFile]:
        unseen: list[str] = []
        for found in walk(self._volume, b"", unseen, self._run.safe_point):
            if found.is_stub:
                yield found
        if unseen:
            raise Damaged(f"{self._volume.root}: a part is not accessible: {unseen[0]}")

    def _stub(self, found: TreeFile, target: Volume) -> StubAttribute | None:
        """Return the attribute of an unchanged, settled stub; None if it is already changed.

        Raises Damaged if it is neither.
        """
        volume, where = self._volume, show_path(found.path)
        try:
            fd = open_beneath(volume.data_fd, found.path, os.O_RDWR | os.O_NONBLOCK)
        except OSError as error:
            raise DedupdError(
                f"{volume.root}: {explain(error)}; a move changes every stub: make {where}"
                " writable (`chattr -i -a`), or plain (`dedupd expand`)"
            ) from error
        with opened(fd):
            try:
                stub = checked_stub(fd, volume.stub_files, where)
                if stub is not None and stub.flags.transient:
                    settle_stub(volume, found.path)
                    stub = checked_stub(fd, volume.stub_files, where)
                return stub
            except DamagedStub:
                checked_stub(fd, target.stub_files, where)
                return None

    def _set_attributes(self, target: Volume) -> None:
        volume, run = self._volume, self._run
        run.update(phase="changing stubs", done=0, total=self._report.stubs)
        for done, found in enumerate(self._stubs()):
            stub = self._stub(found, target)
            if stub is not None:
                ref = self._recipes[_key(stub)]
                flags = stub.flags & ~Flag.DIRECT | (Flag.DIRECT if ref.direct else Flag(0))
                changed = replace(stub, recipe=ref.recipe, digest=ref.digest, flags=flags)
                with opened(open_beneath(volume.data_fd, found.path, os.O_RDWR)) as fd:
                    target.stub_files.write(fd, changed)
                reach(_ATTRIBUTE_SET)
            run.update(done=done + 1)

    # --- after it -----------------------------------------------------------------------------

    def _drop_derived(self) -> None:
        """Remove data with ids of the former store, which are invalid in the other one. Recently
        deleted files can no longer be restored."""
        volume = self._volume
        saved_marks.remove(volume.base_fd, volume.disk)
        remove_tree(volume.disk, volume.base_fd, SENT_DIR)
        with suppress(FileNotFoundError):
            for log in os.listdir(os.path.join(volume.base, DELETED.decode())):
                if log.endswith(".log"):
                    volume.disk.remove_all(volume.base_fd, DELETED + b"/" + os.fsencode(log))

    def _leave(self) -> None:
        """Leave the former store, which the volume no longer needs."""
        volume, disk, origin = self._volume, self._volume.disk, self._route.origin
        if origin:
            with closing(SharedDirectory(origin, disk)) as former:
                former.remove(volume.parameters.uuid)
        elif os.path.lexists(os.path.join(volume.base, "store")):
            disk.remove_all(volume.base_fd, b"store")
            disk.sync_dir(volume.base_fd)
        reach(_LEFT)
        disk.unlink(volume.base_fd, MOVING_FILE)
        disk.sync_dir(volume.base_fd)


def _key(stub: StubAttribute) -> tuple[int, bool, int]:
    return stub.recipe, Flag.DIRECT in stub.flags, stub.covered


class _Copier:
    """Copies recipes and chunks from the store of a volume to another one."""

    def __init__(
        self, volume: Volume, target: Volume, store: StoreSession, report: MoveReport
    ) -> None:
        self._volume = volume
        self._store = store
        self._report = report
        self.intake = LocalIntake(target, store)

    def copied(self, stub: StubAttribute, where: str) -> RecipeRef:
        """Copy the recipe of a stub; return it in the other store. Raises Damaged, NoSpace."""
        builder = RecipeBuilder(self._store.recipes)
        recipe = self._volume.content(stub, where).recipe
        batch: list[Span] = []
        batch_bytes = 0
        for span in recipe.spans(0, max(1, stub.covered)):
            batch.append(span)
            batch_bytes += span.length if span.chunk != HOLE else 0
            if batch_bytes >= BATCH_BYTES or len(batch) >= SPANS_MAX:
                self._push(builder, batch)
                batch, batch_bytes = [], 0
        self._push(builder, batch)
        ref = builder.finish()
        if self.intake.group_bytes >= GROUP_BYTES:
            self.intake.sync()
        return ref

    def _push(self, builder: RecipeBuilder, spans: list[Span]) -> None:
        """Add spans to a recipe, and store their new chunks."""
        fingerprints = [self._fingerprint(span) for span in spans]
        known = self._store.index.lookup(b"".join(fingerprints))
        ids = dict(zip(fingerprints, known, strict=True)) | {HOLE_FINGERPRINT: HOLE}
        new: dict[bytes, Span] = {}
        for span, fingerprint in zip(spans, fingerprints, strict=True):
            if span.chunk != HOLE:
                self._report.chunks += 1
                self._report.present += bool(ids[fingerprint])
                if not ids[fingerprint]:
                    new.setdefault(fingerprint, span)
        frames = [self._frame(span, fingerprint) for fingerprint, span in new.items()]
        self._report.copied_bytes += sum(len(frame.stored) for frame in frames)
        ids |= {chunk.fingerprint: chunk.chunk for chunk in self.intake.add(frames)}
        for span, fingerprint in zip(spans, fingerprints, strict=True):
            builder.push(ids[fingerprint], span.length, fingerprint)

    def _fingerprint(self, span: Span) -> bytes:
        if span.chunk == HOLE:
            return HOLE_FINGERPRINT
        return described_record(self._volume.chunk_records, span).fingerprint

    def _frame(self, span: Span, fingerprint: bytes) -> Frame:
        """Return a chunk with a payload that depends on no other, verified by its fingerprint."""
        records = self._volume.chunk_records
        try:
            record, payload = records.read_alone(span.chunk)
            if record.fingerprint == fingerprint and record.raw_length == span.length:
                return Frame(FrameKind.CHUNK, record.codec, span.length, fingerprint + payload)
        except DamagedContainer:
            pass  # a second copy may exist
        _, raw = proved_record(records, span, self._volume.parameters.fingerprint)
        codec, payload, _ = encoded_payload(raw)
        return Frame(FrameKind.CHUNK, codec, span.length, fingerprint + payload)
