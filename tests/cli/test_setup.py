"""``dedupd setup``: one conversation from a directory to a volume that saves."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lab import noise, run_cli

pytestmark = pytest.mark.root

DONE, USAGE = 0, 2
CONTENTS = {f"dir/{number}": noise(200_000, number % 4) for number in range(12)} | {
    "dir/small": noise(3_000, 99)
}


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "share"
    (root / "dir").mkdir(parents=True)
    for name, content in CONTENTS.items():
        (root / name).write_bytes(content)
    yield root
    run_cli("umount", root)


def test_a_share_is_looked_at_made_a_volume_and_optimized(root: Path) -> None:
    done = run_cli("setup", "--yes", "--force", "--now", root)
    assert done.returncode == DONE, done
    lines = done.stdout.splitlines()
    assert f"{root}: 13 files, 2.29 MiB." in lines
    (estimate,) = (line for line in lines if line.startswith("Estimated savings"))
    assert "about 67%" in estimate or "about 66%" in estimate
    assert any("min_size" in line and "1 file" in line for line in lines)
    assert lines.index("The plan:") < lines.index(
        f"{root} is now a volume, and mounted. Users can access their files as before."
    )
    assert any(line.startswith("Saved 1.5") for line in lines)
    assert "Next steps:" in lines
    assert {name: (root / name).read_bytes() for name in CONTENTS} == CONTENTS
    again = run_cli("setup", "--yes", "--force", root)
    assert (again.returncode, "is a volume already" in again.stderr) == (USAGE, True)


def test_nothing_happens_where_nobody_can_be_asked(root: Path) -> None:
    done = run_cli("setup", "--force", root)
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert "--yes" in done.stderr
    assert os.listdir(root) == ["dir"]


def test_a_program_gets_all_of_it_in_one_document(root: Path) -> None:
    done = run_cli("setup", "--yes", "--force", "--no-estimate", "--json", root)
    assert done.returncode == DONE, done
    said = json.loads(done.stdout)
    assert said["found"]["files"] == 13
    assert said["volume"]["mounted"] is True
    assert said["run"]["files_skipped"] == {"too young": 12, "below the minimum size": 1}
    assert "estimate" not in said
