"""Stub → plain, a piece at a time: the file is read and written between the pieces.

A missing block is filled by writing into it what the recipe says it is, so a file that is filled
half is a stub like any other, and stays one wherever that ends: the invariant of ``transition.py``
holds between any two pieces, and at the end all that is left to do is to take the attribute away.

:class:`StubFill` says for each of its steps whether the caller must have the file alone for it.
What waits for the store or for the disk for long is done without that.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress

from dedupd_core.byte_ranges import missing_ranges
from dedupd_core.errors import Damaged, NoSpace, OverQuota
from dedupd_core.failpoint import define, reach
from dedupd_core.stub.stub_file import LoadContent, SparseStub
from dedupd_core.stub.transition import StubFiles
from dedupd_core.units import MIB, align_down, align_up

# Native code passes this one (native/src/stub/whole.rs).
define("stub.restoring", "the attribute says restoring, nothing of a piece is filled")
_PIECE_FILLED = define("stub.piece-filled", "a piece is filled, and the stub is settled again")
_FILLED = define("stub.filled", "all blocks are present and synced, and so are the times")
_PLAIN = define("stub.plain", "the attribute is removed")

PIECE_BYTES = 4 * MIB
"""Written while the file is held: 2 ms into the page cache. Also what is noted as one cell."""

WINDOW_BYTES = 64 * MIB
"""The part of the extent map that is looked through while the file is held: 16,384 blocks at most,
in some 10 ms."""

SYNC_BYTES = 32 * MIB
"""Filled between two syncs. So there are never so many dirty pages that a writer has to wait."""

_TAKE_BACK_BYTES = 16 * MIB
"""Punched while the file is held."""

_NO_SPACE = "no space left to expand the file; it stays a stub"

_UNTOUCHED, _FILLED_WHOLE, _FILLED_PARTLY = range(3)
"""A cell, as far as the position: nothing of it was filled; all of it was missing, and what was not
zeros was filled; some of it may be a user's."""


