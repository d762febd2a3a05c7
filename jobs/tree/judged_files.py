"""The files that optimize has judged to save too little: what is known of them between runs."""

import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager

from dedupd_core import native
from dedupd_core.config.memory_budget import notes_shares
from dedupd_core.config.policy import DedupDomain, Policy
from dedupd_core.store.saved_notes import SavedNotes
from dedupd_core.volume.volume import Volume


def policy_digest(policy: Policy) -> int:
    """Of what judgements depend on, besides ``min_file_saving``: where it differs, files are judged
    anew."""
    domain = policy.dedup_domain
    keys = (
        policy.compression_level,
        sorted(policy.no_compress_types),
        policy.rules,
        *(() if domain is DedupDomain.VOLUME else (domain.value,)),
    )
    return zlib.crc32(repr(keys).encode())


@contextmanager
def found_notes(volume: Volume, policy: Policy) -> Iterator[SavedNotes | None]:
    """What earlier runs have left by the same policy."""
    saved = SavedNotes.found(volume.base_fd, volume.space.volume_id)
    if saved is None:
        yield None
        return
    with closing(saved):
        yield saved if saved.header.policy == policy_digest(policy) else None


def new_ledger(saved: SavedNotes | None, policy: Policy) -> native.admission.Ledger:
    """A ledger that goes on where an earlier run was."""
    shares = notes_shares(policy.memory_bytes)
    return native.admission.Ledger(
        b"" if saved is None else saved.rows,
        policy.min_file_saving,
        rows_max=shares.judged,
        notes_max=shares.notes,
    )


def load_ledger(volume: Volume, policy: Policy) -> native.admission.Ledger:
    """What earlier runs have judged, to be asked."""
    with found_notes(volume, policy) as saved:
        return new_ledger(saved, policy)
