"""Which files pay, and what is remembered of those that do not.

A file becomes a stub only where that frees at least the policy's ``min_file_saving`` of its blocks
(after WOJ, seed 000, 4: what is on the disk already is not written again for nothing). One that
does not pay stays plain. It is *judged*: as long as it is unchanged it is not read again; and
*noted*: the first bytes of the fingerprints of its chunks are kept. At the end of a run the notes
are joined. Files that have chunks in common, or that have chunks which the store has got meanwhile,
are *recalled*: the run reads them again, and their common chunks cost them nothing. All of this is
derived. A loss costs one more read of the files.
"""

import logging

from dedupd_core import native
from dedupd_core.config.memory_budget import notes_shares
from dedupd_core.config.policy import Policy, RestoreMode
from dedupd_core.errors import NoSpace
from dedupd_core.failpoint import define, reach
from dedupd_core.format.derived.saved_notes import NotesHeader
from dedupd_core.format.domain import salt_of
from dedupd_core.store.saved_notes import remove_notes, save_notes
from dedupd_core.stub.transition import FileIdentity
from dedupd_core.volume.hints import HintKey
from dedupd_core.volume.volume import Volume
from jobs.optimize.order import ClassFigures
from jobs.tree.judged_files import found_notes, new_ledger, policy_digest

_log = logging.getLogger("dedupd")

_SAVED = define("optimize.notes-saved", "the skipped files, and notes of them, are durable")


class Judgements:
    """The judgements of one run, which has two rounds: what was found, then what was recalled."""

    def __init__(self, volume: Volume, policy: Policy) -> None:
        self._volume = volume
        self._policy = policy
        self._entries_max = notes_shares(policy.memory_bytes).joined
        self.saving_min = policy.min_file_saving
        self._restores = policy.restore_mode is RestoreMode.ON
        if self._restores and volume.hints.get(HintKey.JUDGING):
            # What that run has stored is known, but not to files that were judged before.
            remove_notes(volume.base_fd, volume.disk)
        with found_notes(volume, policy) as saved:
            self.ledger = new_ledger(saved, policy)
            self.is_pending = saved is not None and not saved.header.is_joined
            """Whether an earlier run has left notes that are not joined."""
        self.recall = native.admission.Recall()
        self.classes = ClassFigures.load(volume.hints, policy.no_compress_types)
        self.is_recall = False
        """Whether this is the second round."""
        self.salt = 0
        """In all that is noted of the files of a domain: only these are joined."""
        self.walk_is_whole = False
        """Whether the walk has met every file of the volume."""
        self._has_joined = False
        self._promising: set[int] = set()
        self._new_bytes: dict[FileIdentity, int] = {}
        self._has_given_up = False

    def begin(self) -> None:
        """What is noted from now on is lost with the run, until it is saved."""
        if self._restores:
            self._volume.hints.put(HintKey.JUDGING, True)

    def use_domain(self, domain: bytes) -> None:
        """The files that come from here on are of another domain."""
        self.salt = salt_of(domain)
        self.ledger.use_salt(self.salt)

    def pays(self, freed_bytes: int, cost_bytes: int) -> bool:
        """Whether a file that would give up so many bytes of blocks for so many in the store is
        worth it."""
        return native.admission.pays(freed_bytes, cost_bytes, self.saving_min)

    def note(self, identity: FileIdentity, prefixes: bytes) -> None:
        """Note chunks of a file that is read, by the first bytes of their fingerprints."""
        if not self.is_recall:
            self.ledger.note(identity.inode, prefixes)

    def leave(
        self, identity: FileIdentity, freed_bytes: int, cost_bytes: int, unique_chunks: int
    ) -> None:
        """Remember a file that does not pay; its chunks are to be noted as well."""
        saving, missing = native.admission.verdict(
            freed_bytes, cost_bytes, unique_chunks, self.saving_min
        )
        if self.is_recall:
            self.ledger.leave_again(identity, saving, missing)
        else:
            self.ledger.leave(identity, saving, missing)

    def leave_full(self, identity: FileIdentity) -> None:
        """Record a file whose attributes leave no room for that of a stub."""
        self.ledger.leave_full(identity, self.is_recall)

    def read_again(self, identity: FileIdentity, new_bytes: int) -> None:
        """A large file pays although its beginning did not, or there was no room for it: the second
        round stores it. ``new_bytes``: of its chunks that the store does not have."""
        self._promising.add(identity.inode)
        self._new_bytes[identity] = new_bytes

    def new_bytes_of(self, identity: FileIdentity) -> int | None:
        """What the store lacks of a file that is read again; None of any other."""
        return self._new_bytes.get(identity)

    def is_promising(self, inode: int) -> bool:
        """Whether :meth:`read_again` was called for a file."""
        return inode in self._promising

    def save_if_full(self) -> None:
        """Make room for further notes."""
        if self.ledger.is_full and not self._has_given_up:
            self._save(is_joined=False)

    def start_recall(self) -> bool:
        """Join the notes. Says whether there is a second round: files to be read again."""
        recall = native.admission.Recall()
        if self.ledger.has_changed or self.is_pending:
            snapshot = self.ledger.snapshot(self.walk_is_whole)
            with found_notes(self._volume, self._policy) as saved:
                notes = None if saved is None else saved.notes
                try:
                    recall = snapshot.join(notes, self._entries_max)
                except OSError as error:
                    self._give_up(error)
        self.recall = recall.including(self._promising)
        self.is_recall = bool(len(self.recall))
        return self.is_recall

    def save(self, is_complete: bool) -> None:
        """Keep what this run has judged and noted for the next one; ``is_complete``: nothing that
        was recalled is left to be read. What comes after that are parts of busy files."""
        self.classes.save(self._volume.hints)
        self.is_recall = False
        if self._has_given_up:
            return
        if self.ledger.has_changed or (self.is_pending and is_complete):
            self._save(is_joined=is_complete and not self.recall.is_cut)

    def end(self) -> None:
        """Keep also what was stored since :meth:`save`: files that were left may have it, and the
        next run joins that. From here on nothing is lost with the run."""
        self.save(is_complete=False)
        if self._restores and not self._has_given_up:
            self._volume.hints.put(HintKey.JUDGING, False)

    def _save(self, is_joined: bool) -> None:
        recalled = self.recall.inodes if is_joined or self._has_joined else set()
        snapshot = self.ledger.snapshot(self.walk_is_whole, recalled)
        volume, digest = self._volume, policy_digest(self._policy)
        header = NotesHeader(volume.space.volume_id, 0, digest, 0, 0, is_joined)
        with found_notes(volume, self._policy) as saved:
            notes = None if saved is None else saved.notes
            need_bytes = snapshot.size_bytes + (0 if notes is None else notes[2] - notes[1])
            try:
                room = volume.room()
                room.require(need_bytes, "notes of the skipped files")
                rows = snapshot.notes(notes, is_joined)
                save_notes(volume.base_fd, header, snapshot.rows, rows, volume.disk, room)
            except (OSError, NoSpace) as error:
                self._give_up(error)
                return
        reach(_SAVED)
        self.ledger.forget_notes()
        self.is_pending = not is_joined
        self._has_joined |= is_joined

    def _give_up(self, error: Exception) -> None:
        """Remember nothing more. Judgements without their notes would keep files from ever being
        stored."""
        _log.warning("the next run may read skipped files again: %s", error)
        self._has_given_up = True
        self.ledger.forget_notes()
        if not isinstance(error, NoSpace):
            remove_notes(self._volume.base_fd, self._volume.disk)
