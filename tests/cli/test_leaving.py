"""docs/guide/leaving.md: a volume becomes a plain directory while users have their files."""

import json
import os
import threading
from pathlib import Path

import pytest

from tests.support.lab import prose, run_cli

pytestmark = pytest.mark.root

FINDINGS = 1
CONTENTS = {f"dir/{number}": prose(40_000, number) for number in range(12)}


def enabled(root: Path) -> None:
    (root / "dir").mkdir(parents=True)
    for name, content in CONTENTS.items():
        (root / name).write_bytes(content)
    root.chmod(0o1777)
    done = run_cli("enable", "--force", "--min-age", "0s", "--min-size", "1", root)
    assert done.returncode == 0, done
    assert run_cli("run", "optimize", root).returncode == 0


def test_users_have_their_files_while_they_become_plain(tmp_path: Path) -> None:
    root = tmp_path / "share"
    enabled(root)
    planned = json.loads(run_cli("run", "unoptimize", "--dry-run", "--json", root).stdout)
    assert planned["files"] == len(CONTENTS)
    assert planned["need_bytes"] == sum(map(len, CONTENTS.values()))
    assert (planned["missing_bytes"], planned["expected_s"] > 0) == (0, True)
    told = run_cli("run", "unoptimize", "--dry-run", root)
    assert "would expand 12 files in about" in told.stdout
    assert (root / "dir/0").stat().st_blocks <= 8, "nothing is done"
    is_over, wrong, reads = threading.Event(), list[str](), list[int]()

    def read() -> None:
        while not is_over.wait(0.01):  # the job has the lowest priority
            for name, content in CONTENTS.items():
                if (root / name).read_bytes() != content:
                    wrong.append(name)
            reads.append(1)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        left = run_cli("run", "unoptimize", "--json", root)
    finally:
        is_over.set()
        reader.join()
    assert json.loads(left.stdout)["files_restored"] == len(CONTENTS)
    assert not wrong and reads
    assert run_cli("umount", root).returncode == 0
    done = run_cli("disable", root)
    assert done.returncode == 0, done
    assert os.listdir(root) == ["dir"]
    assert root.stat().st_mode & 0o7777 == 0o1777
    assert {name: (root / name).read_bytes() for name in CONTENTS} == CONTENTS


def test_what_is_missing_is_said_beforehand(tmp_path: Path) -> None:
    root = tmp_path / "share"
    enabled(root)
    try:
        everything = os.statvfs(root).f_blocks * os.statvfs(root).f_frsize
        assert run_cli("policy", root, "reserve", str(everything)).returncode == 0
        planned = run_cli("run", "unoptimize", "--dry-run", root)
        assert planned.returncode == FINDINGS
        assert "missing: " in planned.stdout
    finally:
        assert run_cli("umount", root).returncode == 0
