"""Logs of deletions, decoded for listings (docs/design/format.md, "Deletion")."""

from typing import Final, final

from typing_extensions import Buffer

@final
class DeletionLog:
    """The sound deletions of one log, without the values of their attributes."""

    lost_bytes: Final[int]
    """How much of the log is damaged."""

    memory_bytes: Final[int]

    def __new__(
        cls, data: Buffer, *, seed: int, is_proven: bool, uid: int | None, first: int
    ) -> DeletionLog:
        """``data`` is the entire log, the rest is what its header says
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
        """What a listing says of the newest deletions: a line of JSON for each whose content is not
        where it was. (A deletion is noted before it happens, and it may have been had back.)

        Of the path ``below`` and below it, of the user ``uid`` if any, at an offset less than
        ``before``, and whose time, at most ``keep_ns`` after the deletion, ends after ``now_ns``.
        ``limit`` deletions are examined. The second result is the offset before which the rest
        lies, 0 if there is none.

        ``number``: of the log. ``data_fd``: the tree; ``attribute``: that of its stubs, with the
        ``seed`` of its checksum.
        """

def spans(data: Buffer, *, seed: int, is_proven: bool, base: int) -> tuple[bytes, bytes]:
    """The offset in the log (u32) and the length (u32) of each deletion with a sound head, the last
    of which may be incomplete. ``data`` begins at offset ``base``, where a deletion begins."""
