"""Jobs that one host does for all: by schedule one that another host has done is not done again."""

from pathlib import Path

import pytest

from dedupd_core.errors import Busy, UsageError
from dedupd_core.rados.cluster.changes import AtomicChange
from dedupd_core.rados.upkeep.store_status import status_of
from dedupd_core.rados.upkeep.turn import take_turn
from jobs.cluster.reports import ELSEWHERE, ClusterAuditReport, RecoverReport
from jobs.cluster.upkeep import ClusterAudit, ClusterRecover
from jobs.frame.run import Cancelled, JobRun
from tests.jobs.cluster.test_cluster_scrub import flip
from tests.rados.test_upkeep import LEASE_S, dead_host, wait_for_the_end_of_its_lease
from tests.support.cluster_lab import ClusterLab, cluster_lab
from tests.support.lab import new_lab, noise
from tests.support.rados_hosts import Site

pytestmark = pytest.mark.root
CONTENT = noise(100_000, 1)


def audit(here: ClusterLab, *, if_due: bool = False) -> ClusterAuditReport:
    with here.lab.opened() as volume, volume.job_lock():
        return ClusterAudit(volume, JobRun("audit"), if_due=if_due).recorded()


def test_one_audit_serves_all_hosts(site: Site, tmp_path: Path) -> None:
    with (
        cluster_lab(tmp_path / "one", site) as one,
        cluster_lab(tmp_path / "two", site) as two,
    ):
        one.lab.put("file", CONTENT)
        one.optimize()
        first = audit(one, if_due=True)
        assert (first.outcome, first.files, first.dangling, first.damaged) == ("done", 1, 0, 0)
        again = audit(two, if_due=True)
        assert (again.outcome, again.files) == (ELSEWHERE, 0)
        assert (again.done_by, again.done_s) == (first.done_by, first.done_s)
        assert audit(two).files == 1  # by hand it is done
        with take_turn(site.cluster, "audit", "another"):  # type: ignore[union-attr]
            assert audit(two, if_due=True).outcome == ELSEWHERE
            with pytest.raises(Busy, match="another host is running audit"):
                audit(two)


def test_what_an_audit_finds_every_host_tells(site: Site, tmp_path: Path) -> None:
    with (
        cluster_lab(tmp_path / "one", site) as one,
        cluster_lab(tmp_path / "two", site) as two,
    ):
        one.lab.put("file", CONTENT)
        one.optimize()
        site.store.chunks.mark_damaged(flip(site, one, "file"))
        found = audit(one)
        assert (found.damaged, found.errors) == (1, 1)
        assert "damaged" in found.messages[0]
        with two.lab.opened() as volume, volume.job_lock():
            known = ClusterRecover(volume, JobRun("recover")).recorded()
        assert known.audit["found"]["damaged"] == 1
        assert known.audit["host"] == found.done_by
        assert status_of(site.store).upkeep["audit"]["found"]["damaged"] == 1


def test_a_host_that_is_gone_is_recovered_by_a_run(site: Site, tmp_path: Path) -> None:
    """The schedule says how long one has to have been left: half of the time between two runs, and
    never less than a lease lasts."""
    with cluster_lab(tmp_path / "one", site) as one:
        wait_for_the_end_of_its_lease(site, dead_host(site, LEASE_S))

        def recover(schedule: str, *, if_due: bool = False) -> RecoverReport:
            one.lab.set_policy(f'schedule_recover = "{schedule}"\n')
            with one.lab.opened() as volume, volume.job_lock():
                return ClusterRecover(volume, JobRun("recover"), if_due=if_due).recorded()

        assert recover("off").waiting == 1
        # A second later, with an hour between two runs: another host's look is enough.
        known = recover("every 1h", if_due=True)
        assert (known.volumes, known.waiting) == (0, 0)
        assert recover("every 1s").waiting == 1  # a lease lasts longer
        age(site, 3600.0)
        report = recover("every 1s")
        assert (report.versions_retired, report.errors) == (1, 0)
        (gone,) = report.taken_over
        assert gone["host"] == "a"
        assert recover("every 1h", if_due=True).gone == [gone]
        assert any("/srv/a has not been seen" in line for line in status_of(site.store).lines)
    site.collect()
    site.assert_whole()


def age(site: Site, by_s: float) -> None:
    """As if the note of what is left was so much older."""
    oid = "h.upkeep.recover"
    notes = site.cluster.keys(oid, "left.")
    assert notes
    for key, value in notes.items():
        session, _, since = value.partition(" ")
        older = {key: f"{session} {float(since) - by_s:.3f}"}
        site.cluster.apply(AtomicChange("rados.absence-noted", oid, put=older))


def test_an_audit_that_is_stopped_is_not_counted(site: Site, tmp_path: Path) -> None:
    with cluster_lab(tmp_path / "one", site) as one:
        one.lab.put("file", CONTENT)
        one.optimize()
        with one.lab.opened() as volume, volume.job_lock():
            run = JobRun("audit")
            run.cancel()
            with pytest.raises(Cancelled):
                ClusterAudit(volume, run).recorded()
        assert status_of(site.store).upkeep == {}
        assert audit(one, if_due=True).outcome == "done"  # the turn was given back


@pytest.mark.parametrize("job", [ClusterAudit, ClusterRecover])
def test_a_local_volume_has_no_other_hosts(tmp_path: Path, job: type) -> None:
    with (
        new_lab(tmp_path / "volume").opened() as volume,
        volume.job_lock(),
        pytest.raises(UsageError, match="not in a cluster"),
    ):
        job(volume, JobRun("audit"))
