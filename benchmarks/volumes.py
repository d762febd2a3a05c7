"""Volumes as the benchmarks make, optimize and mount them: in their own process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dedupd_core.format.volume_parameters import PRESETS
from dedupd_core.system.disk import Disk
from dedupd_core.volume.enabling.enable import enable
from dedupd_core.volume.volume import Volume
from fuse_stub.mounts.mount_process import mount_in_background, unmount
from jobs.frame.run import JobRun
from jobs.optimize.optimize_job import Optimize, OptimizeReport


def new_volume(root: Path, chunk_size: str = next(iter(PRESETS)), **policy: Any) -> Path:
    """A volume that takes files of any age, with those that are there; returns its tree."""
    root.mkdir(parents=True, exist_ok=True)
    values = {"min_age": "0s", **policy}
    enable(str(root), chunk_size=chunk_size, policy_values=values, force=True, disk=Disk())
    return root / ".dedupd/data"


def optimize(root: Path) -> OptimizeReport:
    with Volume.open(str(root)) as volume, volume.job_lock():
        return Optimize(volume, JobRun("optimize")).run()


@contextmanager
def mounted(root: Path, view: Path | None = None) -> Iterator[None]:
    """Have a volume mounted at ``view``, or over itself."""
    point = str(view or root)
    mount_in_background(str(root), point)
    try:
        yield
    finally:
        unmount(point)
