"""Host turns for the maintenance of a store: any host may do the work, and one does at a time.

A turn is a lease, by the clock of the cluster. No host is fenced for it, because repeated or late
work of a turn does no harm. So a turn only saves work, and nothing else depends on it.
"""

import json
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, Self

from dedupd_core.errors import Busy, DedupdError, WriterFenced
from dedupd_core.format.cluster.objects import SESSION_KEY, lease_object
from dedupd_core.rados.cluster import points
from dedupd_core.rados.cluster.changes import AtomicChange, Outcome
from dedupd_core.rados.cluster.connection import Cluster
from dedupd_core.rados.cluster.wire import lock_request
from dedupd_core.rados.lease import HOST_KEY, LEASE_S, Lease, lease_state, now_s

TurnJob = Literal["audit", "recover"]
TURN_JOBS: tuple[TurnJob, ...] = ("audit", "recover")

_LAST_KEY = "last"


@dataclass(frozen=True, slots=True)
class LastTurn:
    """The last completed turn. ``begun_s`` is by the cluster's clock, since 1970; ``found`` is the
    job's result for other hosts."""

    host: str
    begun_s: float
    found: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"host": self.host, "begun_s": self.begun_s, "found": dict(self.found)}


def turn_name(job: TurnJob) -> str:
    """Return the name of a lease; it replaces the uuid of a volume."""
    return f"upkeep.{job}"


def last_turn(cluster: Cluster, job: TurnJob) -> LastTurn | None:
    """Return the last turn; None if there is none that this version can read."""
    text = cluster.value(lease_object(turn_name(job)), _LAST_KEY)
    try:
        value = json.loads(text or "")
        return LastTurn(str(value["host"]), float(value["begun_s"]), dict(value["found"]))
    except (ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class HostTurn:
    """This host's turn, until it is closed. ``now_s``: its start, by the cluster's clock."""

    job: TurnJob
    host: str
    now_s: float
    last: LastTurn | None
    _lease: Lease

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(DedupdError):  # then it expires on its own
            self._lease.close()

    @property
    def oid(self) -> str:
        """The object with the lease, and with keys that only change in turns."""
        return lease_object(turn_name(self.job))

    @property
    def session(self) -> str:
        return self._lease.session

    def check(self) -> None:
        """Raise Busy if the turn has expired, because this process was stopped for long."""
        try:
            self._lease.check()
        except WriterFenced:
            raise self._over() from None

    def _over(self) -> Busy:
        where = self._lease.cluster.address
        return Busy(f"{where}: another host has taken over {self.job}; run it again later")

    def note(self, found: Mapping[str, Any]) -> LastTurn:
        """Publish for the other hosts that the job is complete, and its result. Raises Busy."""
        last = LastTurn(self.host, self.now_s, found)
        change = AtomicChange(
            points.TURN_NOTED,
            self.oid,
            equal={SESSION_KEY: self.session},
            put={_LAST_KEY: json.dumps(last.to_json())},
        )
        self.check()
        if self._lease.cluster.apply(change) is not Outcome.DONE:
            raise self._over()
        return last


def take_turn(
    cluster: Cluster, job: TurnJob, host: str, *, duration_s: float = LEASE_S
) -> HostTurn | None:
    """Take the turn to do a job for all hosts; None if another host has it now."""
    name, session = turn_name(job), uuid.uuid4().hex
    begun_s = now_s()
    outcome = cluster.apply(
        AtomicChange(
            points.TURN_TAKEN,
            lease_object(name),
            calls=[("lock", "lock", lock_request(session, host, duration_s))],
            put={SESSION_KEY: session, HOST_KEY: host},
        )
    )
    # If the acknowledgement was lost, a retry finds its own lock.
    if outcome not in (Outcome.DONE, Outcome.EXISTS):
        return None
    holder = lease_state(cluster, name).holder
    if holder is None or holder.cookie != session:
        return None  # this process was stopped for longer than the lease lasts
    lease = Lease(cluster, name, session, duration_s, begun_s + duration_s)
    lease.keep()
    return HostTurn(job, host, holder.until_s - duration_s, last_turn(cluster, job), lease)
