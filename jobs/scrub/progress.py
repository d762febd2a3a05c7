"""How far a full scrub is: an interrupted one goes on where it stopped."""

import time

from dedupd_core.format import container as fmt
from dedupd_core.volume.hints import HintKey
from dedupd_core.volume.volume import Volume

SAVE_EVERY_S = 5.0
"""The work that is done again after a kill; a catalogue's sync takes milliseconds."""


class ScrubProgress:
    """The place up to which every record was looked at, and its damage noted in the tables.

    Containers are gone through by kind, then by number, so one place says it all. Where the
    container at that place was rewritten since, it begins again. A quick run keeps none.
    """

    def __init__(self, volume: Volume, is_kept: bool) -> None:
        self._hints = volume.store_hints
        self._is_kept = is_kept
        self._saved_s = time.monotonic()
        self._begun: tuple[int, int, int, int, int] | None = self._load() if is_kept else None

    def is_done(self, kind: fmt.Kind, number: int) -> bool:
        """Whether an earlier run was through with a container."""
        return self._begun is not None and (kind, number) < self._begun[:2]

    def within(self, kind: fmt.Kind, header: fmt.FileHeader) -> tuple[int, int] | None:
        """Offset and ordinal in this container from which on to look, None for its beginning."""
        here = (int(kind), header.container, header.generation)
        begun = self._begun
        if begun is None or begun[:3] != here or not begun[3]:
            return None  # no record begins at 0: the place is a container that was not begun
        return begun[3], begun[4]

    def note(self, kind: fmt.Kind, header: fmt.FileHeader, offset: int, ordinal: int) -> None:
        """Everything up to ``offset`` was looked at; ``ordinal`` comes next.

        Not for a container with gaps: what they mean is only known at its end.
        """
        if time.monotonic() - self._saved_s >= SAVE_EVERY_S:
            self._save([int(kind), header.container, header.generation, offset, ordinal])

    def done(self, kind: fmt.Kind, number: int) -> None:
        """All of a container was looked at."""
        if time.monotonic() - self._saved_s >= SAVE_EVERY_S:
            self._save([int(kind), number + 1, 0, 0, 0])

    def stop_before(self, kind: fmt.Kind, number: int) -> None:
        """The run ends here: the next one goes on with this container."""
        self._save([int(kind), number, 0, 0, 0])

    def clear(self) -> None:
        """The run is over: the next one begins at the beginning."""
        if self._is_kept:
            self._hints.delete([HintKey.SCRUB_PROGRESS])

    def _save(self, place: list[int]) -> None:
        self._saved_s = time.monotonic()
        if self._is_kept:
            self._hints.put(HintKey.SCRUB_PROGRESS, place)

    def _load(self) -> tuple[int, int, int, int, int] | None:
        value = self._hints.get(HintKey.SCRUB_PROGRESS)
        if not isinstance(value, list) or [type(part) for part in value] != [int] * 5:
            return None
        kind, number, generation, offset, ordinal = value
        return kind, number, generation, offset, ordinal