class StubFill:
    """One stub that is being filled up. The caller writes to it by the same ``SparseStub``.

    A piece is: :meth:`load`, then :meth:`fill`, until :attr:`is_complete`; :meth:`write_out` now
    and then; at the end :meth:`sync` and :meth:`finish`. Whatever has failed, and before
    :meth:`finish` whenever it is wanted, :meth:`take_back` frees the space again.
    """

    def __init__(
        self,
        stub: SparseStub,
        load: LoadContent,
        files: StubFiles,
        require_room: Callable[[int], None],
    ) -> None:
        """Takes the file alone. ``require_room`` is asked before each piece, with its bytes, and
        raises NoSpace where they may not be written."""
        self._stub = stub
        self._content = load(stub.attribute)
        self._files = files
        self._disk = files.disk
        self._require_room = require_room
        self._position = 0  # below it, all that is missing is zeros
        self._wanted: list[tuple[int, int]] = []  # missing, from there on
        self._loaded: list[tuple[int, bytes]] = []
        self._loaded_end = 0
        self._cells = bytearray()
        self._unsynced_bytes = 0
        self.filled_bytes = 0
        """What was written so far."""
        stub.watch = self._note_write
        self._look_ahead()

    # --- filling --------------------------------------------------------------------------------

    @property
    def is_complete(self) -> bool:
        """Whether all that is missing is zeros."""
        return self._position >= self._covered()

    def load(self) -> None:
        """Read what the next piece needs from the store; the file is not looked at.

        Raises Damaged.
        """
        self._loaded, left = [], PIECE_BYTES
        self._loaded_end = self._wanted[-1][1] if self._wanted else self._position
        for low, high in self._wanted_data():
            end = min(high, low + left)
            self._loaded.append((low, self._content.read(low, end)))
            left -= end - low
            if left == 0:
                self._loaded_end = end
                return

    def _wanted_data(self) -> Iterator[tuple[int, int]]:
        """The blocks that are wanted, but for holes of the recipe; parts do not overlap."""
        block, done = self._files.block_bytes, 0
        for start, end in self._wanted:
            for low, high in self._content.data_ranges(start, end):
                # Two chunks may share a block.
                low, high = max(align_down(low, block), done), min(align_up(high, block), end)
                if low < high:
                    yield low, high
                    done = high

    def fill(self) -> None:
        """Write what was loaded, where it is missing still. Takes the file alone.

        Raises NoSpace, OSError.
        """
        self._require_watch()
        end = min(self._loaded_end, self._covered())
        stub, loaded, filled_bytes = self._stub, self._loaded, 0
        try:
            filled_bytes = self._content.repairing(
                lambda source: stub.fill_by(source, loaded, end, self._about_to_fill)
            )
        except OSError as error:
            if error.errno == errno.EDQUOT:
                raise self._over_quota() from error
            if error.errno != errno.ENOSPC:
                raise
            raise NoSpace(_NO_SPACE) from error
        self.filled_bytes += filled_bytes
        self._unsynced_bytes += filled_bytes
        if filled_bytes:
            reach(_PIECE_FILLED)
        self._loaded = []
        # A write of a user that failed has left a hole, where there was a block to be seen before.
        late = self._missing_beyond_wanted(end)
        if late:
            self._wanted = late
            return
        if filled_bytes:
            self._position = end
        else:
            self._pass_to(end)
        self._look_ahead()

    def _about_to_fill(self, need_bytes: int) -> None:
        self._require_room(need_bytes)
        self._note_cells(self._position, min(self._loaded_end, self._covered()))

    def _over_quota(self) -> OverQuota:
        status = os.fstat(self._stub.fd)
        return OverQuota(
            f"the quota of user {status.st_uid}, of group {status.st_gid}, or of a project or"
            " subvolume is used up; raise it to expand the file. It stays a stub"
        )

    def _missing_beyond_wanted(self, end: int) -> list[tuple[int, int]]:
        """What is missing below ``end``, and was not when the piece was planned."""
        if end <= self._position:
            return []
        return [
            part
            for low, high in self._stub.missing(self._position, end)
            for part in missing_ranges(self._wanted, low, high)
        ]

    def _look_ahead(self) -> None:
        """Plan the next piece: what is missing in the next window."""
        end = min(self._position + WINDOW_BYTES, self._covered())
        self._wanted = self._stub.missing(self._position, end) if self._position < end else []
        if not self._wanted:
            self._pass_to(end)

    def _pass_to(self, end: int) -> None:
        """Go on to ``end``; nothing had to be filled before it, so there may be blocks of users."""
        if end <= self._position:
            return
        cell, within = divmod(self._position, PIECE_BYTES)
        if within and cell < len(self._cells) and self._cells[cell] == _FILLED_WHOLE:
            self._cells[cell] = _FILLED_PARTLY
        self._position = end

    def _covered(self) -> int:
        return min(self._stub.attribute.covered, os.fstat(self._stub.fd).st_size)

    # --- ending ---------------------------------------------------------------------------------

    @property
    def wants_sync(self) -> bool:
        """Whether it is time for :meth:`write_out`."""
        return self._unsynced_bytes >= SYNC_BYTES

    def write_out(self) -> None:
        """Have what was filled written to the disk. Raises OSError."""
        self._unsynced_bytes = 0
        self._disk.sync_data(self._stub.fd)

    def sync(self) -> None:
        """Make all that was filled durable, before :meth:`finish`. Raises OSError.

        Users may write meanwhile, and afterwards: to blocks that are there, or to zeros.
        """
        self._disk.sync_file(self._stub.fd)
        reach(_FILLED)

    def finish(self) -> None:
        """Make the file plain, once it is complete and synced. Takes the file alone."""
        assert self.is_complete
        self._disk.remove_attribute(self._stub.fd, self._files.space.name)
        self._stub.watch = None
        reach(_PLAIN)

    def stop(self) -> None:
        """Leave the file as it is: a stub, with the blocks that it has by now. Nothing follows."""
        self._stub.watch = None

    def seal(self) -> None:
        """Have the stub that was taken back count the blocks of its own again; nothing follows.

        Takes the file alone. A stub that cannot be sealed is as right as before.
        """
        self.stop()
        with suppress(OSError):
            if not self._stub.seal():
                self.write_out()  # what could not be told from a user's stays
                self._stub.seal()

    def _require_watch(self) -> None:
        """What users write unseen would be taken for what was filled."""
        assert self._stub.watch == self._note_write, "this expansion has ended"

    # --- taking back ----------------------------------------------------------------------------

    def take_back(self) -> bool:
        """Free some of what was filled and is the store's still; False once nothing is left of it.

        Takes the file alone. Raises OSError.
        """
        self._require_watch()
        span = self._last_filled()
        if span is None:
            return False
        start, end, is_whole = span
        covered, size = self._covered(), os.fstat(self._stub.fd).st_size
        # What a file grew by is zeros, in the block that it ended in, too.
        limit = covered if covered == size else align_down(covered, self._files.block_bytes)
        # A cell is known as far as it was gone through.
        end = min(end, limit, self._position)
        if start < end:
            stub = self._stub
            with suppress(Damaged):  # a block that the store cannot replace is kept
                self._content.repairing(
                    lambda source: stub.take_back_by(source, start, end, is_whole)
                )
        first = start // PIECE_BYTES
        self._cells[first:] = b""
        self._position = min(self._position, start)
        return True

    def _last_filled(self) -> tuple[int, int, bool] | None:
        """The last cells of one kind: (start, end, whether they were filled whole)."""
        last = len(self._cells.rstrip(bytes([_UNTOUCHED]))) - 1
        if last < 0:
            return None
        is_whole = self._cells[last] == _FILLED_WHOLE
        first = last
        least = last - _TAKE_BACK_BYTES // PIECE_BYTES + 1
        while is_whole and first > max(0, least) and self._cells[first - 1] == _FILLED_WHOLE:
            first -= 1
        return first * PIECE_BYTES, (last + 1) * PIECE_BYTES, is_whole

    def _note_cells(self, start: int, end: int) -> None:
        """What [start, end) is before it is filled; the steps go through the file in order."""
        for cell in range(start // PIECE_BYTES, (end - 1) // PIECE_BYTES + 1):
            low, high = cell * PIECE_BYTES, min((cell + 1) * PIECE_BYTES, end)
            low = max(low, start)
            is_whole = self._stub.missing(low, high) == [(low, high)]
            self._cells += bytes(max(0, cell + 1 - len(self._cells)))
            if self._cells[cell] == _UNTOUCHED and low > cell * PIECE_BYTES:
                is_whole = False  # its begin was the user's
            if self._cells[cell] != _FILLED_PARTLY:
                self._cells[cell] = _FILLED_WHOLE if is_whole else _FILLED_PARTLY

    def _note_write(self, start: int, end: int) -> None:
        """A user writes [start, end)."""
        first, last = start // PIECE_BYTES, min((end - 1) // PIECE_BYTES, len(self._cells) - 1)
        for cell in range(first, last + 1):
            if self._cells[cell] == _FILLED_WHOLE:
                self._cells[cell] = _FILLED_PARTLY


def make_plain(filling: StubFill, safe_point: Callable[[], None]) -> None:
    """Make a file plain that nobody else uses; ``safe_point`` is called between the pieces.

    An error, also one of ``safe_point``, leaves it the stub that it was. Raises NoSpace, Damaged,
    OSError.
    """
    try:
        while not filling.is_complete:
            filling.load()
            filling.fill()
            if filling.wants_sync:
                filling.write_out()
            safe_point()
        filling.sync()
    except BaseException:
        while filling.take_back():
            pass
        filling.seal()
        raise
    filling.finish()
