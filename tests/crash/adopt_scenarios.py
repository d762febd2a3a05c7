"""Copies of volumes to crash while they are taken over.

What a copy is depends on the numbers of its inodes. Those of a crash state are others than in the
recording, so what the recording bound to its own is bound to the new ones, and nothing else.
"""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from dedupd_core.errors import CopiedVolume
from dedupd_core.format.stub import binding_in, decode_stub, encode_stub
from dedupd_core.stub.instance import INSTANCE_FILE, instance_of
from dedupd_core.stub.transition import AttributeSpace
from dedupd_core.system.files import opened
from dedupd_core.volume.volume import Volume
from jobs.adopt.adopt_job import ADOPTED, Adopt, AdoptReport
from jobs.adopt.proof import VolumeCopy
from jobs.frame.run import JobRun
from tests.crash.scenarios import (
    Contents,
    Scenario,
    Scene,
    contents,
    optimize_to_the_end,
    optimized_volume,
)
from tests.support import crash
from tests.support.copies import parameters_of


@dataclass(slots=True)
class _Recorded:
    """What the recording knew: contents before, and the place and bindings that it gave."""

    contents: Contents
    instance: bytes = b""
    bindings: dict[str, int] | None = None


_recorded = _Recorded({})
"""Of the scenario that is being explored; each is recorded and explored by one process."""


def copied_volume(root: Path, seed: int) -> None:
    """A copy with all attributes and holes, not taken over yet."""
    original = root.with_name("original")
    optimized_volume(original, seed)
    begin(original)
    subprocess.run(["cp", "-a", "--sparse=always", original, root], check=True)
    crash.remove(original)


def volume_with_stubs_put_back(root: Path, seed: int) -> None:
    """Some stubs of a volume are copies of themselves, as a backup program puts them back."""
    optimized_volume(root, seed)
    begin(root)
    data = root / ".dedupd/data"
    for name in ("base", "text", "dir/copy"):
        subprocess.run(["cp", "-a", data / name, data / "new"], check=True)
        (data / "new").rename(data / name)


def begin(root: Path) -> None:
    global _recorded
    _recorded = _Recorded(contents(root))


def adopting(scene: Scene) -> None:
    """Take the copy over, and note what belongs to it since."""
    report = adopt(scene)
    assert report.outcome == ADOPTED and report.adopted >= 3
    base = scene.root / ".dedupd"
    name = parameters_of(base).attribute
    _recorded.instance = (base / os.fsdecode(INSTANCE_FILE)).read_bytes()
    _recorded.bindings = {
        str(path.relative_to(base)): binding_in(os.getxattr(path, name))
        for path in (base / "data").rglob("*")
        if path.is_file() and name in os.listxattr(path)
    }


def adopt(scene: Scene) -> AdoptReport:
    with (
        VolumeCopy.open(str(scene.root), scene.disk) as volume,
        volume.job_lock(),
        volume.mount_lock(),
    ):
        return Adopt(volume, JobRun("adopt")).run()


def belong_as_recorded(root: Path) -> None:
    """Bind what the recording bound to the inodes that are here."""
    base = root / ".dedupd"
    parameters = parameters_of(base)
    with opened(os.open(base / "data", os.O_RDONLY)) as fd:
        here = instance_of(fd)
    record = base / os.fsdecode(INSTANCE_FILE)
    if record.read_bytes() == _recorded.instance:
        record.write_bytes(here.to_json())
    volume_id, name = parameters.uuid_bytes, parameters.attribute
    space = AttributeSpace(name.encode(), volume_id, here.seed(volume_id))
    assert _recorded.bindings is not None
    for path, binding in _recorded.bindings.items():
        value = os.getxattr(base / path, name)
        if binding_in(value) == binding:
            with opened(os.open(base / path, os.O_PATH)) as fd:
                here_bound = space.binding_of(fd)
            stub = decode_stub(value, volume_id, "")
            os.setxattr(base / path, name, encode_stub(stub, volume_id, here_bound))


def look_at_copy(root: Path) -> Contents:
    """What the copy holds once it is taken over, which is tried where it is one still."""
    if _recorded.bindings is None:
        return _recorded.contents
    try:
        Volume.open(str(root)).close()
    except CopiedVolume:
        adopt_here(root)
    return contents(root)


def look_at_volume(root: Path) -> Contents:
    """What the volume holds once the stubs that were put back are taken over."""
    if _recorded.bindings is None:
        return _recorded.contents
    adopt_here(root)
    return contents(root)


def adopt_here(root: Path) -> None:
    with VolumeCopy.open(str(root)) as volume, volume.job_lock(), volume.mount_lock():
        report = Adopt(volume, JobRun("adopt")).run()
    assert report.untrusted == report.spoilt == 0


ADOPT_SCENARIOS = {
    "adopt a copy": Scenario(
        copied_volume, adopting, optimize_to_the_end, belong_as_recorded, look_at_copy
    ),
    "adopt what was put back": Scenario(
        volume_with_stubs_put_back,
        adopting,
        optimize_to_the_end,
        belong_as_recorded,
        look_at_volume,
    ),
}
