"""Rolls back the work of dead hosts; the host that has the turn does this.

Whether a host is dead is decided neither by its own clock nor by that of this host. A volume counts
as left under three conditions. Its lease is free by the clock of the cluster. Its last session has
unfinished work. And no other session has started for a while, by the same clock: a living host
would have started one. A host that is alive, and was only stopped or disconnected from the cluster,
is fenced before its session is taken over. It loses nothing, and starts again.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from dedupd_core.errors import Busy, Damaged, NotAVolume
from dedupd_core.format.cluster.objects import SESSION_KEY, VolumeEntry
from dedupd_core.rados.cluster import points
from dedupd_core.rados.cluster.changes import AtomicChange, Outcome
from dedupd_core.rados.cluster.connection import Cluster
from dedupd_core.rados.lease import LEASE_S, lease_state
from dedupd_core.rados.store import RadosStore
from dedupd_core.rados.tables import Intents
from dedupd_core.rados.upkeep.turn import HostTurn

_LEFT, _TAKEN = "left.", "taken."


class _Note(NamedTuple):
    """A note on a volume: its last session, and since when that is known (s since 1970, the
    cluster's clock)."""

    session: str
    since_s: float

    @property
    def text(self) -> str:
        return f"{self.session} {self.since_s:.3f}"


@dataclass(frozen=True, slots=True)
class GoneVolume:
    """A volume whose host has not returned since its work was rolled back. ``left`` files between
    two versions wait for the host."""

    volume: str
    host: str
    path: str
    since_s: float
    left: int


@dataclass
class AbsentHosts:
    """One check of all volumes of a store except ``own``, in a turn.

    ``patience_s``: how long a volume must have been left. It is checked at least twice.
    """

    store: RadosStore
    turn: HostTurn
    own: str
    patience_s: float
    safe_point: Callable[[], None] = lambda: None
    lease_s: float = LEASE_S
    volumes: int = 0
    waiting: int = 0
    """Volumes that are left, but not for long enough."""
    retired: int = 0
    """File versions that were rolled back."""
    taken_over: list[GoneVolume] = field(default_factory=list)
    gone: list[GoneVolume] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Run the check. Raises Busy if the turn has ended, StoreUnreachable."""
        cluster = self.store.cluster
        notes = self._notes(_LEFT), self._notes(_TAKEN)
        listed = self.store.volumes()
        for volume in set().union(*notes) - listed.keys():
            self._note(volume)
        for volume, entry in sorted(listed.items()):
            self.safe_point()
            self.turn.check()
            self.volumes += 1
            state = lease_state(cluster, volume)
            taken, seen = notes[1].get(volume), notes[0].get(volume)
            if taken is not None and taken.session == state.session:
                self.gone.append(self._gone(volume, entry, taken))
            elif state.session is None or state.holder is not None or not self._has_left(volume):
                if taken is not None or seen is not None:
                    self._note(volume)
            elif volume == self.own:
                continue  # the next job finishes it
            elif seen is None or seen.session != state.session:
                self._note(volume, left=_Note(state.session, self.turn.now_s))
                self.waiting += 1
            elif self.turn.now_s - seen.since_s < self.patience_s:
                self.waiting += 1
            else:
                self._take_over(volume, entry, seen)

    @property
    def found(self) -> Mapping[str, Any]:
        """The result for the other hosts."""
        return {"gone": [asdict(one) for one in self.gone]}

    def _has_left(self, volume: str) -> bool:
        try:
            table = self.store.table(volume)
        except NotAVolume:
            return False  # it has left the store since then
        return bool(Intents(self.store.cluster, volume).all()) or any(
            True for _ in table.retiring()
        )

    def _take_over(self, volume: str, entry: VolumeEntry, seen: _Note) -> None:
        """Take over with a separate client: if the host returns now, only this one is fenced."""
        address = self.store.cluster.address
        try:
            with Cluster(address) as cluster:
                writer, recovery = self.store.writer(
                    volume,
                    None,
                    host=f"{self.turn.host} (recovery)",
                    lease_s=self.lease_s,
                    cluster=cluster,
                )
                writer.close()
        except Busy:
            self.turn.check()
            return  # its host has returned
        except (Damaged, NotAVolume) as error:
            self.problems.append(f"{entry.host}:{entry.path}: {error}")
            return
        self.problems += [
            f"{entry.host}:{entry.path}: the recipe of version {version} is damaged; `dedupd run"
            " audit` deletes its references"
            for version in recovery.damaged
        ]
        self.retired += recovery.retired
        taken = _Note(writer.lease.session, seen.since_s)
        self._note(volume, taken=taken)
        one = self._gone(volume, entry, taken)
        self.taken_over.append(one)
        self.gone.append(one)

    def _gone(self, volume: str, entry: VolumeEntry, taken: _Note) -> GoneVolume:
        left = len(Intents(self.store.cluster, volume).all())
        return GoneVolume(volume, entry.host, entry.path, taken.since_s, left)

    # --- notes --------------------------------------------------------------------------------

    def _notes(self, prefix: str) -> dict[str, _Note]:
        found = {}
        for key, value in self.store.cluster.each_key(self.turn.oid, prefix):
            session, _, since = value.partition(" ")
            try:
                found[key.removeprefix(prefix)] = _Note(session, float(since))
            except ValueError:
                continue  # it is written again
        return found

    def _note(self, volume: str, *, left: _Note | None = None, taken: _Note | None = None) -> None:
        """Replace the notes on a volume by these. Raises Busy if the turn has ended."""
        notes = {f"{_LEFT}{volume}": left, f"{_TAKEN}{volume}": taken}
        change = AtomicChange(
            points.ABSENCE_NOTED,
            self.turn.oid,
            equal={SESSION_KEY: self.turn.session},
            put={key: note.text for key, note in notes.items() if note is not None},
            drop=tuple(key for key, note in notes.items() if note is None),
        )
        if self.store.cluster.apply(change) is not Outcome.DONE:
            raise Busy(
                f"{self.store.cluster.address}: another host now runs this job; run it again later"
            )
