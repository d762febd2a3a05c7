"""A copy is taken over by what was proved of the very files that are taken."""

import os
import subprocess
from pathlib import Path

import pytest

from dedupd_core import native
from dedupd_core.errors import DamagedStub
from dedupd_core.units import KIB
from jobs.adopt.adopt_job import Adopt
from tests.hostile.test_copies import adopt, overwrite
from tests.support.lab import Lab, new_lab, noise, write_out

pytestmark = pytest.mark.root


def test_a_spoilt_stub_that_takes_the_place_of_a_trusted_one_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = new_lab(tmp_path / "volume")
    for number, name in enumerate(("clean", "trusted", "spoilt")):
        lab.put(name, noise(400 * KIB, number))
    lab.optimize()
    for name in ("trusted", "spoilt"):
        overwrite(lab, name, noise(64 * KIB, 9), 64 * KIB, seals=True)
        write_out(lab.data / name)
    copy = Lab(tmp_path / "copy")
    subprocess.run(["cp", "-a", "--sparse=always", lab.root, copy.root], check=True)
    spoilt = tmp_path / "spoilt"
    (copy.data / "spoilt").rename(spoilt)
    with open(spoilt, "r+b") as file:
        native.system.punch_hole(file.fileno(), 64 * KIB, 64 * KIB)
    real = Adopt._take

    def take(job: Adopt, path: bytes) -> None:
        real(job, path)
        if path == b"trusted":
            os.rename(spoilt, copy.data / "trusted")

    monkeypatch.setattr(Adopt, "_take", take)
    report = adopt(copy.root, trust_holes=True)
    assert (report.adopted, report.spoilt, report.untrusted) == (1, 1, 0)
    assert any(one.startswith("trusted: the copy has holes") for one in report.messages)
    assert copy.read("clean") == noise(400 * KIB, 0)
    with pytest.raises(DamagedStub):
        copy.read("trusted")
