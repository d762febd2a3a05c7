"""A volume without stubs leaves its store in a cluster."""

from dedupd_core.errors import NotAVolume
from dedupd_core.volume.volume import Volume
from jobs.cluster.gc import ClusterGc
from jobs.cluster.session import store_of, writing
from jobs.cluster.stub_versions import StubVersions
from jobs.frame.run import JobRun


def leave_store(volume: Volume, run: JobRun) -> None:
    """Have the store forget a volume that has no stub any more. May be repeated.

    Needs the volume's job lock. Raises Busy, StoreUnreachable.
    """
    side = store_of(volume)
    job = ClusterGc(volume, run)
    try:
        with writing(volume, StubVersions(volume)) as (writer, _):
            job.forget(writer)
        side.open().leave(side.volume)
    except NotAVolume:
        return  # an earlier call was interrupted after this step
