"""The right to write one volume: a lease by the cluster's clock; earlier holders are fenced.

A process that is stopped past its lease and goes on later can do no harm, for three reasons: its
client is fenced before its work is taken over; the volume's objects take changes of the newest
session only; and it looks at its own clock before each change.
"""

import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dedupd_core.errors import Busy, Damaged, DedupdError, WriterFenced
from dedupd_core.format.cluster.objects import (
    SESSION_KEY,
    files_object,
    intents_object,
    lease_object,
)
from dedupd_core.rados.cluster import points
from dedupd_core.rados.cluster.changes import Change, Outcome
from dedupd_core.rados.cluster.connection import Cluster, permitted
from dedupd_core.rados.cluster.wire import (
    LOCK_XATTR,
    Holder,
    decode_holder,
    info_request,
    lock_request,
    unlock_request,
)

LEASE_S = 30.0
"""After so long without a sign of life another host may take over."""

FENCE_S = 30 * 86400
"""How long the cluster refuses a fenced client. (After that the sessions still do.)"""

_FENCE_PREFIX = "fence."
_COUNTER_PREFIX = "count."
_ADDRESS_KEY = "address"
HOST_KEY = "host"
_TABLES_KEY = "tables"
"""There once the volume's objects are: what is missing of them later, the cluster has lost."""
_ROUNDS_MAX = 10


@dataclass(frozen=True, slots=True)
class LeaseState:
    """What the store knows of a volume's writer. ``holder`` is None where the lease is free."""

    session: str | None
    host: str
    address: str | None
    holder: Holder | None
    unfenced: list[str]
    has_tables: bool = False
    """Whether the volume's objects were made."""


def lease_state(cluster: Cluster, volume: str) -> LeaseState:
    """The state of a volume's lease now."""
    oid = lease_object(volume)
    items = cluster.keys(oid)
    answer = cluster.call(oid, "lock", "get_info", info_request())
    return LeaseState(
        items.get(SESSION_KEY),
        items.get(HOST_KEY, ""),
        items.get(_ADDRESS_KEY),
        decode_holder(answer) if answer else None,
        [key.removeprefix(_FENCE_PREFIX) for key in items if key.startswith(_FENCE_PREFIX)],
        _TABLES_KEY in items,
    )


def counters(cluster: Cluster, volume: str) -> dict[str, int]:
    """What the sessions of a volume have counted that were closed."""
    items = cluster.keys(lease_object(volume), _COUNTER_PREFIX)
    return {key.removeprefix(_COUNTER_PREFIX): int(value) for key, value in items.items()}


@dataclass
class Lease:
    """A lease that is held; renewed by a thread of its own until :meth:`close`."""

    cluster: Cluster
    volume: str
    session: str
    duration_s: float
    _until_s: float
    _lost: threading.Event = field(default_factory=threading.Event)
    _closing: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def check(self) -> None:
        """Raises WriterFenced where the lease may be over."""
        if self._lost.is_set() or now_s() >= self._until_s:
            raise WriterFenced(
                f"{self.cluster.address}: the lease on volume {self.volume} has expired, because"
                " this process was stopped for too long; start the job again"
            )

    def keep(self) -> None:
        """Renew the lease from now on, three times in its duration."""
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    def _renew(self) -> None:
        while not self._closing.wait(self.duration_s / 3):
            try:
                if not self.renew():
                    return
            except DedupdError:
                # The cluster does not answer: tried again as long as the lease lasts.
                if now_s() >= self._until_s:
                    self._lost.set()
                    return

    def renew(self) -> bool:
        """Prolong the lease; False where it is lost."""
        begun_s = now_s()
        request = lock_request(self.session, "", self.duration_s, renews=True)
        outcome = self.cluster.apply(
            Change(
                points.LEASE_RENEWED,
                lease_object(self.volume),
                equal={SESSION_KEY: self.session},
                calls=[("lock", "lock", request)],
            )
        )
        if outcome is Outcome.DONE:
            self._until_s = begun_s + self.duration_s
            return True
        self._lost.set()
        return False

    def close(self, counted: Mapping[str, int] | None = None) -> None:
        """Give the lease back, with nothing to be fenced, and add to the volume's counters.

        Needs that nothing is in flight.
        """
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        if self._lost.is_set():
            return
        # An operation that was given up may still be under way: then the next one fences it.
        is_quiet = not self.cluster.gave_up
        before = counters(self.cluster, self.volume)
        sums = {name: before.get(name, 0) + count for name, count in (counted or {}).items()}
        self.cluster.apply(
            Change(
                points.LEASE_GIVEN_BACK,
                lease_object(self.volume),
                equal={SESSION_KEY: self.session},
                calls=[("lock", "unlock", unlock_request(self.session))],
                put={f"{_COUNTER_PREFIX}{name}": str(count) for name, count in sums.items()},
                drop=(_ADDRESS_KEY,) if is_quiet else (),
            )
        )
        self._lost.set()
        self.cluster.permit = permitted

    def leave(self) -> None:
        """Stop renewing, as a process does that dies: the lease runs out by itself."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        self._lost.set()


def take_lease(
    cluster: Cluster,
    volume: str,
    shards: int,
    host: str,
    *,
    duration_s: float = LEASE_S,
    is_holder_dead: Callable[[LeaseState], bool] | None = None,
) -> Lease:
    """Become the one that writes a volume, with all earlier clients fenced.

    ``is_holder_dead``: says of the lease's holder that it is known to have ended, so that its
    lease need not run out. Raises Busy where another session holds the lease, Damaged where the
    cluster has lost objects of the volume.
    """
    for _ in range(_ROUNDS_MAX):
        state = lease_state(cluster, volume)
        session = _next_session(state.session)
        begun_s = now_s()
        outcome = cluster.apply(_taking(cluster, volume, host, session, duration_s, state))
        if outcome is Outcome.HELD:
            if is_holder_dead is None or not is_holder_dead(state):
                raise Busy(
                    f"{cluster.address}: {state.host or 'another host'} holds the lease on volume"
                    f" {volume}; wait until it releases the lease or the lease expires"
                )
            _break(cluster, volume, state)
            continue
        # A taking that lost its acknowledgement is told by the session that it has left.
        if outcome is Outcome.DONE or lease_state(cluster, volume).session == session:
            lease = Lease(cluster, volume, session, duration_s, begun_s + duration_s)
            cluster.permit = lease.check
            _fence_earlier(lease)
            _set_session(lease, shards, are_there=state.has_tables)
            return lease
    raise Busy(f"{cluster.address}: the lease on volume {volume} keeps changing; run the job again")


def _taking(
    cluster: Cluster, volume: str, host: str, session: str, duration_s: float, state: LeaseState
) -> Change:
    own = cluster.client_address
    put = {SESSION_KEY: session, HOST_KEY: host, _ADDRESS_KEY: own}
    if state.address is not None and state.address != own:
        put[f"{_FENCE_PREFIX}{state.address}"] = ""
    return Change(
        points.LEASE_TAKEN,
        lease_object(volume),
        equal={SESSION_KEY: state.session},
        calls=[("lock", "lock", lock_request(session, host, duration_s))],
        put=put,
    )


def _break(cluster: Cluster, volume: str, state: LeaseState) -> None:
    """End a lease whose holder is dead, if it is still that one's."""
    cluster.apply(
        Change(
            points.LEASE_BROKEN,
            lease_object(volume),
            equal={SESSION_KEY: state.session or ""},
            drop_xattr=LOCK_XATTR,
        )
    )


