"""A volume on a store in a cluster, beside the lab that has the volume."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dedupd_core import failpoint
from dedupd_core.rados.reading.volume_store import bind
from dedupd_core.system.disk import Disk
from jobs.cluster.gc import ClusterGc
from jobs.cluster.optimize import ClusterOptimize
from jobs.cluster.reports import ClusterGcReport, ClusterOptimizeReport, ClusterScrubReport
from jobs.cluster.scrub import ClusterScrub
from jobs.frame.run import JobRun
from jobs.scrub.scrub_job import Depth
from tests.support.lab import Lab, new_lab
from tests.support.rados_hosts import Site

CACHE_BYTES = 1 << 20


class ClusterLab:
    """``lab`` has the volume, ``site`` the store."""

    def __init__(self, lab: Lab, site: Site) -> None:
        self.lab, self.site = lab, site
        with lab.opened() as volume:
            self.uuid = volume.parameters.uuid
            bind(volume.base_fd, str(lab.root), self.uuid, site.store, CACHE_BYTES, Disk())

    def optimize(self) -> ClusterOptimizeReport:
        return optimize(self.lab)

    def collect(self, *, all_garbage: bool = True) -> ClusterGcReport:
        return collect(self.lab, all_garbage=all_garbage)

    def scrub(self, share: float = 0.0) -> ClusterScrubReport:
        with self.lab.opened() as volume, volume.job_lock():
            report = ClusterScrub(volume, JobRun("scrub"), Depth.FULL, share=share).run()
        assert report.messages == []
        return report

    def version(self, name: str) -> str:
        stub = self.lab.stub(name)
        assert stub is not None
        return stub.digest.hex()


def optimize(lab: Lab) -> ClusterOptimizeReport:
    with lab.opened() as volume, volume.job_lock():
        report = ClusterOptimize(volume, JobRun("optimize")).run()
    assert report.messages == []
    return report


def collect(lab: Lab, *, all_garbage: bool = True) -> ClusterGcReport:
    with lab.opened() as volume, volume.job_lock():
        report = ClusterGc(volume, JobRun("gc"), all_garbage=all_garbage).run()
    assert report.messages == []
    return report


@contextmanager
def cluster_lab(directory: Path, site: Site) -> Iterator[ClusterLab]:
    directory.mkdir(exist_ok=True)
    yield ClusterLab(new_lab(directory / "volume", "4k"), site)


class Crash(BaseException):
    """The process ends here."""


def crash_after(at: int, act: Callable[[], object]) -> bool:
    """Whether the act got to its step of this number, and died there."""
    passed = 0

    def hook(name: str) -> None:
        nonlocal passed
        passed += 1
        if passed >= at:
            raise Crash(name)

    failpoint.hook = hook
    try:
        with suppress(Crash):
            act()
            return False
        return True
    finally:
        failpoint.hook = None
