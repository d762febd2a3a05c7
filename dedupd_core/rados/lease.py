"""The right to write one volume: a lease by the cluster's clock; earlier holders are fenced.

A process may be stopped, and continue after its lease has expired. It can do no harm, for three
reasons. Its client is fenced before its work is taken over. The volume's objects only accept
changes of the newest session. And it checks its own clock before each change.
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
from dedupd_core.rados.cluster.changes import AtomicChange, Outcome
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
"""After this time without a renewal, another host may take over."""

FENCE_S = 30 * 86400
"""How long the cluster refuses a fenced client. (After that, the sessions still do.)"""

_FENCE_PREFIX = "fence."
_COUNTER_PREFIX = "count."
_ADDRESS_KEY = "address"
HOST_KEY = "host"
_TABLES_KEY = "tables"
"""Exists when the volume's objects exist: if one is missing later, the cluster has lost it."""
_ROUNDS_MAX = 10


@dataclass(frozen=True, slots=True)
class LeaseState:
    """The state of a volume's writer in the store. ``holder`` is None if the lease is free."""

    session: str | None
    host: str
    address: str | None
    holder: Holder | None
    unfenced: list[str]
    has_tables: bool = False
    """True if the volume's objects were created."""


def lease_state(cluster: Cluster, volume: str) -> LeaseState:
    """Return the current state of a volume's lease."""
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
    """Return the sums of the counters of a volume's closed sessions."""
    items = cluster.keys(lease_object(volume), _COUNTER_PREFIX)
    return {key.removeprefix(_COUNTER_PREFIX): int(value) for key, value in items.items()}


@dataclass
class Lease:
    """An active lease, which a thread renews until :meth:`close`."""

    cluster: Cluster
    volume: str
    session: str
    duration_s: float
    _until_s: float
    _lost: threading.Event = field(default_factory=threading.Event)
    _closing: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def check(self) -> None:
        """Raise WriterFenced if the lease may have expired."""
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
                # The cluster does not answer: retry while the lease lasts.
                if now_s() >= self._until_s:
                    self._lost.set()
                    return

    def renew(self) -> bool:
        """Extend the lease; return False if it is lost."""
        begun_s = now_s()
        request = lock_request(self.session, "", self.duration_s, renews=True)
        outcome = self.cluster.apply(
            AtomicChange(
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
        """Release the lease, so that nothing must be fenced, and add to the volume's counters.

        No operation may be in flight.
        """
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        if self._lost.is_set():
            return
        # An operation that timed out may still be in flight: then the next holder fences it.
        is_quiet = not self.cluster.gave_up
        before = counters(self.cluster, self.volume)
        sums = {name: before.get(name, 0) + count for name, count in (counted or {}).items()}
        self.cluster.apply(
            AtomicChange(
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
        """Stop renewing, like a process that dies: the lease expires on its own."""
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
    """Become the only writer of a volume, and fence all earlier clients.

    ``is_holder_dead``: returns whether the lease's holder is known to be dead, so that its lease
    need not expire. Raises Busy if another session holds the lease, Damaged if the cluster has lost
    objects of the volume.
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
        # If the acknowledgement was lost, the stored session shows that the lease was taken.
        if outcome is Outcome.DONE or lease_state(cluster, volume).session == session:
            lease = Lease(cluster, volume, session, duration_s, begun_s + duration_s)
            cluster.permit = lease.check
            _fence_earlier(lease)
            _set_session(lease, shards, are_there=state.has_tables)
            return lease
    raise Busy(f"{cluster.address}: the lease on volume {volume} keeps changing; run the job again")


def _taking(
    cluster: Cluster, volume: str, host: str, session: str, duration_s: float, state: LeaseState
) -> AtomicChange:
    own = cluster.client_address
    put = {SESSION_KEY: session, HOST_KEY: host, _ADDRESS_KEY: own}
    if state.address is not None and state.address != own:
        put[f"{_FENCE_PREFIX}{state.address}"] = ""
    return AtomicChange(
        points.LEASE_TAKEN,
        lease_object(volume),
        equal={SESSION_KEY: state.session},
        calls=[("lock", "lock", lock_request(session, host, duration_s))],
        put=put,
    )


def _break(cluster: Cluster, volume: str, state: LeaseState) -> None:
    """End a lease whose holder is dead, if it still has that holder."""
    cluster.apply(
        AtomicChange(
            points.LEASE_BROKEN,
            lease_object(volume),
            equal={SESSION_KEY: state.session or ""},
            drop_xattr=LOCK_XATTR,
        )
    )


def _fence_earlier(lease: Lease) -> None:
    """Fence earlier clients before their work is taken over."""
    cluster, volume = lease.cluster, lease.volume
    for address in lease_state(cluster, volume).unfenced:
        cluster.fence(address, FENCE_S)
        cluster.apply(
            AtomicChange(
                points.FENCED,
                lease_object(volume),
                equal={SESSION_KEY: lease.session},
                drop=(f"{_FENCE_PREFIX}{address}",),
            )
        )


def _set_session(lease: Lease, shards: int, *, are_there: bool) -> None:
    """Make the volume's objects accept changes of this session only. Sessions only increase.

    The first session creates them. An empty table instead of a lost one would mean that none of its
    files needs anything.
    """
    cluster, put = lease.cluster, {SESSION_KEY: lease.session}

    def let(oid: str) -> None:
        if not are_there:
            made = AtomicChange(points.SESSION_SET, oid, exclusive=True, put=put)
            if cluster.apply(made) is Outcome.DONE:
                return
        if cluster.apply(AtomicChange(points.SESSION_SET, oid, below=put, put=put)) is Outcome.DONE:
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
            AtomicChange(
                points.TABLES_MADE,
                lease_object(lease.volume),
                equal=put,
                put={_TABLES_KEY: str(shards)},
            )
        )


def volume_objects(volume: str, shards: int) -> list[str]:
    """Return the objects that only accept changes of the volume's session."""
    return [intents_object(volume), *(files_object(volume, shard) for shard in range(shards))]


def lost_objects(cluster: Cluster, volume: str, shards: int) -> list[str]:
    """Return the objects of a volume that were created, but are missing."""
    if not lease_state(cluster, volume).has_tables:
        return []
    objects = volume_objects(volume, shards)
    found = cluster.each(lambda oid: cluster.value(oid, SESSION_KEY), objects)
    lost = [oid for oid, session in zip(objects, found, strict=True) if session is None]
    # A volume that is leaving records this before it removes them.
    return lost if lost and lease_state(cluster, volume).has_tables else []


def give_up_tables(cluster: Cluster, volume: str) -> None:
    """Record that the objects of a leaving volume are about to be removed."""
    cluster.apply(AtomicChange(points.TABLES_GIVEN_UP, lease_object(volume), drop=(_TABLES_KEY,)))


def _next_session(before: str | None) -> str:
    """Return a name that is greater than those of all earlier sessions."""
    number = int(before.partition("-")[0], 16) + 1 if before else 1
    return f"{number:016x}-{uuid.uuid4().hex[:16]}"


def now_s() -> float:
    """Return the time of a clock that runs while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
