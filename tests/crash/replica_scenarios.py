"""A replica that loses power while a state that was received is put into its place.

Users see all of the old state or all of the new one, or nobody can open the volume until `receive`
has gone on.
"""

from contextlib import closing
from pathlib import Path

from dedupd_core.replica.replica import replica_of
from jobs.backup.received import Received
from jobs.backup.receiver import ReplicaVolume, drop, finish
from jobs.backup.switch import is_switching, switch
from jobs.frame.run import JobRun
from tests.crash.scenarios import (
    Contents,
    Scenario,
    Scene,
    contents,
    enable_small,
    make_small_tree,
)
from tests.support import crash
from tests.support.copies import belong_here, rebind_below
from tests.support.lab import Lab, noise, stop_at
from tests.support.streams import sent

_states: list[Contents] = []
"""The old and the new one of the scenario that is being explored."""


def received_replica(root: Path, seed: int) -> None:
    """A replica with a state, and another one that has come and is built beside it."""
    source = root.with_name("source")
    _states.clear()
    for path in (source, root):
        path.mkdir()
    make_small_tree(source, seed)
    for path in (source, root):
        enable_small(path)
    lab, replica = Lab(source), Lab(root)
    crash.optimize_volume(source)
    _states.append(contents(source))
    first, _ = sent(lab, replica)
    for number, name in enumerate(sorted(_states[0])):
        lab.put(name, noise(9000 + number, seed + number))
    crash.optimize_volume(source)
    _states.append(contents(source))
    with stop_at("receive.built"):
        sent(lab, replica, since=first.point)
    crash.remove(source)


def put_in_place(scene: Scene) -> None:
    for path, content in _states[1].items():
        scene.begin_write(path, content)
    with (
        ReplicaVolume.open(str(scene.root), scene.disk) as volume,
        volume.job_lock(),
        volume.mount_lock(),
        closing(Received(volume.base_fd, scene.disk, volume.room())) as received,
    ):
        replica = received.complete
        assert replica is not None
        switch(volume, received, replica)
    for path, content in _states[1].items():
        scene.synced(path, content)


def place(root: Path) -> None:
    belong_here(root)
    rebind_below(root, ("receive/tree", "receive/old"))


def look(root: Path) -> Contents:
    """What users see, once `receive` has gone on with a switch that was begun."""
    _go_on(root)
    found = contents(root)
    assert found in _states, "neither the old state nor the new one"
    return found


def _go_on(root: Path) -> None:
    with ReplicaVolume.open(str(root)) as volume, volume.job_lock():
        if is_switching(volume.base_fd):
            finish(volume, JobRun("receive"))


def to_the_end(root: Path) -> None:
    _go_on(root)
    with ReplicaVolume.open(str(root)) as volume, volume.job_lock():
        drop(volume)
        replica = replica_of(volume.base_fd, volume.root)
    assert replica is not None
    crash.collect_garbage(root)
    report = crash.verify_volume(root)
    assert (report.findings, report.unsettled) == ([], 0)
    assert not (root / ".dedupd/receive").is_dir()


REPLICA_SCENARIOS = {
    "put a received state in place": Scenario(
        received_replica, put_in_place, to_the_end, place=place, look=look
    ),
}
