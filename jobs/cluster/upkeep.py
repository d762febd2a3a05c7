"""Jobs that one host does for all hosts of a cluster store: the recovery of dead hosts, and the
audit.

The cluster knows which host has the turn, when the last turn started, and its results.
"""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TypeVar

from dedupd_core.config.schedule import between_s
from dedupd_core.errors import Busy
from dedupd_core.rados.audit import Audit
from dedupd_core.rados.lease import LEASE_S
from dedupd_core.rados.store import RadosStore
from dedupd_core.rados.upkeep.absent_hosts import AbsentHosts
from dedupd_core.rados.upkeep.turn import HostTurn, LastTurn, TurnJob, last_turn, take_turn
from dedupd_core.volume.volume import Volume
from jobs.cluster.reports import ELSEWHERE, ClusterAuditReport, RecoverReport, TurnReport
from jobs.cluster.session import store_of
from jobs.frame.job import Job
from jobs.frame.run import JobRun

PATIENCE_S = 1800.0
"""Time until a left volume is recovered if no schedule determines it."""

TurnReportT = TypeVar("TurnReportT", bound=TurnReport)


class StoreWideJob(Job[TurnReportT]):
    """The frame of both jobs. Needs the volume's job lock.

    ``if_due``: do nothing if another host is running the job, or started it within half of this
    volume's interval.
    """

    needs_containers = False
    turn_job: TurnJob

    def __init__(
        self, volume: Volume, run: JobRun, report: TurnReportT, *, if_due: bool = False
    ) -> None:
        super().__init__(volume, run, report)
        self._side = store_of(volume)
        self._if_due = if_due
        schedule = getattr(volume.policy(), f"schedule_{self.turn_job}")
        self._between_s = between_s(schedule, time.time())

    @property
    def store(self) -> RadosStore:
        return self._side.open()

    @contextmanager
    def _turn(self) -> Iterator[HostTurn | None]:
        """Yield the turn; None if the job is not due. Raises Busy, StoreUnreachable."""
        cluster = self.store.cluster
        turn = take_turn(cluster, self.turn_job, socket.gethostname())
        if turn is None:
            if not self._if_due:
                raise Busy(
                    f"{cluster.address}: another host is running {self.turn_job}; wait until it"
                    " finishes"
                )
            yield None
            return
        with turn:
            yield None if self._if_due and self._is_enough(turn) else turn

    def _is_enough(self, turn: HostTurn) -> bool:
        if turn.last is None or self._between_s is None:
            return False
        return 0 <= turn.now_s - turn.last.begun_s < self._between_s / 2

    def _tell(self, last: LastTurn | None) -> None:
        """Put the host and time of the last turn into the report."""
        if last is not None:
            self._report.done_by, self._report.done_s = last.host, last.begun_s


# --- dead hosts ---------------------------------------------------------------------------------


class ClusterRecover(StoreWideJob[RecoverReport]):
    """Rolls back the unfinished work of dead hosts."""

    turn_job: TurnJob = "recover"

    def __init__(self, volume: Volume, run: JobRun, *, if_due: bool = False) -> None:
        super().__init__(volume, run, RecoverReport(), if_due=if_due)

    def run(self) -> RecoverReport:
        """Recover dead hosts. Raises Busy, StoreUnreachable, Cancelled."""
        self._run.update(phase="looking for dead hosts")
        with self._turn() as turn:
            last = self._recover(turn) if turn is not None else None
        cluster = self.store.cluster
        last = last or last_turn(cluster, "recover")
        self._tell(last)
        self._report.gone = list(last.found.get("gone", ())) if last is not None else []
        audit = last_turn(cluster, "audit")
        self._report.audit = audit.to_json() if audit is not None else {}
        return self.report()

    def _recover(self, turn: HostTurn) -> LastTurn:
        patience_s = PATIENCE_S if self._between_s is None else self._between_s / 2
        hosts = AbsentHosts(
            self.store, turn, self._side.volume, max(LEASE_S, patience_s), self._run.safe_point
        )
        try:
            hosts.run()
        finally:
            self._report.volumes, self._report.waiting = hosts.volumes, hosts.waiting
            self._report.versions_retired = hosts.retired
            self._report.taken_over = [asdict(one) for one in hosts.taken_over]
            for problem in hosts.problems:
                self._run.findings.add(problem)
        return turn.note(hosts.found)


# --- the audit ----------------------------------------------------------------------------------


class ClusterAudit(StoreWideJob[ClusterAuditReport]):
    """Checks all objects of the store, and deletes unreferenced objects."""

    turn_job: TurnJob = "audit"

    def __init__(
        self, volume: Volume, run: JobRun, *, reads_chunks: bool = False, if_due: bool = False
    ) -> None:
        super().__init__(volume, run, ClusterAuditReport(), if_due=if_due)
        self._reads_chunks = reads_chunks

    def run(self) -> ClusterAuditReport:
        """Audit the store. Raises Busy, StoreUnreachable, Cancelled."""
        with self._turn() as turn:
            last = self._audit(turn) if turn is not None else None
        if last is None:
            self._report.outcome = ELSEWHERE
            last = last_turn(self.store.cluster, "audit")
        self._tell(last)
        return self.report()

    def _audit(self, turn: HostTurn) -> LastTurn:
        def safe_point() -> None:
            self._run.safe_point()
            turn.check()

        self._run.update(phase="auditing")
        audit = Audit(self.store, reads_chunks=self._reads_chunks, safe_point=safe_point)
        found = audit.run()
        self._run.update(phase="deleting unreferenced objects")
        audit.repair()
        counts = {
            "dangling": len(found.dangling),
            "damaged": len(found.damaged),
            "leaked": len(found.leaked),
            "let_go": found.repaired,
        }
        for name in ("files", "chunks", "references", "candidates", "pinned"):
            setattr(self._report, name, getattr(found, name))
        for name, count in counts.items():
            setattr(self._report, name, count)
        for word, findings in (
            ("missing", found.dangling),
            ("damaged", found.damaged),
            ("unreferenced", found.leaked),
        ):
            for finding in findings:
                self._run.findings.add(f"{word}: {finding}")
        return turn.note(counts)