def _fence_earlier(lease: Lease) -> None:
    """Before anything of theirs is taken over."""
    cluster, volume = lease.cluster, lease.volume
    for address in lease_state(cluster, volume).unfenced:
        cluster.fence(address, FENCE_S)
        cluster.apply(
            Change(
                points.FENCED,
                lease_object(volume),
                equal={SESSION_KEY: lease.session},
                drop=(f"{_FENCE_PREFIX}{address}",),
            )
        )


def _set_session(lease: Lease, shards: int, *, are_there: bool) -> None:
    """Let the volume's objects take changes of this session only. Sessions only go forward.

    The first session makes them. An empty table in the place of one that was lost would say of all
    its files that nothing needs them.
    """
    cluster, put = lease.cluster, {SESSION_KEY: lease.session}

    def let(oid: str) -> None:
        if not are_there:
            made = Change(points.SESSION_SET, oid, exclusive=True, put=put)
            if cluster.apply(made) is Outcome.DONE:
                return
        if cluster.apply(Change(points.SESSION_SET, oid, below=put, put=put)) is Outcome.DONE:
            return
        found = cluster.value(oid, SESSION_KEY)
        if found is None:
            raise Damaged(
                f"{cluster.address}: the cluster has lost {oid} of volume {lease.volume}; its"
                " files are readable: copy them from its mount, and enable a new volume"
            )
        if found != lease.session:
            raise WriterFenced(f"{oid}: another session has taken over; start the job again")

    cluster.each(let, volume_objects(lease.volume, shards))
    if not are_there:
        cluster.apply(
            Change(
                points.TABLES_MADE,
                lease_object(lease.volume),
                equal=put,
                put={_TABLES_KEY: str(shards)},
            )
        )


def volume_objects(volume: str, shards: int) -> list[str]:
    """What takes changes of the volume's session only."""
    return [intents_object(volume), *(files_object(volume, shard) for shard in range(shards))]


def lost_objects(cluster: Cluster, volume: str, shards: int) -> list[str]:
    """The objects of a volume that were made, and are not there any more."""
    if not lease_state(cluster, volume).has_tables:
        return []
    objects = volume_objects(volume, shards)
    found = cluster.each(lambda oid: cluster.value(oid, SESSION_KEY), objects)
    lost = [oid for oid, session in zip(objects, found, strict=True) if session is None]
    # A volume that is just leaving says so before it removes them.
    return lost if lost and lease_state(cluster, volume).has_tables else []


def give_up_tables(cluster: Cluster, volume: str) -> None:
    """Say of a volume that leaves that its objects are about to be removed."""
    cluster.apply(Change(points.TABLES_GIVEN_UP, lease_object(volume), drop=(_TABLES_KEY,)))


def _next_session(before: str | None) -> str:
    """A name that is greater than those of all sessions before."""
    number = int(before.partition("-")[0], 16) + 1 if before else 1
    return f"{number:016x}-{uuid.uuid4().hex[:16]}"


def now_s() -> float:
    """A clock that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
