"""A volume and a copy of it on one machine: a snapshot, or what was restored from a backup.

Both have the same uuid, by which jobs find the process that serves a mount.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dedupd_core.errors import Busy
from dedupd_core.volume.volume import Volume
from tests.support.copies import belong_here
from tests.support.lab import noise
from tests.support.mounts import MountedLab, mounted_lab

pytestmark = pytest.mark.root

CONTENT = noise(300_000)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[MountedLab]:
    with mounted_lab(tmp_path) as lab:
        (lab.view / "f").write_bytes(CONTENT)
        yield lab


@pytest.fixture
def copy(lab: MountedLab, tmp_path: Path) -> MountedLab:
    root, view = tmp_path / "copy", tmp_path / "view-of-copy"
    view.mkdir()
    subprocess.run(["cp", "-a", lab.root, root], check=True)
    belong_here(root)  # as a snapshot does, elsewhere
    return MountedLab(root, view)


def test_no_job_on_a_copy_finds_the_process_of_the_volume(
    lab: MountedLab, copy: MountedLab
) -> None:
    with (
        Volume.open(str(copy.root)) as volume,
        pytest.raises(Busy, match=f"a copy of this volume is mounted at {lab.view}"),
    ):
        volume.mount_client()
    with Volume.open(str(lab.root)) as volume:
        client = volume.mount_client()
    assert client is not None
    client.close()
