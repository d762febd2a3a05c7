"""Whose turn it is to look after a store: work that any host may do, and one does at a time.

A turn is a lease, by the clock of the cluster. Nobody is fenced for it: what is done in a turn does
no harm where it is done twice, or late. So a turn saves work, and nothing else depends on it.
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
from dedupd_core.rados.cluster.changes import Change, Outcome
from dedupd_core.rados.cluster.connection import Cluster
from dedupd_core.rados.cluster.wire import lock_request
from dedupd_core.rados.lease import HOST_KEY, LEASE_S, Lease, lease_state, now_s

TurnJob = Literal["audit", "recover"]
TURN_JOBS: tuple[TurnJob, ...] = ("audit", "recover")

_LAST_KEY = "last"


@dataclass(frozen=True, slots=True)
class LastTurn:
    """The last turn that got through. ``begun_s`` is by the cluster's clock, since 1970; ``found``
    is what the job tells other hosts."""

    host: str
    begun_s: float
    found: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"host": self.host, "begun_s": self.begun_s, "found": dict(self.found)}


def turn_name(job: TurnJob) -> str:
    """In the place of a volume's uuid in the name of a lease."""
    return f"upkeep.{job}"


def last_turn(cluster: Cluster, job: TurnJob) -> LastTurn | None:
    """None where there was none yet, or none that this version can read."""
    text = cluster.value(lease_object(turn_name(job)), _LAST_KEY)
    try:
        value = json.loads(text or "")
        return LastTurn(str(value["host"]), float(value["begun_s"]), dict(value["found"]))
    except (ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class HostTurn:
    """This host's turn, until it is closed. ``now_s``: when it began, by the cluster's clock."""

    job: TurnJob
    host: str
    now_s: float
    last: LastTurn | None
    _lease: Lease

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(DedupdError):  # then it runs out by itself
            self._lease.close()

    @property
    def oid(self) -> str:
        """The object that has the lease, and keys that are changed in turns only."""
        return lease_object(turn_name(self.job))

    @property
    def session(self) -> str:
        return self._lease.session

    def check(self) -> None:
        """Raises Busy where the turn is over: this process was stopped for long."""
        try:
            self._lease.check()
        except WriterFenced:
            raise self._over() from None

    def _over(self) -> Busy:
        where = self._lease.cluster.address
        return Busy(f"{where}: another host has taken over {self.job}; run it again later")

    def note(self, found: Mapping[str, Any]) -> LastTurn:
        """Let the other hosts know that the job got through, and what it has found. Raises Busy."""
        last = LastTurn(self.host, self.now_s, found)
        change = Change(
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
    """Take the turn to do a job for all hosts; None where it is another host's now."""
    name, session = turn_name(job), uuid.uuid4().hex
    begun_s = now_s()
    outcome = cluster.apply(
        Change(
            points.TURN_TAKEN,
            lease_object(name),
            calls=[("lock", "lock", lock_request(session, host, duration_s))],
            put={SESSION_KEY: session, HOST_KEY: host},
        )
    )
    # A taking that lost its acknowledgement finds its own lock.
    if outcome not in (Outcome.DONE, Outcome.EXISTS):
        return None
    holder = lease_state(cluster, name).holder
    if holder is None or holder.cookie != session:
        return None  # this process was stopped for longer than the lease lasts
    lease = Lease(cluster, name, session, duration_s, begun_s + duration_s)
    lease.keep()
    return HostTurn(job, host, holder.until_s - duration_s, last_turn(cluster, job), lease)
