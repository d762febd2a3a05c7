"""Logs of deletions, decoded for listings (docs/design/format.md, "Deletion")."""

from typing import Final, final

from typing_extensions import Buffer

@final
class DeletionLog:
    """The sound deletions of one log, without the values of their attributes."""

    lost_bytes: Final[int]
    """Bytes of the log that are damaged."""

    memory_bytes: Final[int]

    def __new__(
        cls, data: Buffer, *, seed: int, is_proven: bool, uid: int | None, first: int
    ) -> DeletionLog:
        """``data`` is the entire log. The other values are from its header
        (:class:`dedupd_core.format.deletion.LogHeader`)."""
    def __len__(self) -> int: ...
    def lines(
        self,
        below: bytes,
        *,
        number: int,
        uid: int | None,
        before: int,
        now_ns: int,
        keep_ns: int,
        limit: int,
        data_fd: int,
        attribute: bytes,
        seed: int,
    ) -> tuple[list[bytes], int]:
        """Return lines of JSON for the newest deletions whose content is not in its old place. (A
        deletion is recorded before it happens, and can be restored.)

        The deletions are of the path ``below`` and its descendants, and of the user ``uid`` if any.
        Their offsets are less than ``before``, and their times end after ``now_ns``, at most
        ``keep_ns`` after the deletion. ``limit`` deletions are examined. The second result is the
        offset that limits the remainder, 0 if there is none.

        ``number``: of the log. ``data_fd``: the tree; ``attribute``: that of its stubs, with the
        ``seed`` of its checksum.
        """

def spans(data: Buffer, *, seed: int, is_proven: bool, base: int) -> tuple[bytes, bytes]:
    """Return offset in the log (u32) and length (u32) of each deletion with a sound head. The last
    deletion may be incomplete. ``data`` starts at offset ``base``, at the start of a deletion."""
