"""Logs of deletions, decoded for listings (docs/format.md, "Deletion")."""

from collections.abc import Sequence
from typing import Final

from typing_extensions import Buffer

class DeletionLog:
    """The sound deletions of one log, without the values of their attributes."""

    lost_bytes: Final[int]
    """How much of the log is damaged."""

    memory_bytes: Final[int]

    def __new__(
        cls, data: Buffer, *, seed: int, is_proven: bool, uid: int | None, first: int
    ) -> DeletionLog:
        """``data`` is the entire log, the rest is what its header says
        (:class:`dedupd.format.deletion.LogHeader`)."""
    def __len__(self) -> int: ...
    def newest(
        self,
        below: bytes,
        *,
        uid: int | None,
        before: int,
        now_ns: int,
        keep_ns: int,
        limit: int,
    ) -> list[tuple[int, bytes, bytes, bytes]]:
        """Deletions as (offset, fields of the head, path, names), the newest first, at most
        ``limit``. ``names`` are those of attributes, but for ``user.*``, each with a NUL after it.

        Those of the path ``below`` and below it, of the user ``uid`` if any, at an offset less than
        ``before``, and whose time, at most ``keep_ns`` after the deletion, ends after ``now_ns``.
        """

    def lost(self, offsets: Sequence[int], data_fd: int, attribute: bytes, seed: int) -> list[bool]:
        """For deletions at some offsets, whether their content is not where it was: a deletion is
        noted before it happens, and it may have been had back.

        ``data_fd``: the tree; ``attribute``: that of its stubs, with the ``seed`` of its checksum.
        Raises KeyError where no deletion begins at an offset.
        """

def spans(data: Buffer, *, seed: int, is_proven: bool, base: int) -> tuple[bytes, bytes]:
    """The offset in the log (u32) and the length (u32) of each deletion with a sound head, the last
    of which may be incomplete. ``data`` begins at offset ``base``, where a deletion begins."""
